"""Amounts in the page, against those in a terminal."""

from __future__ import annotations

import json

import numpy as np
import pytest

from graphdist.report.amounts import count_text, size_text, time_text
from tests.viz.browser import browse


@pytest.mark.needs("browser")
def test_amounts_are_written_as_in_a_terminal() -> None:
    generator = np.random.default_rng(0)
    sizes = [0, 20, 1023, 1024, -18759740, 4325376, *(2**20 * n // 8 for n in range(8, 40))]
    sizes += (2 ** generator.uniform(0, 45, 500)).astype(int).tolist()
    flops = [154, 7_140_000, 999_999, 216_285_843_915, *(1000 * n // 8 for n in range(8, 40))]
    seconds = [0.0, 137.6256e-6, 117.965e-6, 0.25, 1.0, *(10 ** generator.uniform(-7, 3, 500))]
    shares = [0.0, 15.268, -0.0002, *(n / 800 for n in range(40)), *generator.uniform(-2, 2, 500)]
    amounts = {"bytes": sizes, "flops": flops, "seconds": seconds, "shares": shares}
    assert browse("amounts.mjs", json.dumps(amounts)) == {
        "bytes": [size_text(each) for each in sizes],
        "flops": [f"{count_text(each)}FLOP" for each in flops],
        "seconds": [time_text(each) for each in seconds],
        "shares": [f"{each:.1%}" for each in shares],
    }
