"""The strategy that a Keras model trains on: its scope is open when the model is made or compiled.

Keras gets the functions that run steps from public methods of a model: `make_train_function`,
`make_test_function` and `make_predict_function`. A `Placement` replaces these methods, the methods
that users call, and `STATE_OF_A_STEP` in the `__dict__` of one model. The model keeps its class, so
it is saved as before. Keras has no hook for new models, so `watch_new_models` wraps
`keras.Model.__new__`. `distribute` places a model that was made outside a scope.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar  # Any: arguments of Keras's methods

import jax
import keras
import numpy as np

from graphdist.context import current_strategy, has_strategy
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError, UnsupportedError
from graphdist.keras.datasets import with_adapters
from graphdist.keras.placed_variables import is_placed, placed_variable, strategy_of
from graphdist.keras.python_state import layers_of
from graphdist.keras.replacements import replaced, wrap_method
from graphdist.keras.steps import Steps, variables_of
from graphdist.keras.unpublished_names import STATE_OF_A_STEP, state_of_a_step
from graphdist.parameter_server.strategy import ParameterServerBase
from graphdist.program.function import Function
from graphdist.strategies.base import Strategy
from graphdist.strategies.current import get_strategy
from graphdist.user_warnings import warn_user
from graphdist.values.distributed import type_name
from graphdist.values.specs import PerReplicaSpec

Model = TypeVar("Model", bound=keras.Model)

_MAKE = ("make_train_function", "make_test_function", "make_predict_function")
_METHODS = ("compile", "fit", "evaluate", "predict", *_MAKE)
_PLACEMENT = "_graphdist_placement"


class Placement:
    """Replaces some methods of a model, so that the model's strategy runs its steps."""

    def __init__(self, model: keras.Model) -> None:
        """Replace the methods of the model, which has no strategy yet."""
        self.model = model
        self.strategy: Strategy | None = None
        self._has_warned = False
        for method in _METHODS:
            vars(model)[method] = getattr(self, method)
        vars(model)[STATE_OF_A_STEP] = self._state_of_a_step
        vars(model)[_PLACEMENT] = self

    def place_on(self, strategy: Strategy) -> None:
        """Train on a strategy from now on.

        Raises `ContextError` if the model trains on another strategy, `UnsupportedError` if the
        model's class overrides a method that makes the functions of steps.
        """
        if self.strategy is strategy:
            return
        if self.strategy is not None:
            raise ContextError(
                f"model {self.model.name!r} belongs to {self.strategy.beside(strategy)}, "
                f"and is compiled in the scope of {strategy}",
                hint="make another model in that scope, and copy the weights: "
                "other.set_weights(model.get_weights())",
            )
        for method in _MAKE:
            if getattr(type(self.model), method) is not getattr(keras.Model, method):
                raise UnsupportedError(
                    f"{type(self.model).__name__} has its own {method}, which a strategy replaces",
                    hint="override train_step, test_step or predict_step",
                )
        self.strategy = strategy

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Compile the model, for the strategy whose scope is open."""
        if has_strategy():
            self.place_on(get_strategy())
        return type(self.model).compile(self.model, *args, **kwargs)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train the model. The data may be a dataset of graphdist."""
        return self._with_data("fit", args, kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the model. The data may be a dataset of graphdist."""
        return self._with_data("evaluate", args, kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict with the model. The data may be a dataset of graphdist."""
        return self._with_data("predict", args, kwargs)

    def _with_data(self, method: str, args: Any, kwargs: Any) -> Any:
        called = getattr(type(self.model), method)
        adapted, named = with_adapters(method, args, kwargs, self.strategy)
        return called(self.model, *adapted, **named)

    def make_train_function(self, force: bool = False) -> Any:
        """Make the function of a training step."""
        return self._make("train", force)

    def make_test_function(self, force: bool = False) -> Any:
        """Make the function of a step of `evaluate`."""
        return self._make("test", force)

    def make_predict_function(self, force: bool = False) -> Any:
        """Make the function of a step of `predict`."""
        return self._make("predict", force)

    def _make(self, kind: str, force: bool) -> Any:
        method, attribute = f"make_{kind}_function", f"{kind}_function"
        self._follow_the_weights()
        if self.strategy is None:
            self._refuse_a_scope()
            return getattr(type(self.model), method)(self.model, force)
        if kind == "train":
            self._refuse_parameter_servers()
        self._refuse_states_of_rows(self.strategy.num_replicas_in_sync)
        self._require_a_step_with_state(f"{kind}_step")
        if self.model.run_eagerly and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"run_eagerly of model {self.model.name!r} has no effect on {self.strategy}: its "
                f"steps are compiled. To run it line by line, compile it outside the scope"
            )
        steps = getattr(self.model, attribute, None)
        if force or not isinstance(steps, Steps):
            steps = Steps(kind, self.model, self.strategy)
            setattr(self.model, attribute, steps)
        return steps

    def _follow_the_weights(self) -> None:
        """Place a model without a strategy on the strategy of its weights, if they have one.

        A model that is made of another model's layers has weights on that model's strategy.
        """
        strategy = None if self.strategy is not None else strategy_of(self.model.variables)
        if isinstance(strategy, Strategy) and not strategy.is_default:
            self.place_on(strategy)

    def _refuse_parameter_servers(self) -> None:
        if isinstance(self.strategy, ParameterServerBase):
            raise UnsupportedError(
                f"model {self.model.name!r} is trained by fit on {self.strategy}: fit is "
                f"synchronous, and would run in this process and use no worker",
                hint="train it with strategy = gd.MirroredStrategy(), or write the step as a "
                "gd.function and give it to ClusterCoordinator(strategy).schedule",
            )

    def _refuse_states_of_rows(self, num_replicas: int) -> None:
        kinds = keras.layers.RNN, keras.layers.Bidirectional
        for layer in layers_of(self.model):
            if num_replicas > 1 and isinstance(layer, kinds) and layer.stateful:
                raise UnsupportedError(
                    f"layer {layer.name!r} is stateful: it keeps a state for each row of a batch, "
                    f"which {num_replicas} replicas do not share",
                    hint="make it with stateful=False, or train on one device",
                )

    def _require_a_step_with_state(self, method: str) -> None:
        signature = inspect.signature(getattr(self.model, method))
        try:
            signature.bind("state", "data")
        except TypeError:
            raise ArgumentError(
                f"{method} of {type(self.model).__name__} takes {signature}: Keras on JAX calls it "
                f"with (state, data)",
                hint="write it as Keras documents for JAX: take the state, and return it after the "
                "logs",
            ) from None

    def _state_of_a_step(self, **wanted: bool) -> Any:
        """Return the state that Keras passes to a step, without copies of values on the strategy.

        `wanted` says which lists of variables Keras asks for, such as `trainable_variables=True`.
        """
        lists = [
            variables
            for name, variables in variables_of(self.model).items()
            if wanted.get(f"{name}_variables")
        ]
        if not all(is_placed(variable) for variables in lists for variable in variables):
            return state_of_a_step(self.model, **wanted)
        return tuple(
            [placed_variable(each, self.strategy).handed_back for each in of] for of in lists
        )

    def _refuse_a_scope(self) -> None:
        if has_strategy():
            raise ContextError(
                f"model {self.model.name!r} was made and compiled outside the scope of "
                f"{current_strategy()}, in which it is used: it would run on one device",
                hint="compile it inside the scope, or call graphdist.keras.distribute(model)",
            )


