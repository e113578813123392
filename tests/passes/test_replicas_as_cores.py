"""Products of few rows with sharded weights: computed on the shards, with equal results."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any  # Any: pytrees of arrays

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from tests.passes.products_of_few_rows import (
    BODY,
    CLASSES,
    FEATURES,
    HEAD,
    LABELS,
    PROGRAMS,
    ROWS,
    WIDTH,
    Losses,
    alone,
    divide_small_products,
    head,
    integers,
    is_divided,
    normal,
    of_labels,
    sent_by,
    strategy_of,
    trained,
)


@pytest.fixture(autouse=True)
def _small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small_products(monkeypatch)


@pytest.mark.parametrize("shards", [True, False], ids=["sharded", "mirrored"])
@pytest.mark.parametrize("replicas", [4, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_products_are_computed_on_shards(name: str, replicas: int, shards: bool) -> None:
    """With 8 replicas, each has one text of "next words"."""
    losses, params, batch = PROGRAMS[name]
    lowered, new, loss = trained(losses, params, batch, strategy_of(replicas, shards))
    expected, expected_loss = alone(losses, params, batch)
    tolerance = 2e-2 if name == "narrow" else 2e-5
    np.testing.assert_allclose(loss, expected_loss, rtol=tolerance)
    for one, other in zip(jax.tree.leaves(new), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    assert is_divided(lowered)
    weights = max(np.size(each) * 4 for each in jax.tree.leaves(params))
    assert sent_by(lowered) <= weights // 2


def test_shards_of_classes_are_not_sent() -> None:
    """Weights with a row for each class are stored as they are used."""
    losses, params, batch = PROGRAMS["rows"]
    lowered, _, _ = trained(losses, params, batch, strategy_of(2))
    assert sent_by(lowered) < FEATURES.nbytes + 1000


@pytest.mark.parametrize(
    "optimizer",
    [optax.adamw(0.01), optax.lamb(0.01), optax.adafactor(0.01)],
    ids=["adamw", "lamb", "adafactor"],
)
def test_updates_use_shards(optimizer: optax.GradientTransformation) -> None:
    losses, batch = head(of_labels), (FEATURES, LABELS)
    lowered, params, _ = trained(losses, BODY, batch, strategy_of(4), optimizer)
    expected, _ = alone(losses, BODY, batch, optimizer)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-5), params, expected)
    assert is_divided(lowered)
    assert sent_by(lowered) < BODY["head"].nbytes / 8


@pytest.mark.parametrize("shards", [True, False], ids=["sharded", "mirrored"])
def test_weights_are_stored_in_their_columns(shards: bool, tmp_path: Path) -> None:
    """Steps of few and of many rows share weights and slots, also after they are restored."""
    optimizer = optax.sgd(0.5, momentum=0.9)
    strategy = strategy_of(4, shards)
    with strategy.scope():
        variables: Any = gd.variables({"params": HEAD, "slots": optimizer.init(HEAD)})
    checkpoint = gd.train.Checkpoint(variables=variables)

    @gd.function
    def step(batch: Any) -> Any:
        def replica_fn(batch: Any) -> Any:
            def loss(params: Any) -> Any:
                return jnp.sum(of_labels(batch[0] @ params["head"], batch[1])) / 64

            held = gd.read(variables)
            gradient = jax.grad(loss)(held["params"])
            gradient = gd.get_replica_context().all_reduce("SUM", gradient)
            updates, slots = optimizer.update(gradient, held["slots"])
            params = optax.apply_updates(held["params"], updates)
            gd.assign(variables, {"params": params, "slots": slots})

        strategy.run(replica_fn, args=(batch,))

    def by_jax(params: Any, slots: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.sum(of_labels(batch[0] @ params["head"], batch[1])) / 64

        updates, slots = optimizer.update(jax.grad(loss)(params), slots)
        return optax.apply_updates(params, updates), slots

    many = normal(64 * ROWS, WIDTH), integers(CLASSES, 64 * ROWS)
    params, slots = HEAD, optimizer.init(HEAD)
    dimensions, path = [], ""
    for rows in ((FEATURES, LABELS), many, (FEATURES, LABELS), many):
        (batch,) = strategy.experimental_distribute_dataset([rows])
        step(batch)
        params, slots = by_jax(params, slots, rows)
        lowered = step.trace(batch).lower()
        dimensions.append({each.sharded_along for each in lowered.graph.variables})
        found = np.asarray(gd.read(variables)["params"]["head"])
        np.testing.assert_allclose(found, params["head"], rtol=2e-5, atol=2e-5)
        if not path:
            path, saved = checkpoint.save(str(tmp_path / "saved")), found
    assert dimensions == [{1}] * 4
    checkpoint.restore(path)
    np.testing.assert_array_equal(np.asarray(gd.read(variables)["params"]["head"]), saved)


def test_layers_of_a_loop_are_computed_on_shards() -> None:
    def losses(params: Any, batch: Any) -> Any:
        def layer(rows: Any, weights: Any) -> Any:
            hidden = jax.nn.gelu(rows @ weights["in"])
            return rows + hidden @ weights["out"], None

        rows, _ = jax.lax.scan(jax.checkpoint(layer), batch[0], params)
        return jnp.mean((rows - batch[1]) ** 2, axis=-1)

    params = {"in": normal(3, WIDTH, CLASSES), "out": normal(3, CLASSES, WIDTH)}
    batch = FEATURES, normal(ROWS, WIDTH)
    lowered, new, loss = trained(losses, params, batch, strategy_of(4))
    expected, expected_loss = alone(losses, params, batch)
    np.testing.assert_allclose(loss, expected_loss, rtol=2e-5)
    for name in params:
        np.testing.assert_allclose(new[name], expected[name], rtol=2e-5, atol=2e-5)
    assert is_divided(lowered)


def of_many_rows(params: Any, batch: Any) -> Any:
    return jnp.mean(of_labels(batch[0] @ params["head"], batch[1]), axis=-1)


def of_own_norm(params: Any, batch: Any) -> Any:
    logits = batch[0] @ params["head"]
    return of_labels(logits / (1 + jnp.sqrt(jnp.sum(logits**2))), batch[1])


MANY = normal(ROWS, 512, WIDTH), integers(CLASSES, ROWS, 512)


def test_small_weights_are_left_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved would not make up for the collectives of the softmax."""
    monkeypatch.undo()
    lowered, _, _ = trained(*PROGRAMS["labels"], strategy_of(4))
    assert not is_divided(lowered)
    assert {each.sharded_along for each in lowered.graph.variables} == {None, 0}


