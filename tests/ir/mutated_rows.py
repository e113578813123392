"""Rows of the table of operations with one mistake each, as their examples have it.

A mutant of a row is a mistake, such as "operand 0.1 is reduced by max", where 0.1 is dimension 1 of
operand 0, with what each node that can have it gets by it. A node whose factors or linear operands
are only fewer is not among them: its row is right, and shards less. Of mutants that give all nodes
the same, there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple, TypeAlias, TypeVar

from graphdist.ir.factor_rules import Rule, reduction
from graphdist.ir.factors import Dimensions, Factors, Shape
from graphdist.ir.graph import Node, Operand
from graphdist.ir.linearity import LinearIn, together
from graphdist.ir.operation_table import TABLE
from graphdist.ir.product_factors import batched

T = TypeVar("T")
Index: TypeAlias = tuple[int, int]
"""A value among the operands, or the results, and one of its dimensions."""

Mutants: TypeAlias = Mapping[str, list[tuple[int, T]]]
"""The mutants of a row: for each, the indices of nodes, and what each of them gets."""

REDUCERS = ("sum", "max", "min")
NEW = -1
"""The factor that a mutant adds."""


class WrongFactors(NamedTuple):
    """The factors of a node after a mistake, and those among them that it does not have."""

    factors: Factors
    wrong: frozenset[int]


def mutated_factors(name: str, nodes: Sequence[Node]) -> Mutants[WrongFactors]:
    """Return the mutants of the factors of a row."""
    right = [_shares(node, TABLE[name].factors(node)) for node in nodes]
    found = [
        (mistake, index, changed)
        for index, node in enumerate(nodes)
        for mistake, changed in _changed(node, TABLE[name].factors(node))
    ]
    found += _of_other_rules(RULES, nodes)
    return _distinct(
        (mistake, index, WrongFactors(changed, frozenset(wrong)), frozenset(wrong.values()))
        for mistake, index, changed in found
        if (wrong := _others(_shares(nodes[index], changed), right[index]))
    )


def mutated_linear_operands(name: str, nodes: Sequence[Node]) -> Mutants[tuple[int, ...]]:
    """Return the mutants of a row that call its results linear in other operands, too."""
    rule = TABLE[name].linear_in
    found = [
        (f"linear in {wider}", index, together(*wider)(node))
        for index, node in enumerate(nodes)
        for alternative in ((), *rule(node))
        for place in range(len(node.operands))
        if place not in alternative
        for wider in [tuple(sorted((*alternative, place)))]
    ]
    found += _of_other_rules(LINEAR_RULES, nodes)
    return _distinct(
        (mistake, index, alternative, alternative)
        for mistake, index, alternatives in found
        for alternative in alternatives
        if alternative and alternative not in rule(nodes[index])
    )


def _distinct(found: Iterable[tuple[str, int, T, Hashable]]) -> Mutants[T]:
    """Return mutants by their mistakes, one of those that are the same in all nodes."""
    mutants: dict[str, list[tuple[int, T]]] = {}
    meanings: dict[str, set[tuple[int, Hashable]]] = {}
    for mistake, index, mutated, meaning in found:
        mutants.setdefault(mistake, []).append((index, mutated))
        meanings.setdefault(mistake, set()).add((index, meaning))
    first = {frozenset(meaning): mistake for mistake, meaning in reversed(meanings.items())}
    return {mistake: mutants[mistake] for mistake in reversed(first.values())}


@dataclass(frozen=True, slots=True)
class _Values:
    """The shapes of operands or results, and their factors."""

    shapes: Sequence[Shape]
    dims: tuple[Dimensions, ...]

    @classmethod
    def of(cls, values: Sequence[Operand], dims: tuple[Dimensions, ...]) -> _Values:
        return cls([value.type.shape for value in values], dims)

    def with_new(self) -> Iterator[tuple[str, tuple[Dimensions, ...]]]:
        """Yield factors with a new one, of one dimension or of the same one of several values."""
        free = [
            (i, d)
            for i, dims in enumerate(self.dims)
            for d, of in enumerate(dims)
            if of is None and self.shapes[i][d] > 1
        ]
        alike = {tuple(index for index in free if index[1] == d) for _, d in free}
        for group in [*((index,) for index in free), *sorted(each for each in alike if each[1:])]:
            yield ", ".join(f"{i}.{d}" for i, d in group), self._with(group)

    def _with(self, new: Sequence[Index]) -> tuple[Dimensions, ...]:
        return tuple(
            tuple(NEW if (i, d) in new else of for d, of in enumerate(dims))
            for i, dims in enumerate(self.dims)
        )

    def swapped(self) -> Iterator[tuple[str, tuple[Dimensions, ...]]]:
        """Yield factors where two dimensions of one size have the factor of the other."""
        for i, dims in enumerate(self.dims):
            for d, e in combinations(range(len(dims)), 2):
                if self.shapes[i][d] == self.shapes[i][e]:
                    other = tuple(dims[{d: e, e: d}.get(f, f)] for f in range(len(dims)))
                    yield f"{i}.{d} as {i}.{e}", (*self.dims[:i], other, *self.dims[i + 1 :])


def _changed(node: Node, factors: Factors) -> Iterator[tuple[str, Factors]]:
    """Yield the factors of a node with one mistake each."""
    operands = _Values.of(node.operands, factors.operands)
    results = _Values.of(node.results, factors.results)
    for label, dims in results.with_new():
        yield f"result {label} is new", replace(factors, results=dims)
    for label, dims in operands.with_new():
        changed = replace(factors, operands=dims)
        yield f"operand {label} is ignored", changed
        for reducer in REDUCERS:
            summed = {**factors.summed, NEW: reducer}
            yield f"operand {label} is reduced by {reducer}", replace(changed, summed=summed)
        for to, passed in results.with_new():
            yield f"operand {label} passes to result {to}", replace(changed, results=passed)
    for factor in factors.summed:
        for other in REDUCERS:
            summed = {**factors.summed, factor: other}
            yield f"factor {factor} is reduced by {other}", replace(factors, summed=summed)
        rest = {of: reducer for of, reducer in factors.summed.items() if of != factor}
        yield f"factor {factor} is ignored", replace(factors, summed=rest)
        for to, passed in results.with_new():
            of_factor = tuple(tuple(factor if of == NEW else of for of in each) for each in passed)
            yield f"factor {factor} passes to {to}", Factors(factors.operands, of_factor, rest)
    for label, dims in operands.swapped():
        yield f"operand {label}", replace(factors, operands=dims)
    for label, dims in results.swapped():
        yield f"result {label}", replace(factors, results=dims)


RULES: dict[Rule, str] = {
    **{row.factors: name for name, row in TABLE.items()},
    **{reduction(reducer): f"a reduction by {reducer}" for reducer in (None, *REDUCERS)},
    **{batched(rank): f"batches of rank {rank}" for rank in range(4)},
}
LINEAR_RULES: dict[LinearIn, str] = {row.linear_in: name for name, row in TABLE.items()}


def _of_other_rules(
    rules: Mapping[Callable[[Node], T], str], nodes: Sequence[Node]
) -> Iterator[tuple[str, int, T]]:
    """Yield what each rule gives for each node, unless it raises an error for one."""
    for rule, name in rules.items():
        try:
            given = [rule(node) for node in nodes]
        except Exception:  # about parameters of other operations, as each test would show
            continue
        yield from ((f"as {name}", index, each) for index, each in enumerate(given))


Share: TypeAlias = tuple[frozenset[Index], str | None]
"""All dimensions of a factor, of operands and then of results, and its reducer."""


def _shares(node: Node, factors: Factors) -> dict[int, Share]:
    """Return the share of each factor, but of none that has a size of 1, and so no shards.

    None has any if a value has another number of dimensions, as each test would show.
    """
    shapes = [value.type.shape for value in (*node.operands, *node.results)]
    values = (*factors.operands, *factors.results)
    if list(map(len, shapes)) != list(map(len, values)):
        return {}
    found: dict[int, set[Index]] = {}
    for i, dims in enumerate(values):
        for d, of in enumerate(dims):
            if of is not None:
                found.setdefault(of, set()).add((i, d))
    return {
        of: (frozenset(share), factors.summed.get(of))
        for of, share in found.items()
        if all(shapes[i][d] > 1 for i, d in share)
    }


def _others(shares: Mapping[int, Share], right: Mapping[int, Share]) -> dict[int, Share]:
    return {of: share for of, share in shares.items() if share not in right.values()}
