"""The integer program against all choices, one by one."""

from __future__ import annotations

from itertools import combinations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.residual_loops import ResidualLoops, residual_loops
from graphdist.ir.written_out import written_out
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.plans import Keep
from graphdist.planning import residual_choice
from graphdist.planning.residual_choice import ResidualProgram
from graphdist.runtime.targets.chips import HOST_BYTES, Figure
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.topologies import find_topology
from tests.properties.effort import programs
from tests.properties.stacked_layers import STEPS, WRAPPERS, traced

RATES = ChipRates.of(find_topology("v5e:2x4"))


def loops_of(steps: list[str], wrapper: str) -> tuple[ResidualLoops, ...]:
    return residual_loops(infer_layouts(traced(steps, "loop", wrapper, "sgd")))


@programs(30)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    wrapper=st.sampled_from(sorted(WRAPPERS)),
    share=st.floats(0, 1),
)
def test_no_other_choice_takes_less_time(steps: list[str], wrapper: str, share: float) -> None:
    loops = loops_of(steps, wrapper)
    program = ResidualProgram(loops, RATES)
    largest = sum(size for _, size in program.values)
    most = program.fewest_bytes + int(share * largest)
    found = program.solve(most)
    assert found is not None
    assert found.stacked_bytes <= most
    names = [name for name, _ in program.values][:8]
    best = program.seconds(found.residuals)
    for count in range(len(names) + 1):
        for kept in combinations(names, count):
            other = program.choice(dict.fromkeys(kept, Keep.DEVICE))
            if other.stacked_bytes <= most:
                assert best <= program.seconds(other.residuals) * (1 + 1e-3) + 1e-12


def test_room_for_nothing_is_no_choice() -> None:
    program = ResidualProgram(loops_of(["product", "clip"], "recomputed"), RATES)
    assert program.fewest_bytes > 0
    assert program.solve(program.fewest_bytes - 1) is None
    least = program.solve(program.fewest_bytes)
    assert least is not None
    assert least.stacked_bytes == program.fewest_bytes


def test_more_room_takes_no_more_time() -> None:
    program = ResidualProgram(
        loops_of(["product", "clip", "scale", "product"], "recomputed"), RATES
    )
    sizes = sum(size for _, size in program.values)
    found = [program.solve(program.fewest_bytes + sizes * part // 10) for part in range(11)]
    seconds = [program.seconds(each.residuals) for each in found if each is not None]
    assert len(seconds) == len(found)
    assert seconds == pytest.approx(sorted(seconds, reverse=True))


def test_two_backward_loops_read_one_stack() -> None:
    def two_gradients(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        def layers(x: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, weights)[0]

        y, transposed = jax.vjp(layers, x)
        return transposed(y)[0], transposed(y * y)[0]

    step = gd.function(two_gradients)
    graph = infer_layouts(step.trace(jnp.ones((4, 8)), jnp.ones((3, 8, 8))).graph)
    both = residual_loops(graph)
    assert [each.forward.node for each in both] == [both[0].forward.node] * 2

    def fastest(loops: tuple[ResidualLoops, ...], most: int) -> tuple[int, float]:
        program = ResidualProgram(loops, RATES)
        found = program.solve(most)
        assert found is not None
        return found.stacked_bytes, program.seconds(found.residuals)

    size, _ = fastest(both[:1], 2**30)
    assert size > 0
    assert fastest(both, size) == fastest(both, 2**30)


def test_no_more_is_on_the_host_than_the_compiler_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_choice, "_SMALLEST_ON_HOST", 0)
    monkeypatch.setattr(residual_choice, "_seconds_of", lambda passes, rates: 1.0)
    loops = loops_of(["product", "clip"], "recomputed")

    def on_host(most: float) -> int:
        monkeypatch.setitem(HOST_BYTES, "tpu", Figure(most, "here"))
        program = ResidualProgram(loops, RATES, uses_host=True)
        found = program.solve(program.fewest_bytes)
        assert found is not None
        sizes = dict(program.values)
        return sum(sizes[name] for name, keep in found.residuals.items() if keep is Keep.HOST)

    free = on_host(2**37)
    assert free > 0
    assert on_host(free) == free
    assert on_host(free - 1) < free


def test_layers_that_are_written_out_are_computed_from_what_they_took() -> None:
    """The fewest bytes are those of what the layers take, not of what all layers share."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jax.checkpoint(layer)(x, w)
        return jnp.sum(x)

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        hidden = x @ w
        return x + hidden * jax.nn.sigmoid(hidden) * jnp.sin(jnp.arange(8.0))

    step, weights = gd.function(jax.grad(loss)), [jnp.ones((8, 8))] * 3
    found = written_out(infer_layouts(step.trace(weights, jnp.ones((4, 8))).graph))
    program = ResidualProgram(found, RATES)
    layer_input = 4 * 4 * 8
    assert program.fewest_bytes == 2 * layer_input  # the third is an argument of the step
    assert program.solve(program.fewest_bytes) is not None
