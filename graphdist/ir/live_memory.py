"""The memory of a step, counted on its graph: which bytes are in use at each node.

The graph is what one device runs. Its nodes are walked in order, and each value in memory gets a
buffer, which is in use from the node that makes it to the last node that reads it. The liveness is
that of a compiler's register allocation (Aho, Lam, Sethi and Ullman, "Compilers", section 9.2.5);
the rules for buffers are XLA's (`HloDataflowAnalysis`, `CopyInsertion`), as far as a graph shows
them:

* *Values that XLA fuses* have no buffer (`graphdist.ir.fused_values`).
* *Inputs of the step* are in memory all the time. The new value of a variable is written to the
  variable's own buffer if nothing reads the old value later. A gather along another dimension than
  the first is not, since XLA changes its layout.
* *Updates in place* (`dynamic_update_slice`, scatter) and carries of loops take the buffer of
  their operand if nothing reads the operand later. So does a fused value of the same size.
* *Products* are written in the type to which their only reader converts them.
* *Loops*: a body adds the most bytes that it uses at one of its nodes. Its constants are read
  where they are, each slice of a scanned operand is a buffer of an iteration, and a stacked result
  is one buffer, written slice by slice. If a stack is only converted to a smaller type, slice by
  slice, XLA converts the whole stack before the loop, once for all loops. A fused constant is
  computed in the body, except in the body of another loop, where XLA writes it to memory unless
  it is computed from literals.
* *Branches*: of a `cond` the branch counts that uses the most bytes.
* *Collectives*: a value is gathered where it is first read, since XLA delays what takes memory. A
  gradient is reduced and scattered where the graph does it, a very large one in a loop as soon as
  it is made.
* *The host's memory*: a value that `device_put` sends to the host is counted there, and so is a
  stack of such values.
* *Padding*: the operands and results of convolutions have batch and features in tiles of 8 x 128.

The compiler schedules nodes in another order, and places some values in a core's own memory. So its
peak differs; `docs/estimates.md` says by how much.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from graphdist.ir.analyses import kept_analysis, users
from graphdist.ir.fused_values import (
    BARRIERS,
    CONVOLUTION,
    FUSED,
    FUSES_OPERANDS,
    UPDATES,
    VIEWS,
    FusedValues,
)
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.host_copies import copies_to_host
from graphdist.ir.jax_parameters import feature_dimensions
from graphdist.ir.loops import Scan, Taken, While
from graphdist.ir.ops import ALL_GATHER, REDUCE_SCATTER, SCAN, TAKE_STEP, WHILE
from graphdist.ir.types import Type

LANES, SUBLANES = 128, 8
"""The tile in which the memory of a TPU holds the last two dimensions of a layout."""
SCATTERED_AT_ONCE = 2**29
"""The fewest bytes of a gradient that XLA reduces and scatters as soon as it is made."""
_CONVERSION = "jax.convert_element_type"


class LiveValue(NamedTuple):
    """A value in memory, and the bytes of its buffer."""

    value: Value
    bytes: int


class HeldValue(NamedTuple):
    """A value in a device's memory: the positions at which its buffer comes and goes, its bytes.

    The position before the first node is -1, that after the last node the number of nodes.
    """

    value: Value
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LiveMemory:
    """The bytes of a graph's values that are in a device's memory, node by node.

    `during` has the bytes while each node runs, and `peak` is the largest number of bytes.
    `position` is the index of the first node that reaches the peak, or -1 if the inputs alone reach
    it. `node` is that node, `alive` has the values of the graph that are in memory then, and
    `inside` is the memory of the nested graph that runs then, beyond its inputs; None if there is
    none. `host_peak` is the most bytes that are in the memory of the host. `held` has all values,
    and `nested` the memory of the nested graphs that run at a position.
    """

    during: tuple[int, ...]
    peak: int
    position: int
    node: Node | None
    alive: tuple[LiveValue, ...]
    inside: LiveMemory | None
    host_peak: int
    held: tuple[HeldValue, ...]
    nested: Mapping[int, tuple[tuple[Graph, LiveMemory], ...]]

    def at_peak(self) -> tuple[Node | None, tuple[LiveValue, ...]]:
        """Return the innermost node at the peak, and the values in memory there.

        The node is None if the peak is before the first node.
        """
        if self.inside is None:
            return self.node, self.alive
        node, alive = self.inside.at_peak()
        return node or self.node, self.alive + alive


@kept_analysis
def live_memory(graph: Graph) -> LiveMemory:
    """Return the bytes that a graph holds in a device's memory while each node runs.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[4] mirrored) {
    ...   %y = jax.neg(%x) : f32[4] mirrored
    ...   %z = jax.sort(%y) : f32[4] mirrored
    ...   return %z
    ... }''')
    >>> live_memory(graph).during
    (16, 48)
    """
    return _Walk(graph, is_step=True).memory()


@dataclass(eq=False, slots=True)
class _Buffer:
    """Memory for a value, in use from position `first` to position `last`.

    `is_given`: the buffer is an input, which has its bytes outside of a nested graph.
    """

    value: Value
    bytes: int
    first: int
    last: int
    is_given: bool = False
    is_on_host: bool = False


class _Walk:
    """Follows the buffers of a step, of the body of a loop, or of a branch, from node to node."""

    def __init__(
        self,
        graph: Graph,
        loop: Scan | While | None = None,
        on_host: Collection[Value] = (),
        *,
        is_step: bool = False,
    ) -> None:
        """Walk through the graph. `on_host` are the inputs in the memory of the host."""
        self._graph, self._is_step, self._end = graph, is_step, len(graph.nodes)
        slices = {taken.value for taken in loop.scanned}.difference(on_host) if loop else set()
        self._fused = FusedValues(graph, set(graph.inputs) - slices)
        self._padded = _padded_dimensions(graph)
        self._buffers: dict[Value, _Buffer] = {}
        self._all: list[_Buffer] = []
        self._sharing: list[tuple[_Buffer, Sequence[_Buffer]]] = []
        self._owners: dict[_Buffer, _Buffer] = {}
        self._converted: dict[tuple[Value, str], _Buffer] = {}
        self._products: set[Value] = set()
        self._inside: dict[int, LiveMemory] = {}
        self._nested: dict[int, tuple[tuple[Graph, LiveMemory], ...]] = {}
        for value in graph.inputs:
            self._add_input(value, is_slice=value in slices, is_on_host=value in on_host)
        for position, node in enumerate(graph.nodes):
            self._run(position, node)
        self._finish(loop)

    def is_on_host(self, operand: Operand) -> bool:
        """Return whether an operand is in the memory of the host."""
        if not isinstance(operand, Value):
            return False
        buffer = self._buffers.get(self._fused.viewed(operand))
        return buffer is not None and buffer.is_on_host

    def memory(self) -> LiveMemory:
        """Return the memory that the graph uses."""
        device, host = self._totals(on_host=False), self._totals(on_host=True)
        for number, nested in self._inside.items():
            device[number + 1] += nested.peak
            host[number + 1] += nested.host_peak
        peak = max(device)
        position = device.index(peak) - 1
        held = tuple(
            HeldValue(each.value, each.bytes, each.first, each.last)
            for each in self._all
            if each.bytes and not each.is_on_host
        )
        alive = tuple(
            LiveValue(each.value, each.bytes)
            for each in held
            if each.first <= position <= each.last
        )
        during = device[1 : self._end + 1]
        if during:
            during[-1] = max(during[-1], device[self._end + 1])
        at, inside = min(position, self._end - 1), self._inside.get(position)
        node = None if at < 0 else self._graph.nodes[at]
        return LiveMemory(
            tuple(during), peak, at, node, alive, inside, max(host), held, self._nested
        )

    def _totals(self, *, on_host: bool) -> list[int]:
        """Return the bytes before the first node, at each node, and after the last one."""
        changes = [0] * (self._end + 4)
        for buffer in self._all:
            if buffer.is_on_host == on_host:
                changes[buffer.first + 1] += buffer.bytes
                changes[buffer.last + 2] -= buffer.bytes
        return list(accumulate(changes[: self._end + 2]))

    def _add(self, value: Value, at: int, size: int) -> _Buffer:
        buffer = _Buffer(value, size, at, at)
        self._all.append(buffer)
        return buffer

    def _make(self, value: Value, at: int) -> _Buffer:
        dimensions = self._padded.get(value)
        size = _padded_bytes(value.type, *dimensions) if dimensions else value.type.bytes
        self._buffers[value] = self._add(value, at, size)
        return self._buffers[value]

    def _add_input(self, value: Value, *, is_slice: bool, is_on_host: bool) -> None:
        if is_slice:
            read_as = _only_conversion(users(self._graph)[value]) or value.type
            size = 0 if self._fused.is_read_in_place(value) else read_as.bytes
            self._buffers[value] = self._add(value, 0, size)
            return
        buffer = self._add(value, -1, value.type.bytes if self._is_step else 0)
        buffer.is_given, buffer.is_on_host = True, is_on_host
        self._buffers[value] = buffer

    def _read(self, operand: Operand, at: int) -> tuple[_Buffer, ...]:
        """Read the buffers from which an operand is computed, and return them."""
        if not isinstance(operand, Value):
            return ()
        buffers = tuple(self._buffers[value] for value in self._fused.behind[operand])
        for buffer in buffers:
            buffer.last = max(buffer.last, at)
        return buffers

    def _take(self, operand: Operand, at: int) -> _Buffer | None:
        """Return the buffer of an operand that must be in memory; None for a literal."""
        if not isinstance(operand, Value):
            return None
        value = self._fused.viewed(operand)
        # A value that is computed from nothing is computed again for each node that takes it.
        if value not in self._buffers or not self._fused.behind[value]:
            self._write(value, at)
        buffer = self._buffers[value]
        buffer.last = max(buffer.last, at)
        return buffer

    def _write(self, value: Value, at: int) -> None:
        """Write a fused value to memory, for a node that cannot compute it."""
        behind = self._fused.behind[value]
        if len(behind) == 1 and behind[0] in self._products:
            product = self._buffers[behind[0]]
            # The outputs are one reader, but may be several.
            readers = self._fused.readers[behind[0]]
            if len(readers) == 1 and self._end not in readers:
                product.bytes = 0
                self._buffers[behind[0]] = self._make(value, product.first)
                return
        operands = self._read(value, at)
        self._sharing.append((self._make(value, at), operands))

    def _run(self, position: int, node: Node) -> None:
        name = node.op.name
        if node.op is SCAN or node.op is WHILE:
            self._run_loop(position, Scan(node) if node.op is SCAN else While(node))
        elif name in UPDATES:
            target = self._take(node.operands[0], position)
            self._read_all(node.operands[1:], position)
            self._make_sharing(node.results[0], position, () if target is None else (target,))
        elif name in BARRIERS or name in VIEWS or name in FUSED:
            if name in BARRIERS:
                self._take_all(node.operands, position)
            made = [result for result in node.results if self._fused.behind[result] == (result,)]
            buffers = self._read_all(node.operands, position) if made else ()
            for result in made:
                self._make_sharing(result, position, buffers)
        else:
            self._run_other(self._moved(position, node), node)

    def _run_other(self, at: int, node: Node) -> None:
        """Run a node that writes all its results to memory."""
        fuses = node.op.name in FUSES_OPERANDS
        (self._read_all if fuses else self._take_all)(node.operands, at)
        if node.graphs:
            branches = tuple((graph, _Walk(graph).memory()) for graph in node.graphs)
            self._nested[at] = branches
            self._inside[at] = max((memory for _, memory in branches), key=lambda each: each.peak)
        on_host = copies_to_host(node)
        for result in node.results:
            self._make(result, at).is_on_host = on_host
        if fuses:
            self._products.update(node.results)

    def _moved(self, position: int, node: Node) -> int:
        """Return the position at which XLA runs a node, which may be another than the graph's."""
        if node.op is ALL_GATHER:
            first = min(self._fused.readers[node.results[0]], default=position)
            is_returned = self._is_step and first == self._end
            return position if is_returned else max(position, first)
        is_large = any(each.type.bytes >= SCATTERED_AT_ONCE for each in node.operands)
        if node.op is REDUCE_SCATTER and is_large and not self._is_step:
            behind = self._all_behind(node.operands)
            return min(position, max((buffer.first for buffer in behind), default=position))
        return position

    def _all_behind(self, operands: Iterable[Operand]) -> list[_Buffer]:
        values = (operand for operand in operands if isinstance(operand, Value))
        return [self._buffers[each] for value in values for each in self._fused.behind[value]]

    def _read_all(self, operands: Iterable[Operand], at: int) -> list[_Buffer]:
        return [buffer for operand in operands for buffer in self._read(operand, at)]

    def _take_all(self, operands: Iterable[Operand], at: int) -> None:
        for operand in operands:
            self._take(operand, at)

    def _make_sharing(self, value: Value, at: int, operands: Sequence[_Buffer]) -> None:
        """Make a value, which may take the place of one of its operands."""
        self._sharing.append((self._make(value, at), operands))

    def _run_loop(self, position: int, loop: Scan | While) -> None:
        taken = (*loop.constants, *loop.scanned)
        on_host = [each.value for each in taken if self.is_on_host(each.operand)]
        walk = _Walk(loop.body, loop, on_host)
        self._inside[position] = walk.memory()
        self._nested[position] = ((loop.body, self._inside[position]),)
        for each in taken:
            self._enter_loop(position, each, loop)
        for carry in loop.carries:
            first = self._take(carry.first, position)
            self._make_sharing(carry.last, position, () if first is None else (first,))
        for stacked in loop.stacked:
            self._make(stacked.result, position).is_on_host = walk.is_on_host(stacked.output)

    def _enter_loop(self, position: int, taken: Taken, loop: Scan | While) -> None:
        """Hold a constant or scanned operand of a loop."""
        operand = taken.operand
        if not isinstance(operand, Value):
            return
        smaller = _converted_type(taken, loop)
        if smaller is not None:
            if (operand, smaller.dtype) not in self._converted:
                self._read(operand, position)
                buffer = self._add(operand, position, smaller.bytes)
                self._converted[operand, smaller.dtype] = buffer
            self._converted[operand, smaller.dtype].last = position
        elif self._is_computed_inside(operand):
            self._read(operand, position)
        else:
            self._take(operand, position)

    def _is_computed_inside(self, value: Value) -> bool:
        """Return whether a loop computes a constant in its body, from values of half the size."""
        if value in self._buffers or self._fused.viewed(value) is not value:
            return False
        behind = sum(buffer.bytes for buffer in self._all_behind((value,)))
        return (self._is_step or value in self._fused.literals) and 2 * behind < value.type.bytes

    def _finish(self, loop: Scan | While | None) -> None:
        """Write the outputs, and let buffers share their places."""
        for stacked in loop.stacked if loop else ():
            if isinstance(stacked.output, Value):
                value = self._fused.viewed(stacked.output)
                if value not in self._buffers:
                    self._read(value, self._end)
                elif self._buffers[value].is_on_host:
                    self._buffers[value].bytes = 0  # copied from the device into the stack
        if loop:
            replaced = [(carry.value, carry.following) for carry in loop.carries]
        else:
            is_placed = self._is_step and self._graph.is_placed
            variables = self._graph.variable_inputs
            assigned = self._graph.variable_outputs if is_placed else {}
            replaced = [(variables[name], output) for name, output in assigned.items()]
            self._return(self._graph.outputs[len(replaced) :], [new for _, new in replaced])
        for _, following in replaced:
            self._hold(following)
        self._share()
        for old, new in replaced:
            self._replace(old, new)
        if self._is_step:
            for value in self._graph.inputs:
                self._buffers[value].last = self._end

    def _return(self, outputs: Iterable[Operand], assigned: Iterable[Operand]) -> None:
        """Return outputs, each in a buffer of its own."""
        written = {self._hold(output) for output in assigned}
        for output in outputs:
            buffer = self._hold(output)
            if buffer is not None and self._is_step and (buffer.is_given or buffer in written):
                self._add(buffer.value, self._end, buffer.value.type.bytes)
            written.add(buffer)

    def _hold(self, output: Operand) -> _Buffer | None:
        """Return the buffer of an output, which is in use after the last node."""
        buffer = self._take(output, self._end)
        if buffer is not None:
            buffer.last = self._end + 1
        return buffer

    def _share(self) -> None:
        """Let results take the buffers of operands of the same size that are not used later."""
        for buffer, operands in sorted(self._sharing, key=lambda pair: pair[0].first):
            for each in operands:
                owner = self._owner(each)
                fits = owner.bytes == buffer.bytes > 0 and owner.last <= buffer.first
                if fits and not owner.is_given and owner is not buffer:
                    owner.last, buffer.bytes = max(owner.last, buffer.last), 0
                    self._owners[buffer] = owner
                    break

    def _owner(self, buffer: _Buffer) -> _Buffer:
        while buffer in self._owners:
            buffer = self._owners[buffer]
        return buffer

    def _replace(self, old: Value, new: Operand) -> None:
        """Write a new value to the buffer of the input that it replaces, if that can be free."""
        if not isinstance(new, Value):
            return
        value = self._fused.viewed(new)
        owner, given = self._owner(self._buffers[value]), self._buffers[old]
        changes_layout = self._is_step and value in _gathers_along_others(self._graph)
        if not owner.is_given and given.last <= owner.first and not changes_layout:
            owner.bytes = 0


@kept_analysis
def _gathers_along_others(graph: Graph) -> set[Value]:
    """Return the values that are gathered along another dimension than the first."""
    gathers = (node for node in graph.nodes if node.op is ALL_GATHER and ALL_GATHER.of(node).axis)
    return {node.results[0] for node in gathers}


def _only_conversion(nodes: Sequence[Node]) -> Type | None:
    """Return the type to which all of these nodes convert their operand; None if they do not."""
    types = {node.results[0].type for node in nodes if node.op.name == _CONVERSION}
    is_only = len(types) == 1 and all(node.op.name == _CONVERSION for node in nodes)
    return types.pop() if is_only else None


def _converted_type(taken: Taken, loop: Scan | While) -> Type | None:
    """Return the type to which XLA converts a whole stack before a loop; None if it does not."""
    using, stack = users(loop.body).get(taken.value, ()), taken.operand.type
    if taken in loop.constants:
        if any(node.op is not TAKE_STEP or node.operands[0] is not taken.value for node in using):
            return None
        using = tuple(user for node in using for user in users(loop.body)[node.results[0]])
    found = None if taken.value in loop.body.outputs else _only_conversion(using)
    if found is None:
        return None
    converted = Type(found.dtype, stack.shape)
    return converted if converted.bytes < stack.bytes else None


def _padded_dimensions(graph: Graph) -> dict[Value, tuple[int, int]]:
    """Return the dimensions of batch and features of each operand and result of a convolution."""
    found = {}
    for node in graph.nodes:
        if node.op.name == CONVOLUTION:
            dimensions = feature_dimensions(node)
            for value, each in zip((node.operands[0], node.results[0]), dimensions, strict=False):
                if isinstance(value, Value):
                    found[value] = each
    return found


def _padded_bytes(type: Type, *dimensions: int) -> int:
    """Return the bytes of an array whose tiles extend along two dimensions.

    >>> _padded_bytes(Type("bf16", (64, 10, 10, 3)), 0, 3) == 2 * 128 * 10 * 10 * 4
    True
    """
    first, second = (type.shape[dimension] for dimension in dimensions)
    elements = min(_tiled(first, second), _tiled(second, first))
    return type.bytes // max(first * second, 1) * elements


def _tiled(lanes: int, sublanes: int) -> int:
    """Return the elements of an array in tiles; few sublanes are padded to a power of 2."""
    few = sublanes <= SUBLANES // 2
    rows = 1 << max(sublanes - 1, 0).bit_length() if few else -(-sublanes // SUBLANES) * SUBLANES
    return -(-lanes // LANES) * LANES * rows
