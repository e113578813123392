"""Import of `scan`, `while` and `cond`: nested jaxprs become nested graphs.

An operand may be the handle of a variable. It is no operand of the node: the nested graph reads
and assigns the variable by name, until `place_variables` makes the variable an operand.
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
    node_params = Scanning(
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
        num_consts=num_consts - _count(handles),
        num_carry=num_carry,
        **marks_of(params["jaxpr"].jaxpr),
    )
    operands = _values(importer, equation.invars, environment)
    _finish(importer, equation, environment, SCAN, operands, node_params, (body,))


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
    node_params = Looping(
        of_condition - _count(handles[:of_condition]),
        of_body - _count(handles[of_condition : of_condition + of_body]),
    )
    operands = _values(importer, invars, environment)
    _finish(importer, equation, environment, WHILE, operands, node_params, (condition, body))


def _batched(
    condition: jex.ClosedJaxpr, body: jex.ClosedJaxpr, of_condition: int, of_body: int
) -> tuple[jex.ClosedJaxpr, jex.ClosedJaxpr]:
    """Return condition and body of a loop under `jax.vmap`, where JAX has a predicate per example.

    The loop iterates until all examples are done. Its body takes the constants of the condition
    before its own, and does not change the examples that are done.
    """
    test, iteration = jex.jaxpr_as_fun(condition), jex.jaxpr_as_fun(body)

    def any_continues(*arguments: Any) -> Any:
        return test(*arguments)[0].any()

    def iterate_unfinished(*arguments: Any) -> list[Any]:
        old = arguments[of_condition + of_body :]
        (continues,) = test(*arguments[:of_condition], *old)
        return [
            lax.select(lax.broadcast_in_dim(continues, x.shape, range(continues.ndim)), x, before)
            for x, before in zip(iteration(*arguments[of_condition:]), old, strict=True)
        ]

    # JAX identifies refs by their type objects, and refuses the same ref twice: hence copies.
    avals = map(copy, (*condition.in_avals[:of_condition], *body.in_avals))
    return (
        jax.make_jaxpr(any_continues)(*condition.in_avals),
        jax.make_jaxpr(iterate_unfinished)(*avals),
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
    """Return the variable of each atom that is a handle, None for values."""
    operands = (None if type(atom) is jex.Literal else environment[atom] for atom in atoms)
    return tuple(item if isinstance(item, GraphVariable) else None for item in operands)


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
    # An assignment in a body makes a version that no read inside the body has seen.
    for graph in graphs:
        for variable in _assigned(graph):
            importer.versions.written(variable, source)


def _assigned(graph: Graph) -> set[GraphVariable]:
    """Return the variables assigned in a graph or the graphs nested in it."""
    variables: set[GraphVariable] = set()
    pending = [graph]
    while pending:
        for node in pending.pop().nodes:
            if node.op is ASSIGN:
                variables.add(ASSIGN.of(node).variable)
            pending.extend(node.graphs)
    return variables
