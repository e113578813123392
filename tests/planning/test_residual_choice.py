"""The integer program against all choices, one by one."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdist.ir.residual_loops import ResidualLoops, residual_loops
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.plan import Keep
from graphdist.planning.residual_choice import ResidualProgram
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
