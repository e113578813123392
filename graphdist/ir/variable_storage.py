"""How a graph says that a variable is stored between steps, and what it is kept for.

`choice_of_storage.py` has the rules that choose among the forms, and `graphdist.state.storage`
carries them out. In the text of a graph both are attributes of the variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class StoredUnsharded:
    """Each replica stores the full value, in a buffer of the variable's own.

    One that `is_alone` must have such a buffer, and enters no pack.
    """

    is_alone: bool = False


UNSHARDED = StoredUnsharded()


@dataclass(frozen=True, slots=True)
class StoredSharded:
    """Each replica stores its shard along a dimension."""

    dimension: int


@dataclass(frozen=True, slots=True)
class StoredInPack:
    """The value is a part of a buffer of several variables; `start` and `size` count elements."""

    pack: str
    start: int
    size: int
    """The elements of the entire pack."""


@dataclass(frozen=True, slots=True)
class StoredInCopies:
    """Each replica stores a copy of its own of a value that users see as one, by local steps.

    The type of the variable is per replica in a graph that computes with the copies, and mirrored
    in one that does not know of them yet.
    """


@dataclass(frozen=True, slots=True)
class StoredOnServer:
    """The parameter server of this index stores the value."""

    server: int


VariableStorage: TypeAlias = (
    StoredUnsharded | StoredSharded | StoredInPack | StoredInCopies | StoredOnServer
)


@dataclass(frozen=True, slots=True)
class PackOf:
    """The variable is itself a pack, of the variables with these names; "" is an unknown part."""

    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddedRole:
    """Local steps have added the variable, and keep it for the variables that it serves."""

    serves: tuple[str, ...]
    text: ClassVar[str]
    """What texts call the role, and the names of such variables; slots have an index, too."""

    def __str__(self) -> str:
        return self.text


class StepCount(AddedRole):
    """It counts steps since the last synchronization."""

    text = "steps"


class Anchor(AddedRole):
    """It is the value of one variable at the last synchronization."""

    text = "anchor"


@dataclass(frozen=True, slots=True)
class OuterSlot(AddedRole):
    """It is a slot of the outer optimizer, by its index among the slots."""

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
    """Return the storage that attributes describe; raises ValueError for one that is none.

    A variable that is sharded has left its pack.
    """
    match attributes:
        case {"server": int(server)}:
            return StoredOnServer(server)
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
    """Return the role that attributes describe; raises ValueError for one that is none."""
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
