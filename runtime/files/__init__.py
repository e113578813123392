"""Compiled steps and checkpoints on disk, written durably and read with suspicion."""
