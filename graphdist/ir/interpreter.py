"""The reference interpreter, which runs graphs slowly and simply, with numpy.

It is the oracle of the project. For every pass, tests run the graph before and the graph after with
it and compare the results.

1. A value is a list of the arrays that the replicas hold. Nothing here is SPMD: a collective gets
   the entire list, and any other operation runs on one replica after the other. Where a replica has
   several cores, the list has an array for each core, and a collective between replicas gets the
   arrays of the cores of one index.
2. A LOGICAL graph reads and assigns variables replica by replica. From PLACED on, the values of
   variables are the first inputs, and the first outputs are their new values.
3. A nested graph runs on the replicas that chose it, and assigns variables on these alone. If only
   some replicas reach an operation that needs all, devices would hang, and the interpreter raises.
4. JAX operations are evaluated by a function of the caller, one replica at a time, since this
   module imports no JAX. The interpreter checks that each result has the type in the graph.
5. Reductions add in the order of the replicas; 16-bit floats are added in float32 and rounded once.

Where several replicas share one array object, a local operation is computed once and its result is
shared. This changes no result. So operations on mirrored values cost as much as on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast  # Any: the parameters of an operation, of its own class

import numpy as np

from graphdist.ir import ops
from graphdist.ir.arrays import (
    Array,
    Held,
    Replicas,
    join_arrays,
    literal_array,
    on_each,
    reduce_arrays,
)
from graphdist.ir.errors import DistributionError, GraphdistError, VerifyError
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Op, Operand, Value
from graphdist.ir.interpreter_collectives import (
    all_gathered,
    all_reduced,
    exchanged,
    exchanged_over_cores,
    gathered_over_cores,
    indices_on_shards,
    joined_ahead,
    permuted,
    reduce_scattered,
    reduced_over_cores,
    rotated_over_cores,
    rows_of_shard,
    scattered_over_cores,
    shards_of_replicas,
    slices_ahead,
    slices_of_cores,
    with_borders_added,
    with_borders_of_cores,
)
from graphdist.ir.interpreter_control_flow import RunGraph, run_cond, run_scan, run_while
from graphdist.ir.interpreter_local import LOCAL
from graphdist.ir.mesh import MeshShape
from graphdist.ir.op_parameters import (
    AlongAxis,
    OverCores,
    OverReplicas,
)
from graphdist.ir.types import MIRRORED, dtype_name

Evaluate: TypeAlias = Callable[[Node, Sequence[Array]], list[Array]]
"""A function of (node, operands of one replica) that returns the results of a JAX operation.

