"""Strategies: the devices that replicas run on, and the API. One file per strategy."""
