"""Two graphs executed on the same random numbers, and what they leave behind compared."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace

import jax
import numpy as np

from graphdist.ir.arrays import Array, Held, stack_arrays
from graphdist.ir.graph import Graph, GraphVariable
from graphdist.ir.interpreter import Evaluate, Outcome, interpret
from graphdist.ir.types import MIRRORED, Type, numpy_dtype
from graphdist.runtime.evaluate import evaluate_jax_node


def check_same_meaning(before: Graph, after: Graph, seed: str, *, to_the_bit: bool) -> None:
    """Run both graphs on the same random numbers and compare what they leave behind."""
    numbers = np.random.default_rng(zlib.crc32(seed.encode()))
    variables = [variable for variable in before.variables if not variable.is_local]
    state = {
        variable.name: random_held(variable.type, before.num_replicas, numbers)
        for variable in variables
    }
    user_inputs = before.inputs[len(variables) if before.is_placed else 0 :]
    arguments = [random_held(value.type, before.num_replicas, numbers) for value in user_inputs]
    expected = execute(before, arguments, state)
    packed = {**packed_state(before, after, state, numbers), **about_to_synchronize(after)}
    given = execute(after, arguments, packed)
    given = replace(given, state=unpacked_state(before, after, packed, given.state))
    for variable in after.variables:
        if variable.serves:
            given.state.pop(variable.name)
    assert len(given.outputs) == len(expected.outputs)
    assert given.state.keys() == expected.state.keys()
    compare = same_bits if to_the_bit else close
    for position, (one, other) in enumerate(zip(expected.outputs, given.outputs, strict=True)):
        assert compare(one, other), f"output {position}: {one}, {other}"
    for name, held in expected.state.items():
        assert compare(held, given.state[name]), f"variable {name}: {held}, {given.state[name]}"


def about_to_synchronize(graph: Graph) -> dict[str, Held]:
    """Return counts of local steps that are reached: the step that is run synchronizes."""
    counts = [variable.name for variable in graph.variables if variable.role == "steps"]
    return {name: [np.asarray(2**20, np.int32)] * graph.num_replicas for name in counts}


def packed_state(
    before: Graph, after: Graph, state: Mapping[str, Held], numbers: np.random.Generator
) -> dict[str, Held]:
    """Return the state with variables in packs as `after` has them, and random numbers between."""
    packed = dict(state)
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
        if variable.sharded_along is None:
            state[variable.name] = [array.reshape(shape) for array in state[variable.name]]
    arguments = [
        [array.reshape(shape) for array in held]
        for held, shape in zip(arguments, shapes[of_variables:], strict=True)
    ]
    return interpret(graph, arguments, evaluate, state)


def random_held(type: Type, num_replicas: int, numbers: np.random.Generator) -> Held:
    """Return random arrays: one for all replicas if the value is mirrored, or may be."""
    if type.distribution in (MIRRORED, None):
        return [random_array(type, numbers)] * num_replicas
    return [random_array(type, numbers) for _ in range(num_replicas)]


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


def close(one: Held, other: Held) -> bool:
    """Whether values agree as far as their dtype allows when sums are taken in another order."""
    for a, b in zip(one, other, strict=True):
        if a.dtype != b.dtype or a.size != b.size:
            return False
        if not isinstance(a, np.ndarray) or a.dtype.kind in "biu":
            if bits(a) != bits(b):
                return False
            continue
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        tolerance = {8: 1e-12, 4: 1e-5}.get(np.real(a).dtype.itemsize, 2e-2)
        left, right = a.astype(wide).ravel(), b.astype(wide).ravel()
        if not np.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True):
            return False
    return True
