"""The table of where variables are stored."""

from __future__ import annotations

from typing import Any  # Any: a pytree

import jax

from graphdist.errors import ArgumentTypeError
from graphdist.report.amounts import ShownText, table
from graphdist.state.variable import Variable
from graphdist.values.one_line import devices_of

_HEAD = ("variable", "shape", "dtype", "bytes", "distribution", "devices")


def placement(variables: Any) -> str:
    """Return a table of a pytree of variables: their shapes, sizes, distributions and devices.

    `bytes` is the size on one replica. Raises `ArgumentTypeError` for a leaf that is no variable.

    >>> import graphdist as gd
    >>> import jax.numpy as jnp
    >>> strategy = gd.get_strategy()
    >>> print(placement({"w": gd.Variable(jnp.zeros((2, 3)), name="w")}).splitlines()[0])
    variable  shape  dtype    bytes  distribution  devices
    """
    leaves = jax.tree.leaves(variables, is_leaf=lambda leaf: isinstance(leaf, Variable))
    rows = [_HEAD, *map(_row, leaves)]
    total = sum(_bytes(variable) for variable in leaves)
    rows.append(("total", "", "", f"{total:,}", "", f"{len(leaves)} variables"))
    return ShownText("\n".join(table(rows, left=(0, 1, 2, 4, 5))))


def _bytes(variable: Variable) -> int:
    spec = variable.spec("").stored_along(variable.storage.sharded_along)
    return spec.held(variable.strategy.devices.mesh_shape).bytes


def _row(variable: Any) -> tuple[str, ...]:
    if not isinstance(variable, Variable):
        raise ArgumentTypeError(
            f"a leaf is a {type(variable).__name__}, not a variable",
            hint="make variables of arrays with gd.variables(tree)",
        )
    buffer = variable.storage.held
    absent = isinstance(buffer, jax.ShapeDtypeStruct)
    where = str(variable.strategy.devices) if absent else devices_of([buffer])
    shape = "[" + ",".join(map(str, variable.spec("").type.shape)) + "]"
    size, layout = f"{_bytes(variable):,}", str(variable.storage.layout)
    return variable.name, shape, str(variable.dtype), size, layout, where
