"""Operations and bytes of instructions, read from modules that are small enough to count."""

from __future__ import annotations

import pytest

from graphdist.runtime.module.instruction_cost import ModuleCost
from graphdist.runtime.module.instructions import CompiledModule, Instruction

DIMENSIONS = '"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]'
CUBLAS = (
    'custom_call_target="__cublas$gemm", '
    f'backend_config={{"gemm_backend_config":{{"dot_dimension_numbers":{{{DIMENSIONS}}}}}}}'
)
CUDNN = 'dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$conv'
MODULE = """HloModule m, is_scheduled=true

%product (p0: bf16[8,4], p1: bf16[4,2]) -> bf16[8,2] {
  %p0 = bf16[8,4]{1,0} parameter(0)
  %p1 = bf16[4,2]{1,0} parameter(1)
  %d = bf16[8,2]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %n = bf16[8,2]{1,0} negate(%d)
}
%sliced (s0: f32[16,8], s1: s32[]) -> f32[1,8] {
  %s0 = f32[16,8]{1,0} parameter(0)
  %s1 = s32[] parameter(1)
  %view = f32[16,8]{1,0} bitcast(%s0)
  ROOT %slice = f32[1,8]{1,0} dynamic-slice(%view, %s1, %s1), dynamic_slice_sizes={1,8}
}
%updated (u0: f32[16,8], u1: f32[1,8], u2: s32[]) -> f32[16,8] {
  %u0 = f32[16,8]{1,0} parameter(0)
  %u1 = f32[1,8]{1,0} parameter(1)
  %u2 = s32[] parameter(2)
  ROOT %update = f32[16,8]{1,0} dynamic-update-slice(%u0, %u1, %u2, %u2)
}
%relaid (r0: f32[16,8], r1: s32[]) -> f32[1,8] {
  %r0 = f32[16,8]{1,0:T(16,128)} parameter(0)
  %r1 = s32[] parameter(1)
  %other = f32[16,8]{1,0:T(8,128)} fusion(%r0), output_to_operand_aliasing={{}: (0, {})}, calls=%c
  ROOT %slicer = f32[1,8]{1,0} dynamic-slice(%other, %r1, %r1), dynamic_slice_sizes={1,8}
}
%nested (m0: f32[16,8], m1: s32[]) -> f32[1,8] {
  %m0 = f32[16,8]{1,0} parameter(0)
  %m1 = s32[] parameter(1)
  %inner = f32[1,8]{1,0} fusion(%m0, %m1), kind=kLoop, calls=%sliced
  ROOT %negative = f32[1,8]{1,0} negate(%inner)
}
%sending (g0: f32[1,8], g1: f32[16,8], g2: f32[8]) -> (f32[8], f32[16,8], f32[1,8]) {
  %g0 = f32[1,8]{1,0} parameter(0)
  %g1 = f32[16,8]{1,0} parameter(1)
  %g2 = f32[8]{0} parameter(2)
  %gathered = f32[16,8]{1,0} all-gather(%g0), replica_groups={{0,1}}, dimensions={0}
  %twice = f32[8]{0} add(%g2, %g2)
  ROOT %all = (f32[8]{0}, f32[16,8]{1,0}, f32[1,8]{1,0}) tuple(%twice, %gathered, %g0)
}
%both (b0: f32[8], b1: f32[8]) -> (f32[8], f32[]) {
  %b0 = f32[8]{0} parameter(0)
  %b1 = f32[8]{0} parameter(1)
  %sum = f32[8]{0} add(%b0, %b1)
  %total = f32[] reduce(%sum, %b0), dimensions={0}
  ROOT %results = (f32[8]{0}, f32[]) tuple(%sum, %total)
}
ENTRY %main (x: bf16[8,4]) -> f32[] {
  %x = bf16[8,4]{1,0} parameter(0)
  %y = bf16[4,2]{1,0} parameter(1)
  %stack = f32[16,8]{1,0} parameter(2)
  %row = f32[1,8]{1,0} parameter(3)
  %i = s32[] parameter(4)
  %v = f32[8]{0} parameter(5)
  %images = f32[2,6,6,3]{3,2,1,0} parameter(6)
  %weights = f32[3,3,3,5]{3,2,1,0} parameter(7)
  %grads = f32[2,4,4,5]{3,2,1,0} parameter(8)
  %fused = bf16[8,2]{1,0} fusion(%x, %y), kind=kOutput, calls=%product
  %take = f32[1,8]{1,0} fusion(%stack, %i), kind=kLoop, calls=%sliced
  %taken = f32[1,8]{1,0} fusion(%stack, %i), kind=kLoop, calls=%relaid
  %deep = f32[1,8]{1,0} fusion(%stack, %i), kind=kLoop, calls=%nested
  %sent = (f32[8]{0}, f32[16,8]{1,0}, f32[1,8]{1,0}) fusion(%row, %stack, %v), calls=%sending
  %here = f32[16,8]{1,0:S(1)} copy(%stack)
  %put = f32[16,8]{1,0} fusion(%stack, %row, %i), kind=kLoop, calls=%updated
  %pair = (f32[8]{0}, f32[]) fusion(%v, %v), kind=kLoop, calls=%both
  %called = (bf16[8,2]{1,0}, s8[64]{0}) custom-call(%x, %y), CUBLAS
  %conv = (f32[2,4,4,5]{3,2,1,0}, u8[0]{0}) custom-call(%images, %weights), CUDNNForward"
  %convx = (f32[2,6,6,3]{3,2,1,0}, u8[0]{0}) custom-call(%grads, %weights), CUDNNBackwardInput"
  %convw = (f32[3,3,3,5]{3,2,1,0}, u8[0]{0}) custom-call(%images, %grads), CUDNNBackwardFilter"
  %copied = f32[16,8]{0,1} copy(%stack)
  %view2 = f32[128]{0} bitcast(%stack)
  ROOT %last = f32[] add(%i, %i)
}
"""
CONVOLUTION = 2 * (2 * 4 * 4 * 5) * (3 * 3 * 3)


