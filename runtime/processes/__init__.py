"""The processes of a cluster: their rendezvous, messages and failures.

`workers` says which process this one is, and imports nothing else of the package. `cluster_workers`
is the implementation for a cluster: all workers of a job, as one of them sees them.
"""
