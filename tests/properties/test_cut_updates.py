"""Random optimizers on random models: a cut step does what the step does, to the bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.passes.cut_execution import SHAPES, check_cut, step_graph
from tests.properties.effort import programs

SCHEDULE = optax.linear_schedule(0.1, 0.2, 10)


def whitened(updates: Any) -> Any:
    """Return matrices that are multiplied by functions of themselves, as some optimizers do."""
    return jax.tree.map(
        lambda u: u @ (jnp.eye(u.shape[1]) + u.T @ u) if u.ndim == 2 else u, updates
    )


TRANSFORMATIONS: dict[str, Any] = {
    "norm": optax.clip_by_global_norm(1.0),
    "block": optax.clip_by_block_rms(0.5),
    "clip": optax.clip(0.3),
    "adam": optax.scale_by_adam(),
    "amsgrad": optax.scale_by_amsgrad(),
    "rms": optax.scale_by_rms(),
    "trace": optax.trace(0.9, nesterov=True),
    "ema": optax.ema(0.9),
    "decay": optax.add_decayed_weights(0.1),
    "trust": optax.scale_by_trust_ratio(),
    "adaptive": optax.adaptive_grad_clip(0.1),
    "schedule": optax.scale_by_schedule(SCHEDULE),
    "factored": optax.scale_by_factored_rms(min_dim_size_to_factor=2),
    "centered": optax.centralize(),
    "sign": optax.scale_by_sign(),
    "lion": optax.scale_by_lion(),
    "yogi": optax.scale_by_yogi(),
    "whitened": optax.stateless(lambda updates, params: whitened(updates)),
}


@pytest.mark.long
@programs(30)
@given(
    st.lists(st.sampled_from(sorted(SHAPES)), min_size=1, unique=True),
    st.lists(st.sampled_from(sorted(TRANSFORMATIONS)), max_size=4),
    st.sampled_from(["loss", "norm", "nothing"]),
    st.booleans(),
    st.sampled_from(["", "finite", "steps", "average"]),
)
def test_cuts_of_random_steps(
    names: list[str], chain: list[str], returns: str, lowered: bool, around: str
) -> None:
    optimizer = optax.chain(*(TRANSFORMATIONS[name] for name in chain), optax.scale(-0.1))
    if around == "finite":
        optimizer = optax.apply_if_finite(optimizer, 3)
    elif around == "steps":
        optimizer = optax.MultiSteps(optimizer, 2)
    elif around == "average":
        optimizer = optax.chain(optimizer, optax.ema(0.99))
    graph = step_graph(names, optimizer, returns=returns, lowered=lowered)
    check_cut(graph, " ".join([*names, *chain, returns, around]))
