"""Two graphs executed on the same random numbers, and what they leave behind compared."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import jax
import numpy as np

from graphdist.ir.arrays import Array, Held, stack_arrays
from graphdist.ir.graph import Graph, GraphVariable
from graphdist.ir.interpreter import Evaluate, Outcome, interpret
from graphdist.ir.types import MIRRORED, Type, numpy_dtype
from graphdist.ir.variable_storage import Anchor, OuterSlot, StepCount
from graphdist.parameter_server.messages import Read
from graphdist.parameter_server.program import Reads
from graphdist.passes.servers.cut_step import CutStep
from graphdist.runtime.bind_primitive import evaluate_jax_node

TO_THE_BIT = {
    "canonicalize",
    "choose_residuals",
    "compute_on_packs",
    "cut_updates",
    "eliminate_common_subexpressions",
    "eliminate_dead_code",
    "fold_constants",
    "order_loops",
    "pack_variables",
    "random_shards",
    "scatter_in_parts",
    "simplify",
}
"""The passes that change no bit of what a graph computes."""

Compare: TypeAlias = Callable[[Held, Held], bool]
Draw: TypeAlias = Callable[[Type, np.random.Generator], Array]


@dataclass(frozen=True)
class Trial:
    """A graph, and what it is run on; so are graphs that passes make of it."""

    graph: Graph
    arguments: list[Held]
    state: dict[str, Held]

    @classmethod
    def at_random(
        cls, graph: Graph, numbers: np.random.Generator, draw: Draw | None = None
    ) -> Self:
        """Return a trial on random numbers."""
        variables = [variable for variable in graph.variables if not variable.is_local]
        user_inputs = graph.inputs[len(variables) if graph.is_placed else 0 :]
        count = graph.num_replicas
        state = {v.name: random_held(v.type, count, numbers, draw) for v in variables}
        arguments = [random_held(value.type, count, numbers, draw) for value in user_inputs]
        return cls(graph, arguments, state)

    def outcome(self, graph: Graph | CutStep, evaluate: Evaluate = evaluate_jax_node) -> Outcome:
        """Return what a graph, or a cut step, that passes made of this one leaves behind.

        Variables are as the first graph has them: none is in a pack that the passes made.
        """
        if isinstance(graph, CutStep):
            return run_cut(graph, self.arguments, self.state, evaluate)
        packed = packed_state(self.graph, graph, self.state)
        packed |= about_to_synchronize(graph, self.state)
        given = execute(graph, self.arguments, packed, evaluate)
        state = unpacked_state(self.graph, graph, packed, given.state)
        kept_for_others = {variable.name for variable in graph.variables if variable.serves}
        assert state.keys() == self.state.keys() | kept_for_others
        return replace(given, state=state)


@dataclass(frozen=True)
class Servers:
    """Stands for parameter servers, whose variables have their places in the state as keys."""

    state: Mapping[str, Held]

    def read(self, wanted: Sequence[Read]) -> list[Array]:
        held = list(self.state.values())
        return [held[r.key][0] if r.rows is None else held[r.key][0][r.rows] for r in wanted]


def run_cut(
    cut: CutStep,
    arguments: list[Held],
    state: Mapping[str, Held],
    evaluate: Evaluate = evaluate_jax_node,
) -> Outcome:
    """Run the worker's graphs as a worker does, then the updates, each on its own variables."""
    count = cut.worker.num_replicas
    indices = [] if cut.rows is None else execute(cut.rows, arguments, {}, evaluate).outputs
    reads = Reads(cut.reads, {name: key for key, name in enumerate(state)})
    values = reads.values(Servers(state), [held[0] for held in indices])
    outputs = execute(
        cut.worker, [*arguments, *([value] * count for value in values)], {}, evaluate
    ).outputs
    first_sent, left = len(outputs) - cut.num_sent, dict(state)
    for update in cut.updates:
        taken = [outputs[first_sent + index][:1] for index in update.sent]
        held = {name: state[name][:1] for name in update.variables}
        after = execute(update.graph, taken, held, evaluate).state
        left |= {name: after[name] * count for name in update.variables}
    return Outcome(outputs[:first_sent], left)


def check_same_meaning(
    before: Graph, after: Graph | CutStep, seed: str, *, to_the_bit: bool
) -> None:
    """Run both on the same random numbers and compare what they leave behind."""
    numbers = np.random.default_rng(zlib.crc32(seed.encode()))
    trial = Trial.at_random(before, numbers)
    compare = same_bits if to_the_bit else close
    check_outcome(trial.outcome(after), trial.outcome(before), compare)


def check_outcome(given: Outcome, expected: Outcome, compare: Compare) -> None:
    """Compare results and variables; what is kept for other variables may be new in `given`."""
    assert len(given.outputs) == len(expected.outputs)
    for position, (one, other) in enumerate(zip(expected.outputs, given.outputs, strict=True)):
        assert compare(one, other), f"output {position}: {one}, {other}"
    for name, held in expected.state.items():
        assert compare(held, given.state[name]), f"variable {name}: {held}, {given.state[name]}"


def about_to_synchronize(graph: Graph, state: Mapping[str, Held]) -> dict[str, Held]:
    """Return what local steps keep, as it is before a step that synchronizes for the first time."""
    kept: dict[str, Held] = {}
    for variable in graph.variables:
        held: Array
        match variable.role:
            case StepCount():
                held = np.asarray(2**20, np.int32)
            case Anchor((name,)):
                held = state[name][0]
            case OuterSlot():
                held = np.zeros(variable.type.shape, numpy_dtype(variable.type.dtype))
            case _:
                continue
        kept[variable.name] = [held] * graph.num_replicas
    return kept


