"""Passes: the cut of a step with parameter servers into the graphs that run."""
