"""Passes: which values are sharded, and where layouts are converted."""
