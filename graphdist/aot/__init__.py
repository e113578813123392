"""`gd.aot`: compiled steps are saved in files, and loaded from them."""

from graphdist.aot.loaded_step import LoadedStep
from graphdist.aot.reading import SavedVariable, list_variables
from graphdist.aot.saving import load, save

__all__ = ["LoadedStep", "SavedVariable", "list_variables", "load", "save"]
