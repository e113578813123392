"""The axes of the mesh of replicas, along which values are sharded and collectives communicate.

All replicas form the axis `replica`. A strategy that shards values over groups of replicas divides
this axis into two: `group`, the index of a group, and `member`, the index of a replica in its
group. Each group then holds all shards of a value that is sharded over `member`. The id of a
replica is `group` times the group size plus `member`.

A replica of several devices has one more axis, `core`. The devices of a replica are consecutive:
the index of a device is the replica's id times the number of cores plus `core`. Only
`passes/cores` and what runs a graph know this axis: the other passes see what one core of each
replica runs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

MeshAxis: TypeAlias = Literal["replica", "member", "core"]
"""An axis that values are sharded over."""

REPLICA: Literal["replica"] = "replica"
GROUP: Literal["group"] = "group"
MEMBER: Literal["member"] = "member"
CORE: Literal["core"] = "core"


class MeshShape(NamedTuple):
    """The number of replicas, and the number of groups into which they are divided.

    >>> shape = MeshShape(num_replicas=8, num_groups=2)
    >>> shape.group_size, shape.axis, shape.size("replica"), shape.size("member")
    (4, 'member', 8, 4)
    >>> MeshShape(8).axis
    'replica'
    """

    num_replicas: int
    num_groups: int = 1

    @property
    def group_size(self) -> int:
        """Return the number of replicas in a group, which is the number of shards of a variable."""
        return self.num_replicas // self.num_groups

    @property
    def axis(self) -> MeshAxis:
        """Return the axis over which variables are sharded."""
        return REPLICA if self.num_groups == 1 else MEMBER

    def size(self, axis: MeshAxis) -> int:
        """Return the number of shards of a value that is sharded over an axis."""
        return self.num_replicas if axis == REPLICA else self.group_size
