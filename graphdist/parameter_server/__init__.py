"""Asynchronous training: variables on servers, steps on workers, a coordinator that schedules them.

The engine is Ray (extra `ps`): `cluster.py` is the only module that imports it.
"""
