"""The reference interpreter, which runs graphs slowly and simply, with numpy.

It is the oracle of the project. For every pass, tests run the graph before and the graph after with
it and compare the results.

1. A value is a list of the arrays that the replicas hold. Nothing here is SPMD: a collective gets
   the entire list, and any other operation runs on one replica after the other.
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
from typing import TypeAlias, cast

import numpy as np

from graphdist.ir import interpreter_collectives as collectives
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
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Op, Operand, P, TypedOp, Value
from graphdist.ir.interpreter_control_flow import RunGraph, run_cond, run_scan, run_while
from graphdist.ir.mesh import MeshShape
from graphdist.ir.op_parameters import (
    AlongAxis,
    CountingSteps,
    Joining,
    OverReplicas,
    PackingSlices,
    Reshaping,
    Scaling,
    TakingPart,
    Unpacking,
    UnpackingSlices,
)
from graphdist.ir.parameters import Parameters
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
) -> Outcome:
    """Run the graph on the replicas' arrays of each argument and of each variable.

    >>> from graphdist.ir.graph import Stage
    >>> from graphdist.ir.types import PER_REPLICA, Type
    >>> x = Value(Type("f32", (2,), PER_REPLICA))
    >>> graph = Graph("same", Stage.LOGICAL, 2, (x,), (), (x,))
    >>> interpret(graph, [[np.zeros(2), np.ones(2)]], evaluate=lambda node, arrays: []).outputs
    [[array([0., 0.]), array([1., 1.])]]
    """
    machine = _Machine(evaluate, graph.mesh)
    machine.state = {name: list(held) for name, held in (state or {}).items()}
    held_arguments = [list(argument) for argument in arguments]
    first = [machine.variable(v) for v in graph.variables] if graph.is_placed else []
    _check_boundary(graph, held_arguments, len(graph.inputs) - len(first))
    everyone = tuple(range(graph.num_replicas))
    with np.errstate(all="ignore"):  # overflow is part of the program's meaning
        outputs = machine.run(graph, first + held_arguments, everyone)
    assigned = graph.assigned if graph.is_placed else ()
    for variable, held in zip(assigned, outputs, strict=False):
        cut = _cut(variable, graph.mesh)
        full = held if cut is None else collectives.all_gather(held, cut)
        machine.state[variable.name] = list(full)
    outputs = outputs[len(assigned) :]
    final = {
        name: cast(Held, held) for name, held in machine.state.items() if name not in machine.local
    }
    return Outcome(outputs, final)


def _cut(variable: GraphVariable, mesh: MeshShape) -> AlongAxis | None:
    """Return the axis and groups over which a variable is sharded; None if it is unsharded."""
    axis = variable.sharded_along
    if axis is None:
        return None
    return AlongAxis(axis, group_size=mesh.group_size, num_groups=mesh.num_groups)


def interpret_placed(
    graph: Graph,
    inputs: Sequence[Held],
    evaluate: Evaluate,
    observe: Observe | None = None,
) -> list[Held]:
    """Run a placed graph on the replicas' arrays of each input.

    The first inputs and outputs are the variables as devices store them. So each replica holds only
    its shard of a sharded variable.
    """
    machine = _Machine(evaluate, graph.mesh, observe=observe)
    with np.errstate(all="ignore"):
        return machine.run(graph, inputs, tuple(range(graph.num_replicas)))


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
    state: dict[str, list[Array | None]] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)  # names of mutable cells, which end with the step
    observe: Observe | None = None

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas in all groups."""
        return self.mesh.num_replicas

    def run(self, graph: Graph, arguments: Sequence[Held], replicas: Replicas) -> list[Held]:
        """Run `graph` on `replicas`, and return their arrays of each output."""
        environment = dict(zip(graph.inputs, arguments, strict=True))
        for node in graph.nodes:
            operands = [_look_up(environment, operand, replicas) for operand in node.operands]
            try:
                results = _RULES.get(node.op, _evaluated)(self, node, operands, replicas)
            except Exception as error:
                error.add_note(f"at {node.op.name} of graph {graph.name!r} ({node.source})")
                raise
            environment.update(zip(node.results, results, strict=True))
            if self.observe is not None:
                self.observe(node, operands, results, replicas)
        return [_look_up(environment, output, replicas) for output in graph.outputs]

    def variable(self, variable: GraphVariable) -> Held:
        """Return the replicas' arrays of a variable, which are shards if it is sharded."""
        held = self.state.get(variable.name, [])
        if len(held) != self.num_replicas or any(array is None for array in held):
            raise GraphdistError(
                f"variable {variable.name!r} has no value on each of {self.num_replicas} replicas"
            )
        arrays, cut = cast(Held, held), _cut(variable, self.mesh)
        return arrays if cut is None else collectives.slices_of_replicas(arrays, cut)

    def require_all(self, node: Node, replicas: Replicas) -> None:
        """Raise an error if `replicas`, which reach `node` together, are not all replicas."""
        params = node.params
        if isinstance(params, OverReplicas) and params.mesh.num_replicas != self.num_replicas:
            raise VerifyError(
                f"{node.op.name} over {params.mesh.num_replicas} replicas in a graph of "
                f"{self.num_replicas}",
                source=node.source,
            )
        if len(replicas) != self.num_replicas:
            raise DistributionError(
                f"{node.op.name} needs all {self.num_replicas} replicas and is reached only by "
                f"{', '.join(map(str, replicas))}",
                source=node.source,
            )


