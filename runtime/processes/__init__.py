"""The processes of a cluster: their rendezvous, messages and failures.

`workers` has the index of this process, and imports nothing else of the package. `cluster_workers`
implements it for a cluster: all workers of a job, and this worker's connection to them.
"""
