"""Every test of tf-keras for models under a strategy has a counterpart, or a reason."""

from __future__ import annotations

from pathlib import Path

from tests.keras import (  # noqa: F401 - their tests say what they cover
    test_distribution_inputs,
    test_distribution_loops,
    test_distribution_models,
)
from tests.keras.distribution import COVERED, DECLARED, NAMES


def test_all_61_are_covered_or_declared() -> None:
    assert set(NAMES) == COVERED
    assert not COVERED & set(DECLARED)
    assert len(COVERED) + len(DECLARED) == 61
    assert len(DECLARED) <= 6


def test_the_documents_give_every_reason() -> None:
    page = Path(__file__).parents[2] / "docs" / "keras.md"
    text = page.read_text(encoding="utf-8")
    assert not [reason for reason in DECLARED.values() if reason not in text]
