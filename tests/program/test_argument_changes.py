"""In-place changes of arguments: each is refused by its name and line, and what is none runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import graphdist as gd

X = np.arange(8, dtype=np.float32).reshape(4, 2)


@jax.tree_util.register_dataclass
@dataclass
class Meter:
    total: Any
    parts: list[Any] = field(default_factory=list)

    @gd.function
    def add(self, x: Any) -> Any:
        self.total = self.total + x
        return self.total


class Net(nnx.Module):
    def __init__(self, *, is_noisy: bool = False) -> None:
        rngs = nnx.Rngs(0)
        self.dense = nnx.Linear(2, 1, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs) if is_noisy else None

    def __call__(self, x: Any) -> Any:
        return self.dense(x if self.dropout is None else self.dropout(x))


def loss_of(net: Net, x: Any) -> Any:
    return jnp.mean(net(x) ** 2)


def set_item(batch: dict[str, Any]) -> Any:
    batch["x"] = batch["x"] / 2
    return batch["x"]


def set_item_and_return(batch: dict[str, Any]) -> Any:
    batch["x"] = batch["x"] / 2
    return batch


def take_item_out(batch: dict[str, Any]) -> Any:
    return batch.pop("y") + batch["x"]


def add_item(batch: dict[str, Any]) -> Any:
    batch["z"] = batch["x"] + batch["y"]
    return batch["z"]


def update(batch: dict[str, Any]) -> Any:
    batch |= {"x": batch["y"]}
    return batch["x"]


def set_nested_setting(batch: dict[str, Any]) -> Any:
    batch["options"]["mode"] = "test"
    return batch["x"]


def append(batch: list[Any]) -> Any:
    batch.append(batch[0])
    return batch[0]


def sort(batch: list[Any]) -> Any:
    batch[0], batch[1] = batch[1], batch[0]
    return batch[0]


def grow(meter: Meter) -> Any:
    meter.parts.append(meter.total)
    return meter.total


def set_attribute(meter: Meter) -> Any:
    meter.total += 1
    return meter.total


CHANGES: list[tuple[Callable[[Any], Any], Any, str]] = [
    (set_item, {"x": X}, "batch['x']"),
    (set_item_and_return, {"x": X}, "batch['x']"),
    (take_item_out, {"x": X, "y": X}, "batch['y']"),
    (add_item, {"x": X, "y": X}, "batch['z']"),
    (update, {"x": X, "y": X}, "batch['x']"),
    (set_nested_setting, {"x": X, "options": {"mode": "train"}}, "batch['options']['mode']"),
    (append, [X], "batch[1]"),
    (sort, [X, X + 1], "batch[0]"),
    (grow, Meter(1.0), "meter.parts[0]"),
    (set_attribute, Meter(1.0), "meter.total"),
]


@pytest.mark.parametrize(("change", "argument", "name"), CHANGES)
def test_a_change_is_refused_by_name(
    change: Callable[[Any], Any], argument: Any, name: str
) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    calls: list[Callable[[], Any]] = [
        lambda: gd.function(change)(argument),
        lambda: strategy.run(change, args=(argument,)),
    ]
    for call in calls:
        with pytest.raises(gd.ArgumentError) as caught:
            call()
        text = str(caught.value)
        assert f"argument {name!r} of {change.__name__} is changed in place" in text
        assert f", in {change.__name__}\n" in text


def test_the_line_of_the_change_and_the_copy_to_make_are_named() -> None:
    with pytest.raises(gd.ArgumentError) as caught:
        gd.function(set_item)({"x": X})
    text = str(caught.value)
    assert 'batch["x"] = batch["x"] / 2\n  hint: change a copy, such as dict(batch), and ' in text


def test_a_change_by_a_merged_function_and_by_replica_variants_is_refused() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])

    def merge(strategy: gd.Strategy, found: dict[str, Any]) -> Any:
        found["x"] = strategy.reduce("SUM", found["x"], axis=None)
        return found["x"]

    def merging(x: Any) -> Any:
        return gd.get_replica_context().merge_call(merge, args=({"x": x},))

    def by_number(batch: dict[str, Any]) -> Any:
        if gd.get_replica_context().replica_id_in_sync_group == 0:
            batch["x"] = batch["x"] + 1
        return batch["x"]

    for fn, argument in ((merging, X), (by_number, {"x": X})):
        with pytest.raises(gd.ArgumentError, match=r"(found|batch)\['x'\]\" of .* is changed in"):
            strategy.run(fn, args=(argument,))


def test_changes_of_copies_run() -> None:
    def copied(batch: dict[str, Any]) -> Any:
        batch = dict(batch)
        batch["x"] = batch["x"] * batch.pop("y")
        return batch["x"] + batch["by"]

    @gd.function
    def outer(batch: dict[str, Any]) -> Any:
        made = {**batch, "by": 1.0}
        set_item(made)  # of this function's own
        return copied(made)

    batch = {"x": X, "y": X}
    assert np.array_equal(outer(batch), X / 2 * X + 1)
    assert sorted(batch) == ["x", "y"]


def test_a_method_of_a_pytree_that_changes_itself_is_refused() -> None:
    with pytest.raises(gd.ArgumentError, match=r"'self\.total' of add is changed in place"):
        Meter(1.0).add(2.0)


def test_a_class_that_makes_its_leaves_anew_is_not_taken_for_changed() -> None:
    class Scaled:
        def __init__(self, x: Any) -> None:
            self.x = x

    jax.tree_util.register_pytree_node(
        Scaled, lambda scaled: ((scaled.x * 1,), None), lambda _, leaves: Scaled(*leaves)
    )
    assert float(gd.function(lambda scaled: scaled.x + 1)(Scaled(jnp.float32(2)))) == 3


@pytest.mark.parametrize("replicas", [0, 2])
def test_nnx_modules_changed_in_place_are_refused(replicas: int) -> None:
    strategy = gd.MirroredStrategy([f"cpu:{index}" for index in range(max(replicas, 1))])

    def train(net: Net, optimizer: Any, x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(loss_of)(net, x)
        optimizer.update(net, gradients)
        return loss

    def draw(net: Net, x: Any) -> Any:
        return net(x)

    def evaluate(net: Any, x: Any) -> Any:
        net.eval()
        return net(x)

    def call(fn: Callable[..., Any], *args: Any) -> Any:
        return strategy.run(fn, args=args) if replicas else gd.function(fn)(*args)

    net = Net()
    with pytest.raises(gd.ArgumentError) as caught:
        call(train, net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), X)
    text = str(caught.value)
    assert "argument 'net.dense" in text
    assert "optimizer.update(net, gradients)\n  hint: give it definition, state = nnx.split" in text
    with pytest.raises(gd.ArgumentError, match=r"argument 'net\.dropout.* is changed in place"):
        call(draw, Net(is_noisy=True), X)
    with pytest.raises(gd.ArgumentError, match=r"argument 'net.* is changed in place"):
        call(evaluate, Net(is_noisy=True), X)
    assert np.allclose(gd.function(loss_of)(net, X), loss_of(net, X))


def test_the_remedy_for_nnx_trains_as_nnx_does() -> None:
    @gd.function
    def step(definition: Any, state: Any, x: Any) -> Any:
        net, optimizer = nnx.merge(definition, state)
        loss, gradients = nnx.value_and_grad(loss_of)(net, x)
        optimizer.update(net, gradients)
        return loss, nnx.state((net, optimizer))

    def nets() -> tuple[Net, Any]:
        net = Net()
        return net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)

    (net, optimizer), losses = nets(), []
    for _ in range(3):
        loss, gradients = nnx.value_and_grad(loss_of)(net, X)
        optimizer.update(net, gradients)
        losses.append(float(loss))
    definition, state = nnx.split(nets())
    for loss in losses:
        found, state = step(definition, state, X)
        assert float(found) == pytest.approx(loss)

    @gd.function
    def forgets(definition: Any, state: Any, x: Any) -> Any:
        return step(definition, state, x)[0]

    with pytest.raises(gd.ArgumentError, match=r"hint: return nnx\.state of the module that was"):
        forgets(definition, state, X)
