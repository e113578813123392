"""Strategies: where replicas run and what their API is. One file a strategy."""
