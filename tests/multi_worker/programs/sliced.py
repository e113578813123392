"""Trains with the optimizer's state in slices over all workers, and does what it is told."""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import graphdist as gd

ROWS, FEATURES, UNITS = 32, 16, 8
State = dict[str, Any]


def exact_loss(params: State, batch: State) -> Any:
    """Return a loss whose gradients are sums without rounding, equal in any order of adding."""
    return jnp.mean((batch["x"] @ params["w"]) * batch["y"])


def curved_loss(params: State, batch: State) -> Any:
    """Return a loss whose gradients are rounded."""
    return jnp.mean((jnp.tanh(batch["x"] @ params["w"]) - batch["y"]) ** 2)


OPTIMIZERS = {
    exact_loss: optax.sgd(0.25, momentum=0.5),
    curved_loss: optax.adam(1e-2),
}


def make(strategy: Any, loss_fn: Any) -> tuple[State, Any]:
    """Return the state of a training, and its step."""
    optimizer = OPTIMIZERS[loss_fn]
    params = {"w": np.zeros((FEATURES, UNITS), np.float32)}
    with strategy.scope():
        state = {"params": gd.variables(params), "slots": gd.variables(optimizer.init(params))}

    @gd.function
    def step(batch: Any) -> Any:
        def replica(batch: Any) -> Any:
            params = gd.read(state["params"])
            loss, gradients = jax.value_and_grad(loss_fn)(params, batch)
            gradients = gd.get_replica_context().all_reduce("MEAN", gradients)
            updates, slots = optimizer.update(gradients, gd.read(state["slots"]), params)
            gd.assign(state["params"], optax.apply_updates(params, updates))
            gd.assign(state["slots"], slots)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica, args=(batch,)), axis=None)

    return state, step


def train(strategy: Any, loss_fn: Any) -> tuple[State, list[str]]:
    """Return the state after an epoch, and the loss of each step in hexadecimal."""
    state, step = make(strategy, loss_fn)
    batches = strategy.experimental_distribute_dataset(dataset_of_rows())
    return state, [float(step(batch)).hex() for batch in batches]


def dataset_of_rows() -> gd.data.Dataset:
    """Return the batches of an epoch."""
    generator = np.random.default_rng(0)
    rows = {
        "x": generator.integers(-4, 4, (ROWS, FEATURES)).astype(np.float32),
        "y": generator.integers(-4, 4, (ROWS, UNITS)).astype(np.float32),
    }
    return gd.data.Dataset.from_tensor_slices(rows).batch(8)


def largest_slot(state: State) -> Any:
    """Return the variable of a slot."""
    return max(jax.tree.leaves(state["slots"]), key=lambda slot: slot.shape)


def say(**facts: Any) -> None:
    """Print facts for the test."""
    print("SAYS", json.dumps(facts), flush=True)


def losses(strategy: Any) -> None:
    """Say the losses, in slices and not."""
    for is_on in (True, False):
        alike = gd.MultiWorkerMirroredStrategy(shard_update=is_on)
        for loss_fn in OPTIMIZERS:
            state, said = train(alike, loss_fn)
            slot = largest_slot(state)
            held = {shard.data.size for shard in slot.storage.held.addressable_shards}
            say(losses=said, held=sorted(held), slot=np.asarray(slot).tolist())


def values(strategy: Any) -> None:
    """Say what the methods of a variable give."""
    slot = largest_slot(train(strategy, curved_loss)[0])
    shown, before = repr(slot), np.asarray(slot)
    twin = copy.deepcopy(slot)
    slot.assign(2 * before)
    doubled = np.array_equal(slot, 2 * before)
    slot.assign_add(before)
    added = np.array_equal(slot, 2 * before + before)
    tripled = np.asarray(slot)
    slot.assign(2 * slot.read_value())
    say(
        shown=[shown, repr(slot), repr(twin)],
        right=[doubled, added, np.array_equal(slot, 2 * tripled), np.array_equal(twin, before)],
        values=[np.array_equal(value, slot) for value in slot.values],
        item=float(slot[3, 2]) == float(2 * tripled[3, 2]),
        total=float(jnp.sum(slot[...])) == float(jnp.sum(2 * tripled)),
    )


def alone(strategy: Any) -> None:
    """Have worker 0 read alone; the others go on to the next step."""
    state, step = make(strategy, exact_loss)
    slot = largest_slot(state)
    one = np.ones((1, FEATURES), np.float32), np.ones((1, UNITS), np.float32)
    batch = strategy.experimental_distribute_values_from_function(
        lambda context: {"x": one[0], "y": one[1]}
    )
    for _ in range(2):
        step(batch)
        print(slot)
        if strategy.cluster_resolver.task_id == 0:
            np.asarray(slot)


