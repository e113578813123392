"""The packages of extras, and the one error where such a package is missing.

graphdist can be imported without any extra. A feature that needs a package of an extra calls
`require_package` first.
"""

from __future__ import annotations

import importlib.util

from graphdist.ir.errors import GraphdistError
from graphdist.tracing.user_lines import here


class MissingExtraError(GraphdistError, ImportError):
    """A package that an optional feature needs is not installed; `name` is the package.

    The hint says which extra of graphdist installs the package. Every feature that needs an extra
    raises this class.
    """

    default_source = staticmethod(here)


EXTRAS = {
    "flatbuffers": ("export", "flatbuffers"),
    "google.cloud.compute_v1": ("gce", "google-cloud-compute"),
    "google.cloud.tpu_v2": ("gce", "google-cloud-tpu"),
    "jax_cuda12_plugin": ("cuda", "jax_cuda12_plugin"),
    "keras": ("keras", "keras"),
    "kubernetes": ("kubernetes", "kubernetes"),
    "libtpu": ("tpu", "libtpu"),
    "malt": ("loops", "diastatic-malt"),
    "mpi4py": ("mpi", "mpi4py"),
    "ray": ("ps", "ray"),
    "tensorstore": ("checkpoint", "tensorstore"),
}
"""The extra that installs a module, and the name of the module's package, by module."""


def require_package(module: str, feature: str, *, otherwise: str = "") -> None:
    """Raise `MissingExtraError` unless a module of `EXTRAS` is installed. Do not import the module.

    The error says that `feature` needs the module. `otherwise` is a way to do without the module.
    """
    if has_package(module):
        return
    extra, package = EXTRAS[module]
    hint = f"pip install 'graphdist[{extra}]'"
    error = MissingExtraError(
        f"{feature} needs the package {package}, which is not installed",
        hint=f"{hint}, or {otherwise}" if otherwise else hint,
    )
    error.name = package
    raise error


def has_package(module: str) -> bool:
    """Return whether a module is installed, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it is in
        return False
