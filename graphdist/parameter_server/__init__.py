"""Asynchronous training: variables on servers, steps on workers, a coordinator that schedules them.

The engine is Ray (extra `ps`), which `ray_cluster.py` imports for the other modules.
"""
