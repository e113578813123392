"""Compute each of several equal computations on one replica, in place of all on every replica.

An optimizer that works on whole matrices, such as Muon, computes the same for each matrix. If
replicas have the matrices in shards, each replica would gather all matrices and work on all of
them. Here each matrix gets an owner: an all_to_all turns a replica's shards of all matrices into
whole matrices, 1/R of them; a loop computes these; another all_to_all turns the results into
shards, or an all_gather joins them where they are used unsharded. A replica does 1/R of the work.
An all_to_all sends 1/R of the bytes of a gather.

Before:  %a = all_gather(%x)   %f = jax.dot_general(%a, %a)   %u = own_slice(%f)
         %b = all_gather(%y)   %g = jax.dot_general(%b, %b)   %v = own_slice(%g)
After:   %s = concatenate(%x, %y)   %o = all_to_all(%s) {split_axis=0, ..}
         %h = scan(%o) { %f = jax.dot_general(%m, %m) }
         %t = all_to_all(%h) {concat_axis=0, ..}   %u, %v = unpack(%t)

How it works. `repeated_computations.py` finds what every replica repeats, and `batch_entries.py`
the entries of a stack of matrices. Entries of one graph are computed together. Those whose matrices
come as shards along the same dimensions, in a number that R divides, are exchanged. The others are
stacked, and each replica takes its own slice of the stack; the last entry is repeated until R
divides their number. What stands between a gather and the computation, such as a transpose, is done
on the shards.

Left alone: one computation that is no batch; computations that depend on each other; and those for
which a replica would save fewer than `flops_per_byte` operations for each byte of the results.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from graphdist.ir.analyses import has_effect, operations, producers, users
from graphdist.ir.compare import content_hash, is_same_program
from graphdist.ir.cost import cost
from graphdist.ir.factors import Factors
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.loops import While
from graphdist.ir.mesh import MeshShape
from graphdist.ir.op_parameters import (
    AlongAxis,
    Exchanging,
    Gathering,
    Joining,
    OverReplicas,
    Reshaping,
    Scanning,
    Unpacking,
)
from graphdist.ir.operation_table import divides, factors_of, on_shards
from graphdist.ir.ops import (
    ALL_GATHER,
    ALL_TO_ALL,
    CONCATENATE,
    COND,
    OWN_SLICE,
    RESHAPE,
    SCAN,
    TAKE_STEP,
    UNPACK,
    WHILE,
)
from graphdist.ir.rewrite import Copier
from graphdist.ir.types import MIRRORED, Type
from graphdist.passes.layouts.batch_entries import BatchEntries, batch_entries_of
from graphdist.passes.layouts.elementwise_chains import only_operand
from graphdist.passes.layouts.repeated_computations import LARGE, repeated_computations

NAME = "compute_by_owner"
P = TypeVar("P", bound=OverReplicas)


@dataclass(frozen=True, slots=True)
class ComputeByOwner:
    """The pass; it has to save `flops_per_byte` operations for each byte of the results."""

    flops_per_byte: int

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with each of several equal computations on one replica."""
        return self._changed(graph, graph.mesh)

    def _changed(self, graph: Graph, mesh: MeshShape) -> Graph:
        if mesh.group_size == 1 or operations(graph).isdisjoint(LARGE):
            return graph
        changed: Graph | None = graph
        while changed is not None:
            graph = changed
            applied = (group.applied(self.flops_per_byte) for group in _groups(graph, mesh))
            changed = next((each for each in applied if each is not None), None)
        # A loop that is a repeated computation gets an owner before the products in its body.
        copier = Copier()
        for node in graph.nodes:
            graphs = node.graphs
            if _is_reached_by_all(node):
                graphs = tuple(self._changed(nested, mesh) for nested in graphs)
            copier.copy(node, graphs)
        return copier.changed(graph)

    def chosen(self, graph: Graph) -> list[str]:
        """Return what is computed by owners."""
        return [
            f"{group.at()}: a replica computes {group.owned} of them"
            for group in self._large(graph, graph.mesh)
            if group.applied(self.flops_per_byte) is not None
        ]

    def declined(self, graph: Graph) -> list[str]:
        """Return the large computations that every replica repeats."""
        return [
            f"{group.at()}: every replica computes all of it, since "
            f"{group.problem(self.flops_per_byte) or 'one depends on another'}"
            for group in self._large(graph, graph.mesh)
            if group.applied(self.flops_per_byte) is None
        ]

    def _large(self, graph: Graph, mesh: MeshShape) -> Iterator[_Group]:
        """Yield the computations that are large enough for owners, also of nested graphs."""
        if mesh.group_size == 1 or operations(graph).isdisjoint(LARGE):
            return
        repeated = set[Node]()
        for group in _groups(graph, mesh):
            if group.applied(self.flops_per_byte) is not None:
                repeated.update(node for each in group.members for node in each.computation.nodes)
            if group.is_large(self.flops_per_byte):
                yield group
        for node in graph.nodes:
            if node not in repeated and _is_reached_by_all(node):
                for nested in node.graphs:
                    yield from self._large(nested, mesh)


