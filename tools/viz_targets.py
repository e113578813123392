"""The targets of `graphdist-viz`: graphs in files, or a step that is lowered or compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any  # Any: options of XLA

from graphdist.errors import ArgumentError
from graphdist.ir.errors import ParseError
from graphdist.ir.graph import Graph
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.parser import parse
from graphdist.ir.tokens import MOST_CHARACTERS
from graphdist.program.stages import Compiled, Lowered
from graphdist.runtime.targets.topologies import Topology
from graphdist.tools.chosen_strategy import ChosenStrategy
from graphdist.tools.compilation import StepOptions, lower_target
from graphdist.tools.given_files import is_given, read_given, require_file
from graphdist.tools.interrupts import ending_at_interrupts
from graphdist.viz.document import SavedProgram, read_document
from graphdist.viz.program import ShownProgram, ShownStep, program_of

_MOST_CHARACTERS = 2 * MOST_CHARACTERS
"""The most characters of a file, which may hold the first and last graph of a program."""
_SAVED = (".gdx", ".gd", ".txt")
_HEADER = re.compile(r"^graph .* on \d+ replicas?, stage \w+$", re.MULTILINE)


@dataclass(frozen=True)
class VizTarget:
    """A program, its stage if this process has lowered it, and options of XLA."""

    program: ShownProgram
    lowered: Lowered | None = None
    compiler: Mapping[str, Any] | None = None

    def stage(self, form: str) -> Lowered | Compiled:
        """Return the stage with a module's text; raises `ArgumentError` for graphs of files."""
        if self.lowered is None:
            raise ArgumentError(
                f"{form} needs a function, a saved graph has none",
                hint="name the step: file.py:make_step",
            )
        return self.lowered.compile(self.compiler) if form == "hlo" else self.lowered


def load_saved(path: Path, topology: Topology | None) -> VizTarget:
    """Return the graphs of an artifact or of a text, which may contain several."""
    return VizTarget(_timed_on(topology, _shown_program(_content(path), path)))


def load_step(
    name: str,
    chosen: ChosenStrategy,
    options: StepOptions,
    topology: Topology | None = None,
    *,
    reports: bool = False,
) -> VizTarget:
    """Return a step after its passes. With `reports`, the step is compiled and has a report.

    A step that the compiler refuses as too large has a report without a timeline.
    """
    path = Path(name)
    if ":" not in name and path.suffix != ".py" and (path.suffix in _SAVED or path.name != name):
        require_file(path)
    with ending_at_interrupts("graphdist-viz") if reports else nullcontext():
        lowered = lower_target(name, chosen, options)
        report = lowered.report(options.compiler) if reports else None
    program = replace(_timed_on(topology, program_of(lowered)), report=report)
    return VizTarget(program, lowered, options.compiler)


def _timed_on(topology: Topology | None, program: ShownProgram) -> ShownProgram:
    """Return a program whose times are those of a topology; raises `ArgumentError` if too small."""
    needed = program.graph.num_replicas * program.graph.num_cores
    if topology is not None and needed > topology.num_devices:
        raise ArgumentError(
            f"the step runs on {needed} devices, {topology} has {topology.num_devices}",
            hint="name a topology with at least as many, or fewer devices for the step",
        )
    return replace(program, topology=topology)


def is_saved(name: str) -> bool:
    """Return whether a target is a file with graphs, not a step."""
    path = Path(name)
    return is_given(path) and path.suffix != ".py"


def _shown_program(content: bytes, path: Path) -> ShownProgram:
    text = _decoded(content, path)
    if len(text) > _MOST_CHARACTERS:
        raise ArgumentError(
            f"{path} has a text of {len(text):,} characters; the limit is {_MOST_CHARACTERS:,}",
            hint="keep some of its graphs, or read it in Python with graphdist.ir.parser.parse",
        )
    starts = [match.start() for match in _HEADER.finditer(text)] or [0]
    steps, first_line = [], 1 + text.count("\n", 0, starts[0])
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
        graph = _parsed(text[start:end], path, first_line)
        name = "graph" if len(starts) == 1 else f"{number} {graph.stage.value}"
        steps.append(ShownStep(name, graph))
        first_line += text.count("\n", start, end)
    return ShownProgram(tuple(steps))


def read_earlier(path: Path) -> SavedProgram:
    """Return the last graph of a document, an artifact or a text; raises `ArgumentError`."""
    content = _content(path)
    if not content.lstrip().startswith(b"{"):
        if not _HEADER.search(_decoded(content, path)):
            raise ArgumentError(
                f"{path} is no program of graphdist-viz, which --compare takes",
                hint="write one with graphdist-viz TARGET -o old.json; step.gdx and the text of "
                "a graph are read, too",
            )
        return _shown_program(content, path).graph, None
    return read_document(_decoded(content, path, "surrogatepass"), str(path))


def _decoded(content: bytes, path: Path, errors: str = "strict") -> str:
    try:
        return content.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is no text: {error}") from error


def _content(path: Path) -> bytes:
    """Return the text of the graphs in a file; raises `ArgumentError` if it is too large."""
    return read_given(path, "graph.txt", 4 * _MOST_CHARACTERS)  # at most 4 bytes for a character


def _parsed(text: str, path: Path, first_line: int) -> Graph:
    try:
        return parse(text, opaques=PLACEHOLDERS, first_line=first_line)
    except ParseError as error:
        error.where = error.where or f"in {path}"
        raise
