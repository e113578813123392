"""Shards that go around the ring of a replica's cores, on devices: elsewhere only TPUs have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.passes import pipelines
from graphdist.passes.order.products_around_rings import ProductsAroundRings

_WIDTH, _HIDDEN = 8, 12


def _trained(cores: int, along: int) -> tuple[Any, set[str]]:
    """Return what two layers and their gradients give, and the kinds of collectives."""
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(cores)], cores_per_replica=cores)
    up = np.linspace(-1, 1, _WIDTH * _HIDDEN, dtype="f").reshape(_WIDTH, _HIDDEN)
    down = np.cos(up.T)
    with strategy.scope():
        weights = gd.variables(
            {"up": up, "down": down}, cores={"up": (None, "sharded"), "down": ("sharded", None)}
        )
    parts = [cores if dimension == along else 1 for dimension in range(3)]

    def loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = strategy.experimental_split_to_logical_devices(x, parts)
            x = x + jnp.tanh(x @ weights["up"]) @ weights["down"]
        x = strategy.experimental_split_to_logical_devices(x, parts)
        return jnp.sum(jnp.sin(x))

    @gd.function
    def step(x: Any) -> Any:
        return strategy.run(lambda x: jax.value_and_grad(loss)(gd.read(weights), x), args=(x,))

    x = np.sin(np.arange(16 * 8 * _WIDTH, dtype="f")).reshape(16, 8, _WIDTH)
    kinds = {each.kind for each in step.trace(x).lower().collectives}
    return jax.tree.map(np.asarray, step(x)), kinds


@pytest.mark.parametrize("along", [1, 2])
@pytest.mark.parametrize("cores", [2, 4])
def test_a_step_gives_the_same_around_a_ring(
    cores: int, along: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, at_once = _trained(cores, along)
    assert "rotate_over_cores" not in at_once
    rings = tuple(
        replace(place, run_for=lambda target: ProductsAroundRings(1))
        if place.name == "products_around_rings"
        else place
        for place in pipelines.PIPELINE
    )
    monkeypatch.setattr(pipelines, "PIPELINE", rings)
    given, around = _trained(cores, along)
    assert "rotate_over_cores" in around
    for one, other in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        # Sums are rounded by the size of their terms, which cancel in some elements.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())
