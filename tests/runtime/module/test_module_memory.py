"""What compiled modules hold, against sums made by hand and against the compiler's own peaks."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.memory import ModuleMemory


def held(main: str, header: str = "HloModule m", others: str = "") -> ModuleMemory:
    text = f"{header}\n\n{others}\nENTRY %main (x: f32[8]) -> f32[8] {{\n{main}\n}}\n"
    return ModuleMemory(CompiledModule(text))


def bytes_of(main: str, header: str = "HloModule m", others: str = "") -> list[int]:
    return list(held(main, header, others).entry.bytes)


def test_a_value_is_held_from_its_maker_to_its_last_user() -> None:
    assert bytes_of("""
  %x = f32[8]{0} parameter(0)
  %a = f32[4]{0} slice(%x)
  %b = f32[2]{0} slice(%x)
  %c = f32[] reduce(%a, %b)
  ROOT %d = f32[2]{0} slice(%x)""") == [32, 32 + 16, 32 + 24, 32 + 24 + 4, 32 + 8]


def test_a_result_takes_the_buffer_of_an_operand_that_nothing_uses_later() -> None:
    elementwise = "\n  ROOT %b = f32[8]{0} exponential(%a)"
    product = "\n  ROOT %b = f32[8]{0} dot(%a, %a), lhs_contracting_dims={}"
    first = "  %x = f32[8]{0} parameter(0)\n  %a = f32[8]{0} negate(%x)"
    assert bytes_of(first + elementwise) == [32, 64, 64]
    assert bytes_of(first + product) == [32, 64, 96]  # which reads its operand again


def test_views_hold_nothing_of_their_own_and_keep_what_they_show() -> None:
    assert bytes_of("""
  %x = f32[8]{0} parameter(0)
  %a = f32[8]{0} copy(%x)
  %b = f32[4]{0} slice(%x)
  %t = (f32[8]{0}, (f32[4]{0}, f32[8]{0})) tuple(%a, %p)
  %p = (f32[4]{0}, f32[8]{0}) tuple(%b, %a)
  %u = (f32[8]{0}, (f32[4]{0}, f32[8]{0})) tuple(%a, %p)
  %q = (f32[4]{0}, f32[8]{0}) get-tuple-element(%u), index=1
  %y = f32[8]{0} get-tuple-element(%q), index=1
  %v = f32[2,4]{1,0} bitcast(%y)
  ROOT %z = f32[] reduce(%v)""") == [32, 64, 80, *[64] * 6, 68]


def test_a_result_that_is_stored_in_an_argument_needs_no_more() -> None:
    main = """
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} parameter(1)
  %a = f32[8]{0} negate(%x)
  ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%a, %y)"""
    assert bytes_of(main) == [64, 64, 96, 96]
    aliased = "HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }, entry"
    assert bytes_of(main, aliased) == [64, 64, 64, 64]


STORED = "HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }, entry"


def test_a_result_in_an_argument_does_not_place_its_operands_there() -> None:
    main = """
  %x = f32[8]{0} parameter(0)
  %g = f32[8]{0} copy(%x)
  %s = f32[4]{0} slice(%g)
  %a = f32[8]{0} add(%x, %g)
  ROOT %t = (f32[8]{0}, f32[4]{0}) tuple(%a, %s)"""
    assert bytes_of(main, STORED) == [32, 64, 80, 80, 48]


def test_a_donated_argument_has_other_values_until_its_result_is_there() -> None:
    main = """
  %x = f32[8]{0} parameter(0)
  %c = f32[6]{0} slice(%x)
  %d = f32[6]{0} copy(%c)
  %e = f32[4]{0} slice(%d)
  %a = f32[8]{0} pad(%e)
  ROOT %t = (f32[8]{0}, f32[4]{0}) tuple(%a, %e)"""
    assert bytes_of(main) == [32, 56, 80, 72, 80, 80]
    # `d` has the argument's buffer, `c` and `e` their own.
    assert bytes_of(main, STORED) == [32, 56, 56, 48, 48, 48]


def test_a_donated_argument_may_be_an_element_of_a_tuple() -> None:
    main = """
  %x = (f32[4]{0}, f32[8]{0}) parameter(0)
  %y = f32[8]{0} get-tuple-element(%x), index=1
  %a = f32[8]{0} negate(%y)
  ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%a, %y)"""
    stored = "HloModule m, input_output_alias={ {0}: (0, {1}, may-alias) }, entry"
    assert bytes_of(main) == [48, 48, 80, 80]
    assert bytes_of(main, stored) == [48, 48, 48, 48]


def test_an_instruction_says_which_results_are_in_the_buffers_of_operands() -> None:
    start = """
  %x = f32[8]{0} parameter(0)
  %s = (f32[2]{0}, f32[16]{0}) fusion(%x), kind=kCustom, calls=%started
  %s0 = f32[2]{0} get-tuple-element(%s), index=0
  %s1 = f32[16]{0} get-tuple-element(%s), index=1
  %f = (f32[8]{0}, f32[2]{0}, f32[16]{0}) custom-call(%s0, %s1, %x), ATTRIBUTE target="m"
  %g = f32[16]{0} get-tuple-element(%f), index=2
  %z = f32[] reduce(%g)
  ROOT %h = f32[8]{0} get-tuple-element(%f), index=0"""
    aliasing = "output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})},"
    assert bytes_of(start.replace("ATTRIBUTE", aliasing))[4:6] == [32 + 72 + 32, 32 + 64 + 32]
    assert bytes_of(start.replace("ATTRIBUTE", ""))[4:6] == [32 + 72 + 104, 32 + 64 + 32]


def test_arrays_of_other_memories_do_not_count() -> None:
    assert bytes_of("""
  %x = f32[8]{0:T(256)} parameter(0)
  %s = (f32[8]{0:T(256)S(5)}, f32[8]{0:T(256)}, u32[]{:S(2)}) copy-start(%x)
  %d = f32[8]{0:T(256)S(5)} copy-done(%s)
  %v = f32[8]{0:T(256)S(1)} copy(%x)
  ROOT %z = f32[4]{0} slice(%v)""") == [32, 32, 32, 32, 48]


def test_what_is_gathered_is_held_from_the_start() -> None:
    assert bytes_of("""
  %x = f32[8]{0} parameter(0)
  %s = (f32[8]{0}, f32[32]{0}) all-gather-start(%x), dimensions={0}
  %w = f32[] reduce(%x)
  %g = f32[32]{0} all-gather-done(%s)
  ROOT %z = f32[4]{0} slice(%g)""") == [32, 32 + 128, 32 + 132, 32 + 128, 32 + 144]


LOOP = """
%until (p: (s32[], f32[8])) -> pred[] {
  %bound = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %bound), direction=LT
}
%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = f32[8]{0} get-tuple-element(%p), index=1
  %wide = f32[64]{0} broadcast(%v)
  %new = f32[8]{0} reduce(%wide)
  LATE
  ROOT %r = (s32[], f32[8]{0}) tuple(%i, %new)
}
"""
MAIN = """
  %x = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %c = f32[8]{0} copy(%x)
  %t = (s32[], f32[8]{0}) tuple(%zero, %c)
  %w = (s32[], f32[8]{0}) while(%t), condition=%until, body=%body
  ROOT %y = f32[8]{0} get-tuple-element(%w), index=1"""


def test_a_loop_holds_its_body_beside_its_state() -> None:
    memory = held(MAIN, others=LOOP.replace("  LATE\n", ""))
    assert list(memory.of("body").bytes) == [0, 0, 0, 256, 256, 0]
    assert memory.entry.bytes[4] == 32 + 4 + 32 + 256
    instruction, buffers = memory.at_peak()
    assert instruction.name == "wide"
    assert (buffers[0].maker.name, buffers[0].bytes) == ("wide", 256)


def test_state_that_is_used_after_its_new_value_is_held_twice() -> None:
    late = "  %late = f32[] reduce(%v)\n"
    memory = held(MAIN, others=LOOP.replace("  LATE\n", late))
    assert list(memory.of("body").bytes) == [0, 0, 0, 256, 288, 36, 32]


def test_between_two_values_the_state_of_a_loop_is_free() -> None:
    more = "  %most = f32[70]{0} pad(%wide)\n  %new = f32[8]{0} reduce(%most)\n"
    loop = LOOP.replace("  %new = f32[8]{0} reduce(%wide)\n  LATE\n", more)
    memory = held(MAIN, others=loop)
    assert list(memory.of("body").bytes) == [0, 0, 0, 256, 256 + 280 - 32, 280, 0]
    assert memory.entry.bytes[4] == 32 + 4 + 32 + 256 + 280 - 32
    instruction, buffers = memory.at_peak()
    assert instruction.name == "most"
    assert [each.maker.name for each in buffers] == ["most", "wide", "x", "zero"]  # not c


def test_the_state_of_a_loop_around_a_loop_is_free_in_both() -> None:
    inner = LOOP.replace("%body ", "%inner ").replace(
        "  %new = f32[8]{0} reduce(%wide)\n  LATE\n",
        "  %most = f32[70]{0} pad(%wide)\n  %new = f32[8]{0} reduce(%most)\n",
    )
    outer = """
