"""Slice what a large product is computed from, in place of the product.

A loss that predicts the next token often slices the logits, `logits[:, :-1]`. The product then has
rows that nothing uses, its gradient is padded with zeros, and `compute_in_chunks`, which runs next,
finds 8 rows in one value and 7 in another. So the operands of a large product are sliced, and
products with a large value that is padded with zeros are computed without the zeros.

Before:  %l = jax.dot_general(%h, %w) : f32[8,v]   %s = jax.slice(%l) : f32[7,v]   %g = ..
         %p = jax.pad(%g, 0.0) : f32[8,v]          %dh = jax.dot_general(%p, %w)
         %dw = jax.dot_general(%h, %p)
After:   %k = jax.slice(%h) : f32[7,d]             %s = jax.dot_general(%k, %w) : f32[7,v]   %g = ..
         %q = jax.dot_general(%g, %w)              %dh = jax.pad(%q, 0.0)
         %dw = jax.dot_general(%k, %g)

Conversions may stand between. Left alone: values of at most `largest` bytes, products whose result
is also used unsliced, slices with strides, padding by other values or between elements, and
programs without a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphdist.ir.analyses import operations, walk
from graphdist.ir.graph import Graph, Literal, Node, Op, Operand, Operands, is_zero
from graphdist.ir.jax_parameters import integers, parameter
from graphdist.ir.operation_table import factors_of
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.ir.types import Type, is_inexact
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code

NAME = "slices_before_products"
_PRODUCT, _SLICE, _PAD = "jax.dot_general", "jax.slice", "jax.pad"
_CONVERT = "jax.convert_element_type"


@dataclass(frozen=True, slots=True)
class SlicesBeforeProducts:
    """The pass; values of at most `largest` bytes are left alone."""

    largest: int

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with operands of large products sliced, not their results."""
        if not {_PRODUCT, _SLICE} <= operations(graph):
            return graph
        op = next(node.op for node in walk(graph) if node.op.name == _SLICE)

        def rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
            if node.op is op:
                return self._sliced(node, operands[0], rewriter)
            return self._without_zeros(node, operands, op, rewriter)

        changed = rewrite(graph, rule, NAME, {_SLICE, _PRODUCT})
        return graph if changed is graph else self(eliminate_dead_code(changed))

    def _sliced(self, node: Node, operand: Operand, rewriter: Rewriter) -> Answer:
        """Return the slice of a product, computed of slices; None to leave it."""
        chain, value = _behind_conversions(operand, rewriter, only=True)
        product = rewriter.definition(value, _PRODUCT)
        if product is None or value.type.bytes <= self.largest or rewriter.uses(value) > 1:
            return None
        starts, ends = integers(node, "start_indices"), integers(node, "limit_indices")
        found = factors_of(product)
        if found is None or parameter(node, "strides") is not None:
            return None
        ranges = {
            factor: (start, end)
            for factor, start, end, size in zip(
                found.results[0], starts, ends, value.type.shape, strict=True
            )
            if end - start < size
        }
        if None in ranges:
            return None
        operands = [
            _taken(each, [ranges.get(factor) for factor in dims], node.op, rewriter, node)
            for each, dims in zip(product.operands, found.operands, strict=True)
        ]
        type = value.type.shaped(node.results[0].type.shape)
        return _converted(chain, rewriter.again(product, operands, [type]), rewriter)

    def _without_zeros(
        self, node: Node, operands: Operands, slice_op: Op, rewriter: Rewriter
    ) -> Answer:
        """Return a product with a padded operand, without the zeros; None to leave it."""
        found = factors_of(node)
        for index, operand in enumerate(operands):
            chain, value = _behind_conversions(operand, rewriter)
            pad = rewriter.definition(value, _PAD)
            if found is None or pad is None or value.type.bytes <= self.largest:
                continue
            config = [tuple(map(int, each)) for each in parameter(pad, "padding_config")]
            if not is_zero(pad.operands[1]) or any(min(each) < 0 or each[2] for each in config):
                continue
            padded = {
                factor: (low, high)
                for factor, (low, high, _) in zip(found.operands[index], config, strict=True)
                if low or high
            }
            if None in padded:
                continue
            (inner,) = _converted(chain, (pad.operands[0],), rewriter)
            (others,) = (each for i, each in enumerate(operands) if i != index)
            ranges = [
                None if factor not in padded else (padded[factor][0], size - padded[factor][1])
                for factor, size in zip(found.operands[1 - index], others.type.shape, strict=True)
            ]
            other = _taken(others, ranges, slice_op, rewriter, node)
            result, dims = node.results[0].type, found.results[0]
            around = [padded.get(factor, (0, 0)) for factor in dims]
            shape = tuple(size - sum(more) for size, more in zip(result.shape, around, strict=True))
            pair = (inner, other) if index == 0 else (other, inner)
            made = rewriter.again(node, pair, [result.shaped(shape)])
            if not any(map(any, around)):
                return made
            zero = Literal.of(0.0 if is_inexact(result.dtype) else 0, Type(result.dtype, ()))
            params = {**pad.params, "padding_config": tuple((*more, 0) for more in around)}
            return rewriter.add(pad.op, (*made, zero), params, at=node, types=[result])
        return None


def _behind_conversions(
    operand: Operand, rewriter: Rewriter, only: bool = False
) -> tuple[list[Node], Operand]:
    """Return the conversions before a value, the first one first, and what they convert.

    With `only`, a conversion counts only if nothing else uses its result.
    """
    chain = list[Node]()
    while (made := rewriter.definition(operand, _CONVERT)) is not None:
        if only and rewriter.uses(operand) > 1:
            break
        chain.insert(0, made)
        operand = made.operands[0]
    return chain, operand


def _converted(chain: Sequence[Node], made: Operands, rewriter: Rewriter) -> Operands:
    for conversion in chain:
        type = conversion.results[0].type.shaped(made[0].type.shape)
        made = rewriter.again(conversion, made, [type])
    return made


def _taken(
    operand: Operand,
    ranges: Sequence[tuple[int, int] | None],
    op: Op,
    rewriter: Rewriter,
    at: Node,
) -> Operand:
    """Return a slice with the given starts and ends along the dimensions that have them."""
    shape = operand.type.shape
    whole = [(0, size) if each is None else each for each, size in zip(ranges, shape, strict=True)]
    if whole == [(0, size) for size in shape]:
        return operand
    starts, ends = zip(*whole, strict=True)
    params = {"start_indices": starts, "limit_indices": ends, "strides": None}
    type = operand.type.shaped(tuple(end - start for start, end in whole))
    return rewriter.add(op, (operand,), params, at=at, types=[type])[0]
