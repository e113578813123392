"""Ctrl-C in workers, at moments when Python cannot raise it.

Python prints and ignores a `KeyboardInterrupt` within a destructor or a callback of the garbage
collector. JAX has a callback of the garbage collector, in which about one Ctrl-C in some hundreds
was lost, so that the worker continued. So the interrupt is raised again, a moment later.
`cluster_workers.py` handles Ctrl-C at the end of a worker, `supervised_steps.py` within a step.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any  # Any: what Python passes to the hook has no public type

_SECONDS_UNTIL_AGAIN = 0.05
"""The delay before the interrupt is raised again. Before the callback ends, it would be lost."""


def raise_ignored_interrupts() -> None:
    """From now on, raise each interrupt again that Python has ignored."""
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
    """Send SIGINT to the main thread, which handles the signal, even while the thread waits."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
