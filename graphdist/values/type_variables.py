"""Type variables of the public classes that are generic.

They have defaults, so that `gd.Function` and `gd.DistributedDataset` need no type arguments.
`typing` has defaults from Python 3.13 on; type checkers know them from `typing_extensions`, which
need not be installed.

For a type checker a distributed value has the type of one replica's component: `run` returns the
result type of the replica function, and `reduce` the type of its argument.
"""

from typing import TYPE_CHECKING, Any  # Any: the default

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    Parameters = ParamSpec("Parameters", default=...)
    Result_co = TypeVar("Result_co", covariant=True, default=Any)
    Element_co = TypeVar("Element_co", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    Parameters = ParamSpec("Parameters")
    Result_co = TypeVar("Result_co", covariant=True)
    Element_co = TypeVar("Element_co", covariant=True)
