"""Products of few rows with sharded weights: computed on the shards, with equal results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any  # Any: pytrees of arrays

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.passes import pipelines
from graphdist.passes.cores.rows_of_replicas import NAME
from graphdist.program.stages import Lowered

WIDTH, CLASSES, ROWS = 64, 4096, 16
NUMBERS = np.random.default_rng(0)

Losses = Callable[[Any, Any], Any]
"""A function of parameters and a batch that returns the losses of the rows."""


@pytest.fixture(autouse=True)
def _small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide small products, too."""
    monkeypatch.setattr(pipelines, "MORE_SAVED_ON_CPUS", 1)
    monkeypatch.setattr(pipelines, "FEWEST_SHARDED", 2**18)


def normal(*shape: int) -> np.ndarray:
    return NUMBERS.normal(0, 0.1, shape).astype("f")


def integers(end: int, *shape: int) -> np.ndarray:
    return NUMBERS.integers(0, end, shape).astype(np.int32)


SGD = optax.sgd(0.5, momentum=0.9)


def trained(
    losses: Losses,
    params: Any,
    batch: Any,
    strategy: gd.Strategy,
    optimizer: optax.GradientTransformation = SGD,
) -> tuple[Lowered, Any, float]:
    """Train for two steps; return the lowered step, the trained parameters and the last loss."""
    with strategy.scope():
        variables: Any = gd.variables(params)
        slots = gd.variables(optimizer.init(params))

    @gd.function
    def step(batch: Any) -> Any:
        def replica_fn(batch: Any) -> Any:
            def loss(params: Any) -> Any:
                return gd.nn.compute_average_loss(losses(params, batch))

            value, gradient = jax.value_and_grad(loss)(gd.read(variables))
            gradient = gd.get_replica_context().all_reduce("SUM", gradient)
            updates, new = optimizer.update(gradient, gd.read(slots), gd.read(variables))
            gd.assign(slots, new)
            gd.assign(variables, optax.apply_updates(gd.read(variables), updates))
            return value

        return strategy.reduce("SUM", strategy.run(replica_fn, args=(batch,)), axis=None)

    (distributed,) = strategy.experimental_distribute_dataset([batch])
    for _ in range(2):
        value = float(step(distributed))
    new = jax.tree.map(np.asarray, gd.read(variables))
    return step.trace(distributed).lower(), new, value


def alone(
    losses: Losses,
    params: Any,
    batch: Any,
    optimizer: optax.GradientTransformation = SGD,
) -> tuple[Any, float]:
    """Return the parameters that JAX trains for two steps on one device, and the last loss."""

    @jax.jit
    def step(params: Any, slots: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda params: jnp.mean(losses(params, batch)))(params)
        updates, slots = optimizer.update(gradient, slots, params)
        return optax.apply_updates(params, updates), slots, value

    slots = optimizer.init(params)
    for _ in range(2):
        params, slots, value = step(params, slots)
    return params, float(value)


def sent_by(lowered: Lowered) -> int:
    """Return the bytes of the collectives of a step."""
    return sum(each.bytes for each in lowered.collectives)


def strategy_of(replicas: int, shards: bool | int = True) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(replicas)], shard_parameters=shards)


def of_labels(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def head(losses: Losses) -> Losses:
    """Return losses of the logits of a head, of which the first operand is the batch's rows."""

    def of(params: Any, batch: Any) -> Any:
        return losses(jnp.tanh(batch[0] @ params["body"]) @ params["head"], batch[1])

    return of


def one_hot(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, CLASSES))


def smoothed(logits: Any, labels: Any) -> Any:
    targets = optax.smooth_labels(jax.nn.one_hot(labels, CLASSES), 0.1)
    return optax.softmax_cross_entropy(logits, targets)


