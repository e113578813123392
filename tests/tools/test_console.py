"""How console tools end: without a reader, interrupted, and with a message for bad input."""

from __future__ import annotations

import importlib
import io
import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any  # Any: modules

import pytest

from graphdist import tools
from graphdist.command_process import INTERRUPTED
from graphdist.errors import ArgumentError
from graphdist.ir.printer import print_graph
from graphdist.ir.source import UNKNOWN
from graphdist.tools import compile, run, viz
from graphdist.tools.console import READER_GONE, console_tool, print_report
from graphdist.version import versions
from tests.viz.graphs import chain

FOLDER = Path(tools.__file__).parent
OF_OTHERS = {
    *("bench.on_tensorflow", "bench.on_torch", "bench.parameter_servers_on_tensorflow"),
    *("bench.passes_saved", "bench.unequal_replicas", "process_groups"),
}
"""Programs that tools start, and that write to nobody else."""


def console_tools() -> list[str]:
    """Return the modules that are run as programs, by the names of the modules with a `main`."""
    names = []
    for path in sorted(FOLDER.rglob("*.py")):
        runs = '\nif __name__ == "__main__":' in path.read_text()
        is_program = runs or path.name == "__main__.py"
        if is_program:
            place = path.relative_to(FOLDER).with_suffix("")
            names.append(".".join((*place.parts[:-1], place.name.replace("__main__", "command"))))
    return sorted({*names} - OF_OTHERS)


def without_reader(
    main: Callable[[list[str]], int], arguments: Sequence[str], *streams: str
) -> int | None:
    """Return the status of a tool, the reader of whose output has gone away."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as out, pytest.MonkeyPatch.context() as patch:
        for stream in streams or ("stdout",):
            patch.setattr(sys, stream, out)
        return main(list(arguments))


@pytest.mark.parametrize("name", console_tools())
def test_every_tool_ends_quietly_when_its_reader_goes_away(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tool: Any = importlib.import_module(f"graphdist.tools.{name}")
    assert without_reader(tool.main, ["--help"]) == READER_GONE
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", console_tools())
def test_help_fits_terminals_of_any_width(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool: Any = importlib.import_module(f"graphdist.tools.{name}")
    for columns in ("5", "1", "0", "-3", "many"):
        monkeypatch.setenv("COLUMNS", columns)
        for option, status in (("--help", 0), ("--no-such-option", 2)):
            with pytest.raises(SystemExit) as caught:
                tool.main([option])
            assert caught.value.code == status
    assert capsys.readouterr().out.count("usage: ") == 5


@pytest.mark.parametrize("name", console_tools())
def test_help_has_a_sentence_and_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    tool: Any = importlib.import_module(f"graphdist.tools.{name}")
    with pytest.raises(SystemExit):
        tool.main(["--help"])
    usage, sentence, *_, examples = capsys.readouterr().out.rstrip().split("\n\n")
    program = re.sub(r"\s+", " ", usage).removeprefix("usage: ").partition(" [")[0]
    assert re.fullmatch(r"[A-Z][^:]* [^:]*\.", sentence.replace("\n", " "))
    title, *lines = examples.split("\n")
    assert title == "examples:"
    assert lines
    assert all(line.startswith(f"  {program}") for line in lines)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        (
            "viz",
            ["step.py", "--stratgy", "mirrored:2"],
            "--stratgy\n  hint: did you mean --strategy?",
        ),
        ("viz", ["--sourcs"], "--sourcs\n  hint: did you mean --sources"),
        ("compile", ["step.py", "--quik"], "--quik\n  hint: did you mean --quick or --quiet?"),
        ("compile", ["--zzz=5"], "--zzz\n  hint: graphdist-compile --help prints the options"),
        ("run", ["--max-restrts", "1", "-n", "2", "x.py"], "--max-restrts\n  hint: did you mean"),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest(
    tool: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module: Any = importlib.import_module(f"graphdist.tools.{tool}")
    with pytest.raises(SystemExit) as caught:
        module.main(arguments)
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith(f"graphdist-{tool}: unknown option {said}")
    assert message.count("\n") == 2


def test_options_behind_a_program_are_the_program_s_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["x.py", "--epochs", "3"])
    message = "graphdist-run: the following arguments are required: -n\n"
    assert capsys.readouterr().err.startswith(message)


def test_the_console_scripts_are_tools() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules = {target.partition(":")[0] for target in project["scripts"].values()}
    assert modules <= {f"graphdist.tools.{name}" for name in console_tools()}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_headings_are_bold_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Memory of a device\n  peak  8 B\n\nChips"
    for colour, stream, expected in (
        ("", Terminal(), "\033[1mMemory of a device\033[0m\n  peak  8 B\n\n\033[1mChips\033[0m\n"),
        ("1", Terminal(), f"{text}\n"),
        ("", io.StringIO(), f"{text}\n"),
    ):
        monkeypatch.setenv("NO_COLOR", colour)
        monkeypatch.setattr(sys, "stdout", stream)
        print_report(text)
        assert stream.getvalue() == expected


@pytest.mark.parametrize("name", console_tools())
def test_every_tool_says_its_versions(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    tool: Any = importlib.import_module(f"graphdist.tools.{name}")
    with pytest.raises(SystemExit) as caught:
        tool.main(["--version"])
    assert caught.value.code == 0
    found = " ".join(capsys.readouterr().out.split()).split(", ")
    expected = [f"{package} {version}" for package, version in versions().items() if version]
    assert found == [*expected, f"Python {platform.python_version()}"]


def test_tools_are_found() -> None:
    assert {"compile", "viz", "run", "bench.command", "truth.command"} <= set(console_tools())


@pytest.mark.parametrize("length", [3, 2000])  # it is written at the end, or long before
def test_output_that_nobody_reads(
    length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chain.gd"
    path.write_text(print_graph(chain(length)))
    assert without_reader(viz.main, [str(path)]) == READER_GONE
    assert capsys.readouterr().err == ""


def test_a_message_that_nobody_reads() -> None:
    assert without_reader(compile.main, ["--allow", "5%"], "stdout", "stderr") == READER_GONE


WORKER = """
import pathlib, signal, sys, time

