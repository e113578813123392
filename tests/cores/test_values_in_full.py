"""`explain()` names the operations that take values of all cores in full."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from tests.cores.training import strategy_on


def declined(loss: Callable[[jax.Array], jax.Array], length: int = 512) -> tuple[str, ...]:
    """Return what the pass says of a loss of logits whose positions are in shards."""
    strategy = strategy_on(1, 2)
    weights = jnp.ones((16, 1024))

    def replica_fn(x: jax.Array) -> jax.Array:
        x = strategy.experimental_split_to_logical_devices(x, [1, 2, 1])
        return loss(x @ weights)

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    explained = step.trace(np.ones((1, length, 16), np.float32)).lower().explain()
    (split,) = (each for each in explained.steps if each.name == "split_over_cores")
    return split.declined


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("slice", lambda logits: jnp.sum(jnp.tanh(logits)[:, :-1] ** 2)),
        ("cumsum", lambda logits: jnp.sum(jnp.cumsum(logits, 1) ** 2)),
        ("sort", lambda logits: jnp.sum(jnp.sort(logits, 1)[:, :, 0] ** 2)),
    ],
)
def test_an_operation_without_a_rule_is_named(
    name: str, loss: Callable[[jax.Array], jax.Array]
) -> None:
    (reason,) = declined(loss)
    assert reason.startswith(f"2,097,152 bytes, f32[1,512,1024]: {name} (")
    assert "test_values_in_full.py" in reason
    assert reason.endswith("in full on each core, since it has no rule for shards of dimension 1")


def test_small_values_and_operations_with_a_rule_are_not_named() -> None:
    assert declined(lambda logits: jnp.sum(logits[:, :-1] ** 2), length=64) == ()
    assert declined(lambda logits: jnp.sum(jax.nn.log_softmax(logits) ** 2)) == ()


def test_what_is_gathered_for_a_product_is_not_named() -> None:
    other = jnp.ones((1, 512, 1024))
    assert declined(lambda logits: jnp.sum(jnp.einsum("blv,bmv->blm", logits, other + 1))) == ()
