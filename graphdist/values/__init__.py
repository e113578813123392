"""Per-replica and mirrored values, outside functions and in traces, and their specs."""
