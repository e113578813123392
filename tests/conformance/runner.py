"""Runs recorded cases of `tf.distribute` against graphdist, and says what became of them.

A case is mapped to a program by its family and label, run, and its tagged result compared with the
recorded one. What differs by intent is in `declared.py`.
"""

from __future__ import annotations

import argparse
import contextvars
import json
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO  # Any: JSON

import jax

import graphdist as gd
from tests.conformance.compare import Comparison, Difference, pattern_of_equality
from tests.conformance.declared import DECLARED
from tests.conformance.encode import encode, encode_error
from tests.conformance.environment import Environment, NoProgramError
from tests.conformance.families.table import FAMILIES
from tests.conformance.patterns import Declared

STATUSES = ("passed", "failed", "in part", "declared")
SECONDS = 60
"""How long one case may take."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    name: str
    differences: tuple[Difference, ...] = ()
    declared: tuple[Declared, ...] = ()
    needless: tuple[Declared, ...] = ()

    @property
    def family(self) -> str:
        """Return the family of the case."""
        return self.name.partition("/")[0]

    @property
    def status(self) -> str:
        """Return how the case is counted."""
        if self.differences:
            return "failed"
        if not self.declared:
            return "passed"
        return "declared" if any(entry.at == "*" for entry in self.declared) else "in part"


def load(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the cases of these files."""
    return [case for path in paths for case in json.loads(path.read_text())["cases"]]


def run_case(case: dict[str, Any]) -> Outcome:
    """Run a case by itself: what it enters and sets ends with it."""
    name: str = case["name"]
    actual = contextvars.copy_context().run(_result, case)
    expected = case["output"] if "output" in case else {"error": case["error"]}
    if "equality pattern" in case.get("notes", ""):
        expected, actual = pattern_of_equality(expected), pattern_of_equality(actual)
    return judge(name, tuple(Comparison.of(name).differences(expected, actual)))


def judge(name: str, found: tuple[Difference, ...]) -> Outcome:
    """Return the outcome of a case with these differences."""
    about = [entry for entry in DECLARED if entry.names(name)]
    needed = tuple(entry for entry in about if any(entry.covers(name, one.path) for one in found))
    rest = tuple(one for one in found if not any(entry.covers(name, one.path) for entry in needed))
    needless = tuple(entry for entry in about if entry not in needed)
    return Outcome(name, rest, needed, needless)


def _result(case: dict[str, Any]) -> Any:
    """Return the tagged result of a case's program, or the error it raises."""
    family = case["name"].partition("/")[0]
    try:
        with warnings.catch_warnings(), _alarm():
            warnings.simplefilter("ignore")
            if family not in FAMILIES:
                raise NoProgramError(f"no program for the family {family!r}")
            env = Environment(case)
            return encode(FAMILIES[family](env), env.replicas)
    except Exception as error:
        return encode_error(error)


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise `TimeoutError` in a program that takes too long."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def report(outcomes: list[Outcome], out: TextIO) -> None:
    """Print passed, failed and declared per family, then each failure's first difference.

    A case that tries many things and differs in declared ones alone is declared in part.
    """
    print(f"{'family':28}" + "".join(f"{status:>10}" for status in STATUSES), file=out)
    families = dict.fromkeys(outcome.family for outcome in outcomes)
    for family in families:
        _print_counts(family, [one.status for one in outcomes if one.family == family], out)
    _print_counts("all", [one.status for one in outcomes], out)
    whole = sum(one.status == "declared" for one in outcomes) / max(len(outcomes), 1)
    part = sum(one.status == "in part" for one in outcomes) / max(len(outcomes), 1)
    print(f"declared: {whole:.1%}, and {part:.1%} in part, of {len(outcomes)}", file=out)
    for outcome in outcomes:
        if outcome.status == "failed":
            first, *more = outcome.differences
            rest = f" (and {len(more)} more)" if more else ""
            print(f"FAILED {outcome.name}\n       {first}{rest}", file=out)
    for outcome in outcomes:
        for entry in outcome.needless:
            print(f"DECLARED BUT PASSES {outcome.name} at {entry.at}: {entry.reason}", file=out)


def _print_counts(name: str, statuses: list[str], out: TextIO) -> None:
    counts = "".join(f"{statuses.count(status):10}" for status in STATUSES)
    print(f"{name:28}{counts}", file=out)


def main(arguments: list[str]) -> int:
    """Run the cases of the named files; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    options = parser.parse_args(arguments)
    cases = [case for case in load(options.files) if options.only in case["name"]]
    # As many as in the recording, whose programs may ask for all devices there are.
    jax.config.update("jax_platforms", "cpu")
    gd.config.set_logical_cpu_devices(max([4, *(c["strategy"]["replicas"] for c in cases)]))
    outcomes = [run_case(case) for case in cases]
    report(outcomes, sys.stdout)
    return int(any(one.status == "failed" for one in outcomes))
