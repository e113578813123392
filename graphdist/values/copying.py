"""What `copy` and `pickle` make of things that belong to this process's devices.

A copy of a model has variables of its own, of the strategy that the model has: in a copy of what
holds it a strategy stays the same. Of devices, buffers and compiled programs nothing is pickled.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any, NoReturn  # Any: what `copy` has copied already

from graphdist.errors import ArgumentTypeError
from graphdist.tracing.sources import here


def is_part_of_a_copy(memo: Mapping[int, Any]) -> bool:
    """Return, to a `__deepcopy__`, whether it is not its object that the user copies.

    Then something that holds it was begun before, or asks for it: a tuple is not noted in advance.
    """
    asked_by = sys._getframe(2).f_back
    return bool(memo) or (asked_by is not None and asked_by.f_globals is vars(copy))


def refuse_to_pickle(what: str, hint: str) -> NoReturn:
    """Raise the error for what is of this process alone."""
    raise ArgumentTypeError(f"{what} cannot be pickled", source=here(), hint=hint)
