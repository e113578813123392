"""The pipeline that compiles a program for a target.

`PIPELINE` is the one table of the passes: their names, the stages they take and give, their order
with its reasons, and the options that they have for a target. The tools, the tests and the
documents read it. Only `pipeline(target)` gives passes their options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import walk_packages
from typing import TypeAlias

from graphdist.ir.graph import Graph, Stage
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.cleanup.fold_transposes import fold_transposes
from graphdist.passes.cleanup.simplify import ROUND, simplify
from graphdist.passes.cores.replicas_as_cores import ReplicasAsCores
from graphdist.passes.cores.split_over_cores import SplitOverCores
from graphdist.passes.layouts.add_rows_to_tables import AddRowsToTables
from graphdist.passes.layouts.compute_by_owner import ComputeByOwner
from graphdist.passes.layouts.gather_ahead import GatherAhead
from graphdist.passes.layouts.invariants_out_of_loops import invariants_out_of_loops
from graphdist.passes.layouts.limit_gathered import LimitGathered
from graphdist.passes.layouts.lookups_on_shards import LookupsOnShards
from graphdist.passes.layouts.place_conversions import PlaceConversions
from graphdist.passes.layouts.random_shards import random_shards
from graphdist.passes.layouts.recompute_residuals import recompute_residuals
from graphdist.passes.layouts.reductions_into_loops import ReductionsIntoLoops
from graphdist.passes.layouts.scatter_in_parts import ScatterInParts
from graphdist.passes.layouts.sharded_updates import UPDATE_SHARDING, UpdateSharding
from graphdist.passes.logical.choose_residuals import ChooseResiduals
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.logical.local_steps import LocalSteps
from graphdist.passes.logical.place_variables import place_variables
from graphdist.passes.logical.shard_weights import ShardWeights
from graphdist.passes.lowering.delay_reductions import DelayReductions
from graphdist.passes.lowering.lower_cross_replica import lower_cross_replica
from graphdist.passes.lowering.own_slices import own_slices
from graphdist.passes.lowering.reassociate import reassociate
from graphdist.passes.lowering.remove_redundant_collectives import remove_redundant_collectives
from graphdist.passes.lowering.shard_inputs import shard_inputs
from graphdist.passes.manager import ANY_STAGE, Pass
from graphdist.passes.order.compute_in_chunks import ComputeInChunks
from graphdist.passes.order.order_collectives import order_collectives
from graphdist.passes.order.order_loops import order_loops
from graphdist.passes.order.products_around_rings import ProductsAroundRings
from graphdist.passes.order.slices_before_products import SlicesBeforeProducts
from graphdist.passes.order.stage_collectives import StageCollectives
from graphdist.passes.order.unroll_loops import UnrollLoops
from graphdist.passes.packs.bucket_collectives import BucketCollectives
from graphdist.passes.packs.compute_on_packs import ComputeOnPacks
from graphdist.passes.packs.pack_limits import PACK_LIMITS, PackLimits
from graphdist.passes.packs.pack_variables import PackVariables
from graphdist.passes.plans import NO_PLAN, Plan
from graphdist.passes.servers.cut_step import CutStep
from graphdist.passes.servers.cut_updates import CutUpdates

SMALLEST_IN_LOOPS = 2**16
"""A slice of a scanned value is gathered in the loop if it has at least this many bytes.
Loops over layers of fewer bytes stay loops."""

LARGEST_WIDENED = 2**28
"""The most bytes of a value that is widened and reduce_scattered at once."""

LARGEST_CHUNK = 2**28
"""The most bytes of the scores of a loss that are computed at once, on GPUs and TPUs."""

SMALLEST_AROUND_RINGS = 2**25
"""The fewest bytes of a value whose shards go around the ring of cores while they are used."""

MORE_ON_CPUS = 8
"""On CPUs so many times as many bytes are computed at once, since the loop takes longer there."""

MOST_ITERATIONS = 16
"""The most iterations of a loop over layers that is unrolled on CPUs."""

MOST_OPERATIONS = 3000
"""The most operations of such a loop in the emitted program, which take longer to compile."""

FLOPS_PER_BYTE = 500
"""A computation gets an owner if this saves so many operations for each byte of its results."""

SAVING_OF_ROWS = 2
"""Rows are sent in place of tables or weights if they have so many times fewer bytes."""

FEWEST_BYTES_SAVED = 2**18
"""Rows are sent in place of tables or weights if this saves so many bytes. On TPUs and GPUs a
collective takes about as long as sending some hundred thousand bytes."""

MORE_SAVED_ON_CPUS = 32
"""On CPUs a product on shards has to save so many times as many bytes: its threads wait longer."""

FEWEST_SHARDED = 2**23
"""Weights are stored for their products if they have so many bytes more than the rows."""

FEWER_ROWS = 4
"""Rows are added to a table if it has so many times as many elements."""

GATHERED_BYTES = 2**28
"""The most bytes of gathered variables that are kept between uses, if memory is unknown."""


@dataclass(frozen=True, slots=True)
class Target:
    """The properties of a compilation target on which passes depend.

    `platform` is "cpu", "gpu" or "tpu". `shard_update` says whether updates are sharded over the
    replicas; None shards those that are large enough. `bytes_per_pack` is the size of a packed
    collective, 0 for the size that was measured to be best. `num_slices` is the number of TPU
    slices, which only a network connects; `is_three_dimensional` says whether the chips of a slice
    are linked in three dimensions. `packs_variables` says whether small variables may share a
    buffer, `shard_parameters` whether variables are stored sharded from their creation.
    `gathered_bytes` is the most bytes of gathered variables that are kept in memory between uses;
    those of two iterations of a loop may take twice as many.
    `local_steps` is the pass that lets replicas take local steps; None synchronizes the replicas in
    every step. `cuts_updates` says whether variables are on parameter servers, which update them.
    `reassociates` says whether passes may change how results are rounded. `num_cores` is the number
    of devices of a replica. `is_of_one_process` says whether one process has all devices, and so
    may read shards at any time. `plan` has what is chosen about the step.
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
    reassociates: bool = True
    num_cores: int = 1
    is_of_one_process: bool = True
    plan: Plan = NO_PLAN

    def packing(self, bytes_per_pack: int) -> Target:
        """Return the target with packs of `bytes_per_pack` bytes; 0 changes nothing."""
        return replace(self, bytes_per_pack=bytes_per_pack) if bytes_per_pack else self

    @property
    def sharding(self) -> UpdateSharding:
        """Return which updates are sharded."""
        sharding = UpdateSharding(bool(self.shard_update))
        if self.shard_update is None:
            # Variables that are stored sharded are updated sharded, on any platform.
            sharding = UPDATE_SHARDING.get(self.platform, UpdateSharding(self.shard_parameters))
        return replace(sharding, reduces=self.reassociates, lookups=self.looking_up())

    @property
    def pack_limits(self) -> PackLimits:
        """Return the limits of packs."""
        limits = PACK_LIMITS.get(self.platform, PackLimits()).at_most(self.bytes_per_pack)
        return limits if self.packs_variables else replace(limits, largest_variable=0)

    @property
    def saves_memory(self) -> bool:
        """Return whether sharded variables are in the devices' own memory, unlike on CPUs."""
        return self.shard_parameters and self.platform != "cpu"

    @property
    def largest_chunk(self) -> int:
        """Return the most bytes of the scores of a loss that are computed at once."""
        return LARGEST_CHUNK * (MORE_ON_CPUS if self.platform == "cpu" else 1)

    def choosing(self) -> ChooseResiduals | None:
        """Return the pass `choose_residuals`; None without a plan for residuals."""
        has_host = self.platform != "cpu"
        return ChooseResiduals(self.plan.residuals, has_host) if self.plan.residuals else None

    def unrolling_layers(self) -> UnrollLoops | None:
        """Return the pass `unroll_loops` for loops over layers; None unless the plan says so."""
        return UnrollLoops.of_plan() if self.plan.unrolled and self.reassociates else None

    def splitting(self) -> SplitOverCores | None:
        """Return the pass `split_over_cores`; None for replicas of one device."""
        return SplitOverCores(self.plan.cores) if self.num_cores > 1 else None

    def slicing(self) -> SlicesBeforeProducts | None:
        """Return the pass `slices_before_products`, which changes how products are rounded."""
        return SlicesBeforeProducts(self.largest_chunk) if self.reassociates else None

    def chunking(self) -> ComputeInChunks | None:
        """Return the pass `compute_in_chunks`, which changes how sums over rows are rounded."""
        if not self.reassociates:
            return None
        return ComputeInChunks(self.largest_chunk, self.dividing_products())

    def moving(self) -> ReductionsIntoLoops:
        """Return the pass `reductions_into_loops`, which limits the sums of sharded variables."""
        most_bytes = self.gathered_bytes if self.shard_parameters else None
        return ReductionsIntoLoops(self.sharding, SMALLEST_IN_LOOPS, most_bytes)

    def placing(self) -> PlaceConversions:
        """Return the pass `place_conversions`."""
        return PlaceConversions(self.sharding, SMALLEST_IN_LOOPS, self.gathered_bytes)

    def sharding_weights(self) -> ShardWeights | None:
        """Return the pass `shard_weights`, which serves `replicas_as_cores`."""
        if not self.reassociates:
            return None
        shards_unsharded = (
            self.sharding.is_on and self.local_steps is None and self.is_of_one_process
        )
        return ShardWeights(SAVING_OF_ROWS, FEWEST_SHARDED, shards_unsharded)

    def looking_up(self) -> LookupsOnShards | None:
        """Return the pass `lookups_on_shards`, which changes how gradients are rounded."""
        if not self.reassociates:
            return None
        return LookupsOnShards(SAVING_OF_ROWS, FEWEST_BYTES_SAVED)

    def dividing_products(self) -> ReplicasAsCores | None:
        """Return the pass `replicas_as_cores`, which changes how products are rounded."""
        if not self.reassociates:
            return None
        more = MORE_SAVED_ON_CPUS if self.platform == "cpu" else 1
        return ReplicasAsCores(SAVING_OF_ROWS, more * FEWEST_BYTES_SAVED, place=self.placing())

    def adding_rows(self) -> AddRowsToTables | None:
        """Return the pass `add_rows_to_tables`, which changes how sums are rounded."""
        return AddRowsToTables(FEWER_ROWS) if self.reassociates else None

    def ahead(self) -> GatherAhead | None:
        """Return the pass `gather_ahead`; None on CPUs."""
        return None if self.platform == "cpu" else GatherAhead(2 * self.gathered_bytes)

    def around_rings(self) -> ProductsAroundRings | None:
        """Return the pass `products_around_rings`, which changes how sums are rounded."""
        is_wanted = self.num_cores > 1 and self.platform == "tpu" and self.reassociates
        return ProductsAroundRings(SMALLEST_AROUND_RINGS) if is_wanted else None

    def staging(self) -> StageCollectives | None:
        """Return the pass `stage_collectives`; None except on TPUs."""
        staging = StageCollectives(self.num_slices, self.is_three_dimensional)
        return staging if self.platform == "tpu" else None

    def unrolling(self) -> UnrollLoops | None:
        """Return the pass `unroll_loops`; None except on CPUs, where it changes roundings."""
        is_wanted = self.platform == "cpu" and self.reassociates
        unroll = UnrollLoops(MOST_ITERATIONS, MOST_OPERATIONS, SMALLEST_IN_LOOPS)
        return unroll if is_wanted else None