def _is_reached_by_all(node: Node) -> bool:
    """Return whether all replicas run the nested graphs of a node, equally often."""
    if node.op is COND:
        return node.operands[0].type.layout is MIRRORED
    if node.op is WHILE:
        return While(node).predicate.type.layout is MIRRORED
    return True


def _groups(graph: Graph, mesh: MeshShape) -> Iterator[_Group]:
    """Yield the computations of the graph that are equal but for their operands."""
    found = repeated_computations(graph)
    uses = Counter(value for each in found for value in each.outside)
    common = {value for value, count in uses.items() if count > 1}
    equal = defaultdict[object, list[list[BatchEntries]]](list)
    for computation in found:
        if computation.outside and computation.results:
            entries = batch_entries_of(computation, graph, common)
            # Two functions of one name have the same hash.
            groups = equal[content_hash(entries.graph), entries.shared]
            same = (group for group in groups if is_same_program(group[0].graph, entries.graph))
            group = next(same, None)
            if group is None:
                groups.append(group := [])
            group.append(entries)
    return (_Group(graph, mesh, tuple(group)) for groups in equal.values() for group in groups)


@dataclass(frozen=True, slots=True)
class _Shards:
    """A value that is gathered from shards, and then changed by operations on this value alone."""

    gather: Node
    chain: tuple[tuple[Node, int, int], ...]
    """The operations, each with the index of its operand and the factor of the shards."""
    dimension: int
    """The dimension along which the value would be sharded."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the gather and the operations, which nothing needs if shards are exchanged."""
        return self.gather, *(node for node, _, _ in self.chain)

    def add(self, copier: Copier, count: int) -> Operand:
        """Add the operations on the shard; return their result."""
        (shard,) = copier.now(self.gather.operands)
        for node, index, factor in self.chain:
            operands = [shard if i == index else each for i, each in enumerate(node.operands)]
            (shard,) = on_shards(node, operands, factor, count, copier)
        return shard