For a `random_shard` it returns the full value, which the interpreter shards.
"""

Observe: TypeAlias = Callable[[Node, Sequence[Held], Sequence[Held], Replicas], None]
"""A function that is called with each node that has run, its operands, its results, and the
replicas that ran it. A node with nested graphs comes after the nodes of these graphs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a step, each as one array per replica.

    `outputs` are in the order of the graph's outputs. `state` has the variables by name.
    """

    outputs: list[Held]
    state: dict[str, Held]


def interpret(
    graph: Graph,
    arguments: Sequence[Sequence[Array]],
    evaluate: Evaluate,
    state: Mapping[str, Sequence[Array]] | None = None,
    observe: Observe | None = None,
) -> Outcome:
    """Run the graph on the replicas' arrays of each argument and of each variable.

    >>> from graphdist.ir.graph import Stage
    >>> from graphdist.ir.types import PER_REPLICA, Type
    >>> x = Value(Type("f32", (2,), PER_REPLICA))
    >>> graph = Graph("same", Stage.LOGICAL, 2, (x,), (), (x,))
    >>> interpret(graph, [[np.zeros(2), np.ones(2)]], evaluate=lambda node, arrays: []).outputs
    [[array([0., 0.]), array([1., 1.])]]
    """
    machine = _Machine(evaluate, graph.mesh, graph.num_cores, observe=observe)
    cores = {each.name: each.core for each in graph.variables if graph.is_split}
    machine.state = {
        name: [*machine.spread(held, cores.get(name))] for name, held in (state or {}).items()
    }
    held_arguments = [list(argument) for argument in arguments]
    first = [machine.variable(v) for v in graph.variables] if graph.is_placed else []
    _check_boundary(graph, held_arguments, len(graph.inputs) - len(first))
    held_arguments = [machine.spread(held, None) for held in held_arguments]
    everyone = tuple(range(graph.num_replicas * graph.num_cores))
    with np.errstate(all="ignore"):  # overflow is part of the program's meaning
        outputs = machine.run(graph, first + held_arguments, everyone)
    assigned = graph.assigned if graph.is_placed else ()
    for variable, held in zip(assigned, outputs, strict=False):
        cut = _cut(variable, graph.mesh)
        full = held if cut is None else machine.between_replicas(all_gathered, held, cut)
        machine.state[variable.name] = list(full)
    outputs = [machine.of_replicas(held, None) for held in outputs[len(assigned) :]]
    final = {
        name: machine.of_replicas(cast(Held, held), cores.get(name))
        for name, held in machine.state.items()
        if name not in machine.local
    }
    return Outcome(outputs, final)


def _cut(variable: GraphVariable, mesh: MeshShape) -> AlongAxis | None:
    """Return the axis and groups over which a variable is sharded; None if it is unsharded."""
    axis = variable.sharded_along
    if axis is None:
        return None
    return AlongAxis(axis, group_size=mesh.group_size, num_groups=mesh.num_groups)


def interpret_placed(
    graph: Graph, inputs: Sequence[Held], evaluate: Evaluate, observe: Observe | None = None
) -> list[Held]:
    """Run a placed graph on the replicas' arrays of each input.

    The first inputs and outputs are the variables as devices store them. So each replica holds only
    its shard of a sharded variable. Where replicas have several cores, each value has an array for
    each core.
    """
    machine = _Machine(evaluate, graph.mesh, graph.num_cores, observe=observe)
    with np.errstate(all="ignore"):
        return machine.run(graph, inputs, tuple(range(graph.num_replicas * graph.num_cores)))


def _check_boundary(graph: Graph, arguments: Sequence[Held], wanted: int) -> None:
    if len(arguments) != wanted:
        raise GraphdistError(f"graph {graph.name!r} takes {wanted} arguments, not {len(arguments)}")
    for position, held in enumerate(arguments):
        if len(held) != graph.num_replicas:
            raise GraphdistError(
                f"argument {position} of graph {graph.name!r} has {len(held)} arrays for "
                f"{graph.num_replicas} replicas"
            )


@dataclass(slots=True)
class _Machine:
    """The state of all replicas, and the function that runs a graph on some of them."""

    evaluate: Evaluate
    mesh: MeshShape
    num_cores: int = 1
    state: dict[str, list[Array | None]] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)  # names of mutable cells, which end with the step
    observe: Observe | None = None

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas in all groups."""
        return self.mesh.num_replicas

    @property
    def num_devices(self) -> int:
        """Return the number of the cores of all replicas."""
        return self.num_replicas * self.num_cores

    def spread(self, held: Sequence[Array], core: int | None) -> Held:
        """Return the arrays of all cores, of a value that each replica has.

        With `core`, the cores of a replica hold shards along this dimension.
        """
        if core is None:
            return [array for array in held for _ in range(self.num_cores)]
        return [shard for array in held for shard in np.split(array, self.num_cores, core)]

    def of_replicas(self, held: Held, core: int | None) -> Held:
        """Return the arrays of the replicas, of a value that each core has; see `spread`.

        Raises `DistributionError` if the cores of a replica differ in what each has in full.
        """
        if core is None:
            if not all(map(_are_alike, self._replicas(held))):
                raise DistributionError("the cores of a replica differ in a value that is full")
            return held[:: self.num_cores]
        return [join_arrays(cores, core) for cores in self._replicas(held)]

    def _replicas(self, held: Held) -> list[Held]:
        """Return the arrays of the cores of each replica."""
        count = self.num_cores
        return [held[start : start + count] for start in range(0, len(held), count)]

    def between_replicas(self, function: Callable[..., Held], held: Held, *args: Any) -> Held:
        """Apply a function of the replicas' arrays to those of the cores of each index."""
        by_core = [function(held[core :: self.num_cores], *args) for core in range(self.num_cores)]
        return [array for cores in zip(*by_core, strict=True) for array in cores]

    def replica_of(self, devices: Replicas) -> Replicas:
        """Return the replica of each of these devices."""
        return tuple(device // self.num_cores for device in devices)

    def run(self, graph: Graph, arguments: Sequence[Held], replicas: Replicas) -> list[Held]:
        """Run `graph` on `replicas`, and return their arrays of each output."""
        environment = dict(zip(graph.inputs, arguments, strict=True))
        for node in graph.nodes:
            operands = [_look_up(environment, operand, replicas) for operand in node.operands]
            try:
                results = self._run_node(node, operands, replicas)
            except Exception as error:
                error.add_note(f"at {node.op.name} of graph {graph.name!r} ({node.source})")
                raise
            environment.update(zip(node.results, results, strict=True))
            if self.observe is not None:
                self.observe(node, operands, results, replicas)
        return [_look_up(environment, output, replicas) for output in graph.outputs]

    def _run_node(self, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        """Run one node on `replicas`, and return their arrays of each result."""
        op, params = node.op, node.params
        if op in LOCAL:
            local = LOCAL[op]
            return on_each(operands, replicas, lambda x: local(x, params))
        if op in _COLLECTIVE:
            self.require_all(node, replicas)
            return [self.between_replicas(_COLLECTIVE[op], operands[0], params)]
        if op in _OVER_CORES:
            self.require_all_cores(node, replicas)
            over_cores = _OVER_CORES[op]
            replicas_held = self._replicas(operands[0])
            return [[array for cores in replicas_held for array in over_cores(cores, params)]]
        if op in _NESTED:
            return _NESTED[op](self.run, node, operands, replicas)
        return _OTHER.get(op, _Machine.evaluated)(self, node, operands, replicas)

    def variable(self, variable: GraphVariable) -> Held:
        """Return the replicas' arrays of a variable, which are shards if it is sharded."""
        held = self.state.get(variable.name, [])
        if len(held) != self.num_devices or any(array is None for array in held):
            raise GraphdistError(
                f"variable {variable.name!r} has no value on each of {self.num_replicas} replicas"
            )
        arrays, cut = cast(Held, held), _cut(variable, self.mesh)
        if cut is None:
            return arrays
        return self.between_replicas(shards_of_replicas, arrays, cut)

    def require_all(self, node: Node, replicas: Replicas) -> None:
        """Raise an error if `replicas`, which reach `node` together, are not all replicas."""
        params = node.params
        if isinstance(params, OverReplicas) and params.mesh.num_replicas != self.num_replicas:
            raise VerifyError(
                f"{node.op.name} over {params.mesh.num_replicas} replicas in a graph of "
                f"{self.num_replicas}",
                source=node.source,
            )
        if len(replicas) != self.num_devices:
            reached = dict.fromkeys(self.replica_of(replicas))
            raise DistributionError(
                f"{node.op.name} needs all {self.num_replicas} replicas and is reached only by "
                f"{', '.join(map(str, reached))}",
                source=node.source,
            )

    def require_all_cores(self, node: Node, devices: Replicas) -> None:
        """Raise an error unless all cores of each replica reach `node` together."""
        found = OverCores.of(node).num_cores
        starts = [device - device % self.num_cores for device in devices[:: self.num_cores]]
        wanted = tuple(start + core for start in starts for core in range(self.num_cores))
        if found != self.num_cores or devices != wanted:
            raise VerifyError(
                f"{node.op.name} over {found} cores in a graph of {self.num_cores} cores, reached "
                f"by {', '.join(map(str, devices))}",
                source=node.source,
            )

    def evaluated(self, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        """Evaluate a JAX operation, and check that its results have the types in the graph."""

        def compute(arrays: list[Array]) -> list[Array]:
            results = self.evaluate(node, arrays)
            for array, value in zip(results, node.results, strict=True):
                found = (dtype_name(array.dtype), tuple(array.shape))
                if found != (value.type.dtype, value.type.shape):
                    raise VerifyError(
                        f"{node.op.name} gives {found[0]}{list(found[1])}, the graph says "
                        f"{value.type}",
                        source=node.source,
                    )
            return results

        if not (node.op.has_effect or node.op.varies):
            return on_each(operands, replicas, compute)
        rows = [compute([held[position] for held in operands]) for position in range(len(replicas))]
        return [list(held) for held in zip(*rows, strict=True)] or [[] for _ in node.results]

    def read(self, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        """Return the arrays of the variable that a `read` names."""
        variable = ops.READ.of(node).variable
        held = self.state.get(variable.name, [None] * self.num_devices)
        arrays = [array for replica in replicas if (array := held[replica]) is not None]
        if len(arrays) != len(replicas):
            raise GraphdistError(
                f"variable {variable.name!r} is read before it has a value", source=node.source
            )
        return [arrays]

    def assign(self, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        """Assign the operand to the variable that an `assign` names, on `replicas` alone."""
        variable = ops.ASSIGN.of(node).variable
        if variable.is_local:
            self.local.add(variable.name)
        held = self.state.setdefault(variable.name, [None] * self.num_devices)
        for replica, array in zip(replicas, operands[0], strict=True):
            held[replica] = array
        return []

    def aggregate(self, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        """Return the value that a write by `replicas` puts into a variable."""
        params = ops.AGGREGATE.of(node)
        variable = params.variable
        is_mirrored = variable.type.layout in (MIRRORED, None)
        if params.context == "cross" or variable.aggregation == "none" or not is_mirrored:
            return operands
        self.require_all(node, replicas)
        is_first = variable.aggregation == "only_first_replica"

        def aggregated(held: Held) -> Held:
            value = held[0] if is_first else reduce_arrays(held, variable.aggregation)
            return [value] * len(held)

        return [self.between_replicas(aggregated, operands[0])]

    def random_shard(self, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        """Return each replica's shard of the random bits of a key."""
        self.require_all(node, replicas)
        (bits,) = on_each(operands, replicas, lambda arrays: self.evaluate(node, arrays))
        return [self.between_replicas(shards_of_replicas, bits, ops.RANDOM_SHARD.of(node))]

    def replica_id(self, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        """Return the id of each replica."""
        return [[np.asarray(replica, np.int32) for replica in self.replica_of(replicas)]]

    def core_id(self, node: Node, operands: list[Held], devices: Replicas) -> list[Held]:
        """Return the index of each core in its replica."""
        return [[np.asarray(device % self.num_cores, np.int32) for device in devices]]

    def keep_rows_of_core(self, node: Node, operands: list[Held], devices: Replicas) -> list[Held]:
        """Return what each core has read of its own shard."""
        params = ops.KEEP_ROWS_OF_CORE.of(node)
        each = zip(*operands, devices, strict=True)
        return [
            [rows_of_shard(value, rows, at % self.num_cores, params) for value, rows, at in each]
        ]

    def keep_rows_of_replica(
        self, node: Node, operands: list[Held], devices: Replicas
    ) -> list[Held]:
        """Return what each replica has read of its own shard."""
        params = ops.KEEP_ROWS_OF_REPLICA.of(node)
        shards = (replica % params.group_size for replica in self.replica_of(devices))
        each = zip(*operands, shards, strict=True)
        return [[rows_of_shard(value, rows, shard, params) for value, rows, shard in each]]

    def join_ahead(self, node: Node, operands: list[Held], devices: Replicas) -> list[Held]:
        """Return, on each core, the joined shards of the cores of its ring."""
        params, shards = ops.JOIN_AHEAD.of(node), zip(*operands, strict=True)
        each = zip(shards, devices, strict=True)
        return [[joined_ahead(parts, at % self.num_cores, params) for parts, at in each]]

    def select_replica(self, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        """Return the operand on one replica, and zeros on all other replicas."""
        chosen = ops.SELECT_REPLICA.of(node).replica
        return [_on_one_replica(operands[0], chosen, self.replica_of(replicas))]

    def to_partial(self, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        """Return each replica's term of a value."""
        is_mirrored = node.operands[0].type.layout is MIRRORED
        if is_mirrored and ops.TO_PARTIAL.of(node).reducer == "sum":
            return [_on_one_replica(operands[0], 0, self.replica_of(replicas))]
        return operands


def _are_alike(cores: Held) -> bool:
    """Return whether arrays are the same bit by bit; those of random keys are not compared."""
    first = cores[0]
    return all(
        each is first or not isinstance(each, np.ndarray) or each.tobytes() == first.tobytes()
        for each in cores
    )


def _look_up(environment: Mapping[Value, Held], operand: Operand, replicas: Replicas) -> Held:
    if isinstance(operand, Literal):
        return [literal_array(operand)] * len(replicas)
    return environment[operand]


def _on_one_replica(held: Held, chosen: int, replicas: Replicas) -> Held:
    return [
        array if replica == chosen else np.zeros_like(array)
        for replica, array in zip(replicas, held, strict=True)
    ]


_COLLECTIVE: dict[Op, Callable[[Held, Any], Held]] = {
    ops.REDUCE: all_reduced,
    ops.GATHER: all_gathered,
    ops.ALL_REDUCE: all_reduced,
    ops.ALL_GATHER: all_gathered,
    ops.REDUCE_SCATTER: reduce_scattered,
    ops.COLLECTIVE_PERMUTE: permuted,
    ops.ALL_TO_ALL: exchanged,
    ops.OWN_SLICE: shards_of_replicas,
    ops.INDEX_ON_REPLICA: indices_on_shards,
    ops.AS_SHARD: lambda held, params: held,
}
"""Functions of all replicas' arrays of the operand and the parameters."""

_OVER_CORES: dict[Op, Callable[[Held, Any], Held]] = {
    ops.ALL_REDUCE_OVER_CORES: reduced_over_cores,
    ops.ALL_GATHER_OVER_CORES: gathered_over_cores,
    ops.REDUCE_SCATTER_OVER_CORES: scattered_over_cores,
    ops.ALL_TO_ALL_OVER_CORES: exchanged_over_cores,
    ops.SLICE_OF_CORE: slices_of_cores,
    ops.ROTATE_OVER_CORES: rotated_over_cores,
    ops.SLICE_AHEAD: slices_ahead,
    ops.INDEX_ON_CORE: indices_on_shards,
    ops.EXCHANGE_BORDERS: with_borders_of_cores,
    ops.ADD_BORDERS: with_borders_added,
}
"""Functions of the arrays of the cores of one replica and the parameters."""

_NESTED: dict[Op, Callable[[RunGraph, Node, list[Held], Replicas], list[Held]]] = {
    ops.SCAN: run_scan,
    ops.WHILE: run_while,
    ops.COND: run_cond,
}

_OTHER: dict[Op, Callable[[_Machine, Node, list[Held], Replicas], list[Held]]] = {
    ops.READ: _Machine.read,
    ops.ASSIGN: _Machine.assign,
    ops.AGGREGATE: _Machine.aggregate,
    ops.REPLICA_ID: _Machine.replica_id,
    ops.CORE_ID: _Machine.core_id,
    ops.KEEP_ROWS_OF_CORE: _Machine.keep_rows_of_core,
    ops.KEEP_ROWS_OF_REPLICA: _Machine.keep_rows_of_replica,
    ops.JOIN_AHEAD: _Machine.join_ahead,
    ops.RANDOM_SHARD: _Machine.random_shard,
    ops.SELECT_REPLICA: _Machine.select_replica,
    ops.TO_PARTIAL: _Machine.to_partial,
}
"""Operations whose results depend on the replicas, or on the state. An operation that is in no
table is one of JAX."""
