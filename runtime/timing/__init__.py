"""The lanes of a predicted step, and the timeline of a graph that is not compiled."""
