"""The graph decides XLA's options for CPUs; the function's options win."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime import cpu_options as choosing
from graphdist.runtime.cpu_operations import LIBRARY
from graphdist.runtime.cpu_options import (
    ALL_BUT_CONVOLUTIONS,
    BLOCK,
    CONVOLUTIONS,
    PRODUCTS_AND_SURROUNDINGS,
    block_bytes,
    cpu_options,
)
from graphdist.runtime.freed_memory import BLOCK_BYTES

QUERY = jnp.asarray(np.random.default_rng(0).standard_normal((2, 5, 3, 4)), "f")


def scores(query: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", query, query))


def in_a_loop(query: jax.Array) -> jax.Array:
    def add(total: jax.Array, _: None) -> tuple[jax.Array, None]:
        return total + scores(query).sum(), None

    return jax.lax.scan(add, jnp.zeros(()), length=2)[0]


def attention(query: jax.Array) -> jax.Array:
    key, value = jnp.sin(query), jnp.cos(query)
    weights = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", query, key))
    return jnp.einsum("bnts,bsnh->btnh", weights, value)


def gradient(query: jax.Array) -> jax.Array:
    return jax.grad(lambda query: attention(query).sum())(query)


def gradient_in_a_loop(query: jax.Array) -> jax.Array:
    layers = jax.checkpoint(lambda h, _: (attention(h), None))
    return jax.grad(lambda query: jax.lax.scan(layers, query, length=2)[0].sum())(query)


@pytest.mark.parametrize(
    ("function", "value", "reason"),
    [
        (scores, CONVOLUTIONS, "1 batched product, as attention has"),
        (in_a_loop, CONVOLUTIONS, "1 batched product, as attention has"),
        (attention, CONVOLUTIONS, "2 batched products, as attention has"),
        (gradient, PRODUCTS_AND_SURROUNDINGS, "as attention and its gradient have"),
        (gradient_in_a_loop, PRODUCTS_AND_SURROUNDINGS, "as attention and its gradient have"),
    ],
)
def test_batched_products_have_an_option(
    function: Callable[[jax.Array], jax.Array], value: str, reason: str
) -> None:
    lowered = gd.function(function).trace(QUERY).lower()
    assert lowered.compiler_options == {LIBRARY: value}
    (told,) = lowered.explain().options
    assert f"{LIBRARY}={value}: the graph has " in told
    assert reason in told
    assert cpu_options(lowered.graph, "tpu") == ()


def convolved(image: jax.Array, kernel: jax.Array, groups: int = 1) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=groups
    )


def kernel_gradient(image: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.grad(lambda kernel: convolved(image, kernel).sum())(kernel)


def image_gradient(image: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.grad(lambda image: convolved(image, kernel).sum())(image)


def with_attention(image: jax.Array, kernel: jax.Array) -> jax.Array:
    return scores(convolved(image, kernel))


def after_a_larger_one(image: jax.Array, kernel: jax.Array) -> jax.Array:
    few = jnp.concatenate([image[..., :3]] * 40, 1)
    return convolved(image, kernel).sum() + convolved(few, kernel[..., :3, :]).sum()


@pytest.mark.parametrize(
    ("function", "features", "has_option"),
    [
        (convolved, (64, 64), True),
        (convolved, (64, 32), False),
        (convolved, (32, 64), False),
        (kernel_gradient, (64, 96), True),
        (kernel_gradient, (3, 96), False),
        (image_gradient, (64, 96), True),
        (image_gradient, (3, 96), False),
        (lambda image, kernel: convolved(image, kernel[:, :, :1], 64), (64, 64), False),
        (with_attention, (64, 64), False),
        (after_a_larger_one, (64, 64), False),
    ],
)
def test_convolutions_of_many_features_are_xla_s(
    function: Callable[[jax.Array, jax.Array], jax.Array],
    features: tuple[int, int],
    has_option: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choosing, "MANY_FEATURES", 64)
    image, kernel = jnp.ones((2, 7, 7, features[0])), jnp.ones((3, 3, *features))
    step = gd.function(function)
    lowered = step.trace(image, kernel).lower()
    options = cpu_options(lowered.graph, "cpu")
    chosen = {LIBRARY: ALL_BUT_CONVOLUTIONS}
    assert (chosen.items() <= lowered.compiler_options.items()) == has_option
    assert any("64 features or more" in str(option) for option in options) == has_option
    np.testing.assert_allclose(step(image, kernel), function(image, kernel), rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 3)], ids=["", "one in a batch"])
def test_a_graph_without_batched_products_has_no_option(shape: tuple[int, ...]) -> None:
    lowered = gd.function(lambda x: jnp.tanh(x @ x)).trace(jnp.ones(shape)).lower()
    assert lowered.compiler_options == {}
    assert "compiler option" not in str(lowered.explain())


def test_the_option_of_the_function_wins() -> None:
    lowered = gd.function(scores, compiler_options={LIBRARY: ""}).trace(QUERY).lower()
    assert lowered.compile().compiler_options == {LIBRARY: ""}
    assert "compiler option" not in str(lowered.explain())


def test_results_are_equal_with_and_without() -> None:
    chosen = gd.function(scores)(QUERY)
    np.testing.assert_allclose(
        chosen, gd.function(scores, compiler_options={LIBRARY: ""})(QUERY), rtol=1e-5
    )


def test_an_option_that_xla_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "LIBRARY", "xla_no_such_option")
    lowered = gd.function(scores).trace(QUERY).lower()
    assert lowered.compiler_options == {}
    assert lowered.compile().compiler_options == {}


def test_a_file_may_choose_it(tmp_path: Path) -> None:
    gd.aot.save(tmp_path / "step.gdx", gd.function(scores).trace(QUERY).lower().compile())
    loaded = gd.aot.load(tmp_path / "step.gdx")
    np.testing.assert_allclose(loaded(QUERY), gd.function(scores)(QUERY), rtol=1e-5)


def sines(x: jax.Array) -> jax.Array:
    """Return a sum of five values of the size of `x`, which are all held at once."""
    parts = [jax.lax.optimization_barrier(jnp.sin(x + i)) for i in range(5)]
    return sum(jax.lax.optimization_barrier(tuple(parts)), jnp.zeros(())).sum()


def test_blocks_have_room_for_an_image_with_padding() -> None:
    def pooled(x: jax.Array) -> jax.Array:
        pools = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
        return sines(pools)

    for megabytes, size in ((6, 9), (16, 24), (24, 31)):
        x = jax.ShapeDtypeStruct((megabytes, 64, 64, 64), jnp.float32)
        graph = gd.function(pooled).trace(x).lower().graph
        assert block_bytes(graph) == size * 2**20


@pytest.mark.parametrize(
    ("num_elements", "dtype", "size"),
    [
        (2**20, "float32", BLOCK_BYTES),
        (5 * 2**20 + 1, "float32", 21 * 2**20),
        (5 * 2**20 + 1, "bfloat16", 21 * 2**20),
        (2**23, "float32", 0),
        (2**10, "float32", 0),
    ],
    ids=["small values", "large values", "computed in float32", "a value too large", "little"],
)
def test_blocks_have_the_size_of_the_largest_value(
    num_elements: int, dtype: str, size: int
) -> None:
    x = jax.ShapeDtypeStruct((num_elements,), dtype)
    lowered = gd.function(sines).trace(x).lower()
    assert block_bytes(lowered.graph) == size
    assert lowered.compiler_options == ({BLOCK: size} if size else {})
    told = lowered.explain().options
    said = [f"{BLOCK}={size}: the process keeps temporaries" in each for each in told]
    assert said == [True] * bool(size)
    assert cpu_options(lowered.graph, "gpu") == ()


def test_results_are_equal_with_and_without_blocks() -> None:
    x = jnp.linspace(0, 1, 2**21)
    lowered = gd.function(sines).trace(x).lower()
    assert BLOCK in lowered.compiler_options
    whole = jax.jit(sines)(x)
    assert gd.function(sines)(x) == whole


@pytest.mark.parametrize("trusted", [True, False])
def test_a_step_with_blocks_is_loaded_from_a_file(trusted: bool, tmp_path: Path) -> None:
    """XLA cannot read an executable with several blocks: the file has one with one block."""
    x = jnp.linspace(0, 1, 2**21)
    compiled = gd.function(sines).trace(x).lower().compile()
    assert BLOCK in compiled.compiler_options
    gd.aot.save(tmp_path / "step.gdx", compiled)
    assert gd.aot.load(tmp_path / "step.gdx", trusted=trusted)(x) == gd.function(sines)(x)


def test_a_step_with_blocks_is_not_kept_in_the_compilation_cache(tmp_path: Path) -> None:
    gd.config.set_compilation_cache(tmp_path)
    try:
        for size, num_kept in ((2**21, 0), (8, 1)):
            gd.function(sines)(jnp.linspace(0, 1, size))
            assert len([*tmp_path.glob("*sines*-cache")]) == num_kept
    finally:
        gd.config.set_compilation_cache(None)