%body (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %q = (s32[], f32[8]{0}) parameter(0)
  ROOT %v = (s32[], f32[8]{0}) while(%q), condition=%until, body=%inner
}
"""
    memory = held(MAIN, others=inner + outer)
    assert memory.of("body").peak == memory.of("inner").peak == 256 + 280 - 32


def test_equal_results_of_one_instruction_are_both_held() -> None:
    memory = held("""
  %x = f32[4]{0} parameter(0)
  %f = (f32[8]{0}, f32[8]{0}) custom-call(%x)
  %a = f32[8]{0} get-tuple-element(%f), index=0
  %b = f32[8]{0} get-tuple-element(%f), index=1
  ROOT %d = f32[] dot(%a, %b)""")
    _, buffers = memory.at_peak()
    assert [(each.maker.name, each.bytes) for each in buffers][:2] == [("f", 32), ("f", 32)]
    assert sum(each.bytes for each in buffers) == memory.entry.peak


def test_the_results_of_a_branch_are_outside() -> None:
    branches = """
%yes (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %wide = f32[64]{0} broadcast(%a)
  ROOT %r = f32[8]{0} reduce(%wide)
}
%no (b: f32[8]) -> f32[8] {
  ROOT %b = f32[8]{0} parameter(0)
}
"""
    main = """
  %x = f32[8]{0} parameter(0)
  %is = pred[] parameter(1)
  ROOT %c = f32[8]{0} conditional(%is, %x, %x), true_computation=%yes, false_computation=%no"""
    memory = held(main, others=branches)
    assert list(memory.of("yes").bytes) == [0, 256, 256]
    assert list(memory.entry.bytes) == [33, 33, 33 + 32 + 256]


def test_an_update_in_place_is_its_operand() -> None:
    fused = """
