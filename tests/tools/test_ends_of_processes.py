"""How the processes of all tools end: with outputs that cannot be written, and interrupted."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from graphdist import command_process
from graphdist.command_process import INTERRUPTED
from graphdist.tools.console import OUTPUT_LOST
from tests.tools.test_console import console_tools

ROOT = Path(__file__).parents[2]
SECONDS = 120
TOOLS = sorted({*console_tools()} - {"bench.parameter_servers"})
"""Those that are run as modules of their own; the other one is a part of the benchmark."""
CLOSED, FULL = "Bad file descriptor", "No space left on device"
FAULTS = {
    ">&-": ("--help", CLOSED),
    ">/dev/full": ("--help", FULL),
    "2>/dev/full": ("--no-such-option", ""),
    ">&- 2>&- <&-": ("--help", ""),
}
"""What is done to a process, what it is asked for, and what it says then."""


def ended(command: str, redirected: str, **variables: str) -> tuple[int, str]:
    """Return the status of a command, and what it wrote to stderr; its stdout is not looked at."""
    done = subprocess.run(
        ["bash", "-c", f"{command} {redirected}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )
    return done.returncode, done.stderr


def of_module(name: str) -> str:
    module = f"graphdist.tools.{name}".removesuffix(".command")
    return f"{shlex.quote(sys.executable)} -m {module}"


@pytest.mark.long
@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_whose_output_cannot_be_written_says_so(name: str) -> None:
    for redirected, (argument, said) in FAULTS.items():
        status, err = ended(f"{of_module(name)} {argument}", redirected)
        assert (redirected, status) == (redirected, OUTPUT_LOST), err
        assert err.endswith(f": the output cannot be written: {said}\n" if said else "")
        assert err.count("\n") == bool(said)


def test_a_tool_says_that_its_output_is_lost() -> None:
    command = f"{of_module('schedule')} --help"  # argparse passes over errors where it prints this
    lost = ended(command, ">/dev/full", PYTHONUNBUFFERED="1")
    assert lost == (OUTPUT_LOST, f"schedule: the output cannot be written: {FULL}\n")


# Ctrl-C.


@pytest.fixture
def interrupting_jax(tmp_path: Path) -> str:
    """Return a path on which JAX is a module that sends Ctrl-C as it is imported."""
    sends = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport no_such_module\n"
    (tmp_path / "jax.py").write_text(sends)
    return f"{tmp_path}{os.pathsep}{ROOT}"


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_is_interrupted_while_it_imports_jax(name: str, interrupting_jax: str) -> None:
    status, err = ended(of_module(name), "", PYTHONPATH=interrupting_jax)
    module = of_module(name).split()[-1]
    assert (status, err) == (INTERRUPTED, f"{module}: interrupted\n")


def test_a_script_is_interrupted_while_it_imports_jax(
    interrupting_jax: str, tmp_path: Path
) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name in scripts:
        script = tmp_path / name
        script.write_text("import graphdist\n")
        command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
        ran = ended(command, "", PYTHONPATH=interrupting_jax)
        assert ran == (INTERRUPTED, f"{name}: interrupted\n")
    assert "no_such_module" in ended(f"trap '' INT; {command}", "", PYTHONPATH=interrupting_jax)[1]


def test_a_program_of_the_user_is_not_prepared(interrupting_jax: str, tmp_path: Path) -> None:
    program = tmp_path / "graphdist-train.py"
    program.write_text("import graphdist\n")
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(program))}"
    assert "KeyboardInterrupt" in ended(command, "", PYTHONPATH=interrupting_jax)[1]


PREPARED = f"""
import importlib.util, os, signal, sys
sys.argv = ["graphdist-viz"]
spec = importlib.util.spec_from_file_location("prepared", {str(command_process.__file__)!r})
prepared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prepared)

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

"""
CLEANED_UP = """
try:
    with prepared.interruptible():
        interrupt()
except KeyboardInterrupt:
    print("cleaned up")
"""
INTERRUPTED_TWICE = """
try:
    with prepared.interruptible():
        interrupt()
except KeyboardInterrupt:
    interrupt()
    print("not reached")
"""
DROPPED = """
class Dropping:
    def __del__(self):
        interrupt()
        for _ in range(1000):
            pass

with prepared.interruptible():
    Dropping()
    print("not reached")
"""
NO_BLOCK = "interrupt()\nprint('not reached')\n"


@pytest.mark.parametrize(
    ("program", "status", "out", "err"),
    [
        (CLEANED_UP, 0, "cleaned up\n", ""),
        (INTERRUPTED_TWICE, INTERRUPTED, "", "graphdist-viz: interrupted\n"),
        (DROPPED, INTERRUPTED, "", "graphdist-viz: interrupted\n"),
        (NO_BLOCK, INTERRUPTED, "", "graphdist-viz: interrupted\n"),
    ],
    ids=["in the tool", "twice", "dropped by Python", "elsewhere"],
)
def test_what_ctrl_c_does(program: str, status: int, out: str, err: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREPARED + program], capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


def test_text_that_the_output_cannot_encode_is_escaped() -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PREPARED + r"print('\xfc \u2026 \udcff')"],
        capture_output=True,
        timeout=SECONDS,
        env={**os.environ, **ascii_only},
    )
    assert (done.stdout, done.stderr) == (b"\\xfc \\u2026 \\udcff\n", b"")


def test_a_closed_stream_is_no_file_that_is_opened_later(tmp_path: Path) -> None:
    program = PREPARED + f"with open({str(tmp_path / 'file')!r}, 'w'): print('lost')"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"
    assert CLOSED in ended(command, ">&-")[1]
    assert (tmp_path / "file").read_text() == ""


def test_signals_that_end_programs_end_a_tool_quietly(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        # The signal may be ignored, as it is after nohup.
        taken = f"signal.signal({int(number)}, signal.SIG_DFL)"
        sent = f"os.kill(os.getpid(), {int(number)})"
        (tmp_path / "jax.py").write_text(f"import os, signal\n{taken}\n{sent}\n")
        path = f"{tmp_path}{os.pathsep}{ROOT}"
        assert ended(f"exec {of_module('viz')}", "", PYTHONPATH=path) == (-number, "")
