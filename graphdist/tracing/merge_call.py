"""`merge_call` in the trace of one replica variant, and its rules of differentiation.

The call runs once for all variants. The primitive's operands are the values of one variant, in the
variant's shapes. `Merged` is the program that all variants run together, on values padded to one
shape. The derivatives of a `Merged` are `Merged` programs too:

* JVP: the program is linearized. A first `merge_call` computes results and residuals, a second
  applies the linear part to the tangents. So no collective or assignment runs twice.
* Transpose: a `merge_call` of the transposed linear part, on the residuals of the first.

All variants must use the same `Merged` object. So a `Merged` stores the programs derived from it,
and a variant without a tangent or cotangent passes zeros. Tangents and cotangents are padded with
zeros before a call and sliced to the variant's shape after it, so no replica sees the padding.

A mirrored result has a copy on every replica. Each copy has its own cotangent, so the linear part
contains `to_replicas`. Residuals are cross-replica values: the first call passes them to the later
calls without a copy per replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any  # Any: jaxprs, tracers, avals and zeros have no common public type

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad

from graphdist.tracing.primitives import to_replicas
from graphdist.tracing.slots import padded, unpadded


@dataclass(frozen=True, eq=False)
class Merged:
    """The program of a `merge_call`, for all replica variants: a jaxpr on padded values.

    `is_mirrored` says for each output whether all replicas get the same value.
    """

    jaxpr: ClosedJaxpr
    is_mirrored: tuple[bool, ...]
    num_replicas: int
    derived: dict[Any, Any] = field(default_factory=dict)
    """Programs derived from this one, shared by all variants."""

    def on_replicas(self, *arrays: Any) -> list[Any]:
        """Run the program in the current trace; return its results on each replica."""
        return self.to_replicas(jaxpr_as_fun(self.jaxpr)(*arrays))

    def to_replicas(self, results: Sequence[Any]) -> list[Any]:
        """Return the program's results on each replica."""
        return [
            to_replicas(result, self.num_replicas) if is_mirrored else result
            for result, is_mirrored in zip(results, self.is_mirrored, strict=True)
        ]


merge_call_p = Primitive("merge_call")
merge_call_p.multiple_results = True
merge_call_p.def_abstract_eval(
    lambda *locals, merged, shapes: [
        ShapedArray(shape, aval.dtype)
        for shape, aval in zip(shapes, merged.jaxpr.out_avals, strict=True)
    ]
)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, merged: Merged, shapes: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    if "linearized" not in merged.derived:
        merged.derived["linearized"] = _linearize(merged)
    forward, linear = merged.derived["linearized"]
    residual_shapes = [aval.shape for aval in forward.jaxpr.out_avals[len(shapes) :]]
    outputs = merge_call_p.bind(*primals, merged=forward, shapes=(*shapes, *residual_shapes))
    results, residuals = outputs[: len(shapes)], outputs[len(shapes) :]
    inputs = [
        padded(ad.instantiate_zeros(tangent), aval.shape)
        for tangent, aval in zip(tangents, merged.jaxpr.in_avals, strict=True)
        if _has_tangents(aval)
    ]
    returned = iter(_bind_padded(linear, [*residuals, *inputs]))
    return results, [
        unpadded(next(returned), shape)
        if _has_tangents(aval)
        else ad.Zero(jax.typeof(result).to_tangent_aval())
        for result, aval, shape in zip(results, merged.jaxpr.out_avals, shapes, strict=True)
    ]


