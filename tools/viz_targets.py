"""The targets of `graphdist-viz`: graphs in files, or a function that is compiled."""

from __future__ import annotations

import difflib
import inspect
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any  # Any: users' functions and arguments

import jax

from graphdist.config import set_logical_cpu_devices
from graphdist.errors import ArgumentError, ArtifactError, DeviceError, GraphdistError
from graphdist.ir.errors import ParseError
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.parser import parse
from graphdist.ir.tokens import MOST_CHARACTERS
from graphdist.ir.types import numpy_dtype
from graphdist.program.function import BoundFunction, Function, function
from graphdist.program.stages import Compiled, Lowered, Traced
from graphdist.runtime.files.artifact import read_artifact
from graphdist.strategies.base import CommonStrategy
from graphdist.strategies.central_storage import CentralStorageStrategy
from graphdist.strategies.default import default_strategy
from graphdist.strategies.mirrored import MirroredStrategy
from graphdist.strategies.one_device import OneDeviceStrategy
from graphdist.tools.targets import load_factory, make_step, parse_settings, takes_strategy
from graphdist.tracing.user_lines import here
from graphdist.viz.program import ShownProgram, ShownStep, program_of
from graphdist.viz.saved_document import SavedProgram, read_document

__all__ = ["VizTarget", "is_saved", "load_target", "read_earlier", "trace_target"]

_ARGUMENT = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[0-9,\s]*)\]")
_MOST_CHARACTERS = 2 * MOST_CHARACTERS
"""The most characters of a file, which may hold the first and last graph of a program."""
_MOST_DIGITS = 18
_SAVED = (".gdx", ".gd", ".txt")
_NUMBER_OF_REPLICAS = re.compile("|[1-9][0-9]{0,3}")
_HEADER = re.compile(r"^graph .* on \d+ replicas?, stage \w+$", re.MULTILINE)


@dataclass(frozen=True)
class VizTarget:
    """A program, and its stage if it was compiled here."""

    program: ShownProgram
    lowered: Lowered | None = None

    def stage(self, form: str) -> Lowered | Compiled:
        """Return the stage with a module's text; raises `ArgumentError` for graphs of files."""
        if self.lowered is None:
            raise ArgumentError(
                f"{form} needs a function, a saved graph has none",
                source=here(),
                hint="name the step: file.py:make_step",
            )
        return self.lowered.compile() if form == "hlo" else self.lowered


def load_target(name: str, strategy: str, settings: Sequence[str], types: str) -> VizTarget:
    """Return the target of a name, compiled for a strategy up to the last pass."""
    path = Path(name)
    if is_saved(name):
        return VizTarget(_read(path))
    if ":" not in name and path.suffix != ".py" and (path.suffix in _SAVED or path.name != name):
        raise ArgumentError(
            f"{name} is a folder" if path.is_dir() else f"there is no file {name}",
            source=here(),
            hint="name a file in it, or a step: file.py:make_step"
            if path.is_dir()
            else "give the path from the current folder, or an absolute one",
        )
    chosen = _strategy(strategy)
    lowered = trace_target(name, chosen, settings, types).lower()
    return VizTarget(program_of(lowered), lowered)


def is_saved(name: str) -> bool:
    """Return whether a target is a file of graphs, and no step."""
    path = Path(name)
    return path.is_file() and path.suffix != ".py"


def _read(path: Path) -> ShownProgram:
    """Return the graphs of an artifact or of a text, which may contain several."""
    content = _content(path)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is no text: {error}", source=here()) from error
    if len(text) > _MOST_CHARACTERS:
        raise _too_large(path, len(text))
    starts = [match.start() for match in _HEADER.finditer(text)] or [0]
    pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    ends = [0, *(piece.count("\n") for piece in pieces)]
    first_lines = [1 + text.count("\n", 0, starts[0]) + before for before in accumulate(ends)]
    return ShownProgram(
        tuple(
            _parsed(piece, path, first_line, number, len(pieces))
            for number, (first_line, piece) in enumerate(zip(first_lines, pieces, strict=False))
        )
    )


def read_earlier(path: Path) -> SavedProgram:
    """Return the last graph of a document, an artifact or a text; raises `ArgumentError`."""
    if path.suffix != ".json" or zipfile.is_zipfile(path):
        return SavedProgram(_read(path).graph, None)
    try:
        return read_document(_content(path).decode("utf-8", "surrogatepass"), str(path))
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is no text: {error}", source=here()) from error


