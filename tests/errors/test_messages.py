"""Every refusal, word for word.

A case is a function in `cases/`: it runs a program that is refused, and, where that makes sense, the
same program put right, since a refused step must leave nothing behind. What the user reads of the
error is in `golden/<case>.txt`: its class, the four parts, and notes, with the line numbers and
folders taken out.

`pytest tests/errors --update-golden` rewrites the golden files.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.errors.cases import (
    arguments,
    compiler,
    contexts,
    datasets,
    devices,
    distributions,
    reductions,
    tracing,
    variables,
)
from tests.errors.refusal import Refused

GOLDEN = Path(__file__).parent / "golden"
MODULES = (
    arguments,
    compiler,
    contexts,
    datasets,
    devices,
    distributions,
    reductions,
    tracing,
    variables,
)

Case = Callable[[Refused], None]


def cases_of(module: ModuleType) -> dict[str, Case]:
    """Return the public functions a module defines, by name."""
    return {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


CASES = {name: case for module in MODULES for name, case in cases_of(module).items()}


def test_names_are_unique() -> None:
    assert len(CASES) == sum(len(cases_of(module)) for module in MODULES)


def test_every_golden_has_a_case(update_golden: bool) -> None:
    left_over = [path for path in sorted(GOLDEN.glob("*")) if path.stem not in CASES]
    if update_golden:
        for path in left_over:
            path.unlink()
    else:
        assert not left_over, f"delete {', '.join(path.name for path in left_over)}"


@pytest.mark.parametrize("name", sorted(CASES))
def test_message(name: str, update_golden: bool) -> None:
    refused = Refused()
    CASES[name](refused)
    assert refused.text, "the case has no `with refused(..)`"
    path = GOLDEN / f"{name}.txt"
    if update_golden:
        path.write_text(refused.text, encoding="utf-8")
        return
    command = f"pytest tests/errors --update-golden -k {name}"
    assert path.exists(), f"{path.name} is missing; read this and run {command}:\n{refused.text}"
    assert refused.text == path.read_text(encoding="utf-8"), f"if it is meant: {command}"
