"""Making, reading and assigning variables."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist import VariableAggregation as Aggregation
from graphdist import VariableSynchronization as Synchronization
from tests.errors.programs import pair, per_replica
from tests.errors.refusal import Refused


def _variable(
    strategy: gd.Strategy,
    initial: Any = 0.0,
    synchronization: Synchronization = Synchronization.AUTO,
    aggregation: Aggregation = Aggregation.NONE,
) -> gd.Variable:
    with strategy.scope():
        return gd.Variable(
            initial, name="w", synchronization=synchronization, aggregation=aggregation
        )


def variable_made_again(refused: Refused) -> None:
    made: list[gd.Variable] = []

    @gd.function
    def step(x: jax.Array) -> Any:
        made.append(gd.Variable(1.0, name="w"))
        return made[-1] * x

    step(jnp.ones(2))
    with refused(RuntimeError):
        step(jnp.ones(3))
    assert step(jnp.ones(2)).tolist() == [1, 1]


def variable_from_traced_value(refused: Refused) -> None:
    made: list[gd.Variable] = []

    @gd.function
    def step(x: jax.Array) -> Any:
        if not made:
            made.append(gd.Variable(x * 2, name="w"))
        return made[0] + x

    with refused(TypeError):
        step(jnp.ones(2))


def variable_from_string(refused: Refused) -> None:
    with refused(TypeError):
        gd.Variable("one", name="w")


def variable_of_unknown_dtype(refused: Refused) -> None:
    with refused(TypeError):
        gd.Variable(1.0, name="w", dtype="flot32")


def variable_from_per_replica(refused: Refused) -> None:
    strategy = pair()
    value = per_replica(strategy, np.float32(1))
    with strategy.scope(), refused(ValueError):
        gd.Variable(value, name="w")


def variable_with_unknown_option(refused: Refused) -> None:
    synchronization: Any = "on_read"
    with refused(ValueError):
        gd.Variable(1.0, name="w", synchronization=synchronization)


def variable_synchronization_none(refused: Refused) -> None:
    with pair().scope(), refused(ValueError):
        gd.Variable(1.0, name="w", synchronization=Synchronization.NONE)


def variable_mean_of_integers(refused: Refused) -> None:
    with pair().scope(), refused(ValueError):
        gd.Variable(1, name="w", aggregation=Aggregation.MEAN)


def variable_of_keys_combined(refused: Refused) -> None:
    with pair().scope(), refused(ValueError):
        gd.Variable(jax.random.key(0), name="w", aggregation=Aggregation.ONLY_FIRST_REPLICA)


def variable_of_integers_assigned_a_half(refused: Refused) -> None:
    w = gd.Variable(1, name="w")
    with refused(ValueError):
        w.assign_add(0.5)


def variable_added_to_in_place(refused: Refused) -> None:
    w = gd.Variable(1.0, name="w")
    with refused(NotImplementedError):
        w += 1.0


def variable_pickled(refused: Refused) -> None:
    w = gd.Variable(1.0, name="w")
    with refused(TypeError):
        pickle.dumps({"w": w})


def variable_read_under_jit(refused: Refused) -> None:
    w = gd.Variable(1.0, name="w")
    with refused(RuntimeError):
        jax.jit(lambda x: w * x)(1.0)
    assert jax.grad(lambda x: w * x)(1.0) == 1


def variable_copied(refused: Refused) -> None:
    w = gd.Variable(1.0, name="w")
    with refused(TypeError):
        copy.copy(w)


def scatter_without_slices(refused: Refused) -> None:
    w = _variable(pair(), jnp.zeros(3))
    with refused(TypeError):
        w.scatter_add(jnp.ones(1))  # type: ignore[arg-type]


def scatter_of_on_read(refused: Refused) -> None:
    w = _variable(pair(), jnp.zeros(3), synchronization=gd.VariableSynchronization.ON_READ)
    with refused(NotImplementedError):
        w.scatter_add(gd.IndexedSlices(jnp.ones(1), jnp.zeros(1, int)))


def scatter_max_of_a_sum(refused: Refused) -> None:
    w = _variable(pair(), jnp.zeros(3), aggregation=gd.VariableAggregation.SUM)
    with refused(NotImplementedError):
        w.scatter_max(gd.IndexedSlices(jnp.ones(1), jnp.zeros(1, int)))


def assigned_shape_differs(refused: Refused) -> None:
    w = _variable(pair(), jnp.zeros((2, 3)))
    with refused(ValueError):
        w.assign(jnp.zeros((3, 2)))
    w.assign(jnp.ones((2, 3)))
    assert float(w[0, 0]) == 1


def assigned_shape_differs_inside(refused: Refused) -> None:
    w = _variable(pair(), jnp.zeros(3))

    @gd.function
    def step(x: jax.Array) -> None:
        w.assign_add(x)

    with refused(ValueError):
        step(jnp.ones(()))
    step(jnp.ones(3))
    assert w.read_value().tolist() == [1, 1, 1]


def assigned_dtype_differs(refused: Refused) -> None:
    w = _variable(pair(), jnp.zeros(2))
    with refused(ValueError):
        w.assign(np.ones(2, np.int32))
    w.assign(np.ones(2, np.float32))
    assert w.read_value().tolist() == [1, 1]


def assigned_traced_value(refused: Refused) -> None:
    w = _variable(pair(), jnp.zeros(2))

    def step(x: jax.Array) -> jax.Array:
        w.assign(x * 2)
        return x

    with refused(RuntimeError):
        jax.jit(step)(jnp.ones(2))
    gd.function(lambda x: jax.jit(step)(x))(jnp.ones(2))
    assert w.read_value().tolist() == [2, 2]


def assigned_array_under_jit(refused: Refused) -> None:
    w = _variable(pair(), jnp.zeros(2))

    def step() -> None:
        w.assign(np.ones(2, np.float32))

    with refused(RuntimeError):
        jax.jit(step)()
    assert w.read_value().tolist() == [0, 0]


def on_read_assigned_under_jit(refused: Refused) -> None:
    strategy = pair()
    w = _variable(strategy, 1.0, Synchronization.ON_READ, Aggregation.SUM)

    def step() -> None:
        w.assign(4.0)

    with refused(RuntimeError):
        jax.jit(step)()
    assert float(w) == 2


def assigned_string(refused: Refused) -> None:
    w = _variable(pair())
    with refused(TypeError):
        w.assign("one")


def assigned_per_replica(refused: Refused) -> None:
    strategy = pair()
    w = _variable(strategy)
    value = per_replica(strategy, np.float32(1))
    with strategy.scope(), refused(TypeError):
        w.assign(value)
    w.assign(strategy.reduce("MEAN", value, axis=None))
    assert float(w) == 1.5


def assigned_per_replica_inside(refused: Refused) -> None:
    strategy = pair()
    w = _variable(strategy)

    @gd.function
    def step(x: Any) -> None:
        w.assign_add(strategy.run(lambda x: x * 2, args=(x,)))

    with refused(TypeError):
        step(per_replica(strategy, np.float32(1)))


def assigned_structure_differs(refused: Refused) -> None:
    w = gd.variables({"a": jnp.zeros(2), "b": jnp.zeros(3)})
    with refused(ValueError):
        gd.assign(w, {"a": jnp.ones(2), "c": jnp.ones(3)})
    assert gd.read(w)["a"].tolist() == [0, 0]


def assigned_containers_differ(refused: Refused) -> None:
    w = gd.variables([jnp.zeros(2), jnp.zeros(3)])
    with refused(ValueError):
        gd.assign(w, (jnp.ones(2), jnp.ones(3)))
    assert gd.read(w)[0].tolist() == [0, 0]


def assigned_leaf_per_replica(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        w = gd.variables({"a": jnp.zeros(())})

    @gd.function
    def step(x: Any) -> None:
        gd.assign(w, strategy.run(lambda x: {"a": x * 2}, args=(x,)))

    with refused(TypeError):
        step(per_replica(strategy, np.float32(1)))


def assigned_one_leaf_differs(refused: Refused) -> None:
    w = gd.variables({"a": jnp.zeros(2), "b": jnp.zeros(3)})
    with refused(ValueError):
        gd.assign(w, {"a": jnp.ones(2), "b": jnp.ones(2)})
    assert gd.read(w)["a"].tolist() == [0, 0]


def assigned_to_an_array(refused: Refused) -> None:
    w = gd.Variable(0.0, name="a")
    with refused(TypeError):
        gd.assign({"a": w, "b": jnp.zeros(())}, {"a": 1.0, "b": 1.0})
    assert float(w) == 0


def on_read_none_read_as_one(refused: Refused) -> None:
    w = _variable(pair(), 0.0, Synchronization.ON_READ)
    with refused(ValueError):
        w.read_value()


def on_read_none_read_as_one_inside(refused: Refused) -> None:
    strategy = pair()
    w = _variable(strategy, 0.0, Synchronization.ON_READ)

    @gd.function
    def step() -> Any:
        strategy.run(lambda: w.assign_add(1.0))
        return w + 1

    with refused(ValueError):
        step()
    assert strategy.experimental_local_results(strategy.run(lambda: w.read_value()))[0] == 0


def variable_in_a_function_of_jax(refused: Refused) -> None:
    w: Any = _variable(pair(), 1.0)
    with refused(ValueError):
        jnp.sin(w)
    assert float(jnp.sin(w[...])) == float(jnp.sin(jnp.asarray(w)))


def variable_in_a_function_of_jax_inside(refused: Refused) -> None:
    strategy = pair()
    w: Any = _variable(strategy, 1.0)

    @gd.function
    def step(x: jax.Array) -> jax.Array:
        return strategy.run(lambda: jnp.dot(x, w))

    with refused(ValueError):
        step(jnp.ones(()))


def variable_in_a_function_with_a_derivative_of_its_own(refused: Refused) -> None:
    given: Any = _variable(pair(), 1.0)

    @gd.function
    def step() -> jax.Array:
        return jax.nn.relu(given)

    with refused(RuntimeError):
        step()
    with pytest.raises(ValueError, match="__jax_array__"):  # outside functions it is JAX's own
        jax.nn.relu(given)


def pytree_of_variables_in_jit(refused: Refused) -> None:
    w = _variable(pair(), 1.0)
    with refused(ValueError):
        jax.jit(lambda params: params["w"] * 2)({"w": w})


def on_read_none_assigned_as_one(refused: Refused) -> None:
    w = _variable(pair(), 0.0, Synchronization.ON_READ)
    with refused(ValueError):
        w.assign(1.0)


def on_read_sum_added_as_one(refused: Refused) -> None:
    w = _variable(pair(), 0.0, Synchronization.ON_READ, Aggregation.SUM)
    with refused(ValueError):
        w.assign_add(1.0)
    w.assign(3.0)
    assert float(w) == 3


def on_read_sum_subtracted_as_one(refused: Refused) -> None:
    strategy = pair()
    w = _variable(strategy, 0.0, Synchronization.ON_READ, Aggregation.SUM)

    @gd.function
    def step() -> None:
        w.assign_sub(1.0)

    with refused(ValueError):
        step()


@jax.tree_util.register_pytree_node_class
class _Strict:
    """A pytree that takes nothing but arrays."""

    def __init__(self, scale: Any) -> None:
        assert isinstance(scale, jax.Array)
        self.scale = scale

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.scale,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> _Strict:
        return cls(*children)


def variables_in_a_class_that_takes_arrays_alone(refused: Refused) -> None:
    with refused(TypeError):
        gd.variables({"state": _Strict(jnp.ones(2))})


def text_among_arrays(refused: Refused) -> None:
    with refused(TypeError):
        gd.variables({"kernel": jnp.ones(2), "name": "dense"})
