"""Reports on a step: its memory, traffic and time, and the changes that each pass made."""