@pytest.fixture
def module() -> CompiledModule:
    return CompiledModule(MODULE.replace("CUBLAS", CUBLAS).replace("CUDNN", CUDNN))


def instruction(module: CompiledModule, name: str) -> Instruction:
    return module.instructions[name]


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("fused", ("bf16", 2 * 8 * 4 * 2)),
        ("called", ("bf16", 2 * 8 * 4 * 2)),
        ("conv", ("f32", CONVOLUTION)),
        ("convx", ("f32", CONVOLUTION)),
        ("convw", ("f32", CONVOLUTION)),
        ("copied", ("", 0)),
        ("pair", ("", 0)),
        ("x", ("", 0)),
    ],
)
def test_the_operations_of_products(
    module: CompiledModule, name: str, products: tuple[str, int]
) -> None:
    assert ModuleCost(module).products(instruction(module, name)) == products


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("fused", 2 * (8 * 4 + 4 * 2 + 8 * 2)),
        ("take", 4 + 2 * 4 * 8),  # the index, the slice read and written; not the stack
        ("taken", 4 + 2 * 4 * 8),  # the same of a stack in another layout
        ("deep", 4 + 2 * 4 * 8),  # the same, sliced in a fusion of the fusion
        ("sent", 2 * 4 * 8),  # beside a gather, which is none of its bytes
        ("here", 4 * 128),  # read; written to the memory of the core
        ("put", 4 + 2 * 4 * 8),  # the row read, and written in place
        ("pair", 4 * (8 + 8 + 8 + 1)),
        ("copied", 2 * 4 * 128),
    ],
)
def test_the_bytes_that_cross(module: CompiledModule, name: str, size: int) -> None:
    assert ModuleCost(module).bytes(instruction(module, name)) == size


def test_what_starts_nothing_is_free(module: CompiledModule) -> None:
    cost = ModuleCost(module)
    free = {each.name for each in module["main"] if cost.is_free(each)}
    assert {"x", "view2"} <= free
    assert not {"fused", "copied", "called"} & free