def taken(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


def indexed(logits: Any, labels: Any) -> Any:
    return -jax.nn.log_softmax(logits)[jnp.arange(labels.shape[0]), labels]


def with_z_loss(logits: Any, labels: Any) -> Any:
    return of_labels(logits, labels) + 1e-2 * jax.nn.logsumexp(logits, axis=-1) ** 2


def with_squares(logits: Any, labels: Any) -> Any:
    return of_labels(logits, labels) + jnp.mean(logits**2)


def with_hits(logits: Any, labels: Any) -> Any:
    return of_labels(logits, labels) + (jnp.argmax(logits, axis=-1) == labels)


def among_the_best(logits: Any, labels: Any) -> Any:
    _, best = jax.lax.top_k(jax.lax.stop_gradient(logits), 5)
    return of_labels(logits, labels) + jnp.any(best == labels[:, None], axis=-1)


def of_each(logits: Any, labels: Any) -> Any:
    return jax.vmap(lambda row, label: jax.nn.logsumexp(row) - row[label])(logits, labels)


def recomputed(params: Any, batch: Any) -> Any:
    return jax.checkpoint(head(of_labels))(params, batch)


def narrow(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch[0] @ params["body"]).astype(jnp.bfloat16)
    logits = hidden @ params["head"].astype(jnp.bfloat16)
    return of_labels(logits.astype(jnp.float32), batch[1])


def with_bias(params: Any, batch: Any) -> Any:
    return of_labels(batch[0] @ params["head"] + params["bias"], batch[1])


def of_rows(params: Any, batch: Any) -> Any:
    return of_labels(jnp.einsum("bd,vd->bv", batch[0], params["table"]), batch[1])


def tied(params: Any, batch: Any) -> Any:
    words, labels = batch
    return of_labels(jnp.tanh(params["table"][words]) @ params["table"].T, labels)


def next_words(params: Any, batch: Any) -> Any:
    (words,) = batch
    logits = jnp.tanh(params["table"][words]) @ params["head"]
    return jnp.mean(of_labels(logits[:, :-1], words[:, 1:]), axis=-1)


def masked(params: Any, batch: Any) -> Any:
    rows, labels = batch
    mask = (labels % 3 > 0).astype(jnp.float32)
    return of_labels(rows @ params["head"], labels) * mask


def with_temperature(params: Any, batch: Any) -> Any:
    return of_labels(batch[0] @ params["head"] / params["temperature"], batch[1])


def with_margins(params: Any, batch: Any) -> Any:
    rows, labels = batch
    rows = rows / jnp.linalg.norm(rows, axis=1, keepdims=True)
    weights = params["head"] / jnp.linalg.norm(params["head"], axis=0)
    margins = 0.3 * jax.nn.one_hot(labels, CLASSES)
    return of_labels(16 * (rows @ weights - margins), labels)


def of_targets(params: Any, batch: Any) -> Any:
    logits = batch[0] @ params["head"]
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, batch[1]), axis=-1)


def of_layers(params: Any, batch: Any) -> Any:
    hidden = jax.nn.gelu(batch[0] @ params["in"])
    return jnp.sum((hidden @ params["out"] - batch[0]) ** 2, axis=-1)


def of_two_heads(params: Any, batch: Any) -> Any:
    teacher = jax.nn.softmax(jax.lax.stop_gradient(batch[0] @ params["teacher"]))
    return optax.softmax_cross_entropy(batch[0] @ params["head"], teacher)


def of_several(params: Any, batch: Any) -> Any:
    logits = jnp.einsum("bd,hdv->bhv", batch[0], params["heads"])
    return of_labels(logits, jnp.stack([batch[1], batch[1] + 1], 1) % 2048).sum(1)


def with_decay(params: Any, batch: Any) -> Any:
    losses = head(of_labels)(params, batch)
    return losses + 1e-2 * sum(jnp.sum(each**2) for each in jax.tree.leaves(params))


def of_unit_norm(params: Any, batch: Any) -> Any:
    return of_labels(batch[0] @ (4 * params["head"] / jnp.linalg.norm(params["head"])), batch[1])


def of_two_batches(params: Any, batch: Any) -> Any:
    """Return losses as of real and of generated rows, with the same weights."""
    real, generated = (jax.nn.relu(rows @ params["head"]) for rows in (batch[0], batch[0] ** 2))
    return jax.nn.softplus(-real.mean(-1)) + jax.nn.softplus(generated.mean(-1))


def of_two_views(params: Any, batch: Any) -> Any:
    views = (jax.nn.log_softmax(rows @ params["head"]) for rows in (batch[0], batch[0] ** 2))
    one, other = views
    return jnp.sum(jnp.exp(one) * (one - other), axis=-1)


