"""Passes: what the strategy means, before variables are placed."""
