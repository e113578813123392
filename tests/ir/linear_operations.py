"""Operations on combinations of operands, compared with the combinations of their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self  # Any: arrays of any dtype

import numpy as np

from graphdist.ir.arrays import Array, Held
from tests.ir.sharded_operations import Applied, check_close
from tests.passes.execution import random_array


class Combined(NamedTuple):
    """A node, and its operands in three runs: those of the third combine those of the others."""

    case: Applied
    runs: list[list[Held]]

    @classmethod
    def of(cls, case: Applied, places: Sequence[int], numbers: np.random.Generator) -> Self:
        """Combine the operands at some places with random ones."""
        x, y, both = (list(case.operands) for _ in range(3))
        for place in places:
            y[place] = random_array(case.node.operands[place].type, numbers)
            both[place] = _combination(x[place], y[place])
        return cls(case, [[[array] for array in arrays] for arrays in (x, y, both)])

    def check(self, outputs: Sequence[Sequence[Held]]) -> None:
        """Check that the results of the third run combine those of the others."""
        for (a,), (b,), (both,) in zip(*outputs, strict=True):
            check_close(both, _combination(a, b), 1e-4)
            assert np.isfinite(both).any(), "nothing is compared where each element is nan"


def _combination(x: Any, y: Any) -> Array:
    return np.asarray(2 * x - 3 * y, x.dtype)
