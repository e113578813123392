"""The table of all passes, and the pipeline that compiles a program for a target.

This module decides the order of passes, and gives reasons. `PASSES` is the one table that the
pipeline, the tests, the tools and the documents read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphdist.ir.graph import Stage
from graphdist.passes import (
    canonicalize,
    eliminate_common_subexpressions,
    eliminate_dead_code,
    fold_constants,
    gather_again,
    gather_ahead,
    infer_distribution,
    lower_cross_replica,
    narrow_gathers,
    order_collectives,
    order_loops,
    own_slices,
    place_variables,
    reassociate,
    recompute_residuals,
    remove_redundant_collectives,
    shard_inputs,
    simplify,
)
from graphdist.passes.accumulate_in_slices import AccumulateInSlices
from graphdist.passes.bucket_collectives import NO_PACKING, PACKING, BucketCollectives
from graphdist.passes.collectives_into_loops import CollectivesIntoLoops
from graphdist.passes.compute_on_packs import ComputeOnPacks
from graphdist.passes.cut_updates import CutUpdates
from graphdist.passes.gathers_of_constants import GathersOfConstants
from graphdist.passes.halves import on_worker
from graphdist.passes.hoist_accumulation import HoistAccumulation
from graphdist.passes.limit_gathered import LimitGathered
from graphdist.passes.local_steps import LocalSteps
from graphdist.passes.manager import Pass
from graphdist.passes.pack_variables import PackVariables
from graphdist.passes.scatter_in_parts import ScatterInParts
from graphdist.passes.shard_update import ShardUpdate
from graphdist.passes.slice_gains import SHARDING, Sharding
from graphdist.passes.stage_collectives import StageCollectives

SMALLEST_IN_LOOPS = 2**16
"""The bytes a step of a loop takes of a value that is gathered in it, at least."""

LARGEST_WIDENED = 2**28
"""The bytes of a value that is widened and reduce_scattered at once, at most."""

_LOGICAL, _PLACED, _SPMD = (Stage.LOGICAL,), (Stage.PLACED,), (Stage.SPMD,)

PASSES = {
    entry.name: entry
    for entry in (
        Pass("infer_distribution", infer_distribution.infer_distribution, _LOGICAL),
        Pass("local_steps", LocalSteps(every=2), _LOGICAL),
        Pass("place_variables", place_variables.place_variables, _LOGICAL, Stage.PLACED),
        Pass("cut_updates", CutUpdates(), (Stage.PLACED, Stage.SPMD)),
        Pass("shard_inputs", shard_inputs.shard_inputs, _PLACED),
        Pass("lower_cross_replica", lower_cross_replica.lower_cross_replica, _PLACED, Stage.SPMD),
        Pass("simplify", simplify.simplify),
        Pass("canonicalize", canonicalize.canonicalize),
        Pass("fold_constants", fold_constants.fold_constants),
        Pass(
            "eliminate_common_subexpressions",
            eliminate_common_subexpressions.eliminate_common_subexpressions,
        ),
        Pass("eliminate_dead_code", eliminate_dead_code.eliminate_dead_code),
        Pass(
            "remove_redundant_collectives",
            remove_redundant_collectives.remove_redundant_collectives,
            _SPMD,
        ),
        Pass("own_slices", own_slices.own_slices, _SPMD),
        Pass("reassociate", reassociate.reassociate, _SPMD),
        Pass("hoist_accumulation", HoistAccumulation(), _SPMD),
        Pass("shard_update", ShardUpdate(Sharding()), _SPMD),
        Pass("narrow_gathers", narrow_gathers.narrow_gathers, _SPMD),
        Pass("collectives_into_loops", CollectivesIntoLoops(), _SPMD),
        Pass("accumulate_in_slices", AccumulateInSlices(0), _SPMD),
        Pass("gathers_of_constants", GathersOfConstants(32), _SPMD),
        Pass("recompute_residuals", recompute_residuals.recompute_residuals, _SPMD),
        Pass("gather_again", gather_again.gather_again, _SPMD),
        Pass("limit_gathered", LimitGathered(64), _SPMD),
        Pass("gather_ahead", gather_ahead.gather_ahead, _SPMD),
        Pass("pack_variables", PackVariables(PACKING["cpu"]), _SPMD),
        Pass("compute_on_packs", ComputeOnPacks(PACKING["cpu"]), _SPMD),
        Pass("order_collectives", order_collectives.order_collectives, _SPMD),
        Pass("bucket_collectives", BucketCollectives(PACKING["cpu"]), _SPMD),
        Pass("scatter_in_parts", ScatterInParts(64), _SPMD),
        Pass("order_loops", order_loops.order_loops, _SPMD),
        Pass("stage_collectives", StageCollectives(), _SPMD),
    )
}
"""Every pass by name; `shard_update` for any size, those that pack for the CPU.

`local_steps` synchronizes every second step, by the mean.

