"""The golden messages leave no error class out, and none without the user's line."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphdist.errors

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
MESSAGES = {path.stem: path.read_text(encoding="utf-8") for path in GOLDEN}
CLASSES = sorted(set(graphdist.errors.__all__) - {"GraphdistError"})  # the base is never raised


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_has_a_message(name: str) -> None:
    assert any(text.startswith(f"{name}: ") for text in MESSAGES.values()), f"no case raises {name}"


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_every_message_names_the_line_of_the_user(name: str) -> None:
    first, second, *_ = MESSAGES[name].splitlines()
    if not first.startswith("ParseError: "):  # about a text, of which it shows the line
        assert second.startswith("  case.py:LINE, in ")


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_no_message_speaks_of_our_files(name: str) -> None:
    assert "/graphdist/" not in MESSAGES[name]
    assert "/runtime/" not in MESSAGES[name]