def _look_up(environment: Mapping[Value, Held], operand: Operand, replicas: Replicas) -> Held:
    if isinstance(operand, Literal):
        return [literal_array(operand)] * len(replicas)
    return environment[operand]


_Rule: TypeAlias = Callable[[_Machine, Node, list[Held], Replicas], list[Held]]


def _evaluated(
    machine: _Machine, node: Node, operands: list[Held], replicas: Replicas
) -> list[Held]:
    """Evaluate a JAX operation, and check its results against the types that the graph states."""

    def compute(arrays: list[Array]) -> list[Array]:
        results = machine.evaluate(node, arrays)
        for array, value in zip(results, node.results, strict=True):
            found = (dtype_name(array.dtype), tuple(array.shape))
            if found != (value.type.dtype, value.type.shape):
                raise VerifyError(
                    f"{node.op.name} gives {found[0]}{list(found[1])}, the graph says {value.type}",
                    source=node.source,
                )
        return results

    if not (node.op.has_effect or node.op.varies):
        return on_each(operands, replicas, compute, len(node.results))
    rows = [compute([held[position] for held in operands]) for position in range(len(replicas))]
    return [list(held) for held in zip(*rows, strict=True)] or [[] for _ in node.results]


def _local(op: TypedOp[P], compute: Callable[[list[Array], P], list[Array]]) -> tuple[Op, _Rule]:
    """Return the rule of an operation that each replica runs by itself."""

    def rule(machine: _Machine, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        params = op.of(node)
        return on_each(
            operands, replicas, lambda arrays: compute(arrays, params), len(node.results)
        )

    return op, rule


def _collective(op: TypedOp[P], compute: Callable[[Held, P], Held]) -> tuple[Op, _Rule]:
    """Return the rule of an operation that needs the operand's arrays of all replicas."""

    def rule(machine: _Machine, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
        machine.require_all(node, replicas)
        return [compute(operands[0], op.of(node))]

    return op, rule


def _read(machine: _Machine, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
    variable = ops.READ.of(node).variable
    held = machine.state.get(variable.name, [None] * machine.num_replicas)
    arrays = [array for replica in replicas if (array := held[replica]) is not None]
    if len(arrays) != len(replicas):
        raise GraphdistError(
            f"variable {variable.name!r} is read before it has a value", source=node.source
        )
    return [arrays]


def _assign(machine: _Machine, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
    variable = ops.ASSIGN.of(node).variable
    if variable.is_local:
        machine.local.add(variable.name)
    held = machine.state.setdefault(variable.name, [None] * machine.num_replicas)
    for replica, array in zip(replicas, operands[0], strict=True):
        held[replica] = array
    return []


def _aggregate(
    machine: _Machine, node: Node, operands: list[Held], replicas: Replicas
) -> list[Held]:
    params = ops.AGGREGATE.of(node)
    variable = params.variable
    is_mirrored = variable.type.layout in (MIRRORED, None)
    if params.context == "cross" or variable.aggregation == "none" or not is_mirrored:
        return operands
    machine.require_all(node, replicas)
    (held,) = operands
    is_first = variable.aggregation == "only_first_replica"
    value = held[0] if is_first else reduce_arrays(held, variable.aggregation)
    return [[value] * machine.num_replicas]


def _replica_id(
    machine: _Machine, node: Node, operands: list[Held], replicas: Replicas
) -> list[Held]:
    return [[np.asarray(replica, np.int32) for replica in replicas]]


def _random_shard(
    machine: _Machine, node: Node, operands: list[Held], replicas: Replicas
) -> list[Held]:
    machine.require_all(node, replicas)
    (bits,) = on_each(operands, replicas, lambda arrays: machine.evaluate(node, arrays), 1)
    return [collectives.slices_of_replicas(bits, ops.RANDOM_SHARD.of(node))]


def _select_replica(
    machine: _Machine, node: Node, operands: list[Held], replicas: Replicas
) -> list[Held]:
    return [_on_one_replica(operands[0], ops.SELECT_REPLICA.of(node).replica, replicas)]


def _on_one_replica(held: Held, chosen: int, replicas: Replicas) -> Held:
    return [
        array if replica == chosen else np.zeros_like(array)
        for replica, array in zip(replicas, held, strict=True)
    ]


def _to_partial(
    machine: _Machine, node: Node, operands: list[Held], replicas: Replicas
) -> list[Held]:
    is_mirrored = node.operands[0].type.layout is MIRRORED
    if is_mirrored and ops.TO_PARTIAL.of(node).reducer == "sum":
        return [_on_one_replica(operands[0], 0, replicas)]
    return operands


def _scale(arrays: list[Array], params: Scaling) -> list[Array]:
    (array,) = arrays
    factor = np.asarray(params.factor).astype(array.real.dtype)
    if array.dtype.kind != "c":
        return [np.asarray(np.multiply(array, factor))]
    scaled = np.empty_like(array)  # real and imaginary part by themselves: infinity * 0j is nan
    scaled.real, scaled.imag = array.real * factor, array.imag * factor
    return [scaled]


def _concatenate(arrays: list[Array], params: Joining) -> list[Array]:
    return [join_arrays(arrays, params.axis)]


def _reshape(arrays: list[Array], params: Reshaping) -> list[Array]:
    return [arrays[0].reshape(params.shape)]


def _take_step(arrays: list[Array], params: Parameters) -> list[Array]:
    return [arrays[0][min(max(int(arrays[1]), 0), len(arrays[0]) - 1), ...]]


def _take_part(arrays: list[Array], params: TakingPart) -> list[Array]:
    axis, count = params.axis, params.count
    length = arrays[0].shape[axis] // count
    start = min(max(int(arrays[1]), 0), count - 1) * length
    return [arrays[0][(*(slice(None),) * axis, slice(start, start + length))]]


def _join_parts(arrays: list[Array], params: Joining) -> list[Array]:
    parts = [arrays[0][number, ...] for number in range(len(arrays[0]))]
    return [join_arrays(parts, params.axis)]


def _count_step(arrays: list[Array], params: CountingSteps) -> list[Array]:
    count = int(arrays[0]) + 1
    is_last = count >= params.every
    return [np.asarray(0 if is_last else count, np.int32), np.asarray(is_last, np.int32)]


def _pack(arrays: list[Array], params: Parameters) -> list[Array]:
    return [join_arrays([array.reshape(-1) for array in arrays], 0)]


def _unpack(arrays: list[Array], params: Unpacking) -> list[Array]:
    return _pieces(arrays[0], params.shapes)


def _pieces(buffer: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    pieces, start = [], 0
    for shape in shapes:
        size = int(np.prod(shape, dtype=np.int64))
        pieces.append(buffer[start : start + size].reshape(shape))
        start += size
    return pieces


def _pack_slices(arrays: list[Array], params: PackingSlices) -> list[Array]:
    count = params.group_size
    cut = [np.split(array, count, axis) for array, axis in zip(arrays, params.axes, strict=True)]
    return [join_arrays([slices[r].reshape(-1) for r in range(count) for slices in cut], 0)]


def _unpack_slices(arrays: list[Array], params: UnpackingSlices) -> list[Array]:
    count = params.group_size
    cut = [
        (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])
        for shape, axis in zip(params.shapes, params.axes, strict=True)
    ]
    parts = [_pieces(part, cut) for part in np.split(arrays[0], count)]
    by_piece = zip(params.axes, zip(*parts, strict=True), strict=True)
    return [join_arrays(list(slices), axis) for axis, slices in by_piece]


def _nested(run: Callable[[RunGraph, Node, list[Held], Replicas], list[Held]]) -> _Rule:
    """Return the rule of an operation with nested graphs."""
    return lambda machine, node, operands, replicas: run(machine.run, node, operands, replicas)


_RULES: dict[Op, _Rule] = {
    ops.READ: _read,
    ops.ASSIGN: _assign,
    ops.AGGREGATE: _aggregate,
    ops.REPLICA_ID: _replica_id,
    ops.RANDOM_SHARD: _random_shard,
    ops.SELECT_REPLICA: _select_replica,
    ops.TO_PARTIAL: _to_partial,
    ops.SCAN: _nested(run_scan),
    ops.WHILE: _nested(run_while),
    ops.COND: _nested(run_cond),
    **dict(
        (
            _local(ops.TO_REPLICAS, lambda arrays, params: arrays),
            _collective(ops.REDUCE, collectives.all_reduce),
            _collective(ops.GATHER, collectives.all_gather),
            _collective(ops.ALL_REDUCE, collectives.all_reduce),
            _collective(ops.ALL_GATHER, collectives.all_gather),
            _collective(ops.REDUCE_SCATTER, collectives.reduce_scatter),
            _collective(ops.COLLECTIVE_PERMUTE, collectives.collective_permute),
            _collective(ops.ALL_TO_ALL, collectives.all_to_all),
            _collective(ops.OWN_SLICE, collectives.slices_of_replicas),
            _local(ops.CONSTANT, lambda arrays, params: [params.value]),
            _local(ops.SCALE, _scale),
            _local(ops.PACK, _pack),
            _local(ops.UNPACK, _unpack),
            _local(ops.PACK_SLICES, _pack_slices),
            _local(ops.UNPACK_SLICES, _unpack_slices),
            _local(ops.CONCATENATE, _concatenate),
            _local(ops.RESHAPE, _reshape),
            _local(ops.TAKE_STEP, _take_step),
            _local(ops.TAKE_PART, _take_part),
            _local(ops.JOIN_PARTS, _join_parts),
            _local(ops.COUNT_STEP, _count_step),
            _local(ops.BARRIER, lambda arrays, params: arrays),
        )
    ),
}
"""The rule of each of our operations. Any other operation is one of JAX."""
