"""How `copy` and `pickle` treat objects that belong to this process's devices.

A deep copy of a model gets new variables on the same strategy: a strategy is never copied along
with an object that refers to it. Devices, buffers and compiled programs cannot be pickled.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any, NoReturn  # Any: copies that `copy` has made already

from graphdist.errors import ArgumentTypeError
from graphdist.tracing.user_lines import here


def is_part_of_a_copy(memo: Mapping[int, Any]) -> bool:
    """Return whether a `__deepcopy__` was called for an object inside the one the user copies.

    Then `memo` holds an outer object, or `copy` itself is the caller: a tuple is added to `memo`
    only after its elements.
    """
    asked_by = sys._getframe(2).f_back
    return bool(memo) or (asked_by is not None and asked_by.f_globals is vars(copy))


def refuse_to_pickle(what: str, hint: str) -> NoReturn:
    """Raise the error for an object that only this process can use."""
    raise ArgumentTypeError(f"{what} cannot be pickled", source=here(), hint=hint)