Run: TypeAlias = Callable[[Graph], Graph | CutStep]


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the pipeline, with its pass and the stages that the pass takes and gives.

    `run_for` returns the pass with its options for a target, or None to leave it out.
    """

    name: str
    takes: tuple[Stage, ...]
    run_for: Callable[[Target], Run | None]
    gives: Stage | None = None

    def holding(self, run: Run) -> Pass:
        """Return the pass of this position that runs the function `run`."""
        return Pass(self.name, run, self.takes, self.gives)


def _place(
    run: Run,
    takes: tuple[Stage, ...] = ANY_STAGE,
    gives: Stage | None = None,
    *,
    only_if: Callable[[Target], bool] = lambda target: True,
) -> Place:
    """Return the position of a pass that is the same for all targets, or left out for some."""
    return Place(run.__name__, takes, lambda target: run if only_if(target) else None, gives)


_LOGICAL, _PLACED, _SPMD = (Stage.LOGICAL,), (Stage.PLACED,), (Stage.SPMD,)

_CUT = Place(
    "cut_updates",
    (Stage.PLACED, Stage.SPMD),
    lambda target: CutUpdates() if target.cuts_updates else None,
)

_DELAY = Place(
    "delay_reductions",
    _SPMD,
    lambda target: DelayReductions() if target.reassociates else None,
)

PIPELINE = (
    _place(infer_layouts, _LOGICAL),
    # This runs early: the passes behind it place the gathers of what is computed again.
    Place("choose_residuals", _LOGICAL, Target.choosing),
    # This runs before loops carry what is gathered ahead: their layers are then harder to find.
    Place("unroll_loops", _LOGICAL, Target.unrolling_layers),
    # The passes behind this one see what one core of each replica runs.
    Place("split_over_cores", _LOGICAL, Target.splitting),
    # This runs before variables are placed, since the synchronization reads and assigns them.
    Place("local_steps", _LOGICAL, lambda target: target.local_steps),
    Place("shard_weights", _LOGICAL, Target.sharding_weights),
    _place(place_variables, _LOGICAL, Stage.PLACED),
    # With parameter servers, the passes behind this one run on the worker's graphs alone.
    _CUT,
    _place(shard_inputs, _PLACED),
    _place(lower_cross_replica, _PLACED, Stage.SPMD),
    # These run before the graph is simplified, since the operands of the collectives that they
    # remove may then be dead.
    _place(remove_redundant_collectives, _SPMD),
    _place(own_slices, _SPMD),
    _place(reassociate, _SPMD, only_if=lambda target: target.reassociates),
    _DELAY,
    _place(simplify),
    Place("slices_before_products", _SPMD, Target.slicing),
    # This runs before the passes that compute large products in chunks, or move their operands.
    Place("products_around_rings", _SPMD, Target.around_rings),
    # This runs before conversions are placed, which treat its loop as one that the user wrote.
    Place("compute_in_chunks", _SPMD, Target.chunking),
    _place(recompute_residuals, _SPMD),
    _place(invariants_out_of_loops, _SPMD),
    Place("reductions_into_loops", _SPMD, Target.moving),
    Place("place_conversions", _SPMD, Target.placing),
    # These run when conversions are placed: they send rows of what those gather and reduce.
    Place("replicas_as_cores", _SPMD, Target.dividing_products),
    Place("lookups_on_shards", _SPMD, Target.looking_up),
    # This runs behind it, which finds gradients by their sums from zeros.
    Place("add_rows_to_tables", _SPMD, Target.adding_rows),
    # This, too, exchanges what the placed conversions gather.
    Place("compute_by_owner", _SPMD, lambda target: ComputeByOwner(FLOPS_PER_BYTE)),
    # This runs again, for scalars that are added up from sums over shards.
    _DELAY,
    _place(random_shards, _SPMD),
    # `limit_gathered` counts gathered bytes: it runs when gathers are narrow and no gather is dead.
    _place(eliminate_dead_code),
    Place("limit_gathered", _SPMD, lambda target: LimitGathered(target.gathered_bytes)),
    # This helps only if devices send while they compute.
    Place("gather_ahead", _SPMD, Target.ahead),
    _place(
        fold_transposes,
        _SPMD,
        only_if=lambda target: target.reassociates and target.platform == "cpu",
    ),
    # Variables are packed before collectives, as gradients are packed like their variables.
    Place("pack_variables", _SPMD, lambda target: PackVariables(target.pack_limits)),
    Place("compute_on_packs", _SPMD, lambda target: ComputeOnPacks(target.pack_limits)),
    _place(eliminate_dead_code),
    # Collectives are ordered late: buckets are filled in the order in which values are ready.
    _place(order_collectives, _SPMD),
    Place("bucket_collectives", _SPMD, lambda target: BucketCollectives(target.pack_limits)),
    # `scatter_in_parts` replaces a large collective by a loop. So it runs after collectives are in
    # order and small ones are packed, and before `order_loops`, which orders that loop, too.
    Place(
        "scatter_in_parts",
        _SPMD,
        lambda target: ScatterInParts(LARGEST_WIDENED) if target.saves_memory else None,
    ),
    _place(order_loops, _SPMD, only_if=lambda target: target.saves_memory),
    Place("stage_collectives", _SPMD, Target.staging),
    # The passes before this one take a loop for what the user wrote, and not for copies of layers.
    Place("unroll_loops", _SPMD, Target.unrolling),
)
"""The passes in the order in which they run."""

PASSES = {place.name: place for place in (*PIPELINE, *map(_place, ROUND))}
"""Every pass of the pipeline and of `simplify` by its name, which is also its module's name."""


