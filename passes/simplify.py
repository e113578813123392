"""Clean up: canonicalize, fold, merge and remove, until nothing changes any more.

One unit between the passes that do something, so that none of these has to clean up after itself.

Before:  %a = jax.mul(%x, 1.0)   %b = jax.sin(%x)   %c = jax.sin(%a)   %d = jax.add(%b, %c)
After:   %b = jax.sin(%x)   %d = jax.add(%b, %b)

Each round lets the next one see more; most graphs are done after two. After `MAX_ROUNDS` rounds
the graph is returned as it is: smaller than it was and just as right. Left alone is what the four
passes leave alone.
"""

from __future__ import annotations

from graphdist.ir.graph import Graph
from graphdist.passes.canonicalize import canonicalize
from graphdist.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from graphdist.passes.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.fold_constants import fold_constants

__all__ = ["simplify"]

MAX_ROUNDS = 8

_STEPS = (
    canonicalize,
    fold_constants,
    eliminate_common_subexpressions,
    eliminate_dead_code,
)


def simplify(graph: Graph) -> Graph:
    """Return the graph after as many rounds of clean-up as change it, or `MAX_ROUNDS`."""
    for _ in range(MAX_ROUNDS):
        before = graph
        for step in _STEPS:
            graph = step(graph)
        if graph is before:
            break
    return graph
