"""What a `gd.function` and `run` are called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import graphdist as gd
from tests.errors.programs import pair, per_replica
from tests.errors.refusal import Refused


@gd.function
def _double(x: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * 2, x)


def argument_unhashable(refused: Refused) -> None:
    with refused(TypeError):
        _double({"x": {1, 2}})
    assert _double({"x": 2})["x"] == 4


def argument_changed_in_place(refused: Refused) -> None:
    @gd.function
    def halved(batch: dict[str, Any]) -> Any:
        batch["x"] = batch["x"] / 2
        return batch["x"]

    with refused(ValueError):
        halved({"x": jnp.ones(2)})
    assert _double({"x": 2})["x"] == 4


def argument_that_is_a_state_of_flax_changed(refused: Refused) -> None:
    definition, state = nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))

    def replica_fn(state: Any) -> Any:
        linear: Any = nnx.merge(definition, state)
        linear.bias[...] += 1.0
        return linear(jnp.ones(2))

    with refused(ValueError):
        pair().run(replica_fn, args=(state,))


def argument_that_is_a_module_of_flax_changed(refused: Refused) -> None:
    def replica_fn(linear: Any) -> Any:
        linear.bias[...] += 1.0
        return linear(jnp.ones(2))

    with refused(ValueError):
        pair().run(replica_fn, args=(nnx.Linear(2, 1, rngs=nnx.Rngs(0)),))


def argument_of_a_dataclass_without_a_hash(refused: Refused) -> None:
    @dataclass
    class Settings:
        rate: float

    with refused(TypeError):
        _double(Settings(0.1))


def argument_string_array(refused: Refused) -> None:
    with refused(TypeError):
        _double(np.array(["a", "b"]))


def argument_object_array(refused: Refused) -> None:
    with refused(TypeError):
        _double(x=[np.zeros(2), np.array([None, 1])])


def argument_is_a_shape(refused: Refused) -> None:
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    with refused(ValueError):
        _double(shape)
    assert _double(jnp.ones(2, jnp.float32)).tolist() == [2, 2]


def argument_is_a_per_replica_shape(refused: Refused) -> None:
    strategy = pair()
    step = gd.function(lambda x: strategy.run(lambda x: x * 2, args=(x,)))
    with strategy.scope(), refused(ValueError):
        step(gd.PerReplicaSpec((2,), jnp.float32))
    assert step(per_replica(strategy, np.ones(2, np.float32))).values[1].tolist() == [4, 4]


def argument_deleted(refused: Refused) -> None:
    x = jnp.ones(3)
    _double(x)
    x.delete()
    with refused(ValueError):
        _double(x)
    assert _double(jnp.ones(3)).tolist() == [2, 2, 2]


def argument_donated(refused: Refused) -> None:
    strategy = pair()
    step = gd.function(
        lambda batch: strategy.reduce("MEAN", strategy.run(lambda: batch["x"]), None)
    )
    x = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    with refused(ValueError):
        step({"x": x})
    assert step({"x": jnp.ones(3)}).tolist() == [1, 1, 1]


def argument_per_replica_deleted(refused: Refused) -> None:
    strategy = pair()
    step = gd.function(lambda x: strategy.run(lambda x: x * 2, args=(x,)))
    x = per_replica(strategy, np.ones(2, np.float32))
    step(x)
    x.array.delete()
    with refused(ValueError):
        step(x)


def argument_traced_by_jit(refused: Refused) -> None:
    with refused(TypeError):
        jax.jit(lambda x: _double(x))(jnp.ones(3))
    assert _double(jnp.ones(3)).tolist() == [2, 2, 2]


def argument_traced_by_grad(refused: Refused) -> None:
    def loss(x: jax.Array) -> jax.Array:
        return _double(x).sum()

    with refused(TypeError):
        jax.grad(loss)(jnp.ones(3))
    assert gd.function(lambda x: jax.grad(loss)(x))(jnp.ones(3)).tolist() == [2, 2, 2]


def function_traced_by_jit(refused: Refused) -> None:
    w = gd.Variable(1.0, name="w")

    @gd.function
    def count() -> Any:
        return w.assign_add(1.0)

    with refused(RuntimeError):
        jax.jit(lambda x: x + count())(1.0)
    assert count() == 2


def function_with_compiler_options_traced_by_jit(refused: Refused) -> None:
    options = {"xla_cpu_multi_thread_eigen": False}
    w = gd.Variable(1.0, name="w")
    count = gd.function(lambda: w.assign_add(1.0), compiler_options=options)
    assert count() == 2
    with refused(RuntimeError):
        jax.jit(lambda x: x + count())(1.0)
    assert count() == 3


def static_name_unknown(refused: Refused) -> None:
    def step(x: Any, mode: str) -> Any:
        return x if mode == "keep" else x * 2

    with refused(ValueError):
        gd.function(step, static_argnames=("modes",))
    assert gd.function(step, static_argnames="mode")(3, "keep") == 3


def static_argument_unhashable(refused: Refused) -> None:
    @gd.function(static_argnames="sizes")
    def zeros(sizes: Any) -> Any:
        return jnp.zeros(sizes)

    with refused(TypeError):
        zeros([2, 3])
    assert zeros((2, 3)).shape == (2, 3)


def function_of_no_function(refused: Refused) -> None:
    number: Any = 3
    with refused(TypeError):
        gd.function(number)


def passes_of_no_function(refused: Refused) -> None:
    number: Any = 3
    with refused(TypeError):
        gd.function(passes=[number])(lambda x: x * 2)


def result_is_unknown_text(refused: Refused) -> None:
    with refused(ValueError):
        _double.trace(jnp.ones(3)).lower().as_text("hlo")


def per_replica_of_different_ranks(refused: Refused) -> None:
    strategy = pair()
    step = gd.function(lambda x: strategy.run(lambda x: x.sum(), args=(x,)))
    with strategy.scope(), refused(ValueError):
        step(gd.PerReplica([np.ones((2, 3)), np.ones(3)]))


def per_replica_of_different_dtypes(refused: Refused) -> None:
    strategy = pair()
    step = gd.function(lambda x: strategy.run(lambda x: x.sum(), args=(x,)))
    with strategy.scope(), refused(ValueError):
        step(gd.PerReplica([np.ones(3, np.float32), np.ones(3, np.int32)]))


def per_replica_of_arrays_and_strings(refused: Refused) -> None:
    strategy = pair()
    step = gd.function(lambda x: strategy.run(lambda x: x, args=(x,)))
    with strategy.scope(), refused(TypeError):
        step(gd.PerReplica([np.ones(3), "b"]))


def per_replica_without_a_hash(refused: Refused) -> None:
    strategy = pair()
    step = gd.function(lambda x: strategy.run(lambda x: x, args=(x,)))
    with strategy.scope(), refused(TypeError):
        step(gd.PerReplica([{1}, {2}]))


def per_replica_of_too_many_components(refused: Refused) -> None:
    strategy = pair()
    step = gd.function(lambda x: strategy.run(lambda x: x.sum(), args=(x,)))
    with strategy.scope(), refused(ValueError):
        step(gd.PerReplica([np.ones(3), np.ones(3), np.ones(3)]))


def per_replica_of_no_components(refused: Refused) -> None:
    strategy = pair()
    with refused(ValueError):
        strategy.run(lambda x: x, args=(gd.PerReplica([]),))
    assert strategy.run(lambda x: x, args=(gd.PerReplica([1.0, 2.0]),)).values[1] == 2


def per_replica_of_another_strategy(refused: Refused) -> None:
    strategy, other = pair(), gd.MirroredStrategy(["cpu:2", "cpu:3"])
    step = gd.function(lambda x: strategy.run(lambda x: x.sum(), args=(x,)))
    value = per_replica(other, np.float32(1))
    with strategy.scope(), refused(ValueError):
        step(value)
    assert step(per_replica(strategy, np.float32(1))).values[0] == 1


def per_replica_without_a_strategy(refused: Refused) -> None:
    strategy = pair()
    step = gd.function(lambda x: strategy.run(lambda x: x.sum(), args=(x,)))
    value = gd.PerReplica([np.ones(3), np.ones(3)])
    with refused(RuntimeError):
        step(value)
    with strategy.scope():
        assert step(value).values[0] == 3


def per_replica_closed_over(refused: Refused) -> None:
    strategy = pair()
    value = per_replica(strategy, np.float32(1))

    def closing() -> Any:
        return strategy.run(lambda x: x * 2, args=(value,))

    with refused(ValueError):
        gd.function(closing)()
    assert gd.function(lambda v: strategy.run(lambda x: x * 2, args=(v,)))(value).values[0] == 2


def per_replica_closed_over_by_reduce(refused: Refused) -> None:
    strategy = pair()
    value = per_replica(strategy, np.float32(1))

    @gd.function
    def step() -> Any:
        return strategy.reduce("MEAN", value, axis=None)

    with refused(ValueError):
        step()
    assert strategy.reduce("MEAN", value, axis=None) == 1.5


def per_replica_closed_over_by_gather(refused: Refused) -> None:
    strategy = pair()
    value = per_replica(strategy, np.ones(2, np.float32))

    @gd.function
    def step() -> Any:
        return strategy.gather(value, axis=0)

    with refused(ValueError):
        step()
    assert strategy.gather(value, axis=0).tolist() == [1, 1, 2, 2]


def per_replica_closed_over_by_a_function(refused: Refused) -> None:
    strategy = pair()
    value = per_replica(strategy, np.float32(1))
    with refused(ValueError):
        gd.function(lambda: 2 * jnp.square(value))()
    assert value.values[1] == 2


def per_replica_values_inside_a_function(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def first(x: gd.PerReplica) -> Any:
        return x.values[0]

    with refused(ValueError):
        first(per_replica(strategy, np.float32(1)))


def per_replica_as_numpy_array(refused: Refused) -> None:
    strategy = pair()
    value = per_replica(strategy, np.float32(1))
    with refused(ValueError):
        np.asarray(value)
    assert np.asarray(value.values[1]) == 2


def per_replica_in_arithmetic(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def add(x: Any) -> Any:
        return jnp.sum(x)

    with refused(ValueError):
        add(per_replica(strategy, np.float32(1)))


def run_args_not_a_tuple(refused: Refused) -> None:
    strategy, x = pair(), jnp.ones(3)
    args: Any = x
    with refused(ValueError):
        strategy.run(lambda x: x * 2, args=args)
    assert strategy.run(lambda x: x * 2, args=(x,)).values[1].tolist() == [2, 2, 2]


def run_kwargs_not_a_dict(refused: Refused) -> None:
    strategy = pair()
    kwargs: Any = [("x", 1)]
    with refused(ValueError):
        strategy.run(lambda x: x * 2, kwargs=kwargs)


def run_of_no_function(refused: Refused) -> None:
    fn: Any = 3
    with refused(TypeError):
        pair().run(fn)