def others(strategy: Any) -> None:
    """Have each worker read another variable."""
    state, _ = train(strategy, curved_loss)
    (adam, _) = state["slots"]
    np.asarray((adam.mu if strategy.cluster_resolver.task_id == 0 else adam.nu)["w"])


def save(strategy: Any) -> None:
    """Write a checkpoint, and restore it."""
    state, _ = train(strategy, curved_loss)
    checkpoint = gd.train.Checkpoint(**state)
    checkpoint.write(sys.argv[2])
    checkpoint.sync()
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(gd.read(state))]
    worker = strategy.cluster_resolver.task_id
    np.savez(f"{sys.argv[2]}-{worker}.npz", *before)
    restore_to(strategy, state, worker)


def restore(strategy: Any) -> None:
    """Restore a checkpoint to variables in slices, and before they are."""
    restore_to(strategy, make(strategy, curved_loss)[0])
    restore_to(strategy, train(strategy, curved_loss)[0])


def restore_to(strategy: Any, state: State, worker: int = 0) -> None:
    """Say whether a state is the one that a worker saved, once it is restored."""
    with np.load(f"{sys.argv[2]}-{worker}.npz") as saved:
        expected = list(saved.values())
    leaves = jax.tree.leaves(state)
    for leaf in leaves:
        leaf.assign(np.zeros(leaf.shape, leaf.dtype))
    gd.train.Checkpoint(**state).read(sys.argv[2]).assert_consumed()
    pairs = zip(leaves, expected, strict=True)
    say(
        alike=all(np.array_equal(leaf, array) for leaf, array in pairs),
        along=largest_slot(state).storage.sharded_along,
    )


def damaged(strategy: Any) -> None:
    """Say what is said of a checkpoint whose second part is damaged."""
    state, _ = train(strategy, curved_loss)
    checkpoint = gd.train.Checkpoint(**state)
    checkpoint.write(sys.argv[2])
    checkpoint.sync()
    largest_slot(state).read_value()  # all have written
    if strategy.cluster_resolver.task_id == 1:
        index = json.loads(Path(sys.argv[2], "index.json").read_text())
        names = [name for name, array in index["arrays"].items() if "slices" in array]
        file = index["arrays"][names[0]]["slices"][1]
        chunk = Path(sys.argv[2], f"part-{file['part']}", file["file"], "0.0")
        chunk.write_bytes(bytes(chunk.stat().st_size))
    largest_slot(state).read_value()
    try:
        checkpoint.read(sys.argv[2])
    except gd.UnreadableCheckpointError as error:
        say(said=error.what)


def backup(strategy: Any) -> None:
    """Train for two epochs, and say the losses; a first start ends early, by SIGTERM if told so."""
    state, step = make(strategy, curved_loss)
    folder, ends_at = sys.argv[2], int(sys.argv[3])
    loop = gd.train.BackupAndRestore(
        gd.train.Checkpoint(**state), folder, save_freq=1, delete_checkpoint=False
    )
    dataset = strategy.experimental_distribute_dataset(dataset_of_rows())
    said: list[str] = []
    for epoch in loop.epochs(2):
        for batch in loop.steps(dataset):
            if (epoch, len(said)) == (1, ends_at):
                loop.manager.sync()
                say(losses=said)
                return
            said.append(float(step(batch)).hex())
    say(losses=said, along=largest_slot(state).storage.sharded_along)


def preempted(strategy: Any) -> None:
    """Train until a signal, which worker 1 sends itself; or to the end."""
    state, step = make(strategy, curved_loss)
    handler = gd.train.PreemptionCheckpointHandler(
        strategy.cluster_resolver, gd.train.Checkpoint(**state), sys.argv[2]
    )
    dataset = iter(strategy.experimental_distribute_dataset(dataset_of_rows().repeat()))
    start = handler.total_run_calls
    for _ in range(start):
        next(dataset)
    for number in range(start, 12):
        loss = handler.run(lambda: step(next(dataset)))
        say(losses=[number, float(loss).hex()])
        if (number, strategy.cluster_resolver.task_id) == (int(sys.argv[3]), 1):
            os.kill(os.getpid(), signal.SIGTERM)
    handler.close()


LARGE = (128, 256)


def large_step(strategy: Any, w: Any) -> Any:
    """Return a step on a variable that is stored in slices from its creation."""

    @gd.function
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            loss, gradient = jax.value_and_grad(lambda w: jnp.mean(x @ w))(w[...])
            w.assign_sub(gd.get_replica_context().all_reduce("MEAN", gradient))
            return loss

        return strategy.reduce("MEAN", strategy.run(replica, args=(x,)), axis=None)

    return step


