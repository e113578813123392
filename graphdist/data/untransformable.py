"""Refuses the transformations of `gd.data.Dataset` on a dataset that is distributed."""

from __future__ import annotations

from typing import NoReturn, TypeVar

from graphdist.errors import DatasetError
from graphdist.tracing.user_lines import here

Class = TypeVar("Class", bound=type)

_TRANSFORMATIONS = """batch cache concatenate enumerate filter map padded_batch prefetch repeat
shard shuffle skip take unbatch with_options zip"""


def untransformable(datasets: Class) -> Class:
    """Give a class of datasets properties that raise `DatasetError` for each transformation."""
    for name in _TRANSFORMATIONS.split():
        setattr(datasets, name, _refused(name))
    return datasets


def _refused(name: str) -> property:
    def refuse(dataset: object) -> NoReturn:
        raise DatasetError(
            f"a {type(dataset).__name__} has no {name!r}: it cannot be transformed any more",
            source=here(),
            hint="transform the dataset before it is distributed, and iterate it as it is",
        )

    return property(refuse)
