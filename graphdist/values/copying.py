"""How `copy` and `pickle` treat objects that belong to this process's devices.

A deep copy of a model has new variables on the same strategy, because a strategy is not copied when
an object that refers to the strategy is copied. Devices, buffers and compiled programs cannot be
pickled.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any, NoReturn  # Any: copies that `copy` has made already

from graphdist.errors import ArgumentTypeError


def is_part_of_a_copy(memo: Mapping[int, Any]) -> bool:
    """Return whether `__deepcopy__` was called for a part of the object that the user copies.

    Then `memo` has an outer object, or the caller is the module `copy`. For elements of a tuple the
    caller is the module, because `copy` adds a tuple to `memo` only after the elements.
    """
    caller = sys._getframe(2).f_back
    return bool(memo) or (caller is not None and caller.f_globals is vars(copy))


def refuse_to_pickle(what: str, hint: str) -> NoReturn:
    """Raise the error for an object that only this process can use."""
    raise ArgumentTypeError(f"{what} cannot be pickled", hint=hint)
