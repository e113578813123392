"""The traffic between a worker and parameter servers: type rules, and what `pull` gives.

* `pull(variable)` is the value of a variable, as the worker reads it; `pull(variable, rows)` are
  rows of it along dimension 0. Row numbers are i32[.., 1]. One that is out of range stands for the
  first or the last row or, with the parameter `fill`, for a row of this number.
* `push(variables.., sent..)` is an update that a server makes: its nested graph takes the values of
  `num_variables` variables, and what the worker sends.

Both have `bytes`, the bytes that are sent, and may have `server`, the number of the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from graphdist.ir.arrays import Array
from graphdist.ir.control_flow_rules import check_fits
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graph, Params
from graphdist.ir.types import MIRRORED, Type, join


def pull_rule(
    operands: Sequence[Type], params: Params, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    """Return the type of the variable, or of some of its rows."""
    if len(operands) not in (1, 2):
        raise TypeRuleError(f"pull takes a variable and row numbers, not {len(operands)} operands")
    found = operands[0]
    if len(operands) == 2:
        variable, rows = operands
        if not variable.shape or rows.dtype[0] not in "iu" or rows.shape[-1:] != (1,):
            raise TypeRuleError(f"pull of rows {rows} of {variable}: row numbers are i32[.., 1]")
        shape = (*rows.shape[:-1], *variable.shape[1:])
        found = Type(variable.dtype, shape, join(type.distribution for type in operands))
    _check_bytes("pull", found.bytes, params)
    return (found,)


def push_rule(
    operands: Sequence[Type], params: Params, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    """Return the types that the update of a server returns."""
    (update,) = graphs
    # A worker of one replica may send a value that is per replica: there is one.
    sent = [type.distributed(MIRRORED) for type in operands]
    check_fits("push", sent, [value.type for value in update.inputs])
    count = cast(int, params["num_variables"])
    _check_bytes("push", sum(type.bytes for type in operands[count:]), params)
    return tuple(output.type for output in update.outputs)


def _check_bytes(name: str, sent: int, params: Params) -> None:
    if params["bytes"] != sent:
        raise TypeRuleError(f"{name} of {sent} bytes, which says that it has {params['bytes']}")


def pull(arrays: list[Array], params: Params) -> list[Array]:
    """Return a variable, or its rows of these numbers.

    >>> table = np.float32([[1, 2], [3, 4]])
    >>> pull([table, np.int32([[1], [7]])], {"fill": 0})
    [array([[3., 4.],
           [0., 0.]], dtype=float32)]
    """
    if len(arrays) == 1:
        return arrays
    table, numbers = arrays[0], arrays[1][..., 0].astype(np.int64)
    rows = np.asarray(table[np.clip(numbers, 0, len(table) - 1)])
    if "fill" in params:
        rows[(numbers < 0) | (numbers >= len(table))] = cast(float, params["fill"])
    return [rows]
