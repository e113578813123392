"""Reports on a step: what it needs, moves and takes, and what the passes did to it."""
