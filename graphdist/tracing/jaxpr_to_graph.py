"""A traced jaxpr as a logical graph.

The equations are imported in order, each by the rule of its primitive:

* a logical primitive becomes the graph's operation of that name;
* JAX's collectives over the replicas become graphdist's operations (`named_collectives.py`);
* calls (`jit`, `closed_call`, `custom_jvp_call`, `checkpoint` and others) are inlined, and
  `scan`, `while` and `cond` become nodes with nested graphs (`control_flow.py`);
* reads and writes of refs become reads and assignments of variables (`refs.py`);
* the mark of a mean of integers is recorded, and becomes no node (`marks.py`);
* the mark of a loop becomes a parameter of the loop's node (`marks.py`);
* any other equation becomes a `jax.*` node (`importer.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: equations of JAX are untyped

from jax.extend import core as jex

from graphdist.ir.graph import Graph, GraphVariable, Stage, Value
from graphdist.ir.ops import OPS
from graphdist.tracing import control_flow, refs
from graphdist.tracing.axis_name import RunBy
from graphdist.tracing.importer import Importer, Rule
from graphdist.tracing.marks import IntegerMeans, integer_mean_p, loop_mark_p
from graphdist.tracing.named_collectives import (
    NAMED,
    has_mirrored_result,
    is_over_replicas,
    lowered_collective,
    names_of_axes,
)
from graphdist.tracing.primitives import LOGICAL
from graphdist.tracing.trace_in_progress import outside_replica_functions
from graphdist.tracing.user_lines import called_here


def import_jaxpr(
    closed: jex.ClosedJaxpr,
    *,
    name: str,
    num_replicas: int,
    inputs: Sequence[Value],
    variables: Sequence[GraphVariable],
    returns_per_replica: Sequence[bool],
    means: IntegerMeans,
    num_groups: int = 1,
    num_cores: int = 1,
) -> Graph:
    """Return the logical graph of a traced program.

    `inputs` are the values of the jaxpr's arguments, with layout and name. `variables` are
    the variables that the trace used. The operands of the program's means are recorded in `means`.
    Raises `TraceError` if no graph can express the program.
    """
    importer = Importer(_RULES, num_replicas, means, [variable.name for variable in variables])
    with called_here():
        outputs = importer.inlined(closed, inputs)
    return Graph(
        name,
        Stage.LOGICAL,
        num_replicas,
        tuple(inputs),
        importer.used_nodes(outputs),
        tuple(outputs),
        (*variables, *importer.locals),
        tuple(returns_per_replica),
        num_groups,
        num_cores,
    )


def _import_logical(importer: Importer, equation: Any) -> None:
    op, operands = OPS[LOGICAL[equation.primitive]], importer.operands(equation)
    importer.bind(equation, importer.add(op, operands, equation.params))


def _import_named(importer: Importer, equation: Any) -> None:
    """Add the nodes of one of JAX's collectives over the replicas."""
    if not is_over_replicas(equation):
        importer.add_jax_node(equation)
        return
    run_by = importer.run_by()
    if run_by is RunBy.CROSS_REPLICA_CONTEXT:
        raise outside_replica_functions(names_of_axes(equation)[0], importer.source)
    if importer.num_replicas == 1 and not has_mirrored_result(equation):
        importer.means.uses_replica_id = True
    size = 1 if run_by is RunBy.DEFAULT_STRATEGY else importer.num_replicas
    lowered = lowered_collective(equation, size)
    importer.bind(equation, importer.inlined(lowered, importer.operands(equation)))


def _import_integer_mean(importer: Importer, equation: Any) -> None:
    (operand,) = importer.operands(equation)
    importer.bind(equation, [operand])
    # In a nested graph, replicas that run another branch may have another literal.
    is_provable = isinstance(operand, Value) or not importer.is_nested
    importer.means.note(equation.params["mean_id"], operand if is_provable else None)


def _forward(importer: Importer, equation: Any) -> None:
    importer.bind(equation, importer.operands(equation))


_RULES: dict[str, Rule] = {
    **control_flow.RULES,
    **refs.RULES,
    **{primitive.name: _import_logical for primitive in LOGICAL},
    **dict.fromkeys(NAMED, _import_named),
    integer_mean_p.name: _import_integer_mean,
    loop_mark_p.name: _forward,
    "stop_gradient": _forward,
}
