"""Words that only the project's authors understand stay out of sources and documents.

Checked are documents without their code, and of Python files docstrings, comments and the names
that they bind. A table says what to write instead.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md")
SOURCES = ("graphdist", "passes", "runtime", "tools", "docs/site", "tests/project")


@dataclass(frozen=True)
class Word:
    """A pattern of words that are not used, what to write instead, and the phrases left alone."""

    pattern: str
    instead: str
    allowed: str = ""


WORDS = (
    Word("meets?|meetings?", "synchronization point, synchronize; of processes, rendezvous"),
    Word("replica class(es)?|class(es)? of replicas|(once a|once per|by) class", "variant"),
    Word("lies?|lying", "is stored, is placed, is"),
    Word("wholes?", "unsharded, full, entire, complete", allowed="on the whole"),
    Word("anew", "again, a new"),
    # "What is wrong" is a question that is not asked; "what is gathered" stands for a noun.
    Word("what (is|are|was|were|has|had|have)", "the noun", allowed="what is wrong"),
    Word("(those|that) of", "the noun again, or its genitive"),
    Word("by way of|with the reason", "a sentence with a subject and a verb"),
)
NAMES = {"one", "ones"}
"""Names that say nothing of what they stand for."""
NAME_PARTS = {"anew", "lies", "meet", "meeting", "meetings", "meets", "whole", "wholes"}

_CODE = re.compile(r"^```.*?^```$|^<!--.*?-->|`[^`]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
_QUESTION = re.compile(r"[^.!?:;]*\?")
_QUOTATION = re.compile(r'"[^"\n]*"')


def blank(match: re.Match[str]) -> str:
    """Return spaces in place of what is left out, so that lines keep their numbers."""
    return re.sub(r"[^\n]", " ", match.group())


def words(pattern: str) -> re.Pattern[str]:
    """Return a pattern of entire words, which may stand on two lines."""
    return re.compile(rf"\b({pattern})\b".replace(" ", r"\s+"), re.IGNORECASE)


def found_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each such word in prose, and what to write."""
    text = _QUOTATION.sub(blank, _CODE.sub(blank, text))
    for word in WORDS:
        for match in words(word.pattern).finditer(text):
            around = text[max(0, match.start() - 20) : match.end() + 20]
            is_allowed = bool(word.allowed) and words(word.allowed).search(around)
            if not is_allowed and not _QUESTION.match(text, match.end()):
                line = text.count("\n", 0, match.start()) + 1
                said = " ".join(match.group().split())
                yield line, f"{said!r}: write {word.instead}"


def prose_of(source: str) -> str:
    """Return the docstrings and comments of Python source, each on the lines where it stands."""
    lines = [""] * (source.count("\n") + 1)
    for node in ast.walk(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            # A string that is a statement: a docstring, of an attribute too.
            for number, text in enumerate(value.value.splitlines()):
                lines[min(value.lineno - 1 + number, len(lines) - 1)] += text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] += token.string.lstrip("# ")
    return "\n".join("" if line.lstrip().startswith((">>>", "...")) else line for line in lines)


def bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every name that a file gives to something, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def found_in_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each such name in Python source, and what to do."""
    for line, name in bound_names(ast.parse(source)):
        if name in NAMES or NAME_PARTS & set(name.lower().split("_")):
            yield line, f"the name {name!r}: name the thing"


def documents() -> list[Path]:
    return [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]


def sources() -> list[Path]:
    # rglob does not follow the links in graphdist/
    paths = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if "node_modules" not in path.parts]


def test_documents_use_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {said}"
        for path in documents()
        for line, said in sorted(found_in(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


@pytest.mark.long
def test_sources_use_plain_words() -> None:
    found = []
    for path in sources():
        if path != Path(__file__):  # which has the words
            source = path.read_text(encoding="utf-8")
            said_of = [*found_in(prose_of(source)), *found_in_names(source)]
            found += [f"{path.relative_to(ROOT)}:{line}: {said}" for line, said in sorted(said_of)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "The replicas meet here.",
        "A trace of one replica class.",
        "It lies on the device.",
        "the whole value",
        "It is compiled anew.",
        "It keeps what is gathered.",
        "what\nis gathered",
        "Shapes are those of the replica.",
    ],
)
def test_a_word_is_found(text: str) -> None:
    assert [line for line, _ in found_in(f"One line.\n{text}\n")] == [2]


@pytest.mark.parametrize(
    "text",
    [
        "What is a replica?",
        'It says "what is gathered" there.',
        "An error says what is wrong.",
        "`what is whole`",
        "```python\nwhole = 1\n```",
        "A class of errors, and one program a shape.",
    ],
)
def test_other_words_are_left_alone(text: str) -> None:
    assert list(found_in(text)) == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('def f():\n    """Return the whole value."""\n', 2),
        ("x = 1\ny = 2  # lies on the device\n", 2),
        ("x = 1\nfor one in range(3):\n    pass\n", 2),
        ("def meeting_place():\n    pass\n", 1),
        ("def f(whole):\n    pass\n", 1),
    ],
)
def test_a_word_in_source_is_found(source: str, line: int) -> None:
    found = [*found_in(prose_of(source)), *found_in_names(source)]
    assert [number for number, _ in found] == [line]


def test_numbers_and_calls_in_source_are_left_alone() -> None:
    source = 'ones_like = jnp.ones(3)  # one program a shape\nsaid = "the whole text"\n'
    assert [*found_in(prose_of(source)), *found_in_names(source)] == []