@dataclass(frozen=True, slots=True)
class _Part:
    """Entries that one loop computes, and their shards; without shards they are mirrored."""

    members: tuple[BatchEntries, ...]
    shards: tuple[tuple[_Shards, ...], ...] = ()
    """For each member the shards of its stacked values."""

    @property
    def replaced(self) -> Iterator[Node]:
        """Yield the nodes in place of which shards are exchanged."""
        return (node for member in self.shards for shards in member for node in shards.nodes)

    @property
    def count(self) -> int:
        """Return the number of entries."""
        return sum(member.count for member in self.members)

    def own(self, mesh: MeshShape) -> int:
        """Return the number of entries that one replica computes."""
        return -(-self.count // mesh.group_size)


class _Group:
    """Computations of one graph that are equal but for their operands."""

    def __init__(self, graph: Graph, mesh: MeshShape, members: tuple[BatchEntries, ...]) -> None:
        """Divide the members into the parts that are computed by one loop each."""
        self.graph, self.mesh, self.members = graph, mesh, members
        self.parts = tuple(self._divided())

    @property
    def count(self) -> int:
        """Return the number of entries."""
        return sum(member.count for member in self.members)

    @property
    def owned(self) -> int:
        """Return the number of entries that one replica computes if each has an owner."""
        return sum(part.own(self.mesh) for part in self.parts)

    def is_large(self, flops_per_byte: int) -> bool:
        """Return whether an entry has so many operations for each byte of its results."""
        first = self.members[0].graph
        sent = sum(output.type.bytes for output in first.outputs)
        return cost(first).total_flops >= flops_per_byte * sent

    def problem(self, flops_per_byte: int) -> str:
        """Return why owners would save too few operations; "" if they save enough."""
        saved = self.count - self.owned
        if saved <= 0:
            return f"{self.mesh.group_size} replicas cannot divide it"
        if not self.is_large(flops_per_byte * self.count // saved):
            return f"owners would do {self.owned} of {self.count}, too little for what they send"
        return ""

    def at(self) -> str:
        """Return how many entries there are of which type, and where."""
        first = self.members[0]
        largest = max(first.graph.outputs, key=lambda output: output.type.bytes)
        type = largest.type.with_layout(None)
        return f"{self.count} x {type} at {first.computation.nodes[-1].source}"

    def _divided(self) -> Iterator[_Part]:
        """Yield the parts whose shards are exchanged, then the part of all other members."""
        alike = defaultdict[tuple[int, ...], list[tuple[BatchEntries, tuple[_Shards, ...]]]](list)
        others = []
        for member in self.members:
            found = [self._shards(member, value) for value in member.stacked]
            shards = tuple(each for each in found if each is not None)
            if shards and len(shards) == len(found):
                alike[tuple(each.dimension for each in shards)].append((member, shards))
            else:
                others.append(member)
        for pairs in alike.values():
            pairs.sort(key=lambda pair: -pair[0].count)
            while sum(member.count for member, _ in pairs) % self.mesh.group_size:
                others.append(pairs.pop()[0])
            if pairs:
                members, shards_of = zip(*pairs, strict=True)
                yield _Part(tuple(members), tuple(shards_of))
        if others:
            yield _Part(tuple(others))

    def _shards(self, member: BatchEntries, value: Value) -> _Shards | None:
        """Return the shards from which a value is gathered for a computation alone, if it is."""
        made_by, used_by = producers(self.graph), users(self.graph)
        using, chain = set(member.computation.nodes), list[tuple[Node, int]]()
        node, now = made_by.get(value), value
        while node is not None and using.issuperset(used_by[now]) and now not in self.graph.outputs:
            if node.op is ALL_GATHER:
                return self._on_shards(node, chain[::-1], member)
            index = only_operand(node)
            if index is None:
                return None
            operand = node.operands[index]
            assert isinstance(operand, Value)
            chain.append((node, index))
            using, now = {node}, operand
            node = made_by.get(operand)
        return None

    def _on_shards(
        self, gather: Node, chain: Sequence[tuple[Node, int]], member: BatchEntries
    ) -> _Shards | None:
        params, on_shards = ALL_GATHER.of(gather), list[tuple[Node, int, int]]()
        if params.mesh.group_size != self.mesh.group_size:
            return None
        dimension: int | None = params.axis
        for node, index in chain:
            found = factors_of(node)
            factor = (
                None if found is None or dimension is None else found.operands[index][dimension]
            )
            if found is None or factor is None:
                return None
            if not divides(node, found, factor, self.mesh.group_size):
                return None
            dimension = Factors.dimension(found.results[0], factor)
            on_shards.append((node, index, factor))
        if dimension is None or (member.count > 1 and dimension == 0):
            return None
        return _Shards(gather, tuple(on_shards), dimension)

    def _needed(self) -> Iterator[Operand]:
        """Yield the values that the loops use."""
        for part in self.parts:
            for index, member in enumerate(part.members):
                yield from member.shared
                if part.shards:
                    for shards in part.shards[index]:
                        yield from shards.gather.operands
                else:
                    yield from member.stacked

    def applied(self, flops_per_byte: int) -> Graph | None:
        """Return the graph with the loops.

        Return None if they save too little, or if a computation depends on another.
        """
        if self.problem(flops_per_byte):
            return None
        loops = [_Loop(self.graph, self.mesh, part) for part in self.parts]
        removed = {node for member in self.members for node in member.computation.nodes}
        removed.update(node for loop in loops for node in loop.slices)
        removed.update(node for part in self.parts for node in part.replaced)
        rest = [node for node in self.graph.nodes if node not in removed]
        needed = set(self._needed())
        made_at = [i for i, node in enumerate(rest) if not needed.isdisjoint(node.results)]
        front = max(made_at, default=-1) + 1
        before, postponed = list[Node](), list[Node]()
        late = {result for node in removed for result in node.results}
        for node in rest[:front]:
            is_late = any(type(each) is Value and each in late for each in node.operands)
            if is_late or (postponed and has_effect(node)):
                postponed.append(node)
                late.update(node.results)
            else:
                before.append(node)
        if not late.isdisjoint(needed):
            return None
        copier = Copier(NAME)
        for node in before:
            copier.copy(node)
        for loop in loops:
            loop.add(copier)
        for node in (*postponed, *rest[front:]):
            copier.copy(node)
        return copier.changed(self.graph)


class _Loop:
    """The loop over a replica's own entries of a part."""

    def __init__(self, graph: Graph, mesh: MeshShape, part: _Part) -> None:
        """Find the results of which only shards are used."""
        self.mesh, self.part, (first, *_) = mesh, part, part.members
        self.body, self.at = first.graph, first.computation.nodes[-1].source
        used_by, outputs = users(graph), set(graph.outputs)
        self.taken: list[tuple[int, list[list[Node]]] | None] = []
        """For each result, the dimension of the shards that are used, and each member's slices."""
        for index in range(len(first.results)):
            values = [member.results[index] for member in part.members]
            slices = [list(used_by[value]) for value in values]
            self.taken.append(self._sharded(slices) if outputs.isdisjoint(values) else None)

    @property
    def slices(self) -> Iterator[Node]:
        """Yield the nodes that take shards of results."""
        return (node for taken in self.taken if taken for nodes in taken[1] for node in nodes)

    def _sharded(self, using: list[list[Node]]) -> tuple[int, list[list[Node]]] | None:
        if not all(using) or any(node.op is not OWN_SLICE for nodes in using for node in nodes):
            return None
        slices = [OWN_SLICE.of(node) for nodes in using for node in nodes]
        axis = slices[0].axis
        is_entry = axis == 0 and any(member.count > 1 for member in self.part.members)
        is_same = all(each.axis == axis and each.mesh == self.mesh for each in slices)
        return (axis, using) if is_same and not is_entry else None

    def add(self, copier: Copier) -> None:
        """Add the loop, with what gives each replica its own entries and takes the results."""
        first = self.part.members[0]
        stacks = [
            self._exchanged(index, copier) if self.part.shards else self._own_slice(index, copier)
            for index in range(len(first.stacked))
        ]
        params = Scanning(
            length=self.part.own(self.mesh),
            reverse=False,
            unroll=1,
            num_consts=len(first.shared),
            num_carry=0,
        )
        operands = (*copier.now(first.shared), *stacks)
        made = copier.add(SCAN, operands, params, (self.body,), at=self.at)
        for index, (stack, taken) in enumerate(zip(made, self.taken, strict=True)):
            if taken is None:
                (whole,) = copier.add(
                    ALL_GATHER, (stack,), self._over(Gathering, axis=0), at=self.at
                )
                values = [member.results[index] for member in self.part.members]
                copier.put(values, self._unpacked(copier, whole, values, None))
                continue
            dimension, slices = taken
            exchanging = self._over(Exchanging, split_axis=dimension + 1, concat_axis=0)
            (shards,) = copier.add(ALL_TO_ALL, (stack,), exchanging, at=self.at)
            of_member = [nodes[0].results[0] for nodes in slices]
            pieces = self._unpacked(copier, shards, of_member, dimension)
            for nodes, piece in zip(slices, pieces, strict=True):
                for node in nodes:
                    copier.put(node.results, [piece])

    def _over(self, parameters: type[P], **values: int) -> P:
        """Return parameters of a collective over the replicas of each group."""
        mesh = self.mesh
        return parameters(**values, group_size=mesh.group_size, num_groups=mesh.num_groups)

    def _exchanged(self, index: int, copier: Copier) -> Operand:
        """Return a replica's own entries of a stacked value, of which replicas have shards."""
        shards = [each[index] for each in self.part.shards]
        stack = self._stacked([each.add(copier, self.mesh.group_size) for each in shards], copier)
        params = self._over(Exchanging, split_axis=0, concat_axis=shards[0].dimension + 1)
        return copier.add(ALL_TO_ALL, (stack,), params, at=self.at)[0]

    def _own_slice(self, index: int, copier: Copier) -> Operand:
        """Return a replica's own entries of a stacked value that every replica has."""
        values = [member.stacked[index] for member in self.part.members]
        stack = self._stacked(copier.now(values), copier)
        missing = -self.part.count % self.mesh.group_size
        if missing:
            number = Literal.of(self.part.count - 1, Type("i32", ()))
            (last,) = copier.add(TAKE_STEP, (stack, number), at=self.at)
            shape = Reshaping((1, *last.type.shape))
            (last,) = copier.add(RESHAPE, (last,), shape, at=self.at)
            (stack,) = copier.add(CONCATENATE, (stack, *[last] * missing), Joining(0), at=self.at)
        return copier.add(OWN_SLICE, (stack,), self._over(AlongAxis, axis=0), at=self.at)[0]

    def _stacked(self, values: Sequence[Operand], copier: Copier) -> Operand:
        """Return the entries of the members' values along a new dimension 0."""
        stacks = list[Operand]()
        for member, value in zip(self.part.members, values, strict=True):
            shape = list(value.type.shape)
            if shape:
                shape[0] //= member.count
            params = Reshaping((member.count, *shape))
            stacks += copier.add(RESHAPE, (value,), params, at=self.at)
        if len(stacks) == 1:
            return stacks[0]
        return copier.add(CONCATENATE, stacks, Joining(0), at=self.at)[0]

    def _unpacked(
        self, copier: Copier, stack: Value, like: Sequence[Value], dimension: int | None
    ) -> tuple[Value, ...]:
        """Return the entries of a stack as values `like` these, sharded along `dimension`."""
        shapes = [value.type.shape for value in like]
        rest = stack.type.size - sum(value.type.size for value in like)
        axes = [] if dimension is None else [dimension] * len(shapes)
        if rest:
            shapes.append((rest,))
            axes += [0] * (dimension is not None)
        (flat,) = copier.add(RESHAPE, (stack,), Reshaping((stack.type.size,)), at=self.at)
        params = Unpacking(tuple(shapes), axes=tuple(axes), over=self.mesh.axis)
        return copier.add(UNPACK, (flat,), params, at=self.at)[: len(like)]
