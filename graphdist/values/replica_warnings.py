"""Warnings of programs that may compute something else on several replicas than on one.

There is one warning per process for each line of the user. The program is not refused, because
`tf.distribute` computes the same, and the user may intend the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias  # Any: users' arguments

import jax

from graphdist.ir.graph import Graph, Value
from graphdist.ir.source import Source
from graphdist.ir.unequal_means import from_unequal_rows
from graphdist.passes.layouts.gather_positions import gathered_stacks
from graphdist.passes.logical.training_steps import (
    OF_GATHERS,
    gathered_updates,
    reduced_sums_of_gathers,
)
from graphdist.user_warnings import line_to_warn_at, warn_user
from graphdist.values.distributed import PerReplica, PerReplicaArray, is_array
from graphdist.values.pytrees import argument_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphdist.strategy_base import StrategyBase

Rows: TypeAlias = tuple[int, ...]
"""How many rows each replica has."""


class ReplicaWarning(UserWarning):
    """A program may compute something else on several replicas than on one."""


_warned: set[tuple[str, str, int]] = set()


def warn_once(what: str, message: str, source: Source | None = None) -> None:
    """Warn at the user's line, once for each line and kind of warning `what`."""
    warning = (what, *line_to_warn_at(source))
    if warning not in _warned:
        warn_user(message, ReplicaWarning, source)
        _warned.add(warning)  # only now: if warnings are errors, every call must raise


# Means over replicas with unequal numbers of rows.


def warn_of_unequal_means(
    graph: Graph, inputs: Sequence[tuple[Value, Rows]]
) -> list[tuple[frozenset[Value], Rows]]:
    """Warn of means over replicas whose operands depend on inputs with unequal numbers of rows.

    Returns, for each distinct `Rows`, the values that depend on an input with these numbers.
    """
    dependent = []
    for rows in dict.fromkeys(rows for _, rows in inputs):
        of_rows = [value for value, other in inputs if other == rows]
        values, means = from_unequal_rows(graph, of_rows)
        for node in means:
            _warn_of_mean(rows, node.source)
        dependent.append((values, rows))
    return dependent


_PART_OF_MEMORY = 10
"""Stacks that are gathered at once may take a tenth of a device's memory without a warning."""


def warn_of_gathered_stacks(graph: Graph, memory_bytes: int) -> None:
    """Warn of a lowered step that holds large stacks of layers unsharded.

    `memory_bytes` is a device's memory. If the memory is unknown, it is 0, and
    there is no warning.
    """
    gathers = gathered_stacks(graph, memory_bytes // 10**3) if memory_bytes else []
    held = sum(node.results[0].type.bytes for node in gathers)
    if held <= memory_bytes // _PART_OF_MEMORY:
        return
    largest = max(gathers, key=lambda node: node.results[0].type.bytes)
    warn_once(
        "stacks",
        f"{graph.name} gathers stacks of layers at once: {held:,} of {memory_bytes:,} bytes of "
        f"each device's memory. The largest is {largest.results[0].type}, at {largest.source}. "
        f"explain() of the step says what needs each of them at once.",
        largest.source,
    )


def warn_of_gathered_updates(graph: Graph) -> None:
    """Warn of a step with `sync_every` that gathers gradients and reduces none."""
    for node in gathered_updates(reduced_sums_of_gathers(graph)):
        warn_once(
            "gathered",
            f"sync_every changes nothing in {graph.name}: it reduces no gradients, and what it "
            f"gathers it gathers in every step{OF_GATHERS}.",
            node.source,
        )


def warn_of_unequal_values(value: Any) -> None:
    """Warn of a mean over replicas, outside functions, that depends on unequal numbers of rows."""
    for leaf in jax.tree.leaves(value):
        if isinstance(leaf, PerReplicaArray) and leaf.rows is not None:
            _warn_of_mean(leaf.rows)


def _warn_of_mean(rows: Rows, source: Source | None = None) -> None:
    of_none = " (the mean of a replica without rows is nan)" if 0 in rows else ""
    warn_once(
        "mean",
        f"MEAN over replicas that have {_listed(rows)} rows gives each replica the same weight"
        f"{of_none}: it is not the mean over all {sum(rows)} rows. For that, compute the loss "
        f"with gd.nn.compute_average_loss(loss_of_each_row) and reduce it and its gradients by "
        f"SUM. Or give all replicas equally many rows: a batch size divisible by {len(rows)}, and "
        f"drop_remainder=True.",
        source,
    )


def _listed(rows: Rows) -> str:
    """Return numbers of rows as text.

    >>> _listed((2, 2, 1, 0)), _listed((2,) * 9 + (1,))
    ('2, 2, 1 and 0', 'from 1 to 2')
    """
    if len(rows) > 8:
        return f"from {min(rows)} to {max(rows)}"
    return f"{', '.join(map(str, rows[:-1]))} and {rows[-1]}"


# A global batch that is passed to every replica.


def warn_of_unsplit_batch(
    strategy: StrategyBase,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_from_outside: Callable[[Any], bool],
) -> None:
    """Warn if `run` passes all rows of a probable global batch to every replica.

    An array is a probable global batch if it has as many rows as the batches of a dataset that the
    strategy has distributed, and no argument of `run` is per-replica.
    """
    sizes = strategy.global_batch_sizes
    if not sizes or strategy.num_replicas_in_sync == 1:
        return
    paths, _ = jax.tree_util.tree_flatten_with_path(
        (args, kwargs), is_leaf=lambda leaf: isinstance(leaf, PerReplica)
    )
    if any(isinstance(leaf, PerReplica) for _, leaf in paths):
        return
    for path, leaf in paths:
        if is_array(leaf) and leaf.ndim and leaf.shape[0] in sizes and is_from_outside(leaf):
            warn_once(
                "batch",
                f"run gives each of {strategy.num_replicas_in_sync} replicas all "
                f"{leaf.shape[0]} rows of argument {argument_name(fn, path)!r}, an array of shape "
                f"{list(leaf.shape)}. If it is a global batch like those of the strategy's "
                f"dataset, split it: strategy.experimental_distribute_dataset([batch]), or "
                f"strategy.experimental_distribute_values_from_function. If every replica needs "
                f"all rows, ignore this warning.",
            )
            return
