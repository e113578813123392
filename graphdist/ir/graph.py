"""Graphs: inputs, an ordered tuple of nodes, outputs.

1. Nothing is changed after construction. A rewrite builds a new `Graph` and shares the unchanged
   parts.
2. `Value`, `Node` and `Graph` have identity; types, literals and parameters have value equality.
   `graphdist.ir.compare` says whether two graphs are the same program.
3. There are no back pointers: users of a value are computed by `graphdist.ir.analyses`.
4. Nodes are made by `graphdist.ir.builder` alone, which runs the operation's type rule.
5. Every node has the user's source line and the name of the pass that made it.
6. Order has meaning: effects and collectives run in the order of the nodes, on every replica.

A graph is at one `Stage`. At LOGICAL, nodes read and assign variables. From PLACED on there are no
such nodes. Then the first inputs are the variables' values, in the order of `variables`, and the
first outputs are the new values of the assigned variables, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeAlias, TypedDict, TypeVar, Unpack

from graphdist.ir.mesh import MeshShape
from graphdist.ir.parameters import Parameters
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED, Layout, Type, own_slice
from graphdist.ir.variable_storage import (
    UNSHARDED,
    PackOf,
    StoredInCopies,
    StoredInPack,
    StoredOnServer,
    StoredSharded,
    VariableRole,
    VariableStorage,
)

if TYPE_CHECKING:
    from networkx import DiGraph


class Stage(Enum):
    """How far a graph has been lowered."""

    LOGICAL = "logical"
    """The program in the operations of the strategy."""
    PLACED = "placed"
    """Variables are inputs and outputs with a layout."""
    SPMD = "spmd"
    """What one device runs: local shapes, explicit collectives."""


@dataclass(slots=True, eq=False, repr=False)
class Value:
    """A result of a node or an input of a graph. The printer names the value after `hint`."""

    type: Type
    hint: str = ""

    def __repr__(self) -> str:
        return f"<value {self.hint} {self.type}>"


@dataclass(frozen=True, slots=True)
class Literal:
    """A scalar as an operand.

    >>> from graphdist.ir.types import Type
    >>> Literal.of(0.5, Type("f32", ()))
    Literal(value=0.5, type=Type(dtype='f32', shape=(), layout=Layout(kind='mirrored', dimension=None, axis='replica', reducer='', core=None, blocks=())))
    """  # noqa: E501 - the printed form is one line

    value: bool | int | float | complex
    type: Type

    @staticmethod
    def of(value: bool | int | float | complex, type: Type) -> Literal:
        """Return a mirrored literal with this value and type."""
        return Literal(value, type.with_layout(MIRRORED))


Operand: TypeAlias = Value | Literal
Operands: TypeAlias = tuple[Operand, ...]
Params: TypeAlias = Mapping[str, object]


def is_zero(operand: Operand) -> bool:
    """Return whether an operand is a literal zero."""
    return type(operand) is Literal and operand.value == 0


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """An operation: its name, its type rule (None for a JAX operation), and traits for passes.

    `has_effect`: passes never remove or duplicate the operation, nor reorder operations with
    effects. `is_collective`: all replicas must reach the operation. `varies`: the result may differ
    between replicas even if the operands do not. `is_identity`: each result is the operand of the
    same index. `primitive` is the primitive of a JAX operation; this package never uses primitives.
    Our operations are the `TypedOp`s in `graphdist.ir.ops`. `graphdist.tracing.jax_ops` makes the
    operations of JAX.
    """

    name: str
    rule: Callable[..., Types] | None = None
    has_effect: bool = False
    is_collective: bool = False
    varies: bool = False
    is_identity: bool = False
    primitive: object = None


P = TypeVar("P", bound=Parameters)
Types: TypeAlias = Sequence[Type]
Graphs: TypeAlias = "Sequence[Graph]"
TypeRule: TypeAlias = Callable[[Types, P, Graphs], Types]
"""A function from operand types, parameters and nested graphs to the types of the results."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TypedOp(Op, Generic[P]):
    """One of our operations. All its nodes have parameters of the class `parameters`."""

    parameters: type[P]
    rule: TypeRule[P]

    def of(self, node: Node) -> P:
        """Return the parameters of a node of this operation."""
        assert node.op is self
        return self.parameters.of(node)