def _linearize(merged: Merged) -> tuple[Merged, Merged]:
    """Return a program linearized in the operands that have tangents, in two parts.

    The first maps operands to results and residuals. The second maps residuals and tangents of the
    operands to tangents of the results.
    """
    inputs = [i for i, aval in enumerate(merged.jaxpr.in_avals) if _has_tangents(aval)]
    outputs = [i for i, aval in enumerate(merged.jaxpr.out_avals) if _has_tangents(aval)]
    structure: list[Any] = []

    def forward(*arrays: Any) -> list[Any]:
        def differentiable(*linearized: Any) -> tuple[list[Any], list[Any]]:
            operands = list(arrays)
            for i, array in zip(inputs, linearized, strict=True):
                operands[i] = array
            results = jaxpr_as_fun(merged.jaxpr)(*operands)
            on_replicas = merged.to_replicas(results)
            return [on_replicas[i] for i in outputs], results

        _, linear, results = jax.linearize(
            differentiable, *(arrays[i] for i in inputs), has_aux=True
        )
        residuals, shape = jax.tree.flatten(linear)
        structure.append(shape)
        return [*results, *residuals]

    jaxpr = jax.make_jaxpr(forward)(*_specs(merged.jaxpr.in_avals))
    residuals = jaxpr.out_avals[len(merged.is_mirrored) :]

    def tangents(*arrays: Any) -> list[Any]:
        linear = jax.tree.unflatten(structure[0], arrays[: len(residuals)])
        return list(linear(*arrays[len(residuals) :]))

    input_avals = [merged.jaxpr.in_avals[i] for i in inputs]
    linear = jax.make_jaxpr(tangents)(*_specs([*residuals, *input_avals]))
    replicas = merged.num_replicas
    return (
        Merged(jaxpr, (*merged.is_mirrored, *[False] * len(residuals)), replicas),
        Merged(linear, (False,) * len(outputs), replicas),
    )


def _transpose_rule(
    cotangents: Sequence[Any], *operands: Any, merged: Merged, shapes: Sequence[Any]
) -> list[Any]:
    """Return the cotangents of the operands in which the program is linear, else None."""
    wanted = tuple(ad.is_undefined_primal(operand) for operand in operands)
    key = "transposed", wanted
    if key not in merged.derived:
        merged.derived[key] = _transpose(merged, wanted)
    avals = merged.jaxpr.in_avals
    known = [
        padded(operand, aval.shape)
        for operand, aval, is_wanted in zip(operands, avals, wanted, strict=True)
        if not is_wanted
    ]
    padded_cotangents = [
        padded(ad.instantiate_zeros(cotangent), aval.shape)
        for cotangent, aval in zip(cotangents, merged.jaxpr.out_avals, strict=True)
    ]
    returned = iter(_bind_padded(merged.derived[key], [*known, *padded_cotangents]))
    return [
        unpadded(next(returned), operand.aval.shape) if is_wanted else None
        for operand, is_wanted in zip(operands, wanted, strict=True)
    ]


def _transpose(merged: Merged, wanted: tuple[bool, ...]) -> Merged:
    avals = merged.jaxpr.in_avals
    linear = [aval for aval, is_wanted in zip(avals, wanted, strict=True) if is_wanted]
    known = [aval for aval, is_wanted in zip(avals, wanted, strict=True) if not is_wanted]

    def transposed(*arrays: Any) -> list[Any]:
        def linear_part(*linear_operands: Any) -> list[Any]:
            constants, variable = iter(arrays), iter(linear_operands)
            return merged.on_replicas(*(next(variable if is_in else constants) for is_in in wanted))

        cotangents = list(arrays[len(known) :])
        return list(jax.linear_transpose(linear_part, *_specs(linear))(cotangents))

    jaxpr = jax.make_jaxpr(transposed)(*_specs([*known, *merged.jaxpr.out_avals]))
    return Merged(jaxpr, (False,) * len(linear), merged.num_replicas)


ad.primitive_jvps[merge_call_p] = _jvp
ad.primitive_transposes[merge_call_p] = _transpose_rule


def are_one_merge_call(equation: Any, other: Any) -> bool:
    """Return whether two variants' equations are the same `merge_call`; shapes may differ."""
    both = equation.primitive is merge_call_p and other.primitive is merge_call_p
    return both and equation.params["merged"] is other.params["merged"]


def _bind_padded(merged: Merged, operands: Sequence[Any]) -> list[Any]:
    """Add the `merge_call` of a program on padded operands; return its padded results."""
    shapes = tuple(aval.shape for aval in merged.jaxpr.out_avals)
    return list(merge_call_p.bind(*operands, merged=merged, shapes=shapes))


def _has_tangents(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def _specs(avals: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
