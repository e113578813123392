"""Gather values in their narrowest dtype, and convert them where no bytes are sent.

A conversion computes each element by itself, so it gives the same bits before a gather and after
it. A parameter that is stored in slices of float32 and used in bfloat16 is converted first and
gathered in half the bytes; a bfloat16 value that is computed on in float32 is gathered first.

Before:  %all = all_gather(%x) {axis=0, group_size=2} : f32[8]
         %n = jax.convert_element_type(%all) {new_dtype=dtype<bf16>, ..} : bf16[8]
After:   %0 = jax.convert_element_type(%x) {new_dtype=dtype<bf16>, ..} : bf16[4]
         %n = all_gather(%0) {axis=0, group_size=2} : bf16[8]

Before:  %w = jax.convert_element_type(%x) {new_dtype=dtype<f32>, ..} : f32[4]
         %all = all_gather(%w) {axis=0, group_size=2} : f32[8]
After:   %0 = all_gather(%x) {axis=0, group_size=2} : bf16[8]
         %all = jax.convert_element_type(%0) {new_dtype=dtype<f32>, ..} : f32[8]

Left alone: gathered values that are used unconverted too, since two gathers would send more than
one; conversions to a dtype of the same width; values without elements; conversions that state a
sharding, which belongs to the shape before the gather or after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.ops import ALL_GATHER
from graphdist.ir.rewrite import Rewriter, rewrite

NAME = "narrow_gathers"
_CONVERT = "jax.convert_element_type"


def narrow_gathers(graph: Graph) -> Graph:
    """Return the graph with gathers between a narrow value and its conversion to a wider one."""
    return rewrite(graph, _narrow, NAME, {ALL_GATHER.name, _CONVERT})


def _narrow(
    node: Node, operands: tuple[Operand, ...], rewriter: Rewriter
) -> Sequence[Operand] | None:
    if node.op is ALL_GATHER:
        return _widened_after(node, operands, rewriter)
    return _narrowed_before(node, operands, rewriter)


def _widened_after(
    gather: Node, operands: tuple[Operand, ...], rewriter: Rewriter
) -> Sequence[Operand] | None:
    """Gather the value before its conversions to wider dtypes, and convert the gathered one."""
    narrow = operands
    steps: list[Node] = []
    # All of them at once: the rule is not asked about the gather that it makes.
    while (step := _conversion(narrow[0], rewriter)) is not None and _bytes_gained(step) > 0:
        steps.append(step)
        narrow = step.operands
    if not steps:
        return None
    made = rewriter.add(ALL_GATHER, narrow, gather.params, at=gather.source)
    result = gather.results[0]
    for step in reversed(steps):
        type = result.type._replace(dtype=step.results[0].type.dtype)
        hint = result.hint if step is steps[0] else ""
        made = rewriter.add(step.op, made, step.params, at=step.source, types=[type], hint=hint)
    return made


def _conversion(operand: Operand, rewriter: Rewriter) -> Node | None:
    node = rewriter.definition(operand, _CONVERT)
    return None if node is None or node.params.get("sharding") is not None else node


def _bytes_gained(conversion: Node) -> int:
    return conversion.results[0].type.bytes - conversion.operands[0].type.bytes


def _narrowed_before(
    conversion: Node, operands: tuple[Operand, ...], rewriter: Rewriter
) -> Sequence[Operand] | None:
    """Convert the parts of a gathered value that is only used in a narrower dtype."""
    if _bytes_gained(conversion) >= 0 or conversion.params.get("sharding") is not None:
        return None
    gather = rewriter.definition(operands[0], ALL_GATHER.name)
    if gather is None or rewriter.uses(operands[0]) > 1:
        return None
    result = conversion.results[0]
    type = gather.operands[0].type._replace(dtype=result.type.dtype)
    narrow = rewriter.add(
        conversion.op, gather.operands, conversion.params, at=conversion.source, types=[type]
    )
    return rewriter.add(ALL_GATHER, narrow, gather.params, at=gather.source, hint=result.hint)