@dataclass(frozen=True, slots=True)
class GraphVariable:
    """A variable in a graph: its name, the user's declaration, its use and its storage.

    `type` is the type of the value that a replica sees. `is_local` marks a mutable cell that the
    program itself made. Such a cell lives from its first assignment to the end of the step.

    `storage` is how the value is stored between steps. `role` is None for a variable of the user.
    `core` is the dimension along which the cores of a replica hold shards, also between steps; None
    if each core holds the full value. From the pass `split_over_cores` on, `type` is what one core
    sees. The pass may choose the dimension itself if `chooses_core`.
    """

    name: str
    type: Type
    synchronization: str = "on_write"
    aggregation: str = "none"
    trainable: bool = True
    assigned: bool = False
    is_local: bool = False
    chooses_core: bool = False
    core: int | None = None
    storage: VariableStorage = UNSHARDED
    role: VariableRole | None = None

    @property
    def sharded_along(self) -> int | None:
        """Return the dimension along which the variable is sharded; None if it is unsharded."""
        return self.storage.dimension if isinstance(self.storage, StoredSharded) else None

    @property
    def piece(self) -> StoredInPack | None:
        """Return the part of a pack in which the variable is stored; None if it is in no pack."""
        return self.storage if isinstance(self.storage, StoredInPack) else None

    @property
    def server(self) -> int | None:
        """Return the index of the parameter server that stores the variable; None if none does."""
        return self.storage.server if isinstance(self.storage, StoredOnServer) else None

    @property
    def is_in_copies(self) -> bool:
        """Return whether each replica stores its own copy of a value that users see as one."""
        return isinstance(self.storage, StoredInCopies)

    @property
    def pieces(self) -> tuple[str, ...]:
        """Return the names of the variables in this pack; () if the variable is no pack."""
        return self.role.pieces if isinstance(self.role, PackOf) else ()

    @property
    def serves(self) -> tuple[str, ...]:
        """Return the names of the variables for which local steps added this one, else ()."""
        return () if self.role is None or isinstance(self.role, PackOf) else self.role.serves

    @property
    def declared(self) -> GraphVariable:
        """Return the declaration alone: the variable as if unassigned and stored unsharded."""
        return replace(self, assigned=False, storage=UNSHARDED, core=None)

    def whole(self, num_cores: int) -> Type:
        """Return the type of the value of which the cores of a replica hold shards.

        >>> from graphdist.ir.types import MIRRORED
        >>> str(GraphVariable("w", Type("f32", (8, 2), MIRRORED), core=1).whole(4))
        'f32[8,8] mirrored'
        """
        if self.core is None:
            return self.type
        return self.type.resized(self.core, self.type.shape[self.core] * num_cores)

    def stored_along(self, dimension: int | None) -> GraphVariable:
        """Return the variable stored sharded along `dimension`, unsharded if it is None."""
        if self.sharded_along == dimension:
            return self
        storage = UNSHARDED if dimension is None else StoredSharded(dimension)
        return replace(self, storage=storage)

    def is_same(self, other: GraphVariable) -> bool:
        """Return whether both are one variable, even if two graphs use and store it differently."""
        return self.declared == other.declared

    def held(self, mesh: MeshShape) -> Type:
        """Return the type of the value that each replica stores between steps.

        >>> from graphdist.ir.types import MIRRORED
        >>> variable = GraphVariable("m", Type("f32", (8, 3), MIRRORED)).stored_along(0)
        >>> str(variable.held(MeshShape(num_replicas=4)))
        'f32[2,3] sharded(0)'
        """
        if self.sharded_along is None:
            return self.type
        return own_slice(self.type, self.sharded_along, mesh)


DECLARED = tuple(each for each in fields(GraphVariable) if isinstance(each.default, str | bool))
"""The fields of a variable that are attributes in the text of a graph."""


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """One operation applied to operands.

    `TypedOp.of` returns the `params` of one of our operations with their class. `graphs` are the
    nested graphs of control flow. `origin` names the pass that made the node, "" for a traced node.
    It is for readers, and nothing is decided by it.
    """

    op: Op
    operands: Operands
    params: Params
    graphs: tuple[Graph, ...]
    results: tuple[Value, ...]
    source: Source = UNKNOWN
    origin: str = ""

    def __repr__(self) -> str:
        return f"<node {self.op.name} at {self.source}>"