def placement_of(model: keras.Model) -> Placement:
    """Return the placement of a model. A model without a placement gets one."""
    placement = vars(model).get(_PLACEMENT)
    return placement if isinstance(placement, Placement) else Placement(model)


def is_watched(model: keras.Model) -> bool:
    """Return whether a model has a placement. Models made after `watch_new_models` have one."""
    return _PLACEMENT in vars(model)


def without_placement(value: Any) -> dict[str, Any]:
    """Return the attributes of a Keras object, without its placement and the replaced methods."""
    placement = vars(value).get(_PLACEMENT)
    return {
        name: attribute
        for name, attribute in vars(value).items()
        if placement is None
        or not (attribute is placement or getattr(attribute, "__self__", None) is placement)
    }


def distribute(model: Model, strategy: Strategy | None = None) -> Model:
    """Let a Keras model train on a strategy, by default on the one whose scope is open.

    A model that is made or compiled in a scope needs no such call. Returns the model itself. Raises
    `ArgumentTypeError` for anything but a Keras model, `ContextError` if the model belongs to
    another strategy.

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
    placement_of(model).place_on(get_strategy() if strategy is None else strategy)
    return model


def watch_new_models() -> None:
    """Give a placement to every Keras model made from now on, on the strategy of the open scope.

    A model that is made outside all scopes has no strategy yet.
    """
    wrap_method(keras.Model, "__new__", _new_model)


def _new_model(new: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    model = new(*args, **kwargs)
    if isinstance(model, keras.Model) and _PLACEMENT not in vars(model):
        placement = Placement(model)
        if has_strategy():
            placement.place_on(get_strategy())
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
    placement = placement_of(model)
    if placement.strategy is None:
        raise ContextError(
            f"model {model.name!r} has no strategy, for which its step could be compiled",
            hint="make it in strategy.scope(), or call graphdist.keras.distribute(model, strategy)",
        )
    replicas, batch = placement.strategy.num_replicas_in_sync, (x, y, sample_weight)

    def of_a_replica(leaf: Any) -> PerReplicaSpec:
        rows, *rest = leaf.shape
        if rows % replicas:
            raise ArgumentError(
                f"a batch of {rows} rows is not split evenly over {replicas} replicas",
                hint=f"give it a multiple of {replicas} rows",
            )
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return PerReplicaSpec((rows // replicas, *rest), dtype, strategy=placement.strategy)

    specs = jax.tree.map(of_a_replica, batch)
    _build(model, specs)
    return placement.make_train_function().program, (specs,)


def _build(model: keras.Model, batch: Any) -> None:
    """Let Keras build the model, its metrics and its optimizer for a replica's part of a batch.

    `train_on_batch` builds them. The training step that it calls is replaced by an empty one.
    """
    x, y, sample_weight = jax.tree.map(lambda part: np.zeros(part.shape, part.dtype), batch)

    def leave_out(force: bool = False) -> None:
        model.train_function = lambda state, batches: ({}, state)

    with replaced(model, make_train_function=leave_out, reset_metrics=lambda: None):
        model.train_on_batch(x, y, sample_weight, return_dict=True)
    model.train_function = None
