"""The strategy that a Keras model trains on: its scope is open when the model is made or compiled.

Keras has no hooks for models. So `train_models_on_strategies` wraps methods of `keras.Model`: the
method that makes a model, the methods that users call, and the methods from which Keras gets the
functions that run steps (`make_train_function`, `make_test_function` and `make_predict_function`).
The class of a model stays the same, so the model is saved as before. `distribute` gives a strategy
to a model that was made outside a scope.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar  # Any: arguments of Keras's methods

import jax
import keras
import numpy as np

from graphdist.context import current_strategy, has_strategy
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError, UnsupportedError
from graphdist.keras.automatic_steps import AUTO, numbers_executions, size_of_execution
from graphdist.keras.datasets import adapt_datasets
from graphdist.keras.placed_variables import (
    is_placed,
    placed_variable,
    shard_over_cores,
    strategy_of,
)
from graphdist.keras.python_state import layers_of
from graphdist.keras.replacements import replaced, value_set, wrap_method
from graphdist.keras.steps import Steps, variables_of
from graphdist.keras.unpublished_names import STATE_OF_A_STEP
from graphdist.parameter_server.strategy import ParameterServerBase
from graphdist.program.function import Function
from graphdist.strategies.base import Strategy
from graphdist.strategies.current import get_strategy
from graphdist.user_warnings import warn_user
from graphdist.values.distributed import type_name
from graphdist.values.specs import PerReplicaSpec

Model = TypeVar("Model", bound=keras.Model)

_KINDS = {"fit": "train", "evaluate": "test", "predict": "predict"}
"""The kind of steps that a method of a model runs."""

STRATEGY_OF_A_MODEL = "_graphdist_strategy"
"""The attribute of a model that has its strategy."""


def strategy_of_model(model: keras.Model) -> Strategy | None:
    """Return the strategy of a model; None if the model has none."""
    return vars(model).get(STRATEGY_OF_A_MODEL)


def train_models_on_strategies() -> None:
    """Let models of Keras run their steps on strategies, also models that were made before."""
    wrap_method(keras.Model, "__new__", _new_model)
    # In the class that defines it, since Keras looks whether a model's class has its own `compile`.
    defining = next(kind for kind in keras.Model.__mro__ if "compile" in vars(kind))
    wrap_method(defining, "compile", _compile)
    for method in _KINDS:
        wrap_method(keras.Model, method, partial(_call_with_data, method))
    for kind in _KINDS.values():
        wrap_method(keras.Model, f"make_{kind}_function", partial(_make_function, kind))
    if hasattr(keras.Model, STATE_OF_A_STEP):
        wrap_method(keras.Model, STATE_OF_A_STEP, _state_of_a_step)


def _new_model(new: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    model = new(*args, **kwargs)
    if isinstance(model, keras.Model) and has_strategy():
        _place_on(model, get_strategy())
    return model


def _compile(compile: Callable[..., Any], model: keras.Model, *args: Any, **kwargs: Any) -> Any:
    if has_strategy():
        _place_on(model, get_strategy())
    bound = inspect.signature(compile).bind(model, *args, **kwargs)
    if bound.arguments.get("steps_per_execution") == "auto":
        bound.arguments["steps_per_execution"] = AUTO if numbers_executions() else 1
    return compile(*bound.args, **bound.kwargs)


def _call_with_data(
    method: str, original: Callable[..., Any], model: keras.Model, *args: Any, **kwargs: Any
) -> Any:
    """Call `fit`, `evaluate` or `predict`, whose data may be a dataset of graphdist."""
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    adapt_datasets(method, bound.arguments, strategy_of_model(model))

    def size() -> int:
        steps = getattr(model, f"{_KINDS[method]}_function", None)
        return steps.automatic_size if isinstance(steps, Steps) else 1

    with value_set(size_of_execution, size):
        return original(*bound.args, **bound.kwargs)


def _place_on(model: keras.Model, strategy: Strategy) -> None:
    """Train a model on a strategy from now on.

    Raises `ContextError` if the model trains on another strategy, `UnsupportedError` if the model's
    class overrides a method that makes the functions of steps.
    """
    present = strategy_of_model(model)
    if present is strategy:
        return
    if present is not None:
        raise ContextError(
            f"model {model.name!r} belongs to {present.beside(strategy)}, "
            f"and is compiled in the scope of {strategy}",
            hint="make another model in that scope, and copy the weights: "
            "other.set_weights(model.get_weights())",
        )
    for method in ("make_train_function", "make_test_function", "make_predict_function"):
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise UnsupportedError(
                f"{type(model).__name__} has its own {method}, which a strategy replaces",
                hint="override train_step, test_step or predict_step",
            )
    vars(model)[STRATEGY_OF_A_MODEL] = strategy


def _make_function(
    kind: str, original: Callable[..., Any], model: keras.Model, force: bool = False
) -> Any:
    """Make the function that runs steps of a kind: "train", "test" or "predict"."""
    if strategy_of_model(model) is None:
        # A model that is made of another model's layers has weights on that model's strategy.
        of_weights = strategy_of(model.variables)
        if isinstance(of_weights, Strategy) and not of_weights.is_default:
            _place_on(model, of_weights)
    strategy = strategy_of_model(model)
    if strategy is None:
        _refuse_a_scope(model)
        return original(model, force)
    if kind == "train":
        _refuse_parameter_servers(model, strategy)
    _refuse_states_of_rows(model, strategy.num_replicas_in_sync)
    _require_a_step_with_state(model, f"{kind}_step")
    steps = getattr(model, f"{kind}_function", None)
    is_outdated = isinstance(steps, Steps) and not steps.are_of_model
    if is_outdated and kind == "train" and not force:
        raise _other_variables(model)
    if force or is_outdated or not isinstance(steps, Steps):
        if model.run_eagerly:
            warn_user(
                f"run_eagerly of model {model.name!r} has no effect on {strategy}: its "
                f"steps are compiled. To run it line by line, compile it outside the scope"
            )
        steps = Steps(kind, model, strategy)
        setattr(model, f"{kind}_function", steps)
    return steps


def _other_variables(model: keras.Model) -> ArgumentError:
    return ArgumentError(
        f"model {model.name!r} has other variables, or other trainable ones, than when its "
        f"training began",
        hint="compile it again after layer.trainable, a layer or a metric has changed",
    )


def _refuse_parameter_servers(model: keras.Model, strategy: Strategy) -> None:
    if isinstance(strategy, ParameterServerBase):
        raise UnsupportedError(
            f"model {model.name!r} is trained by fit on {strategy}: fit is "
            f"synchronous, and would run in this process and use no worker",
            hint="train it with strategy = gd.MirroredStrategy(), or write the step as a "
            "gd.function and give it to ClusterCoordinator(strategy).schedule",
        )


def _refuse_states_of_rows(model: keras.Model, num_replicas: int) -> None:
    kinds = keras.layers.RNN, keras.layers.Bidirectional
    for layer in layers_of(model):
        if num_replicas > 1 and isinstance(layer, kinds) and layer.stateful:
            raise UnsupportedError(
                f"layer {layer.name!r} is stateful: it keeps a state for each row of a batch, "
                f"which {num_replicas} replicas do not share",
                hint="make it with stateful=False, or train on one device",
            )


def _require_a_step_with_state(model: keras.Model, method: str) -> None:
    signature = inspect.signature(getattr(model, method))
    try:
        signature.bind("state", "data")
    except TypeError:
        raise ArgumentError(
            f"{method} of {type(model).__name__} takes {signature}: Keras on JAX calls it "
            f"with (state, data)",
            hint="write it as Keras documents for JAX: take the state, and return it after the "
            "logs",
        ) from None


def _refuse_a_scope(model: keras.Model) -> None:
    if has_strategy():
        raise ContextError(
            f"model {model.name!r} was made and compiled outside the scope of "
            f"{current_strategy()}, in which it is used: it would run on one device",
            hint="compile it inside the scope, or call graphdist.keras.distribute(model)",
        )


def _state_of_a_step(original: Callable[..., Any], model: keras.Model, **wanted: bool) -> Any:
    """Return the state that Keras passes to a step, without copies of values on a strategy.

    `wanted` says which lists of variables Keras asks for, such as `trainable_variables=True`.
    """
    lists = [
        variables
        for name, variables in variables_of(model).items()
        if wanted.get(f"{name}_variables")
    ]
    if not all(is_placed(variable) for variables in lists for variable in variables):
        return original(model, **wanted)
    strategy = strategy_of_model(model)
    return tuple([placed_variable(each, strategy).handed_back for each in of] for of in lists)


def distribute(
    model: Model,
    strategy: Strategy | None = None,
    *,
    cores: Mapping[str, Sequence[str | None] | Literal["auto"]] | Literal["auto"] | None = None,
) -> Model:
    """Let a Keras model train on a strategy, by default on the one whose scope is open.

    A model that is made or compiled in a scope needs no such call, unless it is to say by `cores`
    how the cores of a replica hold its weights: patterns of `fnmatch` for paths of variables, such
    as `{"*dense*/kernel": (None, "sharded")}`, the first that matches counts; "auto" chooses.
    Returns the model itself. Raises `ArgumentTypeError` for anything but a Keras model,
    `ContextError` if the model belongs to another strategy or its weights are in use already,
    `ArgumentError` for a pattern that no weight matches, and for what a weight's shape does not
    allow.

    >>> import graphdist as gd, graphdist.keras, keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    >>> model = graphdist.keras.distribute(model, strategy)
    >>> history = model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    >>> list(history.history)
    ['loss']
    """
    if not isinstance(model, keras.Model):
        raise ArgumentTypeError(f"distribute takes a Keras model, not {type_name(model)}")
    strategy = get_strategy() if strategy is None else strategy
    _place_on(model, strategy)
    if cores is not None:
        shard_over_cores(model.variables, cores, strategy.devices.num_cores)
    return model


def training_step(
    model: keras.Model, x: Any, y: Any = None, sample_weight: Any = None
) -> tuple[Function[Any, Any], tuple[Any, ...]]:
    """Return the function of a model's training step, and the arguments to trace it for.

    The model must be compiled and have a strategy. `x`, `y` and `sample_weight` are a global batch,
    or only have its shapes and dtypes, such as `jax.ShapeDtypeStruct`. No step is run. A factory
    for `graphdist-compile` or `graphdist-viz` may return this result. Raises `ContextError` for a
    model without a strategy, `ArgumentError` for rows that do not divide by the replicas.

    >>> import graphdist as gd, graphdist.keras, jax, keras
    >>> with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
    ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> rows = jax.ShapeDtypeStruct((8, 2), "float32"), jax.ShapeDtypeStruct((8, 1), "float32")
    >>> step, arguments = graphdist.keras.training_step(model, *rows)
    >>> [collective.kind for collective in step.trace(*arguments).lower().collectives]
    ['all_reduce']
    """
    strategy = strategy_of_model(model)
    if strategy is None:
        raise ContextError(
            f"model {model.name!r} has no strategy, for which its step could be compiled",
            hint="make it in strategy.scope(), or call graphdist.keras.distribute(model, strategy)",
        )
    replicas = strategy.num_replicas_in_sync

    def of_a_replica(leaf: Any) -> PerReplicaSpec:
        rows, *rest = leaf.shape
        if rows % replicas:
            raise ArgumentError(
                f"a batch of {rows} rows is not split evenly over {replicas} replicas",
                hint=f"give it a multiple of {replicas} rows",
            )
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return PerReplicaSpec((rows // replicas, *rest), dtype, strategy=strategy)

    specs = jax.tree.map(of_a_replica, (x, y, sample_weight))
    _build(model, specs)
    return model.make_train_function().program, (specs,)


def _build(model: keras.Model, batch: Any) -> None:
    """Let Keras build the model, its metrics and its optimizer for a replica's part of a batch.

    `train_on_batch` builds all three, and then calls the training step, which is empty here.
    """
    x, y, sample_weight = jax.tree.map(lambda part: np.zeros(part.shape, part.dtype), batch)

    def leave_out(force: bool = False) -> None:
        model.train_function = lambda state, batches: ({}, state)

    with replaced(model, make_train_function=leave_out, reset_metrics=lambda: None):
        model.train_on_batch(x, y, sample_weight, return_dict=True)
    model.train_function = None
