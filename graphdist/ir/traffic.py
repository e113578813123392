"""The bytes that nodes move between a device and its memory, once XLA has fused them.

XLA fuses elementwise operations and moves of elements into the operations that read their results.
So the values of a graph are of two kinds:

* A *stored* value is in memory: an input, or the result of an operation that is not fused, such as
  a product, a reduction, a kernel, a collective or a loop.
* A *fused* value is computed where it is read. It is stored too if two operations read it and to
  read it takes fewer bytes than to compute it again, or if an operation that fuses nothing reads
  it: a kernel, a collective, a loop, or the end of the graph.

Products are fused with elementwise operations on both sides, except where `fuses_products` is
False, as on GPUs: there products are calls of a library, which fuse nothing.

An operation that is not fused reads the stored values that its operands are computed from, and
writes its results. Fused values that have to be stored are written by fusions: all fused values
that are computed from each other are one fusion, which reads each stored value once.

Where products are fused, on TPUs, kernels have fixed layouts, so that a transposition before or
behind a kernel is a copy. What goes to the host or comes from there is copied, too.

A slice of a value reads the slice, and is copied if it is a result. An update in place reads and
writes the update; its target is stored.

A loop writes a result that it stacks into the stack. A product writes there at once, and so does a
fusion that at most one operation reads. Copied are an input of the body, a result of a kernel, what
a kernel or a collective reads, and what a fusion writes for several operations or for a copy in
front of a kernel. So is the slice of a scanned operand that a kernel or a reduction reads. Without
a loop nothing of this is copied. (As the compiler for TPUs does it, in modules of decoders.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from graphdist.ir.fused_values import (
    BARRIERS,
    CONVOLUTION,
    DYNAMIC_UPDATE,
    FUSED,
    UPDATES,
    VIEWS,
)
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.host_copies import DEVICE_PUT, copies_from_host, copies_to_host
from graphdist.ir.kernels import KERNEL
from graphdist.ir.loops import Scan
from graphdist.ir.operation_table import TABLE
from graphdist.ir.ops import SCAN

_GATHER = "jax.gather"
_SLICES = {"jax.dynamic_slice", "jax.slice", "jax.split", "take_step", "take_part"}
TRANSPOSE = "jax.transpose"
_VIEWS = (VIEWS | BARRIERS | {"constant", DEVICE_PUT, "jax.unstack", "unpack"}) - {TRANSPOSE}
"""The operations whose results are their operands."""
_FUSED = (
    FUSED
    | {TRANSPOSE, "join_parts", "own_slice", "pack", "replica_id", "scale", "select_replica"}
    | {"to_partial"}
) - (_VIEWS | _SLICES)
PRODUCTS = {"jax.dot_general", CONVOLUTION, "jax.ragged_dot_general"}
_SUMS = {"jax.add", "jax.add_any"}
_REDUCTIONS = {name for name in TABLE if name.startswith("jax.reduce_")} - _FUSED
_READS_STORED = {KERNEL, "jax.sort"}
"""The operations that compute none of their operands, besides collectives and loops."""
_END = -1
"""The reader of the results of a graph."""


def traffic(graph: Graph, *, fuses_products: bool = True) -> Mapping[Node, int]:
    """Return the bytes that each node of a graph moves, without the nodes of nested graphs.

    Nodes that are fused into others move nothing; a fusion's bytes count at its last node.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[8,8] mirrored, %w: f32[8,8] mirrored) {
    ...   %y = jax.mul(%x, %x) : f32[8,8] mirrored
    ...   %z = jax.neg(%y) : f32[8,8] mirrored
    ...   %s = jax.reduce_sum(%z) {axes=(0,)} : f32[8] mirrored
    ...   %v = jax.sub(%w, %z) : f32[8,8] mirrored
    ...   return %s, %v
    ... }''')
    >>> {node.op.name: moved for node, moved in traffic(graph).items()}
    {'jax.reduce_sum': 288, 'jax.sub': 768}
    """
    return _Traffic(graph, fuses_products=fuses_products).moved


class _Traffic:
    def __init__(self, graph: Graph, *, fuses_products: bool) -> None:
        self._nodes = graph.nodes
        self._fusing_products = PRODUCTS if fuses_products else ()
        self._products = [
            (index, node)
            for index, node in enumerate(graph.nodes)
            if node.op.name in self._fusing_products
        ]
        self._indirect = _readers(graph)
        self._direct: defaultdict[Operand, list[Node]] = defaultdict(list)
        """The nodes that read each value itself or a view of it."""
        self._viewed = _viewed(graph)
        self._copies = _copies(graph, self._viewed) if fuses_products else set()
        self._kept = {
            self._of(value)
            for node in graph.nodes
            if self._keeps_operands(node) or node in self._copies
            for value in node.operands
        }.union(map(self._of, graph.outputs))
        self._kept |= {
            self._of(node.operands[0]) for node in graph.nodes if node.op.name in UPDATES
        }
        """The values that have to be in memory, whatever reads them besides."""
        self._sources: dict[Operand, frozenset[Value]] = {}
        """The stored values that each value is computed from."""
        self._fusions: dict[Node, _Fusion] = {}
        self._maker: dict[Operand, _Fusion] = {}
        self.moved: dict[Node, int] = {}
        self._store(graph.inputs)
        for index, node in enumerate(graph.nodes):
            self._add(index, node)
        for fusion in dict.fromkeys(map(_Fusion.found, self._fusions.values())):
            if fusion.written:
                self._count(fusion)

    def _add(self, index: int, node: Node) -> None:
        if _is_view(node):
            return
        for operand in node.operands:
            self._direct[self._of(operand)].append(node)
        if node.op.name in _FUSED and node not in self._copies:
            self._fuse(index, node)
            return
        self._store(node.results)
        if node in self._copies:
            self.moved[node] = 2 * _bytes(node.results)
        elif node.op.name in UPDATES:
            update = node.operands[1 if node.op.name == DYNAMIC_UPDATE else -1]
            self.moved[node] = 2 * update.type.bytes
        elif node.op.name == _GATHER or (node.op.name in _SLICES and self._has_kept(node)):
            self.moved[node] = 2 * _bytes(node.results)
        elif node.op is SCAN:
            scan = Scan(node)
            if not scan.is_unrolled and (copied := self._copied_by(scan)):
                self.moved[node] = copied
        elif node.op.name not in _SLICES and not node.graphs:
            # What a kernel or a collective reads was stored by fusions.
            read = node.operands if self._keeps_operands(node) else self._read(node.operands)
            self.moved[node] = _bytes(read) + _bytes(node.results)

    def _copied_by(self, scan: Scan) -> int:
        """Return the bytes of copies from and to the scanned and stacked values of a loop."""
        body = scan.body
        viewed, readers = _viewed(body), _readers(body)
        stored = {viewed.get(each, each) for each in body.inputs}
        read = {
            viewed.get(operand, operand)
            for node in _copies(body, viewed)
            for operand in node.operands
        }
        written = set[Operand]()
        """What fusions write."""
        for node in body.nodes:
            operands = {viewed.get(each, each) for each in node.operands}
            if node.op.name in _READS_STORED or node.op.is_collective:
                stored |= operands.union(node.results)
                read |= operands
            elif node.op.name in _FUSED:
                written.update(node.results)
        outputs = [viewed.get(output, output) for output, _ in scan.stacked]
        copied = [
            each
            for each in outputs
            if each in stored
            or (each in written and (each in read or len(readers[each] - {_END}) > 1))
        ]
        copied += [
            value
            for _, value in scan.scanned
            if value in read
            or any(body.nodes[i].op.name in _REDUCTIONS for i in readers[value] - {_END})
        ]
        return 2 * scan.length * _bytes(copied)

    def _has_kept(self, node: Node) -> bool:
        return not self._kept.isdisjoint(node.results)

    def _of(self, value: Operand) -> Operand:
        return self._viewed.get(value, value)

    def _store(self, values: Iterable[Value]) -> None:
        self._sources.update({value: frozenset((value,)) for value in values})

    def _fuse(self, index: int, node: Node) -> None:
        read = self._read(node.operands)
        makers = (self._maker.get(self._of(each)) for each in node.operands)
        fusion = _Fusion.joined([each for each in makers if each is not None])
        fusion.read |= read
        fusion.last = index
        self._fusions[node] = fusion
        for result in node.results:
            self._maker[result] = fusion
            if self._is_stored(result, read):
                fusion.written.add(result)
                self._store((result,))
            else:
                self._sources[result] = read

    def _is_stored(self, value: Value, read: frozenset[Value]) -> bool:
        names = [self._nodes[index].op.name for index in self._indirect[value] if index != _END]
        products = sum(name in self._fusing_products for name in names)
        reads, own = _bytes(read), value.type.bytes
        several = len(names) - products > 1 and reads > own
        return value in self._kept or several or products * (reads - own) > reads + own

    def _read(self, operands: Iterable[Operand]) -> frozenset[Value]:
        values = map(self._of, operands)
        return frozenset().union(*(self._sources.get(each, ()) for each in values))

    def _count(self, fusion: _Fusion) -> None:
        """Count the bytes of a fusion: at its last node, or at the product that it is fused into.

        The product's result is not read then, and is written only if something else reads it. Of
        a sum of products, each product adds its terms to those before.
        """
        node, moved = self._nodes[fusion.last], fusion.bytes
        products = list(self._products_before(fusion))
        if products:
            node, (result,) = products[0], products[0].results
            moved -= (1 if result in self._kept else 2) * result.type.bytes
        terms = [each for each in products if self._is_term(each)]
        for each in terms if node in terms else [node]:
            share = moved // len(terms) if node in terms else moved
            self.moved[each] = self.moved.get(each, 0) + share

    def _products_before(self, fusion: _Fusion) -> Iterator[Node]:
        """Yield the products whose results are read by a fusion alone, the last first."""
        for index, node in reversed(self._products):
            if index < fusion.last and node.results[0] in fusion.read:
                readers = self._direct[node.results[0]]
                fusions = [self._fusions[each] for each in readers if each in self._fusions]
                if len(fusions) == len(readers) and all(x.found() is fusion for x in fusions):
                    yield node

    def _is_term(self, product: Node) -> bool:
        readers = self._direct[product.results[0]]
        return len(readers) == 1 and readers[0].op.name in _SUMS

    def _keeps_operands(self, node: Node) -> bool:
        """Return whether a node reads its operands from memory."""
        name = node.op.name
        stores = name in _READS_STORED or (name in PRODUCTS and not self._fusing_products)
        return stores or node.op.is_collective or bool(node.graphs)


class _Fusion:
    """A fusion: the stored values that it reads and writes, and the index of its last node."""

    def __init__(self) -> None:
        self.read: set[Value] = set()
        self.written: set[Value] = set()
        self.last = 0
        self._joined: _Fusion | None = None

    def found(self) -> _Fusion:
        """Return the fusion of which this one has become a part."""
        whole = self
        while whole._joined is not None:
            whole = whole._joined
        if whole is not self:
            self._joined = whole  # so that the next search is short
        return whole

    @classmethod
    def joined(cls, fusions: Iterable[_Fusion]) -> _Fusion:
        """Return one fusion of several."""
        parts = dict.fromkeys(map(_Fusion.found, fusions))
        whole, *others = sorted(parts, key=lambda part: -len(part.read)) or [cls()]
        for part in others:
            whole.read |= part.read
            whole.written |= part.written
            part._joined = whole
        return whole

    @property
    def bytes(self) -> int:
        """Return the bytes that the fusion reads and writes."""
        return _bytes(self.read | self.written)


def _copies(graph: Graph, viewed: Mapping[Operand, Operand]) -> set[Node]:
    """Return the transpositions before and behind kernels, and the copies of the host."""
    kernels = [node for node in graph.nodes if node.op.name == KERNEL]
    near = {viewed.get(each, each) for node in kernels for each in (*node.operands, *node.results)}
    return {
        node
        for node in graph.nodes
        if (
            node.op.name == TRANSPOSE
            and not near.isdisjoint({viewed.get(node.operands[0], node.operands[0]), *node.results})
        )
        or copies_to_host(node)
        or copies_from_host(node)
    }


def _viewed(graph: Graph) -> dict[Operand, Operand]:
    """Return for each view the value of which it is one."""
    viewed: dict[Operand, Operand] = {}
    for node in graph.nodes:
        if _is_view(node):
            for operand, result in zip(node.operands, node.results, strict=False):
                viewed[result] = viewed.get(operand, operand)
    return viewed


def _is_view(node: Node) -> bool:
    is_copy = copies_to_host(node) or copies_from_host(node)
    return node.op.name in _VIEWS and not is_copy


def _readers(graph: Graph) -> defaultdict[Operand, set[int]]:
    """Return the indices of the nodes that read each value, through the fused nodes between."""
    readers: defaultdict[Operand, set[int]] = defaultdict(set)
    for output in graph.outputs:
        readers[output].add(_END)
    for index, node in reversed(list(enumerate(graph.nodes))):
        is_fused = node.op.name in _FUSED or _is_view(node)
        through = {each for result in node.results for each in readers[result]}
        for operand in node.operands:
            readers[operand] |= through if is_fused else {index}
    return readers


def _bytes(values: Iterable[Operand]) -> int:
    return sum(value.type.bytes for value in values)