def _content(path: Path) -> bytes:
    """Return the text of the graphs in a file; raises `ArgumentError` if it is too large."""
    if zipfile.is_zipfile(path):
        _, members = read_artifact(path, here())
        if "graph.txt" not in members:
            raise ArtifactError(f"{path.name} has no graph.txt", source=here())
        return members["graph.txt"]
    size = path.stat().st_size
    if size > 4 * _MOST_CHARACTERS:  # UTF-8 has at most as many bytes for one
        raise _too_large(path, size // 4)
    return path.read_bytes()


def _too_large(path: Path, characters: int) -> ArgumentError:
    return ArgumentError(
        f"{path} has a text of {characters:,} characters; {_MOST_CHARACTERS:,} is most",
        source=here(),
        hint="keep some of its graphs, or read it in Python with graphdist.ir.parser.parse",
    )


def _parsed(text: str, path: Path, first_line: int, number: int, of: int) -> ShownStep:
    try:
        graph = parse(text, opaques=PLACEHOLDERS, first_line=first_line)
    except ParseError as error:
        error.where = error.where or f"in {path}"
        raise
    return ShownStep("graph" if of == 1 else f"{number} {graph.stage.value}", graph)


def _strategy(text: str) -> CommonStrategy:
    name, _, number = text.partition(":")
    makers: dict[str, Callable[[list[str] | None], CommonStrategy]] = {
        "default": lambda devices: default_strategy(),
        "one_device": lambda devices: OneDeviceStrategy(devices[0] if devices else None),
        "mirrored": MirroredStrategy,
        "central_storage": CentralStorageStrategy,
    }
    if name not in makers or not _NUMBER_OF_REPLICAS.fullmatch(number):
        near = difflib.get_close_matches(name, makers, n=1) or list(makers)
        raise ArgumentError(
            f"--strategy {text!r} is not NAME or NAME:N, for N replicas",
            source=here(),
            hint=f"NAME is {' or '.join(near)}; write for instance mirrored:8",
        )
    return makers[name](_devices(int(number)) if number else None)


def _devices(count: int) -> list[str]:
    """Return accelerators of this machine if there are enough, else logical CPU devices."""
    try:
        set_logical_cpu_devices(count)  # before JAX looks at its devices
    except DeviceError:
        if jax.local_device_count("cpu") < count:
            raise
    platform = jax.default_backend()
    if platform == "cpu" or jax.local_device_count() < count:
        platform = "cpu"
    return [f"{platform}:{number}" for number in range(count)]


def trace_target(
    name: str, strategy: CommonStrategy, settings: Sequence[str], types: str
) -> Traced:
    """Return the step of a factory, or a function of arguments of these types, traced."""
    factory = load_factory(name)
    if isinstance(factory, Function | BoundFunction) or types or not takes_strategy(factory):
        step = factory if isinstance(factory, Function | BoundFunction) else function(factory)
        arguments = _arguments(types)
        _check_count(name, factory, arguments)
        try:
            with strategy.scope():
                return step.trace(*arguments)
        except GraphdistError:
            raise
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise ArgumentError(
                f"{name} raised {type(error).__name__}: {reason}",
                source=here(),
                hint="give other types with --args" if types else "give types with --args",
            ) from error
    step, arguments = make_step(name, strategy, parse_settings(settings))
    return step.trace(*arguments)


def _arguments(types: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    found = []
    rest = types.strip()
    while rest:
        match = _ARGUMENT.match(rest)
        if match is None:
            raise ArgumentError(
                f"--args: {rest!r} does not begin with a type",
                source=here(),
                hint="write dtypes and shapes, such as 'f32[256,784] i32[256]'",
            )
        sizes = [size.strip() for size in match["shape"].split(",") if size.strip()]
        if (digits := max(map(len, sizes), default=0)) > _MOST_DIGITS:
            raise ArgumentError(
                f"--args: a size of {match['dtype']}[..] has {digits:,} digits", source=here()
            )
        shape = tuple(map(int, sizes))
        try:
            found.append(jax.ShapeDtypeStruct(shape, numpy_dtype(match["dtype"])))
        except TypeError as error:
            raise ArgumentError(
                f"--args: {match['dtype']!r} is no dtype",
                source=here(),
                hint="dtypes are written f32, bf16, i32, u8, bool",
            ) from error
        rest = rest[match.end() :].lstrip(" ,;")
    return tuple(found)


def _check_count(name: str, target: Any, arguments: Sequence[object]) -> None:
    """Raise `ArgumentError` if a function does not take as many arguments as are given."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        needed = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        given = len(arguments)
        missing = ", ".join(needed[given:])
        raise ArgumentError(
            f"{name} takes {', '.join(needed) or 'no arguments'}; "
            f"{given or 'no'} argument{' is' if given == 1 else 's are'} given with --args"
            + (f", {missing} missing" if missing else ""),
            source=here(),
            hint="give a type for each: --args 'f32[256,784] i32[256]'",
        ) from error
