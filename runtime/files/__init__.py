"""Compiled steps and checkpoints on disk, written durably, and checked when they are read."""
