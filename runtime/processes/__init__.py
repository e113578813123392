"""The processes of a cluster: how they meet, agree, run steps together and fail.

`workers` says which process this one is, and needs nothing of the rest; `cluster_workers` is the
other end of it: all workers of a job, as one of them sees them.
"""
