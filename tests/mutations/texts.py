"""Texts of graphs, changed at random, and what `graphdist-viz` and the parser make of them."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

from graphdist.ir.parser import parse
from graphdist.ir.printer import print_graph
from graphdist.tools.viz import main
from graphdist.viz import FORMATS
from tests.ir.test_parse_errors import GOOD
from tests.mutations.bits import flipped
from tests.viz.graphs import chain

PASSES = Path(__file__).parents[1] / "passes"
_TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)
_NUMBER = re.compile(r"\d+")
_GRAPH = re.compile(r"^graph .*?^}", re.MULTILINE | re.DOTALL)

HUGE = ("9" * 20, "9" * 5000, "-1", "0", "400000000", str(2**31), str(2**63), "1e999", "nan")
STRANGE = ("$", '"', "\\", "\x1b[2J", "\ud7ff", "²", "٣", "<400000000: x>", "f92", "O[3]", "@", "#",
           "array<f32[2]: 1.0>", "dtype<O>", "key<fry>[2]", "i99999999999[1]")  # fmt: skip


class Trials:
    """Texts of the passes' tests and others, and changed ones."""

    def __init__(self, folder: Path) -> None:
        """Take the texts."""
        self.path = folder / "changed.gd"
        found = "\n".join(path.read_text() for path in sorted(PASSES.glob("*.gd")))
        self.texts = [*_GRAPH.findall(found), *[GOOD, print_graph(chain(30))] * 20]
        self.form = "text"

    def change(self, random: Random) -> None:
        """Write a changed text, and choose the format it is shown in."""
        self.form = random.choice([*FORMATS])
        text = random.choice(self.texts)
        if random.random() < 0.1:
            self.path.write_bytes(flipped(text.encode(), random))
            return
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            text = random.choice((_characters, _tokens, _numbers, _nesting, _lines))(text, random)
        self.path.write_text(text)

    def use(self) -> None:
        """Show the text as the command does, and parse it."""
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            main([str(self.path), "--format", self.form])
        parse(self.path.read_text(errors="replace"))


def _characters(text: str, random: Random) -> str:
    at = random.randrange(len(text))
    other = random.choice((*STRANGE, chr(random.randrange(32, 127)), ""))
    return text[:at] + other + text[at + random.choice((0, 1)) :]


def _tokens(text: str, random: Random) -> str:
    tokens = _TOKEN.findall(text)
    at, other = random.randrange(len(tokens)), random.randrange(len(tokens))
    match random.randrange(4):
        case 0:
            tokens[at] *= random.choice((2, 3, 1000))
        case 1:
            del tokens[at]
        case 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case _:
            tokens[at] = tokens[other]
    return "".join(tokens)


def _numbers(text: str, random: Random) -> str:
    found = [*_NUMBER.finditer(text)]
    if not found:
        return text
    one = random.choice(found)
    return text[: one.start()] + random.choice(HUGE) + text[one.end() :]


def _nesting(text: str, random: Random) -> str:
    depth = random.choice((2, 60, 70, 5000))
    begin, end = random.choice(
        (("(", ")"), ("[", "]"), ("{a=", "}"), ("{", "}"), ("complex(", ")"))
    )
    if random.random() < 0.5:
        places = [match.end() for match in re.finditer(r"[={(]", text)] or [0]
        at = random.choice(places)
        return text[:at] + begin * depth + "1" + end * depth + text[at:]
    head, _, body = text.partition("{\n")
    cond = "  %c = cond(0:i32) : f32[4] mirrored\n    branch() {\n"
    return f"{head}{{\n{cond * depth}{body}"


def _lines(text: str, random: Random) -> str:
    lines = text.split("\n")
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(3):
        case 0:
            lines.insert(at, lines[other])
        case 1:
            del lines[at]
        case _:
            lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)
