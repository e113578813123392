"""Timelines of modules that are small enough to add up by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest

from graphdist.ir.collective_bytes import Exchange
from graphdist.runtime.module.collective_instructions import exchange_of
from graphdist.runtime.module.instructions import CompiledModule, Instruction
from graphdist.runtime.module.predicted_seconds import ChipDurations
from graphdist.runtime.module.timeline import ModuleTurn, laid_out
from graphdist.runtime.timing.lanes import Event, all_events

MODULE = """HloModule m, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[] add(%a, %b)
}
%until (p: (s32[], f32[8])) -> pred[] {
  %bound = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %bound), direction=LT
}
%inner (x: f32[8]) -> f32[8] {
  ROOT %d = f32[8]{0} dot(%x, %x)
}
%scattered (x: f32[8]) -> f32[2] {
  ROOT %rs = f32[2]{0} reduce-scatter(%x), dimensions={0}, to_apply=%sum
}
%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
BODY
}
ENTRY %main (x: f32[8]) -> f32[8] {
MAIN
}
"""
LOOP = "  ROOT %w = (s32[], f32[8]) while(%t), condition=%until, body=%body"
GATHER = "  %g = f32[8]{0} all-gather(%x), replica_groups={{0,1,2,3}}, dimensions={0}"
START = "  %s = (f32[2], f32[8]) all-gather-start(%x), dimensions={0}"
DONE = "  %e = f32[8]{0} all-gather-done(%s)"


def work(cycles: int, name: str = "work") -> str:
    config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    return f"  %{name} = f32[8]{{0}} fusion(%x), kind=kOutput, calls=%inner, {config}"


@dataclass(frozen=True)
class Seconds:
    """A second a cycle; collectives and copies take as long as they are told."""

    of_collectives: float = 10
    of_copies: float = 10

    def compute(self, instruction: Instruction) -> float:
        return float(instruction.cycles or 0)

    def exchange(self, instruction: Instruction, kind: str) -> Exchange:
        return exchange_of(instruction, kind, 4)

    def collective(self, exchange: Exchange) -> float:
        return self.of_collectives

    def copy(self, instruction: Instruction) -> float:
        return self.of_copies


def laid(main: Sequence[str], body: Sequence[str] = (), seconds: Seconds = Seconds()) -> ModuleTurn:
    text = MODULE.replace("BODY", "\n".join(body)).replace("MAIN", "\n".join(main))
    return laid_out(CompiledModule(text), cast(ChipDurations, seconds))


def parts(turn: ModuleTurn) -> tuple[float, float, float]:
    assert turn.seconds == turn.compute + turn.exposed + turn.idle
    return turn.compute, turn.exposed, turn.idle


def test_a_collective_that_is_one_instruction_is_exposed() -> None:
    turn = laid([work(3), GATHER, work(4)])
    assert parts(turn) == (7, 10, 0)
    assert [(event.lane, event.start, event.seconds) for event in turn.events] == [
        ("compute", 0, 3),
        ("links", 3, 10),
        ("compute", 13, 4),
    ]


@pytest.mark.parametrize(("beside", "exposed"), [(4, 6), (10, 0), (25, 0)])
def test_an_asynchronous_collective_is_exposed_for_what_is_left(beside: int, exposed: int) -> None:
    turn = laid([START, work(beside), DONE, work(2)])
    assert parts(turn) == (beside + 2, exposed, 0)
    assert [event.wait for event in turn.events if event.collective] == [exposed]


def test_collectives_share_the_links_one_after_the_other() -> None:
    second = START.replace("%s", "%s2"), DONE.replace("%e", "%e2").replace("(%s)", "(%s2)")
    turn = laid([START, second[0], work(12), DONE, second[1]])
    assert parts(turn) == (12, 8, 0)
    assert [event.start for event in turn.events if event.collective] == [0, 10]


def test_a_loop_counts_for_all_of_its_turns() -> None:
    turn = laid([work(1), LOOP], [START, work(4), DONE, GATHER])
    assert parts(turn) == (1 + 5 * 4, 5 * (6 + 10), 0)
    (loop,) = (event for event in turn.events if event.body is not None)
    assert (loop.times, loop.start, loop.seconds) == (5, 1, 5 * 20)
    runs = {event.work.name: times for event, times in all_events(turn)}
    assert runs == {"work": 5, "w": 1, "s": 5, "g": 5}


def test_copies_are_waited_for_in_their_own_lane() -> None:
    start = "  %c = (f32[8]{0:S(1)}, f32[8]{0}, u32[]) copy-start(%x)"
    done = "  %cd = f32[8]{0:S(1)} copy-done(%c)"
    assert parts(laid([start, work(3), done])) == (3, 0, 7)
    assert parts(laid([start, GATHER, done])) == (0, 10, 0), "a copy hides behind a collective"


def test_wrapped_and_fused_collectives() -> None:
    start = "  %a = ((f32[8]), f32[2], u32[]) async-start(%x), calls=%scattered"
    done = "  ROOT %b = f32[2]{0} async-done(((f32[8]), f32[2], u32[]) %a), calls=%scattered"
    assert parts(laid([start, work(4), done])) == (4, 6, 0)
    fused = "  %f = f32[2]{0} fusion(%x), kind=kCustom, calls=%scattered"
    (event,) = laid([fused]).events
    assert (event.collective, event.lane, event.wait) == ("reduce_scatter", "links", 10)


def test_of_branches_the_longest_counts() -> None:
    branch = "  %c = f32[8] conditional(%i, %x, %x), branch_computations={%inner, %body}"
    turn = laid([branch], [work(6)])
    assert parts(turn) == (6, 0, 0)


def test_a_branch_of_every_fourth_step_counts_a_quarter() -> None:
    branch = "  %c = f32[8] conditional(%i, %x, %x), branch_computations={%inner, %body}"
    named = f'{branch}, metadata={{op_name="jit(step)/every_4_steps/cond"}}'
    turn = laid([work(1), named, work(2)], [GATHER, work(6)])
    assert parts(turn) == (1 + 6 / 4 + 2, 10 / 4, 0)
    shares = {event.work.name: share for event, share in all_events(turn)}
    assert shares["g"] == 1 / 4


def test_an_end_without_a_start_waits_for_nothing() -> None:
    assert parts(laid([DONE, work(1)])) == (1, 0, 0)
    assert parts(laid([START, work(1)])) == (1, 0, 0)


def test_cycles_that_the_compiler_does_not_know_count_for_nothing() -> None:
    assert parts(laid([work(2**63 - 1), work(3)])) == (3, 0, 0)


def test_copies_from_and_to_the_host_have_lanes_of_their_own() -> None:
    to_host = "  %o = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start(%x)"
    from_host = "  %i = (f32[8]{0}, f32[8]{0:S(5)}, u32[]) copy-start(%x)"
    inside = "  %c = (f32[8]{0:S(1)}, f32[8]{0}, u32[]) copy-start(%x)"
    events = laid([to_host, from_host, inside]).events
    assert [(event.lane, event.start) for event in events] == [
        ("to the host", 0),
        ("from the host", 0),
        ("copies", 0),
    ]


def test_events_have_instructions() -> None:
    events: list[Event[Instruction]] = laid([work(2, "first")]).events
    assert [event.work.name for event in events] == ["first"]
