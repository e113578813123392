"""The graph: types, values, nodes, the builder and rewriter, text, verifier, reference interpreter.

Imports nothing of graphdist outside this package, and no JAX.
"""
