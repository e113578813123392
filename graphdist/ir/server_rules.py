"""The traffic between a worker and parameter servers: type rules, and what `pull` gives.

* `pull(variable)` is the value of a variable, as the worker reads it; `pull(variables.., rows)` are
  rows along dimension 0, of several variables as if they were one: the shards of a table, in order.
  Row numbers are i32[.., 1]. One that is out of range stands for the first or the last row or, with
  the parameter `fill`, for a row of this number.
* `push(variables.., sent..)` is an update that a server makes: its nested graph takes the values of
  `num_variables` variables, and what the worker sends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphdist.ir.arrays import Array
from graphdist.ir.control_flow_rules import check_fits
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graph
from graphdist.ir.op_parameters import Pulling, Pushing
from graphdist.ir.types import MIRRORED, Type, join


def pull_rule(
    operands: Sequence[Type], params: Pulling, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    """Return the type of the variable, or of some of its rows."""
    if not operands:
        raise TypeRuleError("pull takes variables and row numbers, not 0 operands")
    found, *shards = operands
    if shards:
        rows = shards.pop()
        if not found.shape or rows.dtype[0] not in "iu" or rows.shape[-1:] != (1,):
            raise TypeRuleError(f"pull of rows {rows} of {found}: row numbers are i32[.., 1]")
        if any((s.dtype, s.shape[1:]) != (found.dtype, found.shape[1:]) for s in shards):
            raise TypeRuleError(f"pull of rows of {found} and {shards}: the rows are of one type")
        shape = (*rows.shape[:-1], *found.shape[1:])
        found = Type(found.dtype, shape, join(type.distribution for type in operands))
    _check_bytes("pull", found.bytes, params.bytes)
    return (found,)


def push_rule(
    operands: Sequence[Type], params: Pushing, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    """Return the types that the update of a server returns."""
    (update,) = graphs
    # A worker of one replica may send a value that is per replica: there is one.
    sent = [type.distributed(MIRRORED) for type in operands]
    check_fits("push", sent, [value.type for value in update.inputs])
    _check_bytes("push", sum(type.bytes for type in operands[params.num_variables :]), params.bytes)
    return tuple(output.type for output in update.outputs)


def _check_bytes(name: str, sent: int, said: int) -> None:
    if said != sent:
        raise TypeRuleError(f"{name} of {sent} bytes, which says that it has {said}")


def pull(arrays: list[Array], params: Pulling) -> list[Array]:
    """Return a variable, or rows of these numbers.

    >>> table = np.float32([[1, 2], [3, 4]])
    >>> pull([table, np.int32([[1], [7]])], Pulling(bytes=16, fill=0))
    [array([[3., 4.],
           [0., 0.]], dtype=float32)]
    """
    if len(arrays) == 1:
        return arrays
    *shards, last = arrays
    table, numbers = np.concatenate(shards), last[..., 0].astype(np.int64)
    rows = np.asarray(table[np.clip(numbers, 0, len(table) - 1)])
    if params.fill is not None:
        rows[(numbers < 0) | (numbers >= len(table))] = params.fill
    return [rows]