@pytest.mark.parametrize(
    ("losses", "batch", "shards"),
    [
        pytest.param(of_many_rows, MANY, True, id="many rows"),
        pytest.param(head(of_labels), (FEATURES, LABELS), 2, id="groups"),
    ],
)
def test_others_are_left(losses: Losses, batch: Any, shards: bool | int) -> None:
    lowered, _, _ = trained(losses, BODY, batch, strategy_of(4, shards))
    assert not is_divided(lowered)


def test_explain_says_which_variables_are_sharded() -> None:
    strategy = strategy_of(4, shards=False)
    with strategy.scope():
        weights: Any = gd.Variable(HEAD["head"], name="head")

    @gd.function
    def step(rows: Any, labels: Any) -> None:
        def replica_fn(rows: Any, labels: Any) -> None:
            gradient = jax.grad(lambda w: jnp.sum(of_labels(rows @ w, labels)))(weights[...])
            weights.assign_sub(gd.get_replica_context().all_reduce("SUM", gradient))

        strategy.run(replica_fn, args=(rows, labels))

    (batch,) = strategy.experimental_distribute_dataset([(FEATURES, LABELS)])
    explained = " ".join(str(step.trace(*batch).lower().explain()).split())
    assert "head: f32[64, 4096] is stored in shards along dimension 1" in explained


def test_weights_stay_mirrored_without_sharded_updates() -> None:
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(4)], shard_update=False)
    lowered, _, _ = trained(head(of_labels), BODY, (FEATURES, LABELS), strategy)
    assert not is_divided(lowered)
    assert {each.sharded_along for each in lowered.graph.variables} == {None}


def test_layers_of_few_rows_send_no_weights() -> None:
    """The columns of the first product of a layer are what the second sums over, in both passes."""

    def losses(params: Any, batch: Any) -> Any:
        return jnp.sum((jax.nn.gelu(batch[0] @ params["up"]) @ params["down"] - batch[1]) ** 2, -1)

    params = {"up": normal(256, 4096), "down": normal(4096, 256)}
    batch = normal(ROWS, 256), normal(ROWS, 256)
    lowered, new, _ = trained(losses, params, batch, strategy_of(4, shards=False))
    expected, _ = alone(losses, params, batch)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), new, expected)
    assert sent_by(lowered) < 4 * batch[0].nbytes


def test_norms_of_a_replicas_own_gradient_are_its_own() -> None:
    """What a replica does with its own term of a gradient ends the part, and stays right."""
    strategy = strategy_of(4)
    with strategy.scope():
        weights: Any = gd.Variable(BODY["head"])

    @gd.function
    def step(rows: Any, labels: Any) -> Any:
        def replica_fn(rows: Any, labels: Any) -> Any:
            def loss(weights: Any) -> Any:
                return jnp.sum(of_labels(rows @ weights, labels))

            gradient = jax.grad(loss)(weights[...])
            gradient = gradient / (1 + jnp.linalg.norm(gradient))
            return gd.get_replica_context().all_reduce("SUM", gradient)

        return strategy.run(replica_fn, args=(rows, labels))

    (batch,) = strategy.experimental_distribute_dataset([(FEATURES, LABELS)])
    expected = np.zeros_like(BODY["head"])
    for i in range(4):
        own = slice(4 * i, 4 * i + 4)

        def loss(weights: Any, own: slice = own) -> Any:
            return jnp.sum(of_labels(FEATURES[own] @ weights, LABELS[own]))

        gradient = jax.grad(loss)(BODY["head"])
        expected += gradient / (1 + np.linalg.norm(gradient))
    found = strategy.experimental_local_results(step(*batch))
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=2e-5, atol=2e-5)


def test_explain_says_what_is_sent() -> None:
    losses, params, batch = PROGRAMS["labels"]
    lowered, _, _ = trained(losses, params, batch, strategy_of(4))
    told = " ".join(str(lowered.explain()).split())
    assert f"of f32[{WIDTH}, {CLASSES}]" in told


def test_reassociation_can_be_forbidden() -> None:
    strategy = strategy_of(4)
    with strategy.scope():
        weights: Any = gd.Variable(BODY["head"])

    @gd.function(allow_reassociation=False)
    def step(rows: Any) -> Any:
        return strategy.run(lambda rows: jnp.max(rows @ weights[...], axis=1), args=(rows,))

    with strategy.scope():
        lowered = step.trace(gd.PerReplicaSpec((4, WIDTH), jnp.float32)).lower()
    assert not is_divided(lowered)