def ended(*_):
    pathlib.Path(sys.argv[0] + ".ended").touch()
    sys.exit()

signal.signal(signal.SIGTERM, ended)
print("the only line", flush=True)
time.sleep(100)
"""


def test_a_process_whose_reader_goes_away_ends_with_its_workers(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    commands = (
        ["compile", "--list-topologies"],
        ["run", "-n", "1", "--grace", "60", str(program)],
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-m", f"graphdist.tools.{name}", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        for name, *arguments in commands
    ]
    for process in started:
        assert process.stdout is not None
        if process is started[1]:
            assert process.stdout.read(100) == b"[worker 0] the only line\n"
        process.stdout.close()
        _, said = process.communicate(timeout=120)
        assert (process.returncode, said) == (READER_GONE, b"")
    assert Path(f"{program}.ended").exists()


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "tool: interrupted\n"),
        (PermissionError(13, "Permission denied", "x"), 2, "tool: Permission denied: 'x'\n"),
        (OSError("no network"), 2, "tool: no network\n"),
        (
            ArgumentError("no such pass", source=UNKNOWN, hint=f"there are {'a_long_name, ' * 8}x"),
            2,
            "tool: no such pass\n"
            "  hint: there are a_long_name, a_long_name, a_long_name, a_long_name,\n"
            "    a_long_name, a_long_name, a_long_name, a_long_name, x\n",
        ),
    ],
)
def test_what_a_tool_says_of_errors(
    raised: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @console_tool("tool")
    def main(arguments: Sequence[str] | None = None) -> int:
        raise raised

    assert main([]) == status
    assert capsys.readouterr().err == said


FILES = {
    "compile --against": ["x.py", "--topology", "v5e:2x2", "--against"],
    "compile --list-variables": ["--list-variables"],
    "compile target": ["--topology", "v5e:2x2"],
    "viz target": [],
    "viz --compare": ["chain.gd", "--compare"],
    "viz --all": ["--all", "-o", "pages"],
    "schedule": [],
    "measure target": [],
    "truth.command --table": ["--table"],
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("file", ["no.py", "no.json", "folder.py"])
def test_a_file_that_is_not_there_is_a_sentence(
    case: str,
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "chain.gd").write_text(print_graph(chain(3)))
    tool: Any = importlib.import_module(f"graphdist.tools.{case.split()[0]}")
    assert tool.main([*FILES[case], file]) == 2
    message = capsys.readouterr().err
    assert "[Errno" not in message
    assert "there is no" in message or f"{file} is a folder" in message