def packed_state(before: Graph, after: Graph, state: Mapping[str, Held]) -> dict[str, Held]:
    """Return the state with variables in packs as `after` has them, and random numbers between."""
    packed = dict(state)
    numbers = np.random.default_rng(0)
    for pack in after.variables if after.is_placed else ():
        if pack.pieces:
            buffer = random_array(pack.type, numbers)
            for name, start in _starts(before, pack).items():
                flat = packed.pop(name)[0].ravel()
                buffer[start : start + flat.size] = flat
            packed[pack.name] = [buffer] * after.num_replicas
    return packed


def unpacked_state(
    before: Graph, after: Graph, given: Mapping[str, Held], left: Mapping[str, Held]
) -> dict[str, Held]:
    """Return what is left in the variables; what is left between them must be as it was given."""
    shapes = {variable.name: variable.type.shape for variable in before.variables}
    unpacked = dict(left)
    for pack in after.variables if after.is_placed else ():
        if pack.pieces:
            held = unpacked.pop(pack.name)
            between = np.ones(pack.type.size, np.bool_)
            for name, start in _starts(before, pack).items():
                taken = slice(start, start + int(np.prod(shapes[name])))
                between[taken] = False
                unpacked[name] = [array[taken].reshape(shapes[name]) for array in held]
            for array in held:
                np.testing.assert_array_equal(array[between], given[pack.name][0][between])
    return unpacked


def _starts(before: Graph, pack: GraphVariable) -> dict[str, int]:
    """Return where in a pack its variables are."""
    variables = {variable.name: variable for variable in before.variables}
    starts, end = {}, 0
    for name in filter(None, pack.pieces):
        piece = variables[name].piece
        starts[name] = end if piece is None else piece.start
        end = starts[name] + variables[name].type.size
    return starts


def execute(
    graph: Graph,
    arguments: list[Held],
    state: dict[str, Held],
    evaluate: Evaluate = evaluate_jax_node,
) -> Outcome:
    """Run the graph; at its boundary a number may have become an array of one."""
    of_variables = len(graph.variables) if graph.is_placed else 0
    shapes = [value.type.shape for value in graph.inputs]
    state = dict(state)
    for variable, shape in zip(graph.variables, shapes[:of_variables], strict=False):
        if variable.sharded_along is None and variable.core is None:
            state[variable.name] = [array.reshape(shape) for array in state[variable.name]]
    arguments = [
        [array.reshape(shape) for array in held]
        for held, shape in zip(arguments, shapes[of_variables:], strict=True)
    ]
    return interpret(graph, arguments, evaluate, state)


def random_held(
    type: Type, num_replicas: int, numbers: np.random.Generator, draw: Draw | None = None
) -> Held:
    """Return random arrays: one for all replicas if the value is mirrored, or may be."""
    draw = draw or random_array
    if type.layout in (MIRRORED, None):
        return [draw(type, numbers)] * num_replicas
    return [draw(type, numbers) for _ in range(num_replicas)]


def small_integers(type: Type, numbers: np.random.Generator) -> Array:
    """Return small integers, of which no sum is rounded, in any dtype but one of keys."""
    if type.dtype == "bool":
        return random_array(type, numbers)
    return random_array(Type("i32", type.shape), numbers).astype(numpy_dtype(type.dtype))


def random_array(type: Type, numbers: np.random.Generator) -> Array:
    """Return small integers, or normally distributed floats, or a random key."""
    if type.dtype.startswith("key"):
        return random_keys(type.shape, numbers)
    if type.dtype == "bool":
        return numbers.integers(0, 2, type.shape).astype(np.bool_)
    dtype = numpy_dtype(type.dtype)
    if type.dtype[0] in "iu" and type.dtype[1:].isdigit():
        low = -3 if type.dtype[0] == "i" else 0
        return numbers.integers(low, 4, type.shape).astype(dtype)
    if dtype.kind == "c":
        parts = numbers.standard_normal((2, *type.shape))
        return np.asarray(parts[0] + 1j * parts[1]).astype(dtype)
    return np.asarray(numbers.standard_normal(type.shape)).astype(dtype)


def random_keys(shape: tuple[int, ...], numbers: np.random.Generator) -> Array:
    if not shape:
        return jax.random.key(int(numbers.integers(1000)))  # type: ignore[return-value]
    return stack_arrays([random_keys(shape[1:], numbers) for _ in range(shape[0])])


def same_bits(one: Held, other: Held) -> bool:
    return all(
        a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
        for a, b in zip(one, other, strict=True)
    )


def bits(array: Array) -> bytes:
    is_key = not isinstance(array, np.ndarray)
    return np.asarray(jax.random.key_data(array) if is_key else array).tobytes()


def equal(one: Held, other: Held) -> bool:
    """Whether values are equal numbers; at the boundary a number may be an array of one."""
    return all(
        a.dtype == b.dtype and np.array_equal(wide(a).ravel(), wide(b).ravel(), equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def wide(array: Array) -> Array:
    """Return numbers in a dtype of NumPy that holds them all."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def close(one: Held, other: Held) -> bool:
    """Whether values agree as far as their dtype allows when sums are taken in another order."""
    for a, b in zip(one, other, strict=True):
        if a.dtype != b.dtype or a.size != b.size:
            return False
        if not isinstance(a, np.ndarray) or a.dtype.kind in "biu":
            if bits(a) != bits(b):
                return False
            continue
        tolerance = {8: 1e-12, 4: 1e-5}.get(np.real(a).dtype.itemsize, 2e-2)
        left, right = wide(a).ravel(), wide(b).ravel()
        if not np.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True):
            return False
    return True
