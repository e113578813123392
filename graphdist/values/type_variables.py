"""Type variables of the public classes that are generic.

They have defaults, so that `gd.Function` and `gd.DistributedDataset` without brackets mean those of
anything. `typing` has defaults from Python 3.13 on; type checkers know them from
`typing_extensions`, which need not be installed.

To a type checker a distributed value has the type of what one replica holds of it: `run` returns
what the replica function returns, `reduce` the type of what it reduces.
"""

from typing import TYPE_CHECKING, Any  # Any: what is left open

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
