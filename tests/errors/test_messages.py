"""Every refusal, word for word.

A case is a function in `cases/`: it runs a program that is refused, and, where that makes sense,
the same program put right, since a refused step must leave nothing behind. What the user reads of
the error is in `golden/<case>.txt`: its class, the four parts, and notes, with the line numbers and
folders taken out.

`pytest tests/errors --update-golden` rewrites the golden files.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import graphdist as gd
from graphdist.tracing.trace_in_progress import current_trace
from tests.errors.refusal import CASES, Refused

GOLDEN = Path(__file__).parent / "golden"
MODULES = [import_module(f"tests.errors.cases.{path.stem}") for path in sorted(CASES.glob("*.py"))]
Case = Callable[[Refused], None]


def cases_of(module: ModuleType) -> dict[str, Case]:
    """Return the public functions a module defines, by name."""
    return {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


BY_NAME = {name: case for module in MODULES for name, case in cases_of(module).items()}


def test_names_are_unique() -> None:
    assert len(BY_NAME) == sum(len(cases_of(module)) for module in MODULES)


def test_every_golden_has_a_case(update_golden: bool) -> None:
    left_over = [path for path in sorted(GOLDEN.glob("*")) if path.stem not in BY_NAME]
    if update_golden:
        for path in left_over:
            path.unlink()
    else:
        assert not left_over, f"delete {', '.join(path.name for path in left_over)}"


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_message(name: str, update_golden: bool) -> None:
    refused = Refused()
    BY_NAME[name](refused)
    assert not gd.has_strategy(), "the refused step left its strategy behind"
    assert current_trace() is None, "the refused step left its trace behind"
    assert refused.text, "the case has no `with refused(..)`"
    path = GOLDEN / f"{name}.txt"
    if update_golden:
        path.write_text(refused.text, encoding="utf-8")
        return
    command = f"pytest tests/errors --update-golden -k {name}"
    assert path.exists(), f"{path.name} is missing; read this and run {command}:\n{refused.text}"
    assert refused.text == path.read_text(encoding="utf-8"), f"if it is meant: {command}"
