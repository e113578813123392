"""Plans that cannot be read, or that do not fit the program."""

from __future__ import annotations

from typing import Any  # Any: functions of any kind

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import graphdist as gd
from tests.errors.refusal import Refused


def _step_with(text: str) -> Any:
    """Return a gradient of a loop that has a value named hidden, with a plan."""

    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        return checkpoint_name(jnp.tanh(x * weight), "hidden"), None

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(jax.checkpoint(layer), x, weights)[0].sum()

    return gd.function(jax.grad(loss), plan=gd.Plan.from_json(text))


def plan_with_a_name_that_no_value_has(refused: Refused) -> None:
    step = _step_with('{"residuals": {"hiden": "device"}}')
    with refused(ValueError):
        step(jnp.ones(3), jnp.ones(2))


def plan_for_another_graph(refused: Refused) -> None:
    step = _step_with('{"graph": "0123456789ab", "residuals": {"hidden": "device"}}')
    with refused(ValueError):
        step(jnp.ones(3), jnp.ones(2))


def plan_that_recomputes_a_carry(refused: Refused) -> None:
    step = _step_with('{"residuals": {"carry": "recompute"}}')
    with refused(ValueError):
        step(jnp.ones(3), jnp.ones(2))


def plan_for_the_memory_of_a_host_on_cpus(refused: Refused) -> None:
    step = _step_with('{"residuals": {"hidden": "host"}}')
    with refused(ValueError):
        step(jnp.ones(3), jnp.ones(2))


def plan_of_a_step_that_is_here(refused: Refused) -> None:
    step = gd.function(lambda x: x)
    with refused(ValueError):
        gd.plan(step, jnp.ones(3))


def plan_of_a_search_in_which_none_fits(refused: Refused) -> None:
    found: Any = None
    with refused(TypeError):
        gd.function(lambda x: x, plan=found)
