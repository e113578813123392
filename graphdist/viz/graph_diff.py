"""The difference of two graphs: nodes added, removed, rewired and changed, by structure.

Nodes of two graphs are paired, by the best evidence first:

1. the same object, since a rewrite shares the nodes that it leaves alone;
2. the same computation: equal operation, parameters and shapes on operands that are the same
   computation, down to inputs and variables; if several nodes of a graph compute the same, the
   first is paired with the first of the other graph, the second with the second;
3. equal operation, parameters and shapes, in order; of several candidates the one with the most
   paired operands, directly or through nodes that were added between;
4. equal operation from the same line of the user's.

Nodes without a partner are removed or added. A pair is *rewired* if operands are not partners, and
*changed* if parameters or types differ. A type without a layout equals the same type with any
layout, because a pass that infers layouts changes no node. A read of a variable in one graph, and
the input bound to the same variable in the other graph, are the same value. Equality is defined by
`graphdist.ir.compare`: names, sources and the order of parameters do not count. Bodies of loops and
branches are compared if the nodes that contain them are paired.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice, pairwise

from graphdist.ir.analyses import walk
from graphdist.ir.compare import parameter_key
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.op_parameters import OfVariable
from graphdist.ir.printer import node_lines, print_literal

OperandKeys = tuple[Hashable, ...]
"""A key for each operand or result. Equal computations have equal keys. The key of a literal is the
literal."""


@dataclass(frozen=True)
class Diff:
    """The difference of two graphs.

    `removed` has nodes of `before`, `added` has nodes of `after`. `rewired` and `changed` have
    pairs of a node of `before` and a node of `after`. `kept` is the number of equal pairs.
    `partners` has all pairs, pairs of nested nodes included. `inputs` maps the inputs of `before`
    and of its bodies, and the reads of variables in `before`, to the inputs of `after` that have
    the same value.
    """

    before: Graph
    after: Graph
    removed: list[Node] = field(default_factory=list)
    added: list[Node] = field(default_factory=list)
    rewired: list[tuple[Node, Node]] = field(default_factory=list)
    changed: list[tuple[Node, Node]] = field(default_factory=list)
    kept: int = 0
    partners: dict[Node, Node] = field(default_factory=dict, repr=False)
    inputs: dict[Value, Value] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        """Return whether there is any difference."""
        return bool(self.removed or self.added or self.rewired or self.changed)

    def __str__(self) -> str:
        before, after = node_lines(self.before), node_lines(self.after)
        old_lines = {new: f"~ {before[old]}" for old, new in self.rewired}
        old_lines |= {new: f"! {before[old]}" for old, new in self.changed}
        added = set(self.added)
        lines = [
            f"{len(self.added)} added, {len(self.removed)} removed, {len(self.rewired)} rewired, "
            f"{len(self.changed)} changed, {self.kept} kept",
            *(f"- {before[node]}" for node in self.removed),
        ]
        for node, line in after.items():
            if node in added:
                lines.append(f"+ {line}")
            elif node in old_lines:
                lines += [old_lines[node], f"  becomes {line}"]
        return "\n".join(lines)


def diff(before: Graph, after: Graph) -> Diff:
    r"""Return the changes from one graph to another.

    >>> from graphdist.ir.parser import parse
    >>> text = '''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   %z = jax.exp(%y) : f32[3] mirrored
    ...   return %z
    ... }'''
    >>> other = text.replace("%z = jax.exp(%y)", "%s = jax.sin(%y) : f32[3] mirrored\n"
    ...     "  %z = jax.exp(%s)")
    >>> print(diff(parse(text), parse(other)))
    1 added, 0 removed, 1 rewired, 0 changed, 1 kept
    + %s = jax.sin(%y) : f32[3] mirrored
    ~ %z = jax.exp(%y) : f32[3] mirrored
      becomes %z = jax.exp(%s) : f32[3] mirrored
    """
    (difference,) = diffs((before, after))
    return difference


def diffs(graphs: Sequence[Graph]) -> list[Diff]:
    """Return the differences between successive graphs.

    The key of a node is computed once, because most passes keep most nodes as the same objects.
    """
    keys, found = _Keys(), []
    for before, after in pairwise(graphs):
        result = Diff(before, after)
        found.append(replace(result, kept=_Pairing(before, after, result, keys).run()))
    return found


class _Keys:
    """The keys by which nodes are compared: of the operation, or of the entire computation."""

    def __init__(self) -> None:
        self.of_shape, self.of_computations = cache(_shape_key), cache(self._keys_of)
        # By node: the keys of its operands, and the keys of the node and of its results that were
        # computed from them. An entry is valid while the operands have these keys.
        self._computed: dict[Node, tuple[OperandKeys, int, OperandKeys]] = {}

    def _keys_of(self, graph: Graph) -> dict[Node, int]:
        """Return a key for each node. Equal computations of any two graphs have equal keys."""
        arguments, variables = _inputs(graph)
        key_of: dict[Operand, Hashable] = {value: index for index, value in enumerate(arguments)}
        key_of |= {value: name for name, value in variables.items()}
        keys: dict[Node, int] = {}
        for node in graph.nodes:
            # Literals are slow to hash: here they are compared; `_computation` hashes their texts.
            operands = tuple(
                [each if isinstance(each, Literal) else key_of.get(each) for each in node.operands]
            )
            computed = self._computed.get(node)
            if computed is None or computed[0] != operands:
                computed = self._computed[node] = (operands, *self._computation(node, operands))
            keys[node] = computed[1]
            key_of.update(zip(node.results, computed[2], strict=True))
        return keys

    def _computation(self, node: Node, operands: OperandKeys) -> tuple[int, OperandKeys]:
        """Return the key of a node, and the keys of its results, from the keys of its operands."""
        texts = [print_literal(each) if isinstance(each, Literal) else each for each in operands]
        bodies = tuple([hash(tuple(self.of_computations(body).values())) for body in node.graphs])
        key = hash((self.of_shape(node), tuple(texts), bodies))
        if node.op.name == "read" and (variable := _variable_of(node)):
            return key, (variable,) * len(node.results)
        return key, tuple([hash((key, index)) for index in range(len(node.results))])

    def are_equal(self, old: Node, new: Node) -> bool:
        """Return whether two nodes apply the same operation, and their results have equal layouts.

        A missing layout equals every layout.
        """
        if old is new:
            return True
        results = zip(old.results, new.results, strict=False)
        layouts = ((one.type.layout, other.type.layout) for one, other in results)
        if any(None not in pair and pair[0] != pair[1] for pair in layouts):
            return False
        return self.of_shape(old) == self.of_shape(new)


def _shape_key(node: Node) -> Hashable:
    """Return a key that two nodes share if they apply the same operation, to any operands."""
    shapes = tuple((value.type.dtype, value.type.shape) for value in node.results)
    return node.op.name, shapes, parameter_key(node)


class _Pairing:
    """Pairs the nodes of two graphs, or of two bodies of paired nodes."""

    def __init__(self, before: Graph, after: Graph, result: Diff, keys: _Keys) -> None:
        self.before, self.after, self.result, self.keys = before, after, result, keys
        self.pairs: dict[Node, Node] = {}
        self.taken: set[Node] = set()
        self.values: dict[Value, Value] = {}  # from values of `before` to values of `after`
        self.producer = {value: node for node in after.nodes for value in node.results}
        self._pair_inputs()

    def run(self) -> int:
        """Pair the nodes, add the pairs to `result`, and return how many nodes were kept."""
        self._pair_same()
        if len(self.pairs) < len(self.before.nodes) and len(self.taken) < len(self.after.nodes):
            self._pair_equal()
        self._pair_like(self.keys.of_shape)
        self._pair_like(_line_key)
        return self._sort()

    def _pair_inputs(self) -> None:
        (arguments, variables), (others, bound) = _inputs(self.before), _inputs(self.after)
        self.values.update(zip(arguments, others, strict=False))
        names = {value: name for name, value in variables.items()}
        reads = (node for node in self.before.nodes if node.op.name == "read")
        names |= {node.results[0]: _variable_of(node) for node in reads}
        self.values |= {value: bound[name] for value, name in names.items() if name in bound}
        self.result.inputs.update(self.values)

    def _pair(self, old: Node, new: Node) -> None:
        self.pairs[old] = new
        self.taken.add(new)
        self.values.update(zip(old.results, new.results, strict=False))

    def _pair_same(self) -> None:
        later = set(self.after.nodes)
        for node in self.before.nodes:
            if node in later:
                self._pair(node, node)

    def _pair_equal(self) -> None:
        keys = self.keys.of_computations(self.after)
        waiting: defaultdict[Hashable, deque[Node]] = defaultdict(deque)
        for node, key in keys.items():
            if node not in self.taken:
                waiting[key].append(node)
        for node, key in self.keys.of_computations(self.before).items():
            if node not in self.pairs and key in waiting and (equal := waiting[key]):
                self._pair(node, equal.popleft())

    def _pair_like(self, key: Callable[[Node], Hashable]) -> None:
        waiting: defaultdict[Hashable, dict[Node, None]] = defaultdict(dict)
        for node in self.after.nodes:
            if node not in self.taken:
                waiting[key(node)][node] = None
        for node in self.before.nodes:
            if node in self.pairs:
                continue
            if candidates := waiting[key(node)]:
                # The first 16 are enough, because passes keep most of the order. All candidates
                # would take quadratic time.
                best = max(islice(candidates, 16), key=lambda new: self._likeness(node, new))
                del candidates[best]
                self._pair(node, best)

    def _likeness(self, old: Node, new: Node) -> float:
        score = 0.25 * (_line_key(old) == _line_key(new))
        for operand, other in zip(old.operands, new.operands, strict=False):
            if self._agree(operand, other):
                score += 1
            elif isinstance(other, Value) and (added := self.producer.get(other)) is not None:
                score += 0.5 * any(self._agree(operand, through) for through in added.operands)
        return score

    def _agree(self, old: Operand, new: Operand) -> bool:
        if isinstance(old, Literal):
            return isinstance(new, Literal) and print_literal(old) == print_literal(new)
        return self.values.get(old) is new

    def _is_wired(self, old: Node, new: Node) -> bool:
        """Return whether each operand of `new` is the partner of the same operand of `old`."""
        if old is new:
            partner = self.values.get
            return all(isinstance(each, Literal) or partner(each) is each for each in old.operands)
        return len(old.operands) == len(new.operands) and all(
            map(self._agree, old.operands, new.operands)
        )

    def _sort(self) -> int:
        result, kept = self.result, 0
        result.partners.update(self.pairs)
        result.removed.extend(_with_nested(n for n in self.before.nodes if n not in self.pairs))
        result.added.extend(_with_nested(n for n in self.after.nodes if n not in self.taken))
        for old, new in self.pairs.items():
            if not self._is_wired(old, new):
                result.rewired.append((old, new))
            elif not self.keys.are_equal(old, new):
                result.changed.append((old, new))
            else:
                kept += 1
            for bodies in zip(old.graphs, new.graphs, strict=False):
                kept += _Pairing(*bodies, result, self.keys).run()
        return kept


def _with_nested(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from chain.from_iterable(map(walk, node.graphs))


def _inputs(graph: Graph) -> tuple[tuple[Value, ...], dict[str, Value]]:
    """Return a graph's inputs that are arguments, and the inputs bound to variables, by name."""
    bound = [variable.name for variable in graph.variables] if graph.is_placed else []
    return graph.inputs[len(bound) :], dict(zip(bound, graph.inputs, strict=False))


def _variable_of(node: Node) -> str:
    return node.params.variable.name if isinstance(node.params, OfVariable) else ""


def _line_key(node: Node) -> Hashable:
    return node.op.name, node.source.frame
