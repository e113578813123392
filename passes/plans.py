"""A plan: what the compiler may choose about a step, as data.

Passes apply a plan and choose nothing by themselves. What a plan does not name follows the program
and the rules of the passes. A plan is a JSON file:

    {"graph": "9f2c..", "residuals": {"query": "device", "layer+17:logistic": "recompute"}}

`graph` identifies the program that the plan was made for; a plan that a person writes may leave it
out. `residuals` says for values of the forward pass how the backward pass gets them. `cores` says
for variables along which dimension the cores of a replica hold shards of them, or null for full
values: `{"cores": {"layers_up": 2}}`. `"unrolled": true` runs layers that a loop scans one after
another, without the loop. `compared` has the plans that a search compared with it, for
those who look at the step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from operator import index
from typing import Any  # Any: JSON

from graphdist.ir.errors import PlanError
from graphdist.ir.graph import Graph
from graphdist.ir.value_names import ValueName
from graphdist.passes.compared_plans import ComparedPlans
from graphdist.quoted import did_you_mean, quoted, unquoted

_FIELDS = ("graph", "residuals", "cores", "unrolled", "compared")


class Keep(Enum):
    """How the backward pass gets a value of the forward pass."""

    DEVICE = "device"
    """The value waits in the memory of the device."""
    RECOMPUTE = "recompute"
    """The backward pass computes the value again."""
    HOST = "host"
    """The value waits in the memory of the device's host."""


@dataclass(frozen=True)
class Plan:
    """What the compiler may choose about a step.

    >>> plan = Plan({"query": "device"})
    >>> print(plan.to_json())
    {
      "residuals": {
        "query": "device"
      }
    }
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    residuals: Mapping[ValueName, Keep] = field(default_factory=dict, hash=False)
    graph: str = ""
    """The identity of the logical graph that the plan was made for; "" fits every graph."""
    cores: Mapping[str, int | None] = field(default_factory=dict, hash=False)
    """The dimensions of variables that are sharded over cores; others follow the program."""
    unrolled: bool = False
    """Whether loops over stacked layers are emitted as layers, one after another."""
    compared: ComparedPlans | None = field(default=None, compare=False)
    """The plans that a search compared with this one; None for a plan of another origin."""

    def __post_init__(self) -> None:
        """Read names and ways that are strings; raises `PlanError` for what is neither."""
        if not isinstance(self.unrolled, bool):
            raise PlanError(f"unrolled is {quoted(self.unrolled)}, not true or false")
        object.__setattr__(self, "residuals", _residuals(self.residuals))
        object.__setattr__(self, "cores", _cores(self.cores))

    def to_items(self) -> dict[str, Any]:
        """Return the plan as JSON objects, without what it was compared with."""
        residuals = {str(name): keep.value for name, keep in self.residuals.items()}
        graph: dict[str, Any] = {"graph": self.graph} if self.graph else {}
        cores = {"cores": dict(self.cores)} if self.cores else {}
        unrolled = {"unrolled": True} if self.unrolled else {}
        return {**graph, "residuals": residuals, **cores, **unrolled}

    def to_json(self) -> str:
        """Return the plan as text, which `from_json` reads."""
        text = json.dumps(self.to_items(), indent=2)
        if self.compared is None:
            return text
        compared = json.dumps(self.compared.to_items())  # on one line, behind what a person edits
        return f'{text[:-2]},\n  "compared": {compared}\n}}'

    @staticmethod
    def from_json(text: str) -> Plan:
        """Return the plan of a text; raises `PlanError` for a text that is no plan."""
        try:
            items = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"the plan is no JSON: {unquoted(str(error))}") from error
        if not isinstance(items, dict):
            raise PlanError(f"the plan is {quoted(items)}, not an object with {_listed()}")
        for name in items:
            if name not in _FIELDS:
                raise PlanError(
                    f"the plan has a field {quoted(name)}: it may have {_listed()}",
                    hint=did_you_mean(name, _FIELDS),
                )
        graph = items.get("graph", "")
        if not isinstance(graph, str):
            raise PlanError(f"graph is {quoted(graph)}, not a string")
        compared = ComparedPlans.from_items(items["compared"]) if "compared" in items else None
        residuals, cores = items.get("residuals", {}), items.get("cores", {})
        return Plan(residuals, graph, cores, items.get("unrolled", False), compared)

    def require_made_for(self, graph: Graph) -> None:
        """Raise `PlanError` if the plan is for another graph, or names a variable that none has."""
        if self.graph and self.graph != identity_of(graph):
            raise PlanError(
                f"the plan was made for another graph than that of {graph.name}: its identity is "
                f"{unquoted(self.graph)[:12]}, that of the graph {identity_of(graph)[:12]}",
                hint="make a new plan; or remove `graph` from the plan, if the names of its values "
                "still mean the same",
            )
        names = [variable.name for variable in graph.variables]
        for name in self.cores:
            if name not in names:
                raise PlanError(
                    f"the plan shards {quoted(name)} over cores, and {graph.name} has no such "
                    f"variable",
                    hint=did_you_mean(name, names),
                )


def identity_of(graph: Graph) -> str:
    """Return 64 digits that two logical graphs share only if they compute the same.

    How variables are stored is left out, since calls change it.
    """
    lines = (line for line in str(graph).splitlines() if not line.startswith("  variable @"))
    return sha256("\n".join(lines).encode()).hexdigest()


def _listed() -> str:
    return " and ".join(_FIELDS).replace(" and ", ", ", len(_FIELDS) - 2)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise PlanError(f"the plan gives {quoted(twice)} twice: leave one out")
    return items


def _residuals(items: Any) -> Mapping[ValueName, Keep]:
    if not isinstance(items, Mapping):
        raise PlanError(f"residuals is {quoted(items)}, not an object of names")
    known: dict[Any, Keep] = {keep.value: keep for keep in Keep}
    found: dict[ValueName, Keep] = {}
    for given, keep in items.items():
        name = ValueName.parse(given) if isinstance(given, str) else given
        if not isinstance(name, ValueName):
            raise PlanError(f"the plan names {quoted(given)}, which is no string")
        if not isinstance(keep, Keep) and (not isinstance(keep, str) or keep not in known):
            raise PlanError(
                f"the plan says {quoted(keep)} for {quoted(str(name))}: it may say "
                f"{', '.join(known)}"
            )
        if name in found:
            raise PlanError(f"the plan gives {quoted(str(name))} twice: leave one out")
        found[name] = keep if isinstance(keep, Keep) else known[keep]
    return found


def _cores(items: Any) -> Mapping[str, int | None]:
    if not isinstance(items, Mapping):
        raise PlanError(f"cores is {quoted(items)}, not an object of variables' names")
    found: dict[str, int | None] = {}
    for name, dimension in items.items():
        is_index = hasattr(dimension, "__index__") and not isinstance(dimension, bool)
        if isinstance(name, str) and (dimension is None or (is_index and dimension >= 0)):
            found[name] = None if dimension is None else index(dimension)
        else:
            raise PlanError(
                f"the plan says {quoted(dimension)} for the cores of {quoted(name)}: it may say a "
                f"dimension, from 0 on, or null"
            )
    return found


NO_PLAN = Plan()
"""The plan that follows the program and the rules of the passes."""
