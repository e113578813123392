"""The storage of a variable between steps, and its role, as a graph states them.

`sharded_parameters.py` has the rules that choose a form of storage, and `graphdist.state.storage`
implements the forms. In the text of a graph storage and role are attributes of the variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class StoredUnsharded:
    """Each replica stores the full value, in a buffer of this variable alone.

    With `is_alone` the variable must keep a buffer of its own. So it enters no pack.
    """

    is_alone: bool = False


UNSHARDED = StoredUnsharded()


@dataclass(frozen=True, slots=True)
class StoredSharded:
    """Each replica stores its shard along a dimension."""

    dimension: int


@dataclass(frozen=True, slots=True)
class StoredInPack:
    """The value is a part of the buffer `pack`, and begins at the element with index `start`."""

    pack: str
    start: int
    size: int
    """The number of elements of the pack."""


@dataclass(frozen=True, slots=True)
class StoredInCopies:
    """Each replica stores its own copy of a value that users see as one, for local steps.

    The variable is per replica in a graph that computes with the copies, and mirrored in a graph
    before the pass `local_steps`.
    """


@dataclass(frozen=True, slots=True)
class StoredOnServer:
    """The parameter server of this index stores the value."""

    server: int


@dataclass(frozen=True, slots=True)
class StoredElsewhere:
    """The variable belongs to another strategy, whose devices store the full value between steps.

    A step gets the value mirrored, and must return it mirrored.
    """


VariableStorage: TypeAlias = (
    StoredUnsharded
    | StoredSharded
    | StoredInPack
    | StoredInCopies
    | StoredOnServer
    | StoredElsewhere
)


@dataclass(frozen=True, slots=True)
class PackOf:
    """The variable is a pack of the variables with these names; "" is an unknown piece."""

    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddedRole:
    """The variable was added by local steps, for the variables named in `serves`."""

    serves: tuple[str, ...]
    text: ClassVar[str]
    """The name of the role in the text of a graph and in names of variables. A slot adds an index.
    """

    def __str__(self) -> str:
        return self.text


class StepCount(AddedRole):
    """The variable counts steps since the last synchronization."""

    text = "steps"


class Anchor(AddedRole):
    """The variable has the value that the one in `serves` had at the last synchronization."""

    text = "anchor"


@dataclass(frozen=True, slots=True)
class OuterSlot(AddedRole):
    """The variable is a slot of the outer optimizer, with an index among the slots."""

    index: int
    text = "slot"

    def __str__(self) -> str:
        return f"{self.text} {self.index}"


VariableRole: TypeAlias = PackOf | AddedRole


def storage_attributes(storage: VariableStorage, *, is_per_replica: bool) -> dict[str, object]:
    """Return the attributes that describe a storage in the text of a graph.

    >>> storage_attributes(StoredInPack("pack_0", 4, 6), is_per_replica=False)
    {'piece': ('pack_0', 4, 6)}
    """
    match storage:
        case StoredUnsharded(is_alone):
            return {"alone": True} if is_alone else {}
        case StoredSharded(dimension):
            return {"sharded_along": dimension}
        case StoredInPack(pack, start, size):
            return {"piece": (pack, start, size)}
        case StoredOnServer(server):
            return {"server": server}
        case StoredElsewhere():
            return {"elsewhere": True}
        case StoredInCopies():
            return {"role": "local" if is_per_replica else "copies"}


def role_attributes(role: VariableRole | None) -> dict[str, object]:
    """Return the attributes that describe a role in the text of a graph."""
    if role is None:
        return {}
    if isinstance(role, PackOf):
        return {"pieces": role.pieces}
    return {"role": str(role), "serves": role.serves}


def storage_of(attributes: Mapping[str, object]) -> VariableStorage:
    """Return the storage that the attributes of a variable describe.

    A variable with both `sharded_along` and `piece` is sharded, and no longer in the pack. Raises
    `ValueError` if `piece` is malformed.
    """
    match attributes:
        case {"server": int(server)}:
            return StoredOnServer(server)
        case {"elsewhere": True}:
            return StoredElsewhere()
        case {"role": "local" | "copies"}:
            return StoredInCopies()
        case {"sharded_along": int(dimension)}:
            return StoredSharded(dimension)
        case {"piece": (str(pack), int(start), int(size))}:
            return StoredInPack(pack, start, size)
        case {"piece": piece}:
            raise ValueError(f"piece={piece!r} is no pack, start and size")
        case _:
            return StoredUnsharded(attributes.get("alone") is True)


def role_of(attributes: Mapping[str, object]) -> VariableRole | None:
    """Return the role that the attributes of a variable describe; None without such attributes.

    Raises `ValueError` if `role` and `serves` do not fit each other.
    """
    serves = attributes.get("serves", ())
    assert isinstance(serves, tuple)
    match attributes:
        case {"pieces": tuple(pieces)}:
            return PackOf(pieces)
        case {"role": "steps"} if serves:
            return StepCount(serves)
        case {"role": "anchor"} if len(serves) == 1:
            return Anchor(serves)
        case {"role": str(role)} if serves and role.startswith("slot ") and role[5:].isdecimal():
            return OuterSlot(serves, int(role[5:]))
        case {"role": str(role)} if serves or role not in ("local", "copies"):
            raise ValueError(f"a variable has no role={role!r} that serves {list(serves)}")
        case {"serves": _} if serves:
            raise ValueError(f"a variable that serves {list(serves)} has no role")
    return None