@dataclass(slots=True, eq=False, repr=False)
class Graph:
    """A program, or a nested graph of control flow.

    `returns_per_replica` says, for each output after the assigned variables, whether the user gets
    one value per replica (True) or a single value (False). It is empty in nested graphs. Sharded
    variables are sharded over the replicas of a group, and each of `num_groups` groups has all
    shards. A replica has `num_cores` devices. Once the graph `is_split`, it is what one of them
    runs.
    """

    name: str
    stage: Stage
    num_replicas: int
    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Operand, ...]
    variables: tuple[GraphVariable, ...] = ()
    returns_per_replica: tuple[bool, ...] = ()
    num_groups: int = 1
    num_cores: int = 1
    is_split: bool = False
    _cache: dict[object, object] = field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        return f"<graph {self.name}, {self.num_nodes} nodes, stage {self.stage.value}>"

    def __str__(self) -> str:
        from graphdist.ir.printer import print_graph  # the printer imports this module

        return print_graph(self)

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes, those of nested graphs included."""
        return sum(1 + sum(nested.num_nodes for nested in node.graphs) for node in self.nodes)

    def to_networkx(self) -> DiGraph:
        """Return the dataflow for networkx, to draw and to analyse; see `graphdist.ir.export`."""
        from graphdist.ir.export import to_networkx  # networkx is slow to import

        return to_networkx(self)

    @property
    def mesh(self) -> MeshShape:
        """Return the shape of the mesh of replicas."""
        return MeshShape(self.num_replicas, self.num_groups)

    @property
    def assigned(self) -> tuple[GraphVariable, ...]:
        """Return the variables whose new values are the first outputs (from PLACED on)."""
        return tuple(variable for variable in self.variables if variable.assigned)

    @property
    def variable_inputs(self) -> dict[str, Value]:
        """Return the input of each variable, by the variable's name (from PLACED on)."""
        return dict(zip((each.name for each in self.variables), self.inputs, strict=False))

    @property
    def variable_outputs(self) -> dict[str, Operand]:
        """Return the new value of each assigned variable, by its name (from PLACED on)."""
        return dict(zip((each.name for each in self.assigned), self.outputs, strict=False))

    @property
    def input_layouts(self) -> tuple[Layout | None, ...]:
        """Return the layout of every input of a placed graph, the variables' first."""
        layouts = self._layouts([value.type for value in self.inputs])
        return (*_over_cores(self.variables, layouts), *layouts[len(self.variables) :])

    @property
    def output_layouts(self) -> tuple[Layout | None, ...]:
        """Return the layout of every output of a placed graph, the assigned variables' first.

        A variable has its declared layout, whatever is known about the value assigned to it. Any
        other output has the layout of its type. So an output that the user gets as a per-replica
        value is stored once if it is provably mirrored.
        """
        held = [variable.held(self.mesh) for variable in self.assigned]
        types = [*held, *(output.type for output in self.outputs[len(held) :])]
        layouts = self._layouts(types)
        return (*_over_cores(self.assigned, layouts), *layouts[len(held) :])

    def _layouts(self, types: Sequence[Type]) -> tuple[Layout | None, ...]:
        """Return the layouts of types; all are mirrored if there is one replica."""
        return tuple(MIRRORED if self.num_replicas == 1 else type.layout for type in types)

    @property
    def is_placed(self) -> bool:
        """Return whether variables are inputs and outputs of the graph."""
        return self.stage is not Stage.LOGICAL

    def replace(self, **parts: Unpack[_Parts]) -> Graph:
        """Return the graph with these parts replaced."""
        return replace(self, **parts)


def _over_cores(
    variables: Sequence[GraphVariable], layouts: Sequence[Layout | None]
) -> Iterator[Layout | None]:
    """Yield the layouts of variables, with the dimensions that are sharded over cores."""
    for variable, layout in zip(variables, layouts, strict=False):
        yield (
            layout if variable.core is None or layout is None else layout.over_cores(variable.core)
        )


class _Parts(TypedDict, total=False):
    """The parts of a graph that rewrites replace."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Operand, ...]
    stage: Stage
    variables: tuple[GraphVariable, ...]
    num_groups: int
    num_cores: int
    is_split: bool
