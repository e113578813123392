"""The values of a forward pass that a backward pass may need, by their numbers and names.

`residual_loops.py` finds them in loops, `written_out.py` outside of loops. What they have in common
is here: gradients are computed from the *needed* values. Each of these is kept, or computed again
from others, which are kept or computed again in turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from graphdist.ir.graph import Node, Value
from graphdist.ir.source import Source
from graphdist.ir.value_names import ValueName
from graphdist.ir.value_numbering import ValueNumbers, is_repeatable


@dataclass(frozen=True, slots=True)
class ForwardValue:
    """A value of the forward pass: result `index` of a node of either pass."""

    number: int
    value: Value
    node: Node
    index: int
    operands: tuple[int, ...]
    """The numbers of the node's operands."""
    name: ValueName
    is_forward: bool
    """Whether the forward pass computes it."""

    @property
    def can_be_repeated(self) -> bool:
        """Return whether the backward pass may compute the value again."""
        return is_repeatable(self.node)


@dataclass(eq=False)
class ForwardValues(ABC):
    """The forward values of two passes."""

    numbers: ValueNumbers
    values: dict[int, ForwardValue] = field(default_factory=dict)
    """The forward values by their numbers, in the order of the forward and the backward pass."""
    carried: dict[int, Value] = field(default_factory=dict)
    """Values that cannot be computed again, by their numbers: the carries of a forward loop."""
    carried_names: dict[int, ValueName] = field(default_factory=dict)

    @property
    @abstractmethod
    def source(self) -> Source:
        """Return the lines to show in errors."""

    @property
    @abstractmethod
    def iterations(self) -> int:
        """Return how often the passes compute each value."""

    @property
    @abstractmethod
    def forward_nodes(self) -> tuple[Node, ...]:
        """Return the nodes of the forward pass."""

    @property
    @abstractmethod
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of both passes."""

    def runs_forward(self, value: ForwardValue) -> bool:
        """Return whether the forward pass has the value, or gets it with the node of another."""
        return value.is_forward

    @property
    @abstractmethod
    def stacked(self) -> set[int]:
        """Return the numbers of the values that the backward pass gets from the forward pass."""

    @property
    @abstractmethod
    def needed(self) -> tuple[int, ...]:
        """Return the numbers of the forward values that gradients are computed from, in order."""

    @cached_property
    def relevant(self) -> tuple[int, ...]:
        """Return the numbers of the values that gradients may be computed from, in order."""
        pending, found = list(self.needed), set[int]()
        while pending:
            number = pending.pop()
            if number not in found and (number in self.carried or number in self.values):
                found.add(number)
                pending += self.values[number].operands if number in self.values else ()
        return self._in_order(found)

    def name_of(self, number: int) -> ValueName:
        """Return the name of a forward value or a carry."""
        return self.carried_names[number] if number in self.carried else self.values[number].name

    @cached_property
    def named(self) -> Mapping[ValueName, tuple[int, ...]]:
        """Return the numbers of the forward values and carries that have each name."""
        named: dict[ValueName, tuple[int, ...]] = {}
        for number in (*self.values, *self.carried):
            name = self.name_of(number)
            named[name] = (*named.get(name, ()), number)
        return named

    def value_of(self, number: int) -> Value:
        """Return a value of one of the passes that has a number."""
        return self.carried[number] if number in self.carried else self.values[number].value

    def can_be_repeated(self, number: int) -> bool:
        """Return whether the backward pass may compute a forward value again."""
        return number in self.values and self.values[number].can_be_repeated

    def stacks_for(self, kept: set[int]) -> tuple[int, ...]:
        """Return the numbers of the values to keep if those in `kept` are not computed again.

        Values that cannot be computed again are kept, too; values that no gradient is computed
        from are not.
        """
        return self._in_order(self._followed(kept)[0])

    def repeated_for(self, kept: set[int]) -> tuple[int, ...]:
        """Return the numbers of the values that are computed again if those in `kept` are not."""
        return self._in_order(self._followed(kept)[1])

    def _followed(self, kept: set[int]) -> tuple[set[int], set[int]]:
        """Return the values that are kept, and those that are computed again."""
        pending, stacked, repeated = list(self.needed), set[int](), set[int]()
        while pending:
            number = pending.pop()
            if number in stacked or number in repeated:
                continue
            if not (number in self.carried or number in self.values):
                continue  # literals, and what both passes have anyway
            if number in kept or not self.can_be_repeated(number):
                stacked.add(number)
            else:
                repeated.add(number)
                pending += self.values[number].operands
        return stacked, repeated

    def _in_order(self, numbers: set[int]) -> tuple[int, ...]:
        return tuple(number for number in (*self.carried, *self.values) if number in numbers)
