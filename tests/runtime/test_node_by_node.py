"""`jax.disable_jit()`: programs are evaluated node by node, and mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd

STRATEGIES: dict[str, Callable[[], gd.Strategy]] = {
    "one": lambda: gd.OneDeviceStrategy("cpu:1"),
    "mirrored": lambda: gd.MirroredStrategy(["cpu:0", "cpu:1"]),
    "central": lambda: gd.CentralStorageStrategy(["cpu:0", "cpu:1"]),
}


class Training:
    """A model of small variables, its optimizer, a metric, a generator and local state."""

    def __init__(self, strategy: gd.Strategy) -> None:
        self.strategy = strategy
        self.optimizer = optax.adam(1e-2)
        start = {"a": jnp.ones((3, 4)), "b": jnp.zeros(4), "c": jnp.ones(4), "d": jnp.zeros(())}
        with strategy.scope():
            self.params = gd.variables(start)
            self.slots = gd.variables(self.optimizer.init(gd.read(self.params)))
            self.generator = gd.random.Generator.from_seed(1)
            self.mean = gd.metrics.Mean()

    def loss(self, params: Any, x: jax.Array) -> jax.Array:
        hidden = jnp.where(x @ params["a"] > 1, x @ params["a"], params["b"])
        total, _ = jax.lax.scan(lambda t, row: (t + row @ params["c"], row), params["d"], hidden)
        return jnp.square(total - 1)

    @gd.function
    def step(self, x: Any) -> Any:
        def replica_fn(x: jax.Array) -> Any:
            loss, gradient = jax.value_and_grad(self.loss)(gd.read(self.params), x)
            gradient = gd.get_replica_context().all_reduce("SUM", gradient)
            updates, slots = self.optimizer.update(gradient, gd.read(self.slots))
            gd.assign(self.slots, slots)
            gd.assign(self.params, optax.apply_updates(gd.read(self.params), updates))
            self.mean.update_state(loss)
            return loss, self.generator.normal((2,))

        losses, noise = self.strategy.run(replica_fn, args=(x,))
        return self.strategy.reduce("SUM", losses, axis=None), noise

    def steps(self, modes: list[bool], rows: int) -> Any:
        data = np.random.default_rng(0).standard_normal((rows, 3)).astype("f")
        (batch,) = self.strategy.experimental_distribute_dataset([data])
        results = []
        for is_disabled in modes:
            with jax.disable_jit(is_disabled):
                loss, noise = self.step(batch)
            results.append((loss, self.strategy.experimental_local_results(noise)))
        state = gd.read([self.params, self.slots])
        return jax.tree.map(np.asarray, [results, state, self.mean.result()])


@pytest.mark.long
@pytest.mark.parametrize("name", STRATEGIES)
def test_training_is_the_same(name: str) -> None:
    compiled = Training(STRATEGIES[name]()).steps([False] * 2, 5)
    in_turns = Training(STRATEGIES[name]()).steps([True, False], 5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), compiled, in_turns)


def test_set_for_the_process_and_outside_of_functions() -> None:
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        w = gd.Variable(1.0, aggregation=gd.VariableAggregation.SUM)
    jax.config.update("jax_disable_jit", True)
    try:
        strategy.run(lambda: w.assign_add(2.0))
        result = strategy.reduce("SUM", strategy.run(lambda: w.read_value()), axis=None)
    finally:
        jax.config.update("jax_disable_jit", False)
    assert (float(w), float(result)) == (5, 10)


def test_what_is_printed_is_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    strategy = STRATEGIES["mirrored"]()

    def replica_fn() -> None:
        number = gd.get_replica_context().replica_id_in_sync_group
        for turn in range(2):
            jax.debug.print("turn {} of {}", turn, number)

    with jax.disable_jit():
        strategy.run(replica_fn)
    printed = capfd.readouterr().out.splitlines()
    assert printed == ["turn 0 of 0", "turn 0 of 1", "turn 1 of 0", "turn 1 of 1"]


def test_a_callback_that_fails_names_the_node_and_harms_nothing() -> None:
    w = gd.Variable(jnp.ones(2), name="w")

    def refuse(x: Any) -> Any:
        raise LookupError(f"{x} is refused")

    @gd.function
    def step() -> None:
        w.assign(jax.pure_callback(refuse, jax.ShapeDtypeStruct((2,), jnp.float32), w[...] * 3))

    with jax.disable_jit(), pytest.raises(LookupError, match=r"\[3. 3.\] is refused") as caught:
        step()
    assert "test_node_by_node.py" in caught.value.__notes__[0]
    assert w.read_value().tolist() == [1, 1]


@pytest.mark.long
def test_keys_are_variables_too() -> None:
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        key = gd.Variable(jax.random.key(3))

    @gd.function
    def draw() -> Any:
        def replica_fn() -> jax.Array:
            own = gd.random.replica_key(key.read_value())
            return jax.random.normal(own, (2,))

        result = strategy.run(replica_fn)
        key.assign(jax.random.split(key.read_value())[0])
        return result

    with jax.disable_jit():
        first = draw()
    second = draw()
    keys = [jax.random.key(3), jax.random.split(jax.random.key(3))[0]]
    for drawn, expected in zip((first, second), keys, strict=True):
        for replica, value in enumerate(drawn.values):
            own = gd.function(
                lambda k, r=replica: jax.random.normal(jax.random.fold_in(k, r), (2,))
            )
            np.testing.assert_allclose(value, own(expected), rtol=1e-6)
