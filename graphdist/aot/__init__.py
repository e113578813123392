"""`gd.aot`: compiled steps are saved in files, and loaded from them."""

from graphdist.aot.loaded_step import LoadedStep
from graphdist.aot.saving import load, save

__all__ = ["LoadedStep", "load", "save"]
