"""Finds the variables of a saved step among the variables given to `gd.aot.load`.

A file holds their names, shapes and dtypes. If two given variables fit the same description,
neither is taken, and an error says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any  # Any: pytrees of variables

import jax

from graphdist.errors import ArgumentError, ContextError
from graphdist.ir.graph import Graph
from graphdist.state.variable import Variable
from graphdist.tracing.user_lines import here

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
            names = ", ".join(f"{given.name!r} {given.spec(given.name).type}" for given in left[:8])
            raise ArgumentError(
                f"{name} needs a variable {wanted.name!r} {wanted.type}, which is not among the "
                f"{len(left)} given that are left{': ' if names else ''}{names}",
                source=here(),
                hint="make the variables as for the function, and pass them: "
                "load(path, variables=[params, state])",
            )
        if match.strategy is not strategy and not match.is_plain:
            raise ContextError(
                f"variable {match.name!r} belongs to {match.strategy}, the step runs on "
                f"{'another ' if str(match.strategy) == str(strategy) else ''}{strategy}",
                source=here(),
                hint="give load the variables' strategy: load(path, strategy=strategy, ..); two "
                "strategies are two, even on the same devices",
            )
        left = [variable for variable in left if variable is not match]
        found.append(match)
    return found


def _match(name: str, left: list[Variable], wanted: Any) -> Variable | None:
    """Return the variable with the name and the type of the graph's variable `wanted`, or None."""
    base, _, number = wanted.name.rpartition("_")
    # A graph numbers variables of the same name; a variable with the number in its name goes first.
    for wanted_name in (wanted.name, base) if number.isdigit() else (wanted.name,):
        named = [variable for variable in left if variable.name == wanted_name]
        found = [variable for variable in named if variable.spec(wanted.name).type == wanted.type]
        if len(found) > 1:
            raise ArgumentError(
                f"{name} needs a variable {wanted.name!r} {wanted.type}, and {len(found)} of the "
                f"given ones are called {wanted_name!r}: any of them could be meant",
                source=here(),
                hint="give the variables different names where they are made, before the step is "
                "saved",
            )
        if found:
            return found[0]
    return None
