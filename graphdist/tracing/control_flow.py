"""Import of `scan`, `while` and `cond`: nested jaxprs become nested graphs.

An operand may be the handle of a variable. The node does not get it: the nested graph reads
and assigns the variable by name, until `place_variables` threads the state through.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any  # Any: equations of JAX are untyped

import jax
from jax import lax
from jax.extend import core as jex

from graphdist.ir.graph import Graph, GraphVariable, Operand, Params
from graphdist.ir.op_parameters import Branching, Looping, Scanning
from graphdist.ir.ops import ASSIGN, COND, SCAN, WHILE
from graphdist.tracing.importer import Environment, Importer, bind
from graphdist.tracing.loop_marks import marks_of
from graphdist.tracing.state import TraceError
from graphdist.tracing.user_lines import source_of_equation


def import_scan(importer: Importer, equation: Any, environment: Environment) -> None:
    """Add a `scan` node."""
    params = equation.params
    num_consts, num_carry = scan_counts(params)
    handles = _handles(equation.invars, environment)
    if any(handles[num_consts:]):
        raise TraceError(
            "a ref is carried or sliced by jax.lax.scan",
            source=source_of_equation(equation),
            hint="close over the variable, or carry its value",
        )
    body = importer.nested(params["jaxpr"], handles, "body")
    kept = Scanning(
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
        num_consts=num_consts - _count(handles),
        num_carry=num_carry,
        **marks_of(params["jaxpr"].jaxpr),
    )
    operands = _values(importer, equation.invars, environment)
    _finish(importer, equation, environment, SCAN, operands, kept, (body,))


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Return how many constants and how many carried values a scan takes."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    # From jax 0.12 on the operands are described as a tree of (consts, carry, xs).
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts.vals), len(carry.vals)


def import_while(importer: Importer, equation: Any, environment: Environment) -> None:
    """Add a `while` node."""
    params = equation.params
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    condition_jaxpr, body_jaxpr = params["cond_jaxpr"], params["body_jaxpr"]
    invars = equation.invars
    if condition_jaxpr.out_avals[0].shape:
        condition_jaxpr, body_jaxpr = _batched(condition_jaxpr, body_jaxpr, of_condition, of_body)
        invars = (*invars[:of_condition], *invars)  # the body tests the condition again
        of_body += of_condition
    handles = _handles(invars, environment)
    carried = handles[of_condition + of_body :]
    if any(carried):
        raise TraceError(
            "a ref is carried by jax.lax.while_loop",
            source=source_of_equation(equation),
            hint="close over the variable, or carry its value",
        )
    condition = importer.nested(condition_jaxpr, (*handles[:of_condition], *carried), "condition")
    for variable in _assigned(condition):
        raise TraceError(
            f"variable {variable.name!r} is assigned in the condition of jax.lax.while_loop",
            source=source_of_equation(equation),
            hint="carry the predicate, and compute it in the body together with the assignment",
        )
    body = importer.nested(body_jaxpr, handles[of_condition:], "body")
    kept = Looping(
        of_condition - _count(handles[:of_condition]),
        of_body - _count(handles[of_condition : of_condition + of_body]),
    )
    operands = _values(importer, invars, environment)
    _finish(importer, equation, environment, WHILE, operands, kept, (condition, body))


def _batched(
    condition: jex.ClosedJaxpr, body: jex.ClosedJaxpr, of_condition: int, of_body: int
) -> tuple[jex.ClosedJaxpr, jex.ClosedJaxpr]:
    """Return condition and body of a loop under `jax.vmap`, which JAX leaves with many predicates.

    It goes on while one example does; the body, which takes the condition's constants before its
    own, leaves the examples alone that are done.
    """
    test, step = jex.jaxpr_as_fun(condition), jex.jaxpr_as_fun(body)

    def any_goes_on(*arguments: Any) -> Any:
        return test(*arguments)[0].any()

    def step_where_it_goes_on(*arguments: Any) -> list[Any]:
        old = arguments[of_condition + of_body :]
        (goes_on,) = test(*arguments[:of_condition], *old)
        return [
            lax.select(lax.broadcast_in_dim(goes_on, x.shape, range(goes_on.ndim)), x, before)
            for x, before in zip(step(*arguments[of_condition:]), old, strict=True)
        ]

    # Copies: JAX refuses one ref twice, and tells refs apart by the identity of their types.
    avals = map(copy, (*condition.in_avals[:of_condition], *body.in_avals))
    return (
        jax.make_jaxpr(any_goes_on)(*condition.in_avals),
        jax.make_jaxpr(step_where_it_goes_on)(*avals),
    )


def import_cond(importer: Importer, equation: Any, environment: Environment) -> None:
    """Add a `cond` node."""
    handles = _handles(equation.invars[1:], environment)
    branches = tuple(
        importer.nested(branch, handles, f"branch_{number}")
        for number, branch in enumerate(equation.params["branches"])
    )
    operands = _values(importer, equation.invars, environment)
    _finish(importer, equation, environment, COND, operands, Branching(), branches)


def _handles(atoms: Sequence[Any], environment: Environment) -> tuple[GraphVariable | None, ...]:
    found = (None if type(atom) is jex.Literal else environment[atom] for atom in atoms)
    return tuple(item if isinstance(item, GraphVariable) else None for item in found)


def _count(handles: Sequence[GraphVariable | None]) -> int:
    return sum(handle is not None for handle in handles)


def _values(importer: Importer, atoms: Sequence[Any], environment: Environment) -> list[Operand]:
    handles = _handles(atoms, environment)
    return [
        importer.operand(atom, environment)
        for atom, handle in zip(atoms, handles, strict=True)
        if handle is None
    ]


def _finish(
    importer: Importer,
    equation: Any,
    environment: Environment,
    op: Any,
    operands: Sequence[Operand],
    params: Params,
    graphs: tuple[Graph, ...],
) -> None:
    source = source_of_equation(equation)
    results = importer.builder.add(op, operands, params, graphs, at=source)
    bind(equation, results, environment)
    # A body that assigns a variable leaves it at a version that no read inside it saw last.
    for graph in graphs:
        for variable in _assigned(graph):
            importer.versions.written(variable, source)


def _assigned(graph: Graph) -> set[GraphVariable]:
    found: set[GraphVariable] = set()
    pending = [graph]
    while pending:
        for node in pending.pop().nodes:
            if node.op is ASSIGN:
                found.add(ASSIGN.of(node).variable)
            pending.extend(node.graphs)
    return found
