"""Kernels of Pallas on shards: dimensions of a grid whose positions do not depend on each other.

A kernel runs once for each position of its grid, on blocks of its operands. A dimension of the grid
has a factor if each block that depends on it is one element along a dimension of its operand, at
the index of the position, and the body does not ask for the position. `jax.vmap` makes such
dimensions, and kernels of attention have one for the heads. The kernel of a shard is the same with
fewer positions.

A result that does not depend on the dimension is written at every position, as scratch memory that
JAX's kernels return. It has no factor, and may be computed on shards only if nothing reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any  # Any: jaxprs and mappings of Pallas, which this package does not import

from graphdist.ir.builder import Builder
from graphdist.ir.factors import Dimensions, Factors, shard_shape
from graphdist.ir.graph import Node, Operand, Params, Value
from graphdist.ir.kernels import equations_of
from graphdist.ir.opaque_placeholders import Placeholder


def kernel_factors(node: Node) -> Factors | None:
    """Return the factors of a kernel, each the index of a dimension of its grid; None without any.

    Results that are written at every position have no factor.
    """
    grid_mapping: Any = node.params["grid_mapping"]
    if any(isinstance(each, Placeholder) for each in node.params.values()):
        return None
    if node.params["input_output_aliases"] or not _is_plain(grid_mapping):
        return None
    mappings, grid = grid_mapping.block_mappings, grid_mapping.grid
    asked = _positions_asked(node)
    free = [
        dimension
        for dimension in range(len(grid))
        if dimension not in asked and all(_is_free(each, dimension) for each in mappings)
    ]
    dims = [_dimensions(mapping, free) for mapping in mappings]
    first = grid_mapping.num_index_operands
    indices = tuple((None,) * len(each.type.shape) for each in node.operands[:first])
    operands = (*indices, *dims[: len(node.operands) - first])
    factors = Factors(operands, tuple(dims[len(node.operands) - first :]))
    return factors if factors.numbers else None


def _is_plain(grid_mapping: Any) -> bool:
    """Return whether the sizes of the grid are known, and operands are in the usual order."""
    return all(isinstance(size, int) for size in grid_mapping.grid) and not any(
        mapping.transforms for mapping in grid_mapping.block_mappings
    )


def _positions_asked(node: Node) -> set[int]:
    """Return the dimensions of the grid whose position or size the body reads."""
    grid_mapping: Any = node.params["grid_mapping"]
    # The body numbers the dimensions without those that `jax.vmap` has added.
    own = [i for i in range(len(grid_mapping.grid)) if i not in grid_mapping.vmapped_dims]
    body: Any = node.params["jaxpr"]
    equations = list(equations_of(body))
    read = {id(atom) for equation in equations for atom in equation.invars}
    return {
        own[equation.params["axis"]]
        for equation in equations
        if equation.primitive.name in ("program_id", "num_programs")
        and any(id(result) in read for result in equation.outvars)
    }


def _is_free(mapping: Any, dimension: int) -> bool:
    """Return whether a block depends on a dimension of the grid as an index at most."""
    index_map = getattr(mapping.index_map_jaxpr, "jaxpr", mapping.index_map_jaxpr)
    position = index_map.invars[dimension]
    is_computed_with = any(atom is position for each in index_map.eqns for atom in each.invars)
    places = _places(index_map, dimension)
    blocks = [mapping.block_shape[place] for place in places]
    return not is_computed_with and len(places) < 2 and all(map(_is_one_element, blocks))


def _places(index_map: Any, dimension: int) -> list[int]:
    position = index_map.invars[dimension]
    return [place for place, atom in enumerate(index_map.outvars) if atom is position]


def _is_one_element(block: Any) -> bool:
    size = getattr(block, "block_size", block)
    return type(block).__name__ == "Squeezed" or size in (None, 1)


def _dimensions(mapping: Any, free: Sequence[int]) -> Dimensions:
    index_map = getattr(mapping.index_map_jaxpr, "jaxpr", mapping.index_map_jaxpr)
    found = {place: each for each in free for place in _places(index_map, each)}
    return tuple(found.get(place) for place in range(len(mapping.array_aval.shape)))


def kernel_on_shards(
    node: Node, operands: Sequence[Operand], factor: int, count: int, builder: Builder
) -> tuple[Value, ...]:
    """Add the kernel that computes one of `count` shards along a factor, and return its results."""
    factors = kernel_factors(node)
    assert factors is not None, f"{node.op.name} has no factors"
    types = [
        value.type.shaped(shard_shape(dims, value.type.shape, factor, count))
        for dims, value in zip(factors.results, node.results, strict=True)
    ]
    params = _params(node, factors, factor, count)
    return builder.add(node.op, operands, params, node.graphs, at=node, types=types)


def _params(node: Node, factors: Factors, factor: int, count: int) -> Params:
    grid_mapping: Any = node.params["grid_mapping"]
    first = grid_mapping.num_index_operands
    dims = (*factors.operands[first:], *factors.results)
    mappings = tuple(
        replace(each, array_aval=_on_shard(each.array_aval, of, factor, count))
        for each, of in zip(grid_mapping.block_mappings, dims, strict=True)
    )
    grid = list(grid_mapping.grid)
    grid[factor] //= count
    avals: Any = node.params["out_avals"]
    return {
        **node.params,
        "grid_mapping": replace(grid_mapping, grid=tuple(grid), block_mappings=mappings),
        "out_avals": tuple(
            _on_shard(aval, of, factor, count)
            for aval, of in zip(avals, factors.results, strict=True)
        ),
        "cost_estimate": _part_of(node.params["cost_estimate"], count),
    }


def _on_shard(aval: Any, dimensions: Dimensions, factor: int, count: int) -> Any:
    return aval.update(shape=shard_shape(dimensions, aval.shape, factor, count))


def _part_of(cost: Any, count: int) -> Any:
    """Return the stated cost of a kernel with 1 / `count` of the positions."""
    if cost is None:
        return None
    return replace(cost, **{name: value // count for name, value in _numbers(cost)})


def _numbers(cost: Any) -> Iterator[tuple[str, int]]:
    for name, value in vars(cost).items():
        if isinstance(value, int):
            yield name, value
