"""The version of the project, and the versions of the packages that it compiles with.

The project's version is in `VERSION` alone, from which the package's metadata are made.
"""

from __future__ import annotations

import importlib.metadata
from contextlib import suppress

import jax

VERSION = "0.2.0"


def versions() -> dict[str, str]:
    """Return the versions that a compiled step depends on."""
    installed = {
        "graphdist": VERSION,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "libtpu": "",
    }
    with suppress(importlib.metadata.PackageNotFoundError):
        installed["libtpu"] = importlib.metadata.version("libtpu")
    return installed
