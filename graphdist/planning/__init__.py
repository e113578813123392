"""Plans: the search for how to run a step. `planner.py` is the search."""
