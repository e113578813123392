"""The user's line of each node, also where JAX traces a function of its own without its caller."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any  # Any: arrays and tracers

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from graphdist.ir.analyses import walk
from graphdist.runtime.emit import emit
from tests.tracing.traces import graph_of


def lines_of(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> dict[str, list[str]]:
    """Return the operations of a function's graph by the text of their innermost line."""
    found: dict[str, list[str]] = {}
    for node in walk(graph_of(fn, *shapes)):
        frame = node.source.frame
        found.setdefault(frame.text if frame else "", []).append(node.op.name)
    return found


def test_what_jax_has_jitted_has_the_line_that_calls_it_each_time() -> None:
    def fn(x: jax.Array) -> jax.Array:
        scale = jnp.linalg.norm(x)
        again = jnp.linalg.norm(x + 1)
        return scale + again + jnp.var(x)

    lines = lines_of(fn, (3,))
    assert list(lines) == [line.strip() for line in inspect.getsource(fn).splitlines()[1:]]
    assert "jax.sqrt" in lines["scale = jnp.linalg.norm(x)"]
    assert "jax.sqrt" in lines["again = jnp.linalg.norm(x + 1)"]


def test_so_have_gradients_and_bodies_of_loops() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.var(x, axis=-1))

    def fn(x: jax.Array) -> Any:
        value = jnp.polyval(x[0], x[1], unroll=1)
        return jax.grad(loss)(x), value, lax.map(jnp.median, x)

    lines = lines_of(fn, (2, 8))
    assert "" not in lines


def test_a_jitted_helper_keeps_its_own_lines() -> None:
    @jax.jit
    def helper(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) + jnp.var(x)

    lines = lines_of(lambda x: helper(x) * 2, (3,))
    assert "jax.tanh" in lines["return jnp.tanh(x) + jnp.var(x)"]
    assert "jax.square" in lines["return jnp.tanh(x) + jnp.var(x)"]


@pytest.mark.parametrize("over", [jax.vmap, jax.checkpoint])
def test_so_has_what_is_mapped_or_computed_again(over: Callable[..., Any]) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.grad(lambda x: jnp.sum(over(lambda x: jnp.linalg.norm(x))(x)))(x)

    assert "" not in lines_of(fn, (2, 3))


def test_a_module_has_the_lines_too() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jnp.linalg.norm(x)

    graph = graph_of(fn, (3,))
    module = jax.jit(lambda *given: emit(graph, given)).lower(jnp.ones((3,)))
    line = inspect.getsourcelines(fn)[1] + 1
    assert f'test_user_lines.py":{line}:' in module.as_text(debug_info=True)