def held_by(variable: Any) -> int:
    """Return how many elements this process holds."""
    return sum(shard.data.size for shard in variable.storage.held.addressable_shards)


def train_large(strategy: Any, worker: int) -> Any:
    """Return what is said of variables made in several ways, and of a step on one of them."""
    key = jax.random.key(worker)
    shape = jax.ShapeDtypeStruct(LARGE, jnp.float32)
    with strategy.scope():
        made = {
            "called": gd.Variable(lambda: 2 * jax.random.normal(key, LARGE) + 1, name="called"),
            "stacked": gd.Variable(lambda: jnp.ones((3, *LARGE)).at[1].set(2.0)),
            "given": gd.Variable(np.full(LARGE, 5.0 + worker, np.float32), name="given"),
            "array": gd.Variable(jnp.full(LARGE, 5.0 + worker)),
            "untraced": gd.Variable(lambda: np.full(LARGE, float(np.asarray(jnp.ones(()))))),
            "declared": gd.Variable(shape),
            "small": gd.Variable(lambda: jnp.full(3, float(worker))),
        }

    @gd.function
    def initialize() -> None:
        made["declared"].assign(jnp.arange(LARGE[0] * LARGE[1], dtype=jnp.float32).reshape(LARGE))

    initialize()
    made["given"].assign(made["given"].read_value() + 1)
    x = np.arange(LARGE[0], dtype=np.float32)[None] % 8
    rows = strategy.experimental_distribute_values_from_function(lambda context: x)
    step = large_step(strategy, made["called"])
    said = [float(step(rows)).hex() for _ in range(3)]
    # In double precision, where sums in another order are the same to the digits that are said.
    sums = {name: float(np.asarray(v, np.float64).sum()) for name, v in made.items()}
    along = {name: v.storage.sharded_along for name, v in made.items()}
    return made, {"losses": said, "sums": sums, "along": along}


def parameters(strategy: Any) -> None:
    """Say what is made in slices over groups of so many replicas, from worker 0's values."""
    strategy = gd.MultiWorkerMirroredStrategy(shard_parameters=int(sys.argv[3]))
    made, said = train_large(strategy, strategy.cluster_resolver.task_id)
    said["held"] = {name: held_by(v) / v.size for name, v in made.items()}
    said["shown"] = repr(made["called"])
    said["copied"] = held_by(copy.deepcopy(made["called"])) / made["called"].size
    checkpoint = gd.train.Checkpoint(**made)
    checkpoint.write(sys.argv[2])
    checkpoint.sync()
    made["called"].assign(jnp.zeros(LARGE))
    checkpoint.read(sys.argv[2]).assert_consumed()
    said["restored"] = float(np.asarray(made["called"], np.float64).sum())
    say(**said)


def foreign(strategy: Any) -> None:
    """Export variables in slices and mirrored ones, and load them where nothing is yet."""
    strategy = gd.MultiWorkerMirroredStrategy(shard_parameters=True)
    folder = Path(sys.argv[2])
    values = np.arange(LARGE[0] * LARGE[1], dtype=np.float32).reshape(LARGE)

    def make(value: Any) -> Any:
        with strategy.scope():
            params = gd.variables({"large": value(values), "small": value(np.arange(3.0))})
        return gd.train.Checkpoint(params=params, step=1)

    made = make(jnp.asarray)
    names: dict[str, Any] = {"params/large": gd.train.Transposed("w"), "step": "n"}
    gd.train.export(folder / "orbax", made)
    gd.train.export(folder / "w.safetensors", made, names=names)
    for path, given in ((folder / "orbax", None), (folder / "w.safetensors", names)):
        loaded = make(lambda array: jax.ShapeDtypeStruct(array.shape, jnp.float32))
        gd.train.load(path, loaded, given).assert_consumed()
        large = loaded.params["large"]
        say(
            share=held_by(large) / large.size,
            alike=bool(np.array_equal(large, values)) and float(loaded.params["small"][2]) == 2,
        )


def seeds(strategy: Any) -> None:
    """Make a variable in slices by operations that differ between workers."""
    strategy = gd.MultiWorkerMirroredStrategy(shard_parameters=True)
    worker = strategy.cluster_resolver.task_id
    with strategy.scope():
        gd.Variable(lambda: jax.random.normal(jax.random.key(worker), LARGE), name="w")


if __name__ == "__main__":
    globals()[sys.argv[1]](gd.MultiWorkerMirroredStrategy(shard_update=True))
