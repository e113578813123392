"""Import of equations with jaxprs: calls are inlined, `scan`, `while` and `cond` get nested graphs.

A jaxpr is imported after differentiation, so that custom rules of differentiation are not needed
any more. The recomputation of a `jax.checkpoint` keeps its barrier. Without the barrier XLA would
merge the recomputation with the first computation, and keep the values in memory that the
checkpoint should free.

An operand of JAX's loop or branch may be the handle of a variable. The handle does not become an
operand of the node. The nested graph reads and assigns the variable by name, until the pass
`place_variables` makes the variable an operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any  # Any: equations of JAX are untyped

import jax
from jax import lax
from jax.extend import core as jex

from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph, GraphVariable, Operand, Params, Value
from graphdist.ir.op_parameters import Branching, Looping, Scanning
from graphdist.ir.ops import ASSIGN, COND, SCAN, WHILE
from graphdist.tracing.importer import Argument, Importer, Rule
from graphdist.tracing.jax_ops import optimization_barrier
from graphdist.tracing.marks import marks_of
from graphdist.tracing.trace_in_progress import TraceError

_CHECKPOINTS = ("checkpoint", "remat2")
CALLS = (
    *("jit", "closed_call", "core_call", "eval_jaxpr"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
    *_CHECKPOINTS,
)
"""The names of JAX's call primitives."""


def called_jaxpr(equation: Any) -> jex.ClosedJaxpr:
    """Return the jaxpr that a call wraps."""
    params = equation.params
    jaxpr = params.get("jaxpr", params.get("call_jaxpr"))
    return jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jex.ClosedJaxpr(jaxpr, ())


def _import_call(importer: Importer, equation: Any) -> None:
    """Add the nodes of the jaxpr that a call wraps."""
    params = equation.params
    arguments = [importer.argument(atom) for atom in equation.invars]
    before = importer.in_checkpoint, importer.is_replay
    if equation.primitive.name in _CHECKPOINTS:
        importer.in_checkpoint = True
        importer.is_replay = params["differentiated"] or importer.is_replay
        if params["differentiated"] and params["prevent_cse"]:
            arguments = _behind_barrier(importer, arguments)
    importer.bind(equation, importer.inlined(called_jaxpr(equation), arguments, equation))
    importer.in_checkpoint, importer.is_replay = before


def _behind_barrier(importer: Importer, arguments: list[Argument]) -> list[Argument]:
    values = [argument for argument in arguments if isinstance(argument, Value)]
    if not values:
        return arguments
    types = [value.type for value in values]
    results = importer.add(optimization_barrier(), values, types=types)
    behind = dict(zip(values, results, strict=True))
    return [behind.get(a, a) if isinstance(a, Value) else a for a in arguments]


def _import_scan(importer: Importer, equation: Any) -> None:
    """Add a `scan` node."""
    params = equation.params
    num_consts, num_carry = scan_counts(params)
    arguments = [importer.argument(atom) for atom in equation.invars]
    _refuse_refs(arguments[num_consts:], "carried or sliced by jax.lax.scan")
    node_params = Scanning(
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
        num_consts=len(_values(arguments[:num_consts])),
        num_carry=num_carry,
        **marks_of(params["jaxpr"].jaxpr),
    )
    body = importer.nested(params["jaxpr"], arguments, "body")
    _add(importer, equation, SCAN, arguments, node_params, body)


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Return the number of constants and the number of carried values of a scan."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    # From jax 0.12 on the operands are described as a tree of (consts, carry, xs).
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts.vals), len(carry.vals)


def _import_while(importer: Importer, equation: Any) -> None:
    """Add a `while` node."""
    params = equation.params
    num_tested, num_iterated = params["cond_nconsts"], params["body_nconsts"]
    condition_jaxpr, body_jaxpr = params["cond_jaxpr"], params["body_jaxpr"]
    arguments = [importer.argument(atom) for atom in equation.invars]
    if condition_jaxpr.out_avals[0].shape:
        condition_jaxpr, body_jaxpr = _batched(
            condition_jaxpr, body_jaxpr, num_tested, num_iterated
        )
        arguments = [*arguments[:num_tested], *arguments]  # the body tests the condition again
        num_iterated += num_tested
    tested, iterated = arguments[:num_tested], arguments[num_tested:]
    carried = iterated[num_iterated:]
    _refuse_refs(carried, "carried by jax.lax.while_loop")
    condition = importer.nested(condition_jaxpr, [*tested, *carried], "condition")
    for variable in _assigned(condition):
        raise TraceError(
            f"variable {variable.name!r} is assigned in the condition of jax.lax.while_loop",
            hint="carry the predicate, and compute it in the body together with the assignment",
        )
    body = importer.nested(body_jaxpr, iterated, "body")
    node_params = Looping(len(_values(tested)), len(_values(iterated[:num_iterated])))
    _add(importer, equation, WHILE, arguments, node_params, condition, body)


def _batched(
    condition: jex.ClosedJaxpr, body: jex.ClosedJaxpr, of_condition: int, of_body: int
) -> tuple[jex.ClosedJaxpr, jex.ClosedJaxpr]:
    """Return condition and body of a loop under `jax.vmap`, where JAX has a predicate per example.

    The loop iterates until all examples are done. Its body takes the constants of the condition,
    then those of the body, and does not change the examples that are done.
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

    # JAX identifies refs by their type objects, and raises if one is passed twice. So copy them.
    avals = map(copy, (*condition.in_avals[:of_condition], *body.in_avals))
    return (
        jax.make_jaxpr(any_continues)(*condition.in_avals),
        jax.make_jaxpr(iterate_unfinished)(*avals),
    )


def _import_cond(importer: Importer, equation: Any) -> None:
    """Add a `cond` node."""
    arguments = [importer.argument(atom) for atom in equation.invars]
    branches = [
        importer.nested(branch, arguments[1:], f"branch_{number}")
        for number, branch in enumerate(equation.params["branches"])
    ]
    _add(importer, equation, COND, arguments, Branching(), *branches)


def _refuse_refs(arguments: Sequence[Argument], what: str) -> None:
    """Raise `TraceError` if a loop uses a variable as `what` says, such as "carried by"."""
    if len(_values(arguments)) < len(arguments):
        raise TraceError(f"a ref is {what}", hint="close over the variable, or carry its value")


def _values(arguments: Sequence[Argument]) -> list[Operand]:
    """Return the arguments that are not variables."""
    return [argument for argument in arguments if not isinstance(argument, GraphVariable)]


def _add(
    importer: Importer,
    equation: Any,
    op: Any,
    arguments: Sequence[Argument],
    params: Params,
    *graphs: Graph,
) -> None:
    importer.bind(equation, importer.add(op, _values(arguments), params, graphs))
    # An assignment in a body makes a version that no read inside the body has seen.
    for graph in graphs:
        for variable in _assigned(graph):
            importer.versions.written(variable, importer.source)


def _assigned(graph: Graph) -> set[GraphVariable]:
    """Return the variables assigned in a graph or the graphs nested in it."""
    return {ASSIGN.of(node).variable for node in walk(graph) if node.op is ASSIGN}


RULES: dict[str, Rule] = {
    **dict.fromkeys(CALLS, _import_call),
    "scan": _import_scan,
    "while": _import_while,
    "cond": _import_cond,
}
"""The rules that import calls, loops and branches."""
