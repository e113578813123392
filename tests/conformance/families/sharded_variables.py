"""Variables in shards, and the partitioners that say how many shards there are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from graphdist.experimental import partitioners
from tests.conformance.encode import Encoded, attempt, encode
from tests.conformance.environment import Environment, NoProgramError, Program, array, from_table

ANY: Any = gd


PARTITIONERS: dict[str, Callable[[], Any]] = {
    "fixed2_10x3": lambda: partitioners.FixedShardsPartitioner(2),
    "fixed8_3x3": lambda: partitioners.FixedShardsPartitioner(8),
    "min4_max2_6x1": lambda: partitioners.MinSizePartitioner(4, 2),
    "min4_max10_6x1": lambda: partitioners.MinSizePartitioner(4, 10),
    "min_default_1024x1024": lambda: partitioners.MinSizePartitioner(),
    "min256k_max4_1024x1024": lambda: partitioners.MinSizePartitioner(256 << 10, 4),
    "max4_6x1": lambda: partitioners.MaxSizePartitioner(4),
    "max4_limit2_6x1": lambda: partitioners.MaxSizePartitioner(4, 2),
    "max1024_6x1": lambda: partitioners.MaxSizePartitioner(1024),
    "max16_string_6": lambda: partitioners.MaxSizePartitioner(32),
    "min_bad": lambda: partitioners.MinSizePartitioner(0),
    "max_bad": lambda: partitioners.MaxSizePartitioner(0),
    "min_bad_shards": lambda: partitioners.MinSizePartitioner(4, 0),
    "base": partitioners.Partitioner,
    "fixed_scalar": lambda: partitioners.FixedShardsPartitioner(2),
}


def partitioner(env: Environment) -> Any:
    """Return the shards that a partitioner makes of a shape."""
    if env.label not in PARTITIONERS:
        raise NoProgramError("no program for this label")
    return PARTITIONERS[env.label]()(env.input["shape"], env.input["dtype"])


def _shape(shape: Any) -> Any:
    return Encoded(t="TensorShape", v=list(shape))


def _variable() -> gd.ShardedVariable:
    first, second = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[6.0, 7.0], [8.0, 9.0]]
    return gd.ShardedVariable([gd.Variable(array(first)), gd.Variable(array(second))])


def _list(variable: Any) -> Any:
    return np.asarray(variable).tolist()


def _items(*indices: Any) -> Any:
    return [attempt(lambda index=index: _variable()[index]) for index in indices]


def _shape_numpy(env: Environment) -> Any:
    v = _variable()
    dtype = Encoded(t="DType", v=np.dtype(v.dtype).name)
    return [_shape(v.shape), dtype, _list(v), len(v.variables), v.name]


def _multi(env: Environment) -> Any:
    v: Any = _variable()
    shape = encode(_shape(v[:, None].shape))
    return [*_items((slice(1, 4), 1), (..., 0)), shape, attempt(lambda: v["a"])]


def _assigned(env: Environment) -> Any:
    v = _variable()
    v.assign(jnp.ones((5, 2)))
    return [_list(shard) for shard in v.variables]


def _added(env: Environment) -> Any:
    v = _variable()
    v.assign_add(jnp.ones((5, 2)))
    v.assign_sub(2 * jnp.ones((5, 2)))
    return _list(v)


def _scattered(variable: Any, method: str, values: Any, indices: Any) -> Any:
    getattr(variable, method)(gd.IndexedSlices(array(values), jnp.array(indices)))
    return _list(variable)


def _uneven(env: Environment) -> Any:
    first, second = gd.Variable(array([[0.0]])), gd.Variable(array([[1.0], [2.0], [3.0]]))
    return _scattered(gd.ShardedVariable([first, second]), "scatter_add", [[10.0]], [0])


def _gradients(env: Environment) -> Any:
    v = _variable()

    def loss(parts: list[Any]) -> Any:
        return jnp.sum(jnp.concatenate(parts) ** 2)

    return jax.grad(loss)([shard.read_value() for shard in v.variables])


def _resharded(env: Environment) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = gd.train.Checkpoint(v=_variable()).save(os.path.join(folder, "c"))
        shards = [gd.Variable(jnp.zeros((2, 2))), gd.Variable(jnp.zeros((3, 2)))]
        others = gd.ShardedVariable(shards), gd.Variable(jnp.zeros((5, 2)))
        for other in others:
            gd.train.Checkpoint(v=other).restore(path).assert_consumed()
    return [_list(other) for other in others]


def _other(*variables: Any) -> Program:
    return lambda env: gd.ShardedVariable([gd.Variable(array(*value)) for value in variables])


SHARDED_VARIABLE: dict[str, Program] = {
    "shape_numpy": _shape_numpy,
    "getitem_int": lambda env: _items(0, 3, -1, 5),
    "getitem_slice": lambda env: _items(
        slice(1, 4), slice(None, None, 2), slice(4, 0, -1), slice(3, 3), slice(0, 5, 0)
    ),
    "getitem_multi": _multi,
    "assign": _assigned,
    "assign_add_sub": _added,
    "assign_wrong_shape": lambda env: _variable().assign(jnp.ones((4, 2))),
    "scatter_add": lambda env: _scattered(
        _variable(), "scatter_add", [[10.0, 10.0], [20.0, 20.0]], [1, 4]
    ),
    "scatter_update_uneven": lambda env: _scattered(
        _variable(), "scatter_update", [[10.0, 10.0], [20.0, 20.0]], [2, 3]
    ),
    "even_required_for_scatter": _uneven,
    "convert_and_arith": lambda env: [
        jnp.asarray(_variable().read_value()),
        _variable() + 1.0,
        2.0 * _variable(),
    ],
    "embedding_lookup": lambda env: gd.nn.embedding_lookup(_variable(), [0, 4, 2]),
    "gather": lambda env: _variable().gather([0, 4]),
    "iter": lambda env: ["ResourceVariable" for shard in _variable()],
    "empty": lambda env: ANY.ShardedVariable([]),
    "dtype_mismatch": _other(([1.0],), ([1], "i32")),
    "shape_mismatch": _other(([[1.0]],), ([[1.0, 2.0]],)),
    "tape_gradient": _gradients,
    "checkpoint_reshard": _resharded,
}

sharded_variable = from_table(SHARDED_VARIABLE)
