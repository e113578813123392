"""Types of values: dtype, shape and layout. Compared by value, never mutated.

A *layout* says what each replica holds of a value:

* `mirrored`: one value, the same on every replica;
* `per_replica`: one value per replica, possibly different;
* `partial(reducer)`: each replica holds a term; the value is the sum, or the mean, of all terms;
* `sharded(d)`: each replica holds its shard, along dimension `d`, of one full value;
* `sharded(d) over member`: the replicas are divided into groups, and each group holds all shards.
  Replica i of a group holds shard i (`graphdist.ir.mesh` has the axes of groups and members);
* None: not inferred yet (graphs fresh from the trace).

`mirrored` and `sharded(d)` may also say along which dimension the cores of a replica hold shards of
what is on the replica: `mirrored, core(1)`. Only variables between steps have such a layout, since
shapes in a graph are those on a core once it is split.

Shapes are the shapes on one replica. Layouts form the lattice mirrored < sharded(d) < per_replica.
If an operation has no rule of its own, its result is mirrored if all its operands are mirrored, and
per_replica otherwise. Only `to_partial` makes partial values. Only loops, reductions and operations
that are linear in a partial value accept it (`graphdist.ir.operation_table.partial_of`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import NamedTuple

import ml_dtypes  # registers bfloat16 and the 8-bit floats with numpy
import numpy as np

from graphdist.ir.mesh import REPLICA, MeshAxis, MeshShape


@dataclass(frozen=True, slots=True)
class Layout:
    """How the replicas hold a value.

    Use `MIRRORED`, `PER_REPLICA`, `sharded(dimension)` and `partial(reducer)`.
    """

    kind: str
    dimension: int | None = None
    axis: MeshAxis = REPLICA
    reducer: str = ""
    core: int | None = None
    blocks: tuple[int, ...] = ()
    """The sizes of the blocks along `dimension`, one behind the other, of which each is sharded for
    itself; none if the dimension is sharded as a whole."""

    def __str__(self) -> str:
        if self.core is not None:
            return f"{self.over_cores(None)}, core({self.core})"
        over = "" if self.axis == REPLICA else f" over {self.axis}"
        return f"{self.kind_along}{over}"

    @property
    def kind_along(self) -> str:
        """Return the layout without its axis, such as "sharded(0)" or "partial(sum)"."""
        along = self.reducer or self.dimension
        return self.kind if along is None else f"{self.kind}({along})"

    def along(self, dimension: int) -> Layout:
        """Return the layout sharded over the same axis, but along `dimension`."""
        return sharded(dimension, self.axis, self.blocks)

    def over_cores(self, dimension: int | None) -> Layout:
        """Return the layout of which the cores of a replica hold shards along a dimension."""
        return _over_cores(self, dimension)


MIRRORED = Layout("mirrored")
PER_REPLICA = Layout("per_replica")


def sharded(dimension: int, axis: MeshAxis = REPLICA, blocks: tuple[int, ...] = ()) -> Layout:
    """Return the layout of a value sharded evenly along `dimension`, over an axis of the mesh.

    >>> str(sharded(0)), str(sharded(1, "member"))
    ('sharded(0)', 'sharded(1) over member')
    >>> sharded(0) is sharded(0, axis="replica")
    True
    """
    return _sharded(dimension, axis, blocks)


@cache
def _sharded(dimension: int, axis: MeshAxis, blocks: tuple[int, ...]) -> Layout:
    return Layout("sharded", dimension, axis, blocks=blocks)


@cache
def partial(reducer: str) -> Layout:
    """Return the layout of a value whose terms, one per replica, are reduced by sum or mean.

    >>> str(partial("mean"))
    'partial(mean)'
    """
    return Layout("partial", reducer=reducer)


@cache
def _over_cores(layout: Layout, core: int | None) -> Layout:
    plain = {MIRRORED: MIRRORED, PER_REPLICA: PER_REPLICA}
    found = replace(layout, core=core)
    return plain.get(found, found)


def is_partial(layout: Layout | None) -> bool:
    """Return whether each replica holds a term of a value."""
    return layout is not None and bool(layout.reducer)


def join(layouts: Iterable[Layout | None]) -> Layout | None:
    """Return the layout of a value that each replica computes from values of these layouts.

    >>> str(join([MIRRORED, PER_REPLICA]))
    'per_replica'
    >>> join([MIRRORED, None]) is None
    True
    """
    result = MIRRORED
    for layout in layouts:
        if layout is None:
            return None
        if layout is not MIRRORED:
            result = PER_REPLICA
    return result


def join_alike(layouts: Iterable[Layout | None]) -> Layout | None:
    """Return the layout of a value that is chosen from several values, alike on all replicas.

    If some of the values are sharded along one dimension, and the rest are mirrored, the result is
    sharded along this dimension.

    >>> str(join_alike([MIRRORED, sharded(1)])), str(join_alike([sharded(0), sharded(1)]))
    ('sharded(1)', 'per_replica')
    """
    found = set(layouts)
    if None in found:
        return None
    if len(found) > 1 and not any(map(is_partial, found)):
        found.discard(MIRRORED)
    return MIRRORED if not found else found.pop() if len(found) == 1 else PER_REPLICA


class Type(NamedTuple):
    """The dtype, the shape on one replica, and the layout of a value.

    >>> print(Type("f32", (784, 128), PER_REPLICA))
    f32[784,128] per_replica
    >>> Type("bf16", (2, 3)).bytes
    12
    """

    dtype: str
    shape: tuple[int, ...]
    layout: Layout | None = None

    def __str__(self) -> str:
        text = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        return f"{text} {self.layout}" if self.layout else text

    @property
    def size(self) -> int:
        """Return the number of elements on one replica."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Return the bytes on one replica; random keys have 8 bytes per element."""
        return _bytes(self.dtype, self.shape)

    @property
    def sharded_along(self) -> int | None:
        """Return the dimension along which the value is sharded; None if it is not sharded."""
        return None if self.layout is None else self.layout.dimension

    def with_layout(self, layout: Layout | None) -> Type:
        """Return the type with this layout."""
        if layout is self.layout:
            return self
        return Type(self.dtype, self.shape, layout)

    def shaped(self, shape: tuple[int, ...]) -> Type:
        """Return the type with this shape."""
        return Type(self.dtype, shape, self.layout)

    def resized(self, dimension: int, length: int) -> Type:
        """Return the type with another length of a dimension."""
        shape = self.shape
        return self.shaped((*shape[:dimension], length, *shape[dimension + 1 :]))


