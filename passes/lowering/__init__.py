"""Passes: from the operations between replicas to collectives."""
