"""What a compiled module runs beside the collectives of its loops, read from small texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.schedule import LoopCollective, exposed_by_loop, loop_collectives
from graphdist.tools.schedule import main

MODULE = """
%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[] add(%a, %b)
}
%until (p: (s32[], f32[8])) -> pred[] {
  %bound = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %bound), direction=LT
}
%matmul (x: f32[8]) -> f32[8] {
  ROOT %d = f32[8]{0} dot(%x, %x)
}
%first (x: f32[2]) -> f32[8] {
  ROOT %all-gather.1 = f32[8]{0} all-gather(%x), dimensions={0}, frontend_attributes={chain_id="7"}
}
%middle (x: f32[2]) -> f32[8] {
  %all-gather.2 = f32[8]{0} all-gather(%x), dimensions={0}, frontend_attributes={chain_id="7"}
  ROOT %d = f32[8]{0} dot(%x, %x)
}
%last (x: f32[2]) -> f32[8] {
  ROOT %all-gather.3 = f32[8]{0} all-gather(%x), dimensions={0}, frontend_attributes={chain_id="7"}
}
%all-reduce-scatter.5 (x: f32[8]) -> f32[2] {
  %all-reduce.9 = f32[8]{0} all-reduce(%x), to_apply=%sum
  ROOT %part = f32[2]{0} dynamic-slice(%all-reduce.9, %i)
}
%wrapped (x: f32[8]) -> f32[2] {
  ROOT %reduce-scatter.1 = f32[2]{0} reduce-scatter(%x), dimensions={0}, to_apply=%sum
}
%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
BODY
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %outside = f32[8]{0} all-reduce(%x), replica_groups={{0,1,2,3}}, to_apply=%sum
  ROOT %w = (s32[], f32[8]) while(%t), condition=%until, body=%body
}
"""

WORK = (
    "  %work = f32[8]{0} fusion(%x), kind=kOutput, calls=%matmul, backend_config="
    '{"window_config":{"estimated_cycles":"120"}}'
)


def collectives_of(*lines: str) -> tuple[LoopCollective, ...]:
    return loop_collectives(CompiledModule(MODULE.replace("BODY", "\n".join(lines))))


def test_what_is_one_instruction_is_exposed_whatever_stands_around_it() -> None:
    gather = "  %g = f32[8]{0} all-gather(%x), replica_groups={{0,1,2,3}}, dimensions={0}"
    (found,) = collectives_of(WORK, gather, WORK)
    assert found == LoopCollective("g", "all_gather", "body", 5)
    assert found.is_exposed


@pytest.mark.parametrize(
    ("start", "end", "kind"),
    [
        (
            "  %s = (f32[2], f32[8]) all-gather-start(%x), dimensions={0}",
            "  %e = f32[8]{0} all-gather-done(%s)",
            "all_gather",
        ),
        (
            "  %s = ((f32[8]), f32[2], u32[]) async-start(%x), calls=%wrapped",
            "  ROOT %e = f32[2]{0} async-done(((f32[8]), f32[2], u32[]) %s), calls=%wrapped",
            "reduce_scatter",
        ),
        (
            "  %async-collective-start.3 = (f32[2], f32[8]) fusion(%x), calls=%first",
            "  %async-collective-done.3 = f32[8]{0} fusion(%t), calls=%last",
            "all_gather",
        ),
    ],
)
def test_an_asynchronous_collective_is_hidden_by_what_computes_inside_it(
    start: str, end: str, kind: str
) -> None:
    moves = [
        "  %t = f32[8]{0} get-tuple-element(%s), index=1",
        "  %c = f32[8]{0} copy(%x)",
        '  %room = f32[8]{0} custom-call(), custom_call_target="AllocateBuffer"',
    ]
    (hidden,) = collectives_of(start, *moves, WORK, end)
    assert (hidden.kind, hidden.is_exposed) == (kind, False)
    assert (hidden.beside, hidden.beside_cycles) == (("work",), 120)
    (exposed,) = collectives_of(WORK, start, *moves, end, WORK)
    assert exposed.is_exposed


def test_a_kernel_hides_a_collective_and_a_collective_hides_none() -> None:
    start = "  %s = (f32[2], f32[8]) all-gather-start(%x), dimensions={0}"
    end = "  %e = f32[8]{0} all-gather-done(%s)"
    kernel = '  %k = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call"'
    other = "  %g = f32[8]{0} all-reduce(%x), to_apply=%sum"
    assert [each.is_exposed for each in collectives_of(start, kernel, end)] == [False]
    assert [each.is_exposed for each in collectives_of(start, other, end)] == [True, True]


def test_a_matmul_fused_with_a_part_of_a_gather_runs_beside_it() -> None:
    (found,) = collectives_of(
        "  %async-collective-start = (f32[2], f32[8]) fusion(%x), calls=%first",
        "  %fusion.4 = (f32[8], f32[8]) fusion(%t), kind=kOutput, calls=%middle",
        "  %async-collective-done = f32[8]{0} fusion(%t), calls=%last",
    )
    assert found.beside == ("fusion.4",)


def test_a_scatter_that_is_a_fused_all_reduce_is_one_synchronous_collective() -> None:
    (found,) = collectives_of("  %f = f32[2] fusion(%x), calls=%all-reduce-scatter.5")
    assert (found.kind, found.is_exposed) == ("reduce_scatter", True)


def test_loops_are_counted_apart_and_branches_belong_to_their_loop() -> None:
    gather = "  %g = f32[8]{0} all-gather(%x), dimensions={0}"
    branch = "  %c = f32[8] conditional(%i, %x, %x), branch_computations={%arm, %matmul}"
    text = MODULE.replace("BODY", f"{gather}\n{branch}\n  %w = s32[] while(%t), condition=%until, "
                          "body=%inner")  # fmt: skip
    text += f"%arm (x: f32[8]) -> f32[8] {{\n{gather}\n}}\n%inner (x: f32[8]) -> f32[8] {{\n}}\n"
    assert exposed_by_loop(CompiledModule(text)) == {"body": 2}
    assert [each.times for each in loop_collectives(CompiledModule(text))] == [5, 5]
    nested = text.replace("%inner (x: f32[8]) -> f32[8] {\n", f"%inner (x: f32[8]) {{\n{gather}\n")
    assert exposed_by_loop(
        CompiledModule(nested.replace("(x: f32[8]) {", "(x: f32[8]) -> f32[8] {"))
    ) == {
        "body": 2,
        "inner": 1,
    }


def test_the_tool_prints_what_is_exposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "module.txt"
    gather = "  %g = f32[8]{0} all-gather(%x), dimensions={0}"
    start = "  %s = (f32[2], f32[8]) all-gather-start(%x), dimensions={0}"
    lines = [gather, start, WORK, "  %e = f32[8]{0} all-gather-done(%s)"]
    file.write_text(MODULE.replace("BODY", "\n".join(lines)))
    assert main([str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "body: 2 collectives, nothing overlaps 1",
        "  all_gather  g  5 runs  exposed",
        "  all_gather  s  5 runs  beside 1 instruction, 120 cycles",
    ]
    assert main([str(tmp_path / "none.txt")]) == 2
    assert "none.txt" in capsys.readouterr().err
    file.write_bytes(b"\xff")
    assert main([str(file)]) == 2
    assert "module.txt is no text: " in capsys.readouterr().err
