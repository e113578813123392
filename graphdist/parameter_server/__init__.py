"""Asynchronous training: variables on servers, steps on workers, which a coordinator schedules.

The engine is Ray (extra `ps`), which `ray_cluster.py` imports for the other modules.
"""
