"""Import of refs: reads and writes of JAX's refs become `read` and `assign` of variables.

A ref is either the handle of a user's variable, or the program itself creates it. In the second
case the ref becomes a local variable. A graph has no refs. It reads and writes full values of
variables, so an access to a part of a value is an error.

The recomputation of a `jax.checkpoint` reads variables a second time. It reads the same values only
if nothing was assigned in between, which `Versions` checks. A write inside a checkpoint would run
twice, so it is an error.
"""

from __future__ import annotations

from typing import Any  # Any: equations of JAX are untyped

import jax
from jax.extend.core import primitives as jax_primitives

from graphdist.ir.graph import GraphVariable, Value
from graphdist.ir.op_parameters import OfVariable
from graphdist.ir.ops import ASSIGN, READ
from graphdist.ir.types import MIRRORED, PER_REPLICA
from graphdist.tracing.importer import Importer, Rule
from graphdist.tracing.jax_ops import jax_op
from graphdist.tracing.primitives import read_variable_p
from graphdist.tracing.trace_in_progress import TraceError


def _import_handle(importer: Importer, equation: Any) -> None:
    """Let a handle stand for its variable."""
    importer.bind(equation, [equation.params["variable"]])


def _import_new_ref(importer: Importer, equation: Any) -> None:
    """Add a local variable, unless the ref is the handle of a user's variable."""
    initial = importer.argument(equation.invars[0])
    if isinstance(initial, GraphVariable):
        importer.bind(equation, [initial])
        return
    name = f"cell_{len(importer.locals)}"
    while name in importer.taken:
        name += "_"
    importer.taken.add(name)
    type = initial.type.with_layout(MIRRORED if importer.num_replicas == 1 else PER_REPLICA)
    cell = GraphVariable(name, type, synchronization="on_read", is_local=True)
    importer.locals.append(cell)
    importer.bind(equation, [cell])
    importer.add(ASSIGN, (initial,), OfVariable(cell))


def _import_get(importer: Importer, equation: Any) -> None:
    """Add a read."""
    variable = _accessed(importer, equation, 1)
    importer.versions.check_read(variable, importer.source, importer.is_replay)
    importer.bind(equation, _read(importer, variable))


def _import_freeze(importer: Importer, equation: Any) -> None:
    """Add a read of the last value, when JAX freezes a ref. Nothing uses the ref afterwards."""
    variable = importer.argument(equation.invars[0])
    assert isinstance(variable, GraphVariable)
    importer.bind(equation, _read(importer, variable))


def _import_write(importer: Importer, equation: Any) -> None:
    """Add an assignment, after a read of the old value.

    A `swap` returns the old value. An `addupdate` assigns the sum of the old value and its operand.
    """
    variable = _accessed(importer, equation, 2)
    if importer.in_checkpoint and not variable.is_local:
        raise TraceError(
            f"variable {variable.name!r} is assigned inside jax.checkpoint, "
            f"which would run the assignment twice",
            hint="return the value from the checkpointed function and assign it outside",
        )
    old, new = _read(importer, variable), importer.operand(equation.invars[1])
    if equation.primitive.name == "swap":
        importer.bind(equation, old)
    else:
        add = jax_op(jax_primitives.add_p)
        (new,) = importer.add(add, [*old, new], types=[variable.type])
    importer.add(ASSIGN, (new,), OfVariable(variable))
    importer.versions.written(variable, importer.source)


def _read(importer: Importer, variable: GraphVariable) -> tuple[Value, ...]:
    return importer.add(READ, (), OfVariable(variable), hint=variable.name)


def _accessed(importer: Importer, equation: Any, num_operands: int) -> GraphVariable:
    """Return the variable whose full value an equation reads or writes.

    Raises `TraceError` for an access to a part: it has indices as operands, after the first
    `num_operands`.
    """
    variable = importer.argument(equation.invars[0])
    if not isinstance(variable, GraphVariable):
        raise TraceError("a ref that is not a variable")
    value = equation.outvars[0] if equation.outvars else equation.invars[1]
    views = jax.tree.unflatten(equation.params["tree"], equation.invars[num_operands:])
    for view in views:  # indices, or a view of another dtype, shape or order
        if not hasattr(view, "indices"):
            raise TraceError(
                f"{_ref_name(variable)} is accessed through a {type(view).__name__}",
                hint="read the full value, ref[...], and transform it",
            )
    if len(equation.invars) != num_operands or tuple(value.aval.shape) != variable.type.shape:
        raise TraceError(
            f"{_ref_name(variable)} of shape {list(variable.type.shape)} is read or written "
            f"in part: a graph reads and writes the full value",
            hint="write the full value: ref[...] = ref[...].at[index].set(value)",
        )
    return variable


def _ref_name(variable: GraphVariable) -> str:
    return "a ref" if variable.is_local else f"variable {variable.name!r}"


RULES: dict[str, Rule] = {
    read_variable_p.name: _import_handle,
    "new_ref": _import_new_ref,
    "get": _import_get,
    "swap": _import_write,
    "addupdate": _import_write,
    "freeze": _import_freeze,
}
"""The rules that import handles, refs and accesses of refs."""
