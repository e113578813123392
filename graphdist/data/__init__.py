"""Distributed datasets: sharding and rebatching of input."""
