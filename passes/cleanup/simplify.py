"""Clean up: fold, canonicalize, merge and remove, until nothing changes any more.

`simplify` runs between other passes, so these need not simplify their own results.

Before:  %a = jax.mul(%x, 1.0)   %b = jax.sin(%x)   %c = jax.sin(%a)   %d = jax.add(%b, %c)
After:   %b = jax.sin(%x)   %d = jax.add(%b, %b)

A round may make more rewrites possible in the next one; most graphs need one round or two. After
`MAX_ROUNDS` rounds the graph is returned, even if another round would change it. Dead nodes are
removed once, at the end, because the passes of a round look only at the nodes that compute a value,
not at a value's users. This pass leaves alone whatever the four passes leave alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice

from graphdist.ir.graph import Graph
from graphdist.passes.cleanup.canonicalize import canonicalize
from graphdist.passes.cleanup.eliminate_common_subexpressions import eliminate_common_subexpressions
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.cleanup.fold_constants import fold_constants

MAX_ROUNDS = 8

# Constants are folded first, because the rules of `canonicalize` look at constants.
ROUND = fold_constants, canonicalize, eliminate_common_subexpressions
"""The passes of one round, in order."""


def simplify(graph: Graph) -> Graph:
    """Run rounds of clean-up until nothing changes, but at most `MAX_ROUNDS`."""
    returned: dict[Callable[[Graph], Graph], Graph] = {}
    for run in islice(cycle(ROUND), MAX_ROUNDS * len(ROUND)):
        if returned.get(run) is graph:  # no pass has changed the graph that this pass returned
            break
        graph = returned[run] = run(graph)
    return eliminate_dead_code(graph)
