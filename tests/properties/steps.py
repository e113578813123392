"""A generated program: a list of steps on values, callable and readable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: hypothesis's pretty printer

from tests.properties.exact import Array, Kind

Results: TypeAlias = Sequence[Array]


@dataclass(frozen=True)
class Step:
    """An operation on values, by their places among those computed so far."""

    text: str
    call: Callable[..., Results]
    operands: tuple[int, ...]
    gives: tuple[Kind, ...]


@dataclass(frozen=True)
class Body:
    """A program: what it takes, its steps, which values it returns."""

    takes: tuple[Kind, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    gives: tuple[Kind, ...]

    def __call__(self, *inputs: Array) -> tuple[Array, ...]:
        """Run the program."""
        values = list(inputs)
        for step in self.steps:
            values += step.call(*(values[place] for place in step.operands))
        return tuple(values[place] for place in self.outputs)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        steps = "; ".join(f"{step.text}{list(step.operands)}" for step in self.steps)
        return f"({len(self.takes)} inputs: {steps} -> {list(self.outputs)})"