FEATURES = normal(ROWS, WIDTH)
LABELS = integers(CLASSES, ROWS)
BODY = {"body": normal(WIDTH, WIDTH), "head": normal(WIDTH, CLASSES)}
HEAD = {"head": normal(WIDTH, CLASSES)}
TABLE = {"table": normal(CLASSES, WIDTH)}

PROGRAMS: dict[str, tuple[Losses, Any, Any]] = {
    "labels": (head(of_labels), BODY, (FEATURES, LABELS)),
    "one hot": (head(one_hot), BODY, (FEATURES, LABELS)),
    "smoothed": (head(smoothed), BODY, (FEATURES, LABELS)),
    "taken": (head(taken), BODY, (FEATURES, LABELS)),
    "indexed": (head(indexed), BODY, (FEATURES, LABELS)),
    "z loss": (head(with_z_loss), BODY, (FEATURES, LABELS)),
    "squares": (head(with_squares), BODY, (FEATURES, LABELS)),
    "hits": (head(with_hits), BODY, (FEATURES, LABELS)),
    "among the best": (head(among_the_best), BODY, (FEATURES, LABELS)),
    "of each": (head(of_each), BODY, (FEATURES, LABELS)),
    "recomputed": (recomputed, BODY, (FEATURES, LABELS)),
    "narrow": (narrow, BODY, (FEATURES, LABELS)),
    "bias": (with_bias, {**HEAD, "bias": normal(CLASSES)}, (FEATURES, LABELS)),
    "rows": (of_rows, TABLE, (FEATURES, LABELS)),
    "tied": (tied, TABLE, (LABELS, LABELS[::-1].copy())),
    "next words": (next_words, {**TABLE, **HEAD}, (integers(CLASSES, ROWS // 2, 8),)),
    "masked": (masked, HEAD, (FEATURES, LABELS)),
    "temperature": (with_temperature, {**HEAD, "temperature": np.float32(2)}, (FEATURES, LABELS)),
    "margins": (with_margins, HEAD, (FEATURES, LABELS)),
    "targets": (of_targets, HEAD, (FEATURES, (normal(ROWS, CLASSES) > 0).astype("f"))),
    "layers": (
        of_layers,
        {"in": normal(WIDTH, CLASSES), "out": normal(CLASSES, WIDTH)},
        (FEATURES, LABELS),
    ),
    "two heads": (of_two_heads, {**HEAD, "teacher": normal(WIDTH, CLASSES)}, (FEATURES, LABELS)),
    "decay": (with_decay, BODY, (FEATURES, LABELS)),
    "unit norm": (of_unit_norm, HEAD, (FEATURES, LABELS)),
    "two batches": (of_two_batches, HEAD, (FEATURES, LABELS)),
    "two views": (of_two_views, HEAD, (FEATURES, LABELS)),
    "several": (of_several, {"heads": normal(2, WIDTH, CLASSES // 2)}, (FEATURES, LABELS)),
}


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


def is_divided(lowered: Lowered) -> bool:
    return any(step.name == NAME and step.changed for step in lowered.explain().steps)


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


Gradient = Callable[[Any, Any], Any]
"""A function of parameters and a batch that returns the gradient."""
PARTS = 2


def accumulated(gradient: Gradient) -> Gradient:
    """Return the mean gradient of microbatches, each reduced."""

    def reduced(params: Any, part: Any) -> Any:
        return gd.get_replica_context().all_reduce("MEAN", gradient(params, part))

    return gd.accumulate(reduced, PARTS)


def reduced_after(gradient: Gradient) -> Gradient:
    def of(params: Any, batch: Any) -> Any:
        total = gd.accumulate(gradient, PARTS)(params, batch)
        return gd.get_replica_context().all_reduce("MEAN", total)

    return of


def scanned(gradient: Gradient) -> Gradient:
    """Return what a loop of the user's own makes, which reduces a sum of narrow gradients."""

    def of(params: Any, batch: Any) -> Any:
        def add(total: Any, part: Any) -> Any:
            return jax.tree.map(lambda t, g: t + g / PARTS, total, gradient(params, part)), None

        parts = jax.tree.map(lambda x: x.reshape(PARTS, -1, *x.shape[1:]), batch)
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        return gd.get_replica_context().all_reduce("MEAN", total)

    return of


def counted(gradient: Gradient) -> Gradient:
    def of(params: Any, batch: Any) -> Any:
        def add(number: Any, total: Any) -> Any:
            size = batch[0].shape[0] // PARTS
            part = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, number * size, size), batch
            )
            new = gd.get_replica_context().all_reduce("MEAN", gradient(params, part))
            return jax.tree.map(lambda t, g: t + g / PARTS, total, new)

        return jax.lax.fori_loop(0, PARTS, add, jax.tree.map(jnp.zeros_like, params))

    return of


def by_jax(losses: Losses) -> Losses:
    """Return losses whose products JAX has in one loop, and their gradients in another."""

    def of(params: Any, batch: Any) -> Any:
        parts = jax.tree.map(lambda x: x.reshape(PARTS, -1, *x.shape[1:]), batch)
        return jax.lax.map(lambda part: losses(params, part), parts).reshape(-1)

    return of


def of_two_products(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch[0] @ params["in"])
    return of_labels(hidden @ params["head"], batch[1])


LAYERS = {"in": normal(WIDTH, CLASSES), "head": normal(CLASSES, 2 * CLASSES)}


def descended(
    losses: Losses, params: Any, replicas: int, loop: Callable[[Gradient], Gradient], shards: bool
) -> tuple[Lowered, Any]:
    """Return a lowered step and the parameters that it makes with the gradient of a loop."""
    strategy = strategy_of(replicas, shards)
    with strategy.scope():
        variables: Any = gd.variables(params)

    @gd.function
    def step(batch: Any) -> None:
        def replica_fn(batch: Any) -> None:
            gradient = jax.grad(lambda params, part: jnp.mean(losses(params, part)))
            held = gd.read(variables)
            change = loop(gradient)(held, batch)
            gd.assign(variables, jax.tree.map(lambda p, g: p - g, held, change))

        strategy.run(replica_fn, args=(batch,))

    (batch,) = strategy.experimental_distribute_dataset([(FEATURES, LABELS)])
    step(batch)
    return step.trace(batch).lower(), jax.tree.map(np.asarray, gd.read(variables))


def expected_descent(losses: Losses, params: Any) -> Any:
    gradient = jax.grad(lambda params: jnp.mean(losses(params, (FEATURES, LABELS))))(params)
    return jax.tree.map(lambda p, g: p - g, params, gradient)


@pytest.mark.parametrize("shards", [True, False], ids=["sharded", "mirrored"])
@pytest.mark.parametrize("loop", [accumulated, reduced_after, scanned, counted])
@pytest.mark.parametrize(
    ("losses", "params"),
    [
        pytest.param(head(of_labels), BODY, id="labels"),
        pytest.param(recomputed, BODY, id="recomputed"),
        pytest.param(with_bias, {**HEAD, "bias": normal(CLASSES)}, id="bias"),
        pytest.param(of_two_batches, HEAD, id="two batches"),
        pytest.param(of_two_products, LAYERS, id="two products"),
    ],
)
def test_microbatches_are_computed_on_shards(
    losses: Losses, params: Any, loop: Callable[[Gradient], Gradient], shards: bool
) -> None:
    """Neither weights nor gradients are sent, in the loop or beside it."""
    lowered, new = descended(losses, params, 4, loop, shards)
    expected = expected_descent(losses, params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), new, expected)
    assert is_divided(lowered)
    assert sum(each.times * each.bytes for each in lowered.collectives) < HEAD["head"].nbytes // 2


@pytest.mark.parametrize("losses", [with_decay, by_jax(head(of_labels))], ids=["decay", "map"])
def test_weights_of_loops_stay_unsharded_where_products_are_not_divided(losses: Losses) -> None:
    """The decay uses the weights for more than products.

    Columns would be gathered and reduced, which takes longer than rows.
    """
    lowered, new = descended(losses, BODY, 4, accumulated, shards=False)
    expected = expected_descent(losses, BODY)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), new, expected)
    assert not is_divided(lowered)
    assert {each.sharded_along for each in lowered.graph.variables} == {None}


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