@lru_cache(maxsize=4096)
def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return prod(shape) * (8 if dtype.startswith("key") else numpy_dtype(dtype).itemsize)


def own_slice(full: Type, dimension: int, mesh: MeshShape) -> Type:
    """Return the type of a replica's shard of a value that is sharded along a dimension.

    >>> print(own_slice(Type("f32", (8, 3)), 0, MeshShape(4)))
    f32[2,3] sharded(0)
    """
    layout = MIRRORED if mesh.group_size == 1 else sharded(dimension, mesh.axis)
    shard = full.resized(dimension, full.shape[dimension] // mesh.group_size)
    return shard.with_layout(layout)


_PREFIXES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
_NAMES = {
    f"{kind}{bits}": f"{short}{bits}"
    for kind, short in _PREFIXES.items()
    for bits in (2, 4, 8, 16, 32, 64, 128)
}
_NUMPY = {short: long for long, short in _NAMES.items()}


@lru_cache(maxsize=4096)  # limited, since programs can make any number of record dtypes
def dtype_name(dtype: object) -> str:
    """Return the short name of a numpy or JAX dtype; the dtype's own name if it has no short name.

    >>> dtype_name(np.dtype("float32")), dtype_name(np.dtype("bool"))
    ('f32', 'bool')
    """
    name = str(dtype)
    return _NAMES.get(name, name)


@lru_cache(maxsize=4096)
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Return the numpy dtype of a short name; raise TypeError if there is none (random keys).

    >>> numpy_dtype("bf16").itemsize
    2
    """
    long = _NUMPY.get(name, name)
    return np.dtype(getattr(ml_dtypes, long, long))


def is_inexact(dtype: str) -> bool:
    """Return whether a dtype is real or complex floating point."""
    return dtype.startswith(("f", "bf", "c"))


def is_integer(dtype: str) -> bool:
    """Return whether values of a dtype are integers; booleans are not."""
    return dtype[0] in "iu" and dtype[1:].isdigit()


_KEY = re.compile(r"key<\w{1,32}>", re.ASCII)


@lru_cache(maxsize=4096)
def is_dtype(name: str) -> bool:
    """Return whether a dtype of graphs has this short name.

    >>> [is_dtype(name) for name in ("bf16", "key<fry>", "f92", "float32", "O")]
    [True, True, False, False, False]
    """
    if _KEY.fullmatch(name):
        return True
    try:
        dtype = numpy_dtype(name)
    except TypeError:
        return False
    # Only booleans and numbers of numpy. Dtypes of ml_dtypes are recognized by name alone.
    is_number = dtype.kind in "biufc" or hasattr(ml_dtypes, _NUMPY.get(name, name))
    return is_number and dtype_name(dtype) == name
