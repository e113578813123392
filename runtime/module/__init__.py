"""A compiled XLA module, read from its text: instructions, collectives, memory, cost, timeline."""
