"""Programs the importer refuses because of what JAX hides from it.

An operation of JAX with jaxprs among its parameters, but for loops, branches and calls, is one node
of the graph. No pass looks inside, so it must hold no operation of ours.
"""

from __future__ import annotations

from typing import Any  # Any: equations and parameters of JAX are untyped

from jax.extend import core as jex

from graphdist.tracing.named_collectives import is_over_replicas
from graphdist.tracing.primitives import LOGICAL
from graphdist.tracing.state import TraceError
from graphdist.tracing.user_lines import here, source_of_equation


def leaked(jaxpr: jex.Jaxpr, variable: Any) -> TraceError:
    """Return the error for a constant of a jaxpr that was computed in another trace."""
    users = [e for e in jaxpr.eqns if any(atom is variable for atom in e.invars)]
    return TraceError(
        "a value that was computed while another function was traced, or in an earlier trace of "
        "this one, is used here: it stands for no numbers",
        source=source_of_equation(users[0]) if users else here(),
        hint="return it from where it was computed and pass it, or keep it in a gd.Variable",
    )


_higher_order: dict[Any, bool] = {}


def is_higher_order(primitive: Any, params: dict[str, Any]) -> bool:
    """Return whether a primitive has jaxprs among its parameters, as all its equations do."""
    known = _higher_order.get(primitive)
    if known is None:
        known = _higher_order[primitive] = any(True for _ in _jaxprs(params.values()))
    return known


def _jaxprs(params: Any) -> Any:
    for param in params:
        if isinstance(param, jex.ClosedJaxpr):
            yield param.jaxpr
        elif isinstance(param, jex.Jaxpr):
            yield param
        elif isinstance(param, tuple | list):
            yield from _jaxprs(param)


_ACCESSES = {
    "get": "a variable or ref is read",
    "swap": "a variable or ref is assigned",
    "addupdate": "a variable or ref is added to",
}


_OVER_MESHES = ("shard_map", "xla_pmap")


def refuse_nested(equation: Any, *, takes_variables: bool) -> None:
    """Raise `TraceError` for logical operations and variables inside an operation kept opaque.

    Also for a mesh of the user's: the strategy decides which device does which work. Refs inside
    an operation that takes no variable are its own, such as the blocks of a Pallas kernel.
    """
    source = source_of_equation(equation)
    if equation.primitive.name in _OVER_MESHES:
        raise TraceError(
            f"{equation.primitive.name} inside a function: which device does what is the "
            f"strategy's to say",
            source=source,
            hint="write what one replica does, with gd.get_replica_context() for collectives, and "
            "give it to strategy.run",
        )
    pending = list(_jaxprs(equation.params.values()))
    while pending:
        for inner in pending.pop().eqns:
            name = inner.primitive.name
            opaque = LOGICAL.get(inner.primitive)
            if opaque is None and takes_variables:
                opaque = _ACCESSES.get(name)
            if opaque is None and is_over_replicas(inner):
                opaque = name
            if opaque is not None:
                raise TraceError(
                    f"{opaque} inside {equation.primitive.name}, an operation of JAX that the "
                    f"graph keeps whole",
                    source=source_of_equation(inner),
                    other=source,
                    hint="read the variable before the operation, and assign it after"
                    if name in _ACCESSES
                    else f"move the {opaque} out of the operation",
                )
            pending.extend(_jaxprs(inner.params.values()))
