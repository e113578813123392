"""Ctrl-C where Python cannot raise it.

A `KeyboardInterrupt` that comes while a destructor or a callback of the garbage collector runs is
printed and forgotten. JAX has such a callback, and it takes long enough that one Ctrl-C in some
hundred went there: the worker trained on. So it is raised again, a moment later.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any  # Any: what Python passes to the hook has no public type

_SECONDS_UNTIL_AGAIN = 0.05
"""After the callback's end: from within the hook it would be lost once more."""


def raise_ignored_interrupts() -> None:
    """Raise interrupts again that Python ignores, from now on."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            again = threading.Timer(_SECONDS_UNTIL_AGAIN, _interrupt_main_thread)
            again.daemon = True
            again.start()
        else:
            before(unraisable)

    sys.unraisablehook = hook


def _interrupt_main_thread() -> None:
    """Send SIGINT to the thread that handles it, so that it also ends a wait."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
