"""What a recorded case gives its program: strategy, label, input, and the verbs of `cases.json`.

A program is written as a user of graphdist writes it. Where TensorFlow's ran inside a
`tf.function`, `call` runs it inside a `gd.function`; distributed values are made outside and
passed in, since inside they do not exist yet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd

Program = Callable[["Environment"], Any]

DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": jnp.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "bool": np.bool_,
    "c64": np.complex64,
    "float32": np.float32,
    "int32": np.int32,
}


class NoProgramError(Exception):
    """A case whose label the runner does not know."""


class NoCounterpartError(Exception):
    """A program about something that JAX does not have."""


def without(what: str) -> Program:
    """Return the program of a case about something that JAX does not have."""

    def program(env: Environment) -> Any:
        raise NoCounterpartError(what)

    return program


@cache
def strategy_of(kind: str, replicas: int) -> Any:
    """Return the strategy of a case; the same for all cases, since none may leave a trace in it."""
    devices = [f"cpu:{i}" for i in range(replicas)]
    match kind:
        case "mirrored":
            return gd.MirroredStrategy(devices)
        case "one":
            return gd.OneDeviceStrategy("cpu:0")
        case "default":
            return gd.get_strategy()
        case "central":
            return gd.CentralStorageStrategy(devices, "cpu:0")
        case "mwms_local":
            return gd.MultiWorkerMirroredStrategy(devices=devices)
    raise NoProgramError(f"no strategy of kind {kind!r}")


EMPTY: dict[str, Any] = {}
"""Has no key: what a program looks up in it raises a `KeyError`."""


def array(value: Any, dtype: str = "f32") -> Any:
    """Return what `tf.constant(value, dtype)` is here; strings are no arrays."""
    if dtype == "str":
        return value if isinstance(value, str) else np.asarray(value)
    return jnp.asarray(np.asarray(_numbers(value), DTYPES[dtype]))


def _numbers(value: Any) -> Any:
    """Return the numbers of a recording, where "nan" and "inf" are text."""
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return float(value) if isinstance(value, str) else value


def context() -> Any:
    """Return the current replica context."""
    return gd.get_replica_context()


def replica_id() -> Any:
    """Return the number of the replica that runs."""
    return gd.get_replica_context().replica_id_in_sync_group


def in_scope(strategy: Any, fn: Callable[[], Any]) -> Any:
    """Return what `fn` returns inside the strategy's scope."""
    with strategy.scope():
        return fn()


def gradient(fn: Callable[[Any], Any], x: Any) -> Any:
    """Return what a gradient tape does: the gradient of the sum of all that `fn` returns."""
    return jax.grad(lambda y: jnp.sum(fn(y)))(x)


def components(variable: Any) -> list[Any]:
    """Return the value of each copy of a variable, a float or a list of numbers."""
    parts = [np.asarray(copy) for copy in variable.values]
    return [part.tolist() if part.ndim else float(part) for part in parts]


def synchronization(name: str) -> Any:
    """Return the member of an enum that is called so."""
    return gd.VariableSynchronization[name]


def aggregation(name: str) -> Any:
    """Return the member of an enum that is called so."""
    return gd.VariableAggregation[name]


class Environment:
    """One case: its strategy, label and input."""

    def __init__(self, case: dict[str, Any]) -> None:
        """Take the case apart; the strategy is made when it is asked for."""
        self.name: str = case["name"]
        self.family, _, self.label = self.name.split("|")[0].partition("/")
        self.kind: str = case["strategy"]["kind"]
        self.replicas: int = case["strategy"]["replicas"]
        self.input: dict[str, Any] = case["input"]
        self.mode: str = case["mode"]

    @property
    def parts(self) -> list[str]:
        """Return the parts of the label."""
        return self.label.split("/")

    @cached_property
    def strategy(self) -> Any:
        """Return the strategy that the program runs on."""
        return strategy_of(self.kind, self.replicas)

    def per_replica(self, values: Any, dtype: str = "f32") -> Any:
        """Return these values, one a replica; the value itself where there is one replica."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: array(values[context.replica_id_in_sync_group], dtype)
        )

    def variable(
        self,
        initial: Any = 1.0,
        sync: str = "AUTO",
        agg: str = "NONE",
        dtype: str = "f32",
        **rest: Any,
    ) -> Any:
        """Return a variable made in the strategy's scope."""
        with self.strategy.scope():
            return gd.Variable(
                array(initial, dtype),
                synchronization=synchronization(sync),
                aggregation=aggregation(agg),
                **rest,
            )

    def call(self, body: Callable[..., Any], *args: Any) -> Any:
        """Call the program's body, inside a function if the case was recorded in one."""
        return gd.function(body)(*args) if self.mode == "function" else body(*args)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what the replicas return, inside a function if the case was recorded in one.

        The arrays among the arguments are arguments of that function; the rest is closed over.
        """
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=_is_passed)
        places = [i for i, leaf in enumerate(leaves) if _is_passed(leaf)]

        def body(*passed: Any) -> Any:
            for place, leaf in zip(places, passed, strict=True):
                leaves[place] = leaf
            args, kwargs = jax.tree.unflatten(structure, leaves)
            return self.strategy.run(fn, args=args, kwargs=kwargs or None)

        return self.call(body, *(leaves[place] for place in places))

    def local(self, value: Any) -> tuple[Any, ...]:
        """Return the replicas' components of a value."""
        return tuple(self.strategy.experimental_local_results(value))


def _is_passed(leaf: Any) -> bool:
    return isinstance(leaf, gd.DistributedValues | jax.Array)


def from_table(table: dict[str, Program]) -> Program:
    """Return the family whose labels are the table's."""

    def program(env: Environment) -> Any:
        if env.label not in table:
            raise NoProgramError("no program for this label")
        return table[env.label](env)

    return program
