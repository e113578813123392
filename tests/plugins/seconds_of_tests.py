"""How long tests may take: `pytest --budget` prints the slowest, fails beyond a file's budget.

A file has a budget for its quick tests together, and one for its long ones. They are generous, for
machines are noisy: they find the file whose tests start a process each where one would do, not the
test that has become a little slower. Seconds are those of the tests and their fixtures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeVar

import pytest

QUICK_SECONDS = 20
"""What the quick tests of a file may take together, on 2 cores that do nothing else."""
LONG_SECONDS = 300
"""What its long tests may."""
SHOWN = 15


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--budget`."""
    parser.addoption(
        "--budget", action="store_true", help="print what is slow, fail where it is too slow"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the counting where it is asked for; with xdist it is in the process that prints."""
    if config.getoption("--budget") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Budget())


Key = TypeVar("Key")


def slowest(seconds: Mapping[Key, float]) -> list[tuple[Key, float]]:
    """Return the keys with their seconds, the slowest first."""
    return sorted(seconds.items(), key=lambda item: -item[1])


class Budget:
    """Adds up the seconds of each file, and of each test."""

    def __init__(self) -> None:
        """Begin with none."""
        self._files: dict[tuple[str, bool], float] = defaultdict(float)
        self._tests: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a phase of a test."""
        file = report.nodeid.partition("::")[0]
        self._files[file, "long" in report.keywords] += report.duration
        self._tests[report.nodeid] += report.duration

    def _beyond(self) -> Iterator[str]:
        for (file, is_long), seconds in slowest(self._files):
            budget = LONG_SECONDS if is_long else QUICK_SECONDS
            if seconds > budget:
                kind = "long" if is_long else "quick"
                yield f"{file}: its {kind} tests took {seconds:.0f} s, beyond {budget} s"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail if a file is beyond its budget."""
        if session.exitstatus == pytest.ExitCode.OK and any(self._beyond()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the slowest tests and files, and the files beyond their budget."""
        terminalreporter.section("slowest")
        for name, seconds in slowest(self._tests)[:SHOWN]:
            terminalreporter.line(f"{seconds:7.1f} s  {name}")
        for (file, is_long), seconds in slowest(self._files)[:SHOWN]:
            terminalreporter.line(f"{seconds:7.1f} s  {file}{' (long)' * is_long}")
        for line in self._beyond():
            terminalreporter.line(f"BEYOND BUDGET {line}", red=True)
