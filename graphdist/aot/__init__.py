"""A compiled step in a file, and from it: `gd.aot`."""

from graphdist.aot.loaded_step import LoadedStep
from graphdist.aot.steps import load, save

__all__ = ["LoadedStep", "load", "save"]
