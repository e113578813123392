"""Which of the variables that are given to `gd.aot.load` a saved step reads and assigns.

A file knows names, shapes and dtypes. Where two variables have all of them in common, none is
taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any  # Any: pytrees of variables

import jax

from graphdist.errors import ArgumentError, ContextError
from graphdist.ir.graph import Graph
from graphdist.state.variable import Variable
from graphdist.tracing.sources import here

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase

__all__ = ["variables_for"]


def variables_for(name: str, graph: Graph, strategy: StrategyBase, tree: Any) -> list[Variable]:
    """Return the variables that a step reads and assigns, found by name, shape and dtype."""
    left = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Variable)]
    found = []
    for wanted in graph.variables:
        match = _match(name, left, wanted)
        if match is None:
            names = ", ".join(f"{one.name!r} {one.spec(one.name).type}" for one in left[:8])
            raise ArgumentError(
                f"{name} needs a variable {wanted.name!r} {wanted.type}, which is not among the "
                f"{len(left)} given that are left{': ' if names else ''}{names}",
                source=here(),
                hint="make the variables as for the function, and pass them: "
                "load(path, variables=[params, state])",
            )
        if match.strategy is not strategy and not match.is_plain:
            raise ContextError(
                f"variable {match.name!r} belongs to {match.strategy}, the step runs on {strategy}",
                source=here(),
            )
        left = [one for one in left if one is not match]
        found.append(match)
    return found


def _match(name: str, left: list[Variable], wanted: Any) -> Variable | None:
    """Return the one variable that has the name and the type of one in the graph."""
    base, _, number = wanted.name.rpartition("_")
    # The graph numbers those of one name; one that has the name as it is goes first.
    for wanted_name in (wanted.name, base) if number.isdigit() else (wanted.name,):
        named = [one for one in left if one.name == wanted_name]
        found = [one for one in named if one.spec(wanted.name).type == wanted.type]
        if len(found) > 1:
            raise ArgumentError(
                f"{name} needs a variable {wanted.name!r} {wanted.type}, and {len(found)} of those "
                f"given are called {wanted_name!r}: any of them could be meant",
                source=here(),
                hint="give variables names of their own where they are made, before the step is "
                "saved",
            )
        if found:
            return found[0]
    return None