%put (u0: f32[16,8], u1: f32[1,8]) -> f32[16,8] {
  %u0 = f32[16,8]{1,0} parameter(0)
  %u1 = f32[1,8]{1,0} parameter(1)
  ROOT %update = f32[16,8]{1,0} dynamic-update-slice(%u0, %u1)
}
"""
    assert bytes_of(
        """
  %x = f32[1,8]{1,0} parameter(0)
  %stack = f32[16,8]{1,0} broadcast(%zero)
  %a = f32[16,8]{1,0} fusion(%stack, %x), kind=kLoop, calls=%put
  ROOT %b = f32[16,8]{1,0} dynamic-update-slice(%a, %x)""",
        others=fused,
    ) == [32, 32 + 512, 32 + 512, 32 + 512]


EXACT, NEARLY = 1e-4, 0.012


@pytest.mark.parametrize(
    ("row", "error"),
    [(row, EXACT) for row in (1, 2, 3, 5, 19, 20, 32, 36)]
    + [(row, NEARLY) for row in (4, 6, 7, 34, 42)],
)
def test_the_peak_is_that_of_the_compiler_for_tpus(row: int, error: float) -> None:
    """These are the published runs for which the compiler reports the peak of the device."""
    file = Path(__file__).parents[2] / f"truth/modules/row{row}.json.xz"
    kept = json.loads(lzma.decompress(file.read_bytes()))
    memory = ModuleMemory(CompiledModule(kept["module"]))
    assert memory.entry.peak == pytest.approx(kept["peak"], rel=error)
    _, buffers = memory.at_peak()
    assert sum(each.bytes for each in buffers) == memory.entry.peak
