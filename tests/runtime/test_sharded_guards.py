"""Optimizers with guards and branches on one value: shared out, also where gradients are nan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from tests.runtime.sharded_training import Training


def guarded(inner: Any) -> Any:
    """Return the optimizer that changes nothing where a gradient is not finite."""

    def update(grads: Any, state: Any, params: Any) -> Any:
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(one)) for one in jax.tree.leaves(grads)]))
        new = inner.update(grads, state, params)
        old = jax.tree.map(jnp.zeros_like, grads), state
        return jax.tree.map(lambda one, other: jnp.where(finite, one, other), new, old)

    return optax.GradientTransformation(inner.init, update)


def branching(inner: Any) -> Any:
    """Return the optimizer that updates in a branch, where the norm of the gradients is small."""

    def update(grads: Any, state: Any, params: Any) -> Any:
        def update() -> Any:
            return inner.update(grads, state, params)

        def leave() -> Any:
            return jax.tree.map(jnp.zeros_like, grads), state

        return jax.lax.cond(optax.tree.norm(grads) < 2.0, update, leave)

    return optax.GradientTransformation(inner.init, update)


def scaled(inner: Any) -> Any:
    """Return the optimizer for a loss whose scale doubles after two steps that were finite."""

    def init(params: Any) -> Any:
        return inner.init(params), jnp.float32(2.0**4), jnp.int32(0)

    def update(scaled: Any, state: Any, params: Any) -> Any:
        old, scale, counter = state
        grads = jax.tree.map(lambda one: one * scale / scale, scaled)
        finite = jnp.stack([jnp.isfinite(one).all() for one in jax.tree.leaves(grads)]).all()
        updates, new = inner.update(grads, old, params)
        updates = jax.tree.map(
            lambda one: jax.lax.select(finite, one, jnp.zeros_like(one)), updates
        )
        new = jax.tree.map(lambda one, other: jax.lax.select(finite, one, other), new, old)
        grown = jax.lax.select(counter == 1, scale * 2, scale)
        scale = jax.lax.select(finite, grown, jnp.maximum(1, scale / 2))
        return updates, (new, scale, (counter + 1) % 2 * finite)

    return optax.GradientTransformation(init, update)


def large(updates: Any, step: Any, params: Any) -> Any:
    return optax.skip_large_updates(updates, step, params, max_squared_norm=4.0)


CLIPPED = optax.chain(optax.clip_by_global_norm(0.05), optax.adamw(0.01, weight_decay=0.1))
OPTIMIZERS = {
    "guarded, clipped": guarded(CLIPPED),
    "loss scale": scaled(optax.adam(0.01)),
    "branch": branching(optax.lamb(0.01)),
    "zero_nans": optax.chain(optax.zero_nans(), optax.adam(0.01)),
    "apply_if_finite, clipped": optax.apply_if_finite(CLIPPED, 3),
    "MultiSteps, finite": optax.MultiSteps(
        optax.adam(0.01), 2, should_skip_update_fn=optax.skip_not_finite
    ),
    "MultiSteps, large": optax.MultiSteps(CLIPPED, 2, should_skip_update_fn=large),
    "MultiSteps of apply_if_finite": optax.MultiSteps(
        optax.apply_if_finite(optax.lion(0.001), 3), 2
    ),
    "prodigy": optax.contrib.prodigy(),
    "muon": optax.contrib.muon(0.01),
    "ema": optax.chain(optax.adam(0.01), optax.ema(0.9)),
    "lars": optax.lars(0.01),
    "clipped by units": optax.chain(optax.adaptive_grad_clip(0.1), optax.adam(0.01)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_state_that_divides_is_in_slices_and_training_the_same(name: str) -> None:
    whole, cut = (Training(OPTIMIZERS[name], 2, shards) for shards in (False, True))
    numbers = np.random.default_rng(1).standard_normal((5, 16, 8)).astype("f")
    numbers[2, 0, 0] = np.inf  # and the gradients of this batch are nan
    for batch in numbers:
        ours, theirs = (
            one.step(*one.strategy.experimental_distribute_dataset([batch])) for one in (cut, whole)
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    for one, other in zip(cut.values(), whole.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    divides = {
        variable.name
        for variable in jax.tree.leaves(cut.state)
        if any(size % 2 == 0 for size in variable.shape)
    }
    assert divides
    assert set(cut.sharded) == divides
    assert whole.held == 1
    assert 0.5 < cut.held < 0.53  # a bias of three elements and the numbers stay whole


@pytest.mark.long
@pytest.mark.parametrize("replicas", [4, 8])
def test_more_replicas_hold_less(replicas: int) -> None:
    whole, cut = (
        Training(optax.apply_if_finite(CLIPPED, 3), replicas, shards) for shards in (False, True)
    )
    for mine, theirs in zip(cut.batches(3), whole.batches(3), strict=True):
        cut.step(mine)
        whole.step(theirs)
    for one, other in zip(cut.values(), whole.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert cut.held == pytest.approx(1 / replicas, abs=0.03)


def without_smallest() -> optax.GradientTransformation:
    """Leave out what is small beside the other elements of a matrix, which all are sorted for."""

    def cut(update: Any) -> Any:
        if update.ndim < 2:
            return update
        median = jnp.sort(jnp.abs(update).ravel())[update.size // 2]
        return jnp.where(jnp.abs(update) < median, 0, update)

    return optax.stateless(lambda updates, params: jax.tree.map(cut, updates))


@pytest.mark.long
def test_what_stays_whole_says_why_and_the_rest_is_shared_out() -> None:
    training = Training(optax.chain(without_smallest(), optax.adam(0.01)), 2, True)
    (batch,) = training.batches(1)
    training.step(batch)
    assert set(training.sharded) == {"1_0_mu_bias", "1_0_nu_bias"}
    told = " ".join(str(training.step.trace(batch).lower().explain()).split())
    assert "declined: 1_0_mu_first: its gradient: jax.sort" in told
    assert "needs the full value" in told


@pytest.mark.long
def test_a_step_compiled_for_slices_sends_no_more_than_the_first() -> None:
    training = Training(optax.contrib.muon(0.01), 2, True)
    (batch,) = training.batches(1)
    lowered = training.step.trace(batch).lower()
    training.step(batch)
    again = training.step.trace(batch).lower()
    assert len(training.sharded) == 4
    first, second = (
        sorted((one.kind, one.bytes) for one in stage.collectives) for stage in (lowered, again)
    )
    assert first == second
