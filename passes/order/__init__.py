"""Passes: the order and the stages of collectives and loops."""
