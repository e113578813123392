"""A traced jaxpr as a logical graph.

The equations are imported in order, each by the rule of its primitive:

* a logical primitive becomes the graph's operation of that name;
* calls (`jit`, `closed_call`, `custom_jvp_call`, `checkpoint` and others) are inlined (`calls.py`);
* JAX's collectives over the replicas become ours (`named_collectives.py`);
* `scan`, `while` and `cond` become nodes with nested graphs (`control_flow.py`);
* reads and writes of refs become reads and writes of variables (`refs.py`);
* the mark of a mean of integers is noted, and makes no node (`integer_mean_marks.py`);
* any other equation becomes a `jax.*` node (`importer.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: equations of JAX are untyped

from jax.extend import core as jex

from graphdist.ir.graph import Graph, GraphVariable, Stage, Value
from graphdist.ir.ops import OPS
from graphdist.tracing.axis_name import Audience
from graphdist.tracing.calls import CALLS, import_call
from graphdist.tracing.control_flow import import_cond, import_scan, import_while
from graphdist.tracing.importer import Environment, Importer, Rule, bind
from graphdist.tracing.integer_mean_marks import IntegerMeans, integer_mean_p
from graphdist.tracing.loop_marks import loop_mark_p
from graphdist.tracing.named_collectives import (
    NAMED,
    has_mirrored_result,
    is_over_replicas,
    lowered_collective,
    names_of_axes,
)
from graphdist.tracing.primitives import LOGICAL, read_variable_p
from graphdist.tracing.refs import (
    import_add_update,
    import_freeze,
    import_get,
    import_handle,
    import_new_ref,
    import_swap,
)
from graphdist.tracing.state import outside_replica_functions
from graphdist.tracing.user_lines import source_of_equation


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
) -> Graph:
    """Return the logical graph of a traced program.

    `inputs` are the values of the jaxpr's arguments, with layout and name. `variables` are
    the variables that the trace used. The operands of its means are noted in `means`. Raises
    `TraceError` if no graph means the same as the program.
    """
    importer = Importer(_RULES, num_replicas, means)
    importer.taken.update(variable.name for variable in variables)
    environment: Environment = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    importer.bind_constants(closed, environment)
    importer.run(closed.jaxpr, environment)
    outputs = importer.outputs(closed.jaxpr, environment)
    return Graph(
        name,
        Stage.LOGICAL,
        num_replicas,
        tuple(inputs),
        importer.nodes(outputs),
        outputs,
        (*variables, *importer.locals),
        tuple(returns_per_replica),
        num_groups,
    )


def _import_logical(importer: Importer, equation: Any, environment: Environment) -> None:
    op, operands = OPS[LOGICAL[equation.primitive]], importer.operands(equation, environment)
    source = source_of_equation(equation)
    bind(equation, importer.builder.add(op, operands, equation.params, at=source), environment)


def _import_named(importer: Importer, equation: Any, environment: Environment) -> None:
    """Add the nodes of one of JAX's collectives over the replicas."""
    if not is_over_replicas(equation):
        importer.add_jax_node(equation, environment)
        return
    audience = importer.audience()
    if audience is Audience.ALL:
        name = names_of_axes(equation)[0]
        raise outside_replica_functions(name, source_of_equation(equation))
    if importer.num_replicas == 1 and not has_mirrored_result(equation):
        importer.means.uses_replica_id = True
    size = 1 if audience is Audience.ALONE else importer.num_replicas
    closed = lowered_collective(equation, size)
    operands = importer.operands(equation, environment)
    inner: Environment = dict(zip(closed.jaxpr.invars, operands, strict=True))
    importer.bind_constants(closed, inner)
    importer.run(closed.jaxpr, inner)
    bind(equation, importer.outputs(closed.jaxpr, inner), environment)


def _import_integer_mean(importer: Importer, equation: Any, environment: Environment) -> None:
    _forward(importer, equation, environment)
    operand = importer.operand(equation.invars[0], environment)
    # Replicas that take another branch may have another literal.
    is_provable = isinstance(operand, Value) or not importer.is_nested
    importer.means.note(equation.params["mean_id"], operand if is_provable else None)


def _forward(importer: Importer, equation: Any, environment: Environment) -> None:
    environment[equation.outvars[0]] = importer.operand(equation.invars[0], environment)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(CALLS, import_call),
    **{primitive.name: _import_logical for primitive in LOGICAL},
    **dict.fromkeys(NAMED, _import_named),
    integer_mean_p.name: _import_integer_mean,
    read_variable_p.name: import_handle,
    "new_ref": import_new_ref,
    "get": import_get,
    "swap": import_swap,
    "addupdate": import_add_update,
    "freeze": import_freeze,
    loop_mark_p.name: _forward,
    "stop_gradient": _forward,
    "scan": import_scan,
    "while": import_while,
    "cond": import_cond,
}
