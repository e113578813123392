"""What a user says of cores: the strategy, variables, values; and what is stored and saved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.runtime.devices import Devices
from graphdist.runtime.value_agreement import checksums_of_input, require_equal_input
from graphdist.strategies.data_parallel import DataParallelStrategy
from tests.cores.training import PROGRAMS, step_of, strategy_on


def shards_of(variable: gd.Variable) -> set[tuple[int, ...]]:
    return {shard.data.shape for shard in variable.stored.on_devices.held.addressable_shards}


def test_replicas_are_consecutive_devices() -> None:
    strategy = strategy_on(2, 2)
    assert strategy.num_replicas_in_sync == 2
    assert strategy.extended.worker_devices == ("cpu:0", "cpu:2")
    assert strategy.extended.parameter_devices == ("cpu:0", "cpu:1", "cpu:2", "cpu:3")
    seen: list[Any] = []

    def replica_fn() -> Any:
        context = gd.get_replica_context()
        seen.append(context.num_replicas_in_sync)
        return context.replica_id_in_sync_group

    ids = strategy.experimental_local_results(strategy.run(replica_fn))
    assert (seen, [int(each) for each in ids]) == ([2], [0, 1])


def test_a_value_of_the_only_replica_is_placed_as_steps_take_it() -> None:
    """Another sharding of the same copies would be converted in front of each step."""
    strategy = strategy_on(1, 2)
    (rows,) = strategy.experimental_distribute_dataset([np.ones((4, 3), "f")])
    doubled = gd.function(lambda x: strategy.run(lambda x: x * 2, args=(x,)))(rows)
    placed = {array.sharding for array in (rows, doubled)}
    assert placed == {strategy.devices.mirrored}


@pytest.mark.parametrize("cores", [0, 3, True, 2.0])
def test_cores_divide_the_devices(cores: Any) -> None:
    with pytest.raises(gd.ArgumentError, match="does not divide the 4 devices into replicas"):
        gd.MirroredStrategy([f"cpu:{i}" for i in range(4)], cores_per_replica=cores)


class TwoWorkers:
    """What devices ask of two workers, of which this process is the second."""

    index = 1

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("cores", "replicas", "pipelines"), [(1, range(4, 8), 2), (2, range(2, 4), 2), (8, range(1), 1)]
)
def test_a_worker_has_replicas_or_a_part_of_one(
    cores: int, replicas: range, pipelines: int
) -> None:
    workers: Any = TwoWorkers()
    devices = Devices(jax.devices()[:8], workers=workers, num_cores=cores)
    assert (devices.local_replicas, devices.num_pipelines) == (replicas, pipelines)
    assert devices.pipeline == pipelines - 1
    assert devices.local_devices == tuple(jax.devices()[4:8])


def test_a_replica_has_all_devices_of_its_workers() -> None:
    workers: Any = TwoWorkers()
    devices = Devices(jax.devices()[:6], workers=workers)
    with pytest.raises(gd.ArgumentError, match="is 2, and each worker has 3 devices: a replica"):
        DataParallelStrategy(devices, "replica", "auto", False, None, None, 2)


def test_workers_of_a_replica_give_it_equal_values() -> None:
    class Named(TwoWorkers):
        def name(self, worker: int) -> str:
            return f"worker {worker}"

    workers: Any = Named()
    apart = Devices(jax.devices()[:2], workers=workers)
    together = apart.with_cores(2)
    first, second = np.arange(4.0), np.arange(4.0) + np.eye(4)[3]
    assert checksums_of_input([first], apart) == []
    of_both = [checksums_of_input([first, each], together) for each in (first, second)]
    require_equal_input([of_both[0], of_both[0]], together)
    with pytest.raises(gd.WorkerError, match="worker 0 and worker 1 have devices of the same rep"):
        require_equal_input(of_both, together)


def test_replicas_of_cores_take_no_local_steps() -> None:
    with pytest.raises(gd.UnsupportedError, match="take no local steps"):
        strategy_on(2, 2, sync_every=2)


def test_each_core_stores_its_shard() -> None:
    with strategy_on(2, 2, shard_parameters=True).scope():
        both = gd.Variable(jnp.zeros((256, 64)), name="both", cores=(None, "sharded"))
        same = gd.Variable(jnp.zeros((256, 64)), name="same", cores=("sharded", None))
        full = gd.Variable(jnp.zeros(3), name="full")
    assert shards_of(both) == {(128, 32)}
    assert shards_of(same) == {(64, 64)}
    assert shards_of(full) == {(3,)}
    assert "f32[256,64] sharded(0), core(1)" in repr(both)


def test_values_are_read_and_assigned_in_full() -> None:
    value = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    with strategy_on(1, 2).scope():
        variable = gd.Variable(value, cores=("sharded", None))
    np.testing.assert_array_equal(np.asarray(variable), value)
    np.testing.assert_array_equal(variable + 1, value + 1)
    variable.assign(value * 2)
    assert shards_of(variable) == {(2, 3)}
    variable.assign_add(value)
    np.testing.assert_array_equal(variable.read_value(), value * 3)


@pytest.mark.parametrize(
    ("cores", "says"),
    [
        (("sharded",), "for a shape of 2 dimensions"),
        ("sharded", "for a shape of 2 dimensions"),
        ((None, "split"), "'split' is neither None nor 'sharded'"),
        (("sharded", "sharded"), "2 dimensions are sharded"),
        ((None, "sharded"), "dimension 1 has 3 elements, which 2 cores do not divide"),
    ],
)
def test_cores_of_a_variable_that_do_not_fit(cores: Any, says: str) -> None:
    with strategy_on(1, 2).scope(), pytest.raises(gd.ArgumentError, match=re.escape(says)):
        gd.Variable(jnp.zeros((4, 3)), name="w", cores=cores)


def test_one_core_takes_programs_written_for_several() -> None:
    with strategy_on(1, 1).scope():
        variable = gd.Variable(jnp.zeros((4, 3)), cores=(None, "sharded"))
    assert shards_of(variable) == {(4, 3)}


def test_replicas_with_values_of_their_own_share_no_shards() -> None:
    with strategy_on(2, 2).scope(), pytest.raises(gd.ArgumentError, match="different values"):
        gd.Variable(
            jnp.zeros(4), cores=("sharded",), synchronization=gd.VariableSynchronization.ON_READ
        )


def test_patterns_of_names() -> None:
    tree = {"a": {"kernel": jnp.zeros((4, 2)), "bias": jnp.zeros(2)}, "b": {"kernel": jnp.eye(4)}}
    with strategy_on(1, 2).scope():
        made = gd.variables(tree, cores={"a_kernel": (None, "sharded"), "*": None})
        again = gd.variables(tree, cores={"*_kernel": ("sharded", None)})
    assert [each.core for each in jax.tree.leaves(made, is_leaf=is_variable)] == [None, 1, None]
    assert [each.core for each in jax.tree.leaves(again, is_leaf=is_variable)] == [None, 0, 0]
    with pytest.raises(gd.ArgumentError, match="pattern 'c_kernel', and none of 3 variables"):
        gd.variables(tree, cores={"c_kernel": None})


def is_variable(leaf: Any) -> bool:
    return isinstance(leaf, gd.Variable)


def test_slots_of_an_optimizer_follow_their_parameters() -> None:
    step, batch, params = step_of(PROGRAMS["mlp"], strategy_on(2, 2))
    step(batch)
    names = [v for v in step.trace(batch).lower().graph.variables if v.core is not None]
    assert len(names) == 3 * 3  # up, its bias and down, with both means of Adam
    assert params["up_bias"].stored.on_devices.layout.core == 0


def test_a_checkpoint_fits_any_number_of_cores(tmp_path: Path) -> None:
    value = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    path = ""
    for replicas, cores in ((2, 2), (1, 4), (4, 1), (1, 1)):
        with strategy_on(replicas, cores).scope():
            first = gd.Variable(jnp.zeros((8, 8)), cores=(None, "sharded"))
        checkpoint = gd.train.Checkpoint(w=first)
        if path:
            checkpoint.restore(path).assert_consumed()
            np.testing.assert_array_equal(np.asarray(first), value)
        first.assign(value)
        path = checkpoint.save(str(tmp_path / "c"))


def split_in_a_run(parts: Any, cores: int = 2, shape: tuple[int, ...] = (4, 3)) -> Any:
    strategy = strategy_on(1, cores)
    return strategy.run(
        lambda: strategy.experimental_split_to_logical_devices(jnp.ones(shape), parts)
    )


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([2], "partition_dimensions has 1 numbers for a tensor of 2 dimensions"),
        ([1, 1], "makes 1 parts, but a replica has 2 cores"),
        ([1, 2], "makes 2 parts of dimension 1 of a tensor of shape [4, 3], which has 3 elements"),
    ],
)
def test_splits_that_do_not_fit(parts: Any, says: str) -> None:
    with pytest.raises(gd.ArgumentError, match=re.escape(says)):
        split_in_a_run(parts)


def test_parts_along_several_dimensions_are_shards_of_one() -> None:
    np.testing.assert_array_equal(split_in_a_run([1, 2, 2, 1], 4, (1, 4, 4, 2)), 1)


def test_logical_devices_of_a_replica() -> None:
    strategy = strategy_on(1, 2)
    with pytest.raises(gd.ContextError, match="outside of a replica function"):
        strategy.experimental_replicate_to_logical_devices(jnp.ones(2))
    with pytest.raises(gd.ArgumentError, match="is 2, but a replica has 2 cores, with ids 0 to 1"):
        strategy.run(lambda: strategy.experimental_assign_to_logical_device(jnp.ones(2), 2))
    with strategy.extended.experimental_logical_device(1):
        pass
    with pytest.raises(gd.ArgumentError, match="is 5"):
        strategy.extended.experimental_logical_device(5).__enter__()


def test_values_that_are_asked_for_in_full_are_gathered() -> None:
    strategy = strategy_on(1, 2)

    def replica_fn(x: Any) -> Any:
        parts = strategy.experimental_split_to_logical_devices(x, [2]) * 2
        return strategy.experimental_replicate_to_logical_devices(parts) + 1

    lowered = gd.function(lambda x: strategy.run(replica_fn, args=(x,))).trace(jnp.ones(4)).lower()
    assert [node.op.name for node in walk(lowered.graph) if node.op.is_collective] == [
        "all_gather_over_cores"
    ]


def test_a_decoder_sends_what_megatron_does() -> None:
    """Each layer sends two all_reduces forward, and backward two and the one computed again."""
    strategy = strategy_on(2, 2)
    step, batch, _ = step_of(PROGRAMS["decoder"], strategy)
    lowered = step.trace(batch).lower()
    activations = 4 * 8 * 16 * 4  # rows of a replica, positions, width, float32
    in_layers = [
        each for each in lowered.collectives if each.times == 3 and each.kind.endswith("over_cores")
    ]
    assert [each.kind for each in in_layers] == ["all_reduce_over_cores"] * 5
    assert {each.bytes for each in in_layers} == {activations}
    assert {each.bytes_sent for each in in_layers} == {activations}  # 2 (n-1)/n of it
    assert "2 cores" in repr(lowered.collectives)


def test_explain_says_what_cores_exchange() -> None:
    step, batch, _ = step_of(PROGRAMS["mlp"], strategy_on(1, 2))
    assert "all_reduce_over_cores" in str(step.trace(batch).lower().explain())


@pytest.mark.parametrize("name", PROGRAMS)
def test_interpreted_steps_have_cores_too(name: str) -> None:
    step, batch, _ = step_of(PROGRAMS[name], strategy_on(2, 2))
    compiled = float(step(batch))
    again, batch, _ = step_of(PROGRAMS[name], strategy_on(2, 2))
    with jax.disable_jit():
        interpreted = float(again(batch))
    assert interpreted == pytest.approx(compiled, rel=1e-4)


def test_a_step_in_a_file_has_cores_too(tmp_path: Path) -> None:
    strategy, path = strategy_on(2, 2), tmp_path / "step.gdx"
    step, batch, params = step_of(PROGRAMS["mlp"], strategy, optax.sgd(0.1))
    gd.aot.save(path, step.trace(batch).lower().compile())
    shapes = {each.name: each.shape for each in gd.aot.list_variables(path)}
    assert (shapes["up"], shapes["down"]) == ((8, 32), (32, 8))
    loaded = gd.aot.load(path, strategy=strategy, variables=params)
    first = float(loaded(batch))
    again, same, _ = step_of(PROGRAMS["mlp"], strategy_on(2, 2), optax.sgd(0.1))
    assert [first, float(step(batch))] == [float(again(same)), float(again(same))]
    with pytest.raises(gd.ArtifactError, match="replicas of 2 devices"):
        gd.aot.load(path, strategy=strategy_on(2, 1), variables=params)


def test_an_image_in_rows_sends_its_borders_alone() -> None:
    strategy = strategy_on(1, 2)
    weights = np.ones((3, 3, 2, 2), np.float32)

    def replica_fn(x: Any, weights: Any) -> Any:
        def loss(x: Any, weights: Any) -> Any:
            x = strategy.experimental_split_to_logical_devices(x, [1, 2, 1, 1])
            for _ in range(2):
                x = jax.lax.conv_general_dilated(
                    x, weights, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            pool = (1, 2, 2, 1)
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, pool, pool, "VALID").sum()

        return jax.grad(loss, argnums=1)(x, weights)

    step = gd.function(lambda x, weights: strategy.run(replica_fn, args=(x, weights)))
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 2)).astype(np.float32)
    sent = step.trace(x, weights).lower().collectives
    borders = [each for each in sent if each.kind == "exchange_borders"]
    assert {each.bytes for each in borders} == {2 * 2 * 8 * 2 * 4}  # 2 rows of 8 x 2 in 2 images
    assert {each.kind for each in sent} == {"exchange_borders", "all_reduce_over_cores"}
