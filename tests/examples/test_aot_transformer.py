"""The transformer that is compiled ahead of time: its shapes, its attention and its loss."""

from __future__ import annotations

from functools import partial
from typing import Any  # Any: pytrees and jaxprs

import aot_transformer
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aot_transformer import Model, Settings

import graphdist as gd

TINY = Model(2, 256, 384, heads=2, kv_heads=1, vocabulary=96)
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "405b": 405_853_388_800,
}


@pytest.fixture(autouse=True)
def tiny_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(aot_transformer.SIZES, "tiny", TINY)


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_shapes_have_the_published_number_of_parameters(size: str) -> None:
    assert aot_transformer.num_parameters(aot_transformer.SIZES[size]) == PUBLISHED[size]


def normal(*shape: int) -> jax.Array:
    numbers = np.random.default_rng(shape)
    return jnp.asarray(numbers.standard_normal(shape), jnp.float32)


@pytest.mark.long
@pytest.mark.parametrize(("length", "heads", "kv_heads"), [(128, 2, 2), (256, 4, 2), (640, 2, 1)])
def test_the_kernel_is_attention(length: int, heads: int, kv_heads: int) -> None:
    arguments = normal(1, length, heads, 128), *(normal(1, length, kv_heads, 128),) * 2
    weights = normal(1, length, heads, 128)

    def graded(attention: Any) -> Any:
        loss = lambda *arguments: jnp.sum(attention(*arguments) * weights)  # noqa: E731
        return jax.value_and_grad(loss, (0, 1, 2))(*arguments)

    by_kernel = partial(aot_transformer.attend_by_kernel, interpret=True)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3),
        graded(by_kernel),
        graded(aot_transformer.attend),
    )


@pytest.mark.long
@pytest.mark.parametrize("length", [8, 1024, 1030])
def test_the_loss_in_chunks_is_the_loss_and_holds_no_logits_of_all_positions(length: int) -> None:
    x, unembedding, labels = normal(2, length, 4), normal(9, 4), jnp.arange(2 * length) % 9
    labels = labels.reshape(2, length)

    def direct(x: jax.Array, unembedding: jax.Array) -> jax.Array:
        scores = jax.nn.log_softmax(x @ unembedding.T)
        return -jnp.mean(jnp.take_along_axis(scores, labels[..., None], axis=-1))

    expected = jax.value_and_grad(direct, (0, 1))(x, unembedding)
    for positions in (0, aot_transformer.LOGITS_CHUNK):
        loss = partial(aot_transformer.cross_entropy, labels=labels, positions=positions)
        graded = jax.value_and_grad(loss, (0, 1))
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
            graded(x, unembedding),
            expected,
        )
        is_held = f"[2,{length},9]" in str(jax.make_jaxpr(graded)(x, unembedding))
        assert is_held == (positions == 0 or length <= positions)


@pytest.mark.parametrize(
    ("settings", "platform", "chosen"),
    [
        (Settings(), "tpu", "flash"),
        (Settings(), "gpu", "flash"),
        (Settings(), "cpu", "plain"),
        (Settings(length=100), "tpu", "plain"),
        (Settings(attention="plain"), "tpu", "plain"),
        (Settings(attention="flash"), "cpu", "flash"),
    ],
)
def test_the_kernel_is_chosen_where_it_serves(
    settings: Settings, platform: str, chosen: str
) -> None:
    attention = aot_transformer.attention_for(TINY, settings, platform)
    assert (attention is aot_transformer.attend) == (chosen == "plain")


def test_an_attention_that_cannot_be_is_refused() -> None:
    strategy = gd.OneDeviceStrategy("cpu:0")
    with pytest.raises(ValueError, match="rows have 100 tokens, heads 128 elements"):
        aot_transformer.make_step(strategy, size="tiny", length=100, attention="flash")
    with pytest.raises(ValueError, match="'ring', not flash, plain or auto"):
        aot_transformer.make_step(strategy, size="tiny", attention="ring")


def losses(attention: str) -> list[float]:
    """Return the losses of two steps on two replicas, of parameters other than zero."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    settings = {"size": "tiny", "length": 128, "compute_dtype": "float32"}
    step, (tokens,) = aot_transformer.make_step(strategy, attention=attention, **settings)
    for variable in step.trace(tokens).variables:
        if "square" in variable.name or "mean" in variable.name or variable.shape == ():
            variable.assign(jnp.zeros(variable.shape, variable.dtype))
        else:
            variable.assign(0.05 * normal(*variable.shape))
    batch = strategy.experimental_distribute_values_from_function(
        lambda context: (np.arange(129)[None] * (3 + context.replica_id_in_sync_group)) % 96
    )
    return [float(step(batch)) for _ in range(2)]


@pytest.mark.long
def test_training_with_the_kernel_is_training_without_it() -> None:
    np.testing.assert_allclose(losses("flash"), losses("plain"), rtol=1e-4)


@pytest.mark.long
@pytest.mark.needs("tpu")
def test_the_kernel_is_compiled_for_absent_tpus_and_holds_no_scores() -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2")
    graphs = {}
    for attention in ("auto", "plain"):
        settings = {"size": "tiny", "length": 512, "attention": attention}
        step, args = aot_transformer.make_step(strategy, **settings)
        lowered = step.trace(*args).lower()
        graphs[attention] = str(lowered.graph)
        if attention == "auto":
            assert "tpu_custom_call" in lowered.compile().as_text("hlo")
    assert ",512,512]" in graphs["plain"]
    assert ",512,512]" not in graphs["auto"]
