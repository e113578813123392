"""Passes on logical graphs: layouts, local steps, and the placement of variables."""
