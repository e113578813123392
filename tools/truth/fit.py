"""How much slower chips are than their measured products and their bandwidths say.

A chip has one fitted constant, the slowdown of what it computes. It is an average of logarithms
that is drawn towards what other chips say, since runs are few: the runs of a family agree with each
other more than with the next. A family counts as one observation of its chip, a chip as one of its
platform, and each average has one more observation: for a chip what its platform's other chips
say, for a platform a slowdown of 1. That is the posterior mean of a normal model whose variances
are equal at each level (Gelman and Hill 2007, Data analysis using regression and multilevel models,
chapter 12).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import fmean
from typing import NamedTuple

ENDS = 0.7, 1.3


class Observed(NamedTuple):
    """The slowdown with which a run's prediction is its measurement."""

    family: str
    chip: str
    platform: str
    slowdown: float


def slowdown_at(measured: float, ends: tuple[float, float]) -> float:
    """Return the slowdown that gives a step's measured seconds.

    `ends` are the predicted seconds with slowdowns of 0.7 and 1.3. Between them what hides
    communication changes little: a line is near enough.

    >>> round(slowdown_at(3.0, ends=(1.7, 2.3)), 6)
    2.0
    """
    low, high = ends
    slope = (high - low) / (ENDS[1] - ENDS[0])
    return max(ENDS[0] + (measured - low) / slope, 0.1)


def slowdown_of(chip: str, platform: str, observed: Iterable[Observed]) -> float:
    """Return the slowdown that is expected of a chip.

    >>> observed = [Observed("a", "v5e", "tpu", 0.8), Observed("b", "v6e", "tpu", 0.8)]
    >>> round(slowdown_of("v6e", "tpu", observed), 3), round(slowdown_of("v4", "tpu", observed), 3)
    (0.846, 0.862)
    >>> slowdown_of("h100", "gpu", observed)
    1.0
    """
    chips = _by_chip(each for each in observed if each.platform == platform)
    others = [fmean(families.values()) for name, families in chips.items() if name != chip]
    return exp(_drawn_to(_drawn_to(0.0, others), list(chips.get(chip, {}).values())))


def _drawn_to(expected: float, observed: Sequence[float]) -> float:
    return fmean([expected, *observed])


def _by_chip(observed: Iterable[Observed]) -> Mapping[str, Mapping[str, float]]:
    """Return the mean logarithm of each family, by chip."""
    logs: dict[str, dict[str, list[float]]] = {}
    for each in observed:
        logs.setdefault(each.chip, {}).setdefault(each.family, []).append(log(each.slowdown))
    return {
        chip: {family: fmean(found) for family, found in families.items()}
        for chip, families in logs.items()
    }