`gathers_of_constants` and `limit_gathered` keep a few bytes gathered, so that examples are small.
"""


GATHERED_BYTES = 2**28
"""The memory for gathered variables beyond their use, on devices of unknown memory."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a program is compiled for, as far as passes differ by it.

    `platform` is "cpu", "gpu" or "tpu"; `shard_update` says whether updates are shared out over the
    replicas, None: where their size makes it worth it; `bytes_per_pack` is the size of a packed
    collective, 0 for the size that was measured to be best; `num_slices` is the number of TPU
    slices, which only a network joins, `is_three_dimensional` whether the chips of a slice are
    linked in three dimensions; `packs_variables` says whether small variables may share a buffer,
    `shard_parameters` whether variables are stored in slices from their creation; `gathered_bytes`
    is how much memory gathered variables may take beyond their use; `local_steps` is the pass that
    lets replicas take local steps, None if all make the same step; `cuts_updates` says whether
    variables are on parameter servers, which update them.
    """

    platform: str
    shard_update: bool | None = None
    bytes_per_pack: int = 0
    num_slices: int = 1
    is_three_dimensional: bool = False
    packs_variables: bool = True
    shard_parameters: bool = False
    gathered_bytes: int = GATHERED_BYTES
    local_steps: LocalSteps | None = None
    cuts_updates: bool = False

    def packing(self, bytes_per_pack: int) -> Target:
        """Return the target with packs of so many bytes; 0 changes nothing."""
        return replace(self, bytes_per_pack=bytes_per_pack) if bytes_per_pack else self


def pipeline(target: Target | str, allow_reassociation: bool = True) -> tuple[Pass, ...]:
    """Return the passes that compile a logical graph for a target, or a platform, in order.

    Without `allow_reassociation` those are left out that change how results are rounded.

    >>> [entry.name for entry in pipeline("cpu")][:2]
    ['infer_distribution', 'place_variables']
    """
    if isinstance(target, str):
        target = Target(target)
    if target.cuts_updates:
        return in_halves(pipeline(replace(target, cuts_updates=False), allow_reassociation))
    sharding = Sharding(bool(target.shard_update))
    if target.shard_update is None:
        # Variables that are stored in slices are updated in slices, on any platform.
        sharding = SHARDING.get(target.platform, Sharding(target.shard_parameters))
    sharding = replace(sharding, reduces=allow_reassociation)
    packing = PACKING.get(target.platform, NO_PACKING).at_most(target.bytes_per_pack)
    if not target.packs_variables:
        packing = replace(packing, largest_variable=0)
    # Joined before hoisted: a term made of two reductions is then made of one.
    reassociation = (PASSES["reassociate"], PASSES["hoist_accumulation"])
    # And reassociated once more, for the scalars that a reduction shared out is made of.
    shared_out = (
        Pass("shard_update", ShardUpdate(sharding), _SPMD),
        *((PASSES["reassociate"],) if allow_reassociation else ()),
    )
    in_parts = Pass("scatter_in_parts", ScatterInParts(LARGEST_WIDENED), _SPMD)
    saves_memory = target.shard_parameters and target.platform != "cpu"
    staging = StageCollectives(target.num_slices, target.is_three_dimensional)
    in_slices = Pass("accumulate_in_slices", AccumulateInSlices(target.gathered_bytes), _SPMD)
    return (
        *_until_spmd(target),
        # All before the graph is simplified: what only fed collectives that are gone is dead then.
        PASSES["remove_redundant_collectives"],
        PASSES["own_slices"],
        *(reassociation if allow_reassociation else ()),
        # After hoisting: a gradient accumulated in a loop is reduced behind it, where it is cut.
        *(shared_out if sharding.is_on else ()),
        PASSES["simplify"],
        *((in_slices,) if allow_reassociation and target.shard_parameters else ()),
        # Before stacks are gathered in their loops: a loop around these may have gathered them.
        Pass("gathers_of_constants", GathersOfConstants(target.gathered_bytes), _SPMD),
        Pass("collectives_into_loops", CollectivesIntoLoops(SMALLEST_IN_LOOPS), _SPMD),
        PASSES["recompute_residuals"],
        PASSES["gather_again"],
        # After the graph is simplified: equal conversions of a gathered value are one by then. And
        # inside of loops, where weights are converted.
        PASSES["narrow_gathers"],
        # After gathers are narrow, and those that nobody needs are gone: what they hold is sent.
        PASSES["eliminate_dead_code"],
        Pass("limit_gathered", LimitGathered(target.gathered_bytes), _SPMD),
        # Where devices send while they compute.
        *((PASSES["gather_ahead"],) if target.platform != "cpu" else ()),
        # Before collectives are packed: gradients are packed as the variables they update.
        Pass("pack_variables", PackVariables(packing), _SPMD),
        Pass("compute_on_packs", ComputeOnPacks(packing), _SPMD),
        PASSES["eliminate_dead_code"],
        # Last: buckets are filled in the order in which values are ready.
        PASSES["order_collectives"],
        Pass("bucket_collectives", BucketCollectives(packing), _SPMD),
        # After collectives are in order and small ones are packed: a loop over parts takes the
        # place of a large one, and runs before the loops behind it.
        *((in_parts, PASSES["order_loops"]) if saves_memory else ()),
        *((Pass("stage_collectives", staging, _SPMD),) if target.platform == "tpu" else ()),
    )


def _until_spmd(target: Target) -> tuple[Pass, ...]:
    """Return the passes that make a logical graph what one device runs."""
    steps = target.local_steps
    return (
        PASSES["infer_distribution"],
        # Before variables are placed: the synchronization reads and assigns them.
        *(() if steps is None else (Pass("local_steps", steps, _LOGICAL),)),
        PASSES["place_variables"],
        PASSES["shard_inputs"],
        PASSES["lower_cross_replica"],
    )


def in_halves(passes: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """Return passes with the cut after variables are placed; the ones behind it are for workers."""
    placed = next(i for i, entry in enumerate(passes) if entry.gives is Stage.PLACED) + 1
    return (*passes[:placed], PASSES["cut_updates"], *map(on_worker, passes[placed:]))