def module_of_pass(name: str) -> str:
    """Return the name of the module that defines a pass.

    >>> module_of_pass("simplify")
    'graphdist.passes.cleanup.simplify'
    """
    found = walk_packages([str(Path(__file__).parent)], __package__ + ".")
    return next(module.name for module in found if module.name.endswith(f".{name}"))


def pipeline(target: Target | str, allow_reassociation: bool = True) -> tuple[Pass, ...]:
    """Return the passes that compile a logical graph for a target, or a platform, in order.

    Without `allow_reassociation`, passes that change how results are rounded are left out.

    >>> [entry.name for entry in pipeline("cpu")][:3]
    ['infer_layouts', 'shard_weights', 'place_variables']
    """
    if isinstance(target, str):
        target = Target(target)
    target = replace(target, reassociates=target.reassociates and allow_reassociation)
    runs = ((place, place.run_for(target)) for place in PIPELINE)
    return tuple(place.holding(run) for place, run in runs if run is not None)


def cutting(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return a user's passes with `cut_updates` added after the pass that places variables.

    If `passes` contain `cut_updates`, or place no variables, they are returned unchanged.
    """
    places = [i for i, entry in enumerate(passes) if entry.gives is Stage.PLACED]
    if not places or any(entry.name == _CUT.name for entry in passes):
        return tuple(passes)
    behind = places[0] + 1
    return (*passes[:behind], _CUT.holding(CutUpdates()), *passes[behind:])
