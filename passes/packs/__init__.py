"""Passes: small variables and collectives in common buffers."""
