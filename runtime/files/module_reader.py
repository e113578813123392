"""A program that reads a portable module first, in a process that may crash.

MLIR's reader trusts its bytes: some make it crash, run for ever or allocate without end. So this
process reads a file's module and serializes it again, and the caller reads only that result. For a
module that JAX has written, the result is the same bytes, with one exception: MLIR divides constant
integers while it compiles, and a division by zero ends the process. So a barrier hides divisors
that may be zero.

`module_check.py` runs this file as a script, so it imports nothing of graphdist. On stdin are a
line of JSON (`path`: where to import from, `memory`: bytes beyond those in use once JAX is
imported, `seconds`: of processor time) and the module. On stdout are a line of JSON with the
findings, and the module. The caller checks the findings.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any  # Any: JSON, and classes of MLIR's that have no public types

STACK = 2**20
"""The bytes of stack for reading: less than other readers have, so that it overflows here first."""
_INTEGERS = re.compile(r"tensor<(\d+x)*u?i\d+>")
_WINDOWED = {
    f"stablehlo.{name}" for name in ("convolution", "pad", "reduce_window", "select_and_scatter")
}
"""Operations that pad and dilate arrays, and take windows of them."""
DEEPEST_CALL = 200
"""The deepest nesting of calls, which limits the recursion of `_in_all`."""


def main() -> None:
    """Read the module on stdin, and write the findings and the module to stdout."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # the output of libraries goes to stderr
        _answer(sys.stdin.buffer, out)


def _answer(asked: IO[bytes], out: IO[bytes]) -> None:
    request = json.loads(asked.readline())
    data = asked.read()
    sys.path[:] = request["path"]
    import jax.export
    import jax.extend.mlir.dialects.stablehlo
    import jax.interpreters.mlir  # noqa: F401

    _limit(request["memory"], request["seconds"])
    answers: list[tuple[dict[str, Any], bytes]] = []
    threading.stack_size(STACK)
    reading = threading.Thread(target=lambda: answers.append(read_module(data)))
    reading.start()
    reading.join()
    ((findings, written),) = answers
    out.write(json.dumps(findings).encode() + b"\n" + written)


def _limit(memory: int, seconds: int) -> None:
    """Set limits for this process from here on, and disable core dumps."""
    try:
        import resource
    except ImportError:  # Windows: only the caller limits the time
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds += int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        with open("/proc/self/statm") as file:
            in_use = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux: the memory in use is not known
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = in_use + memory
    if most == resource.RLIM_INFINITY or limit < most:
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def read_module(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the findings on a module, and the module serialized again."""
    from jax import export
    from jax.extend.mlir.dialects import stablehlo
    from jax.interpreters import mlir

    try:
        exported = export.deserialize(bytearray(data))
        with mlir.make_ir_context(), mlir.ir.Location.unknown():
            module = exported.mlir_module(serialized=False)
            module.operation.verify()
            findings = _findings(exported, module)
            _hide_divisors(module)
            # The version that JAX targets, so that a module of JAX's comes back unchanged.
            version = stablehlo.get_version_from_compatibility_requirement(
                stablehlo.StablehloCompatibilityRequirement.WEEK_4
            )
            written = stablehlo.serialize_portable_artifact(module, version, True)
        return findings, bytes(replace(exported, mlir_module_serialized=written).serialize())
    # An exception of any library is a finding about the bytes.
    except BaseException as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        return {"wrong": f"{type(error).__name__}: {reason}"[:500]}, b""


def _findings(exported: Any, module: Any) -> dict[str, Any]:
    """Return the contents of a module, and a contradiction in it."""
    from jax.interpreters.mlir import ir

    operations: set[str] = set()
    types: set[str] = set()
    stretched: set[tuple[str, str]] = set()
    calls: set[str] = set()
    symbols: Any = ir.SymbolTable(module.operation)
    functions: dict[str, FunctionSize] = {}
    for function in module.body.operations:
        name = str(function.attributes["sym_name"].value)
        functions[name] = totals = FunctionSize()
        for operation, depth in _inside(function.operation):
            totals.operations += 1
            totals.depth = max(totals.depth, depth)
            totals.calls += [(name, depth) for name in _called(operation)]
            operations.add(operation.name)
            types.update(str(result.type) for result in operation.results)
            if operation.name in _WINDOWED:
                stretched.update((operation.name, type) for type in _stretched(operation))
            if operation.name == "stablehlo.custom_call":
                calls.add(json.dumps(_described(operation, symbols), sort_keys=True))
    size, depth = _in_all(functions)
    return {
        "operations": sorted(operations),
        "types": sorted(types),
        "stretched": sorted(stretched),
        "custom_calls": [json.loads(call) for call in sorted(calls)],
        "attributes": _names(module.operation.attributes),
        "num_operations": sum(function.operations for function in functions.values()),
        "num_inlined": size,
        "depth": depth,
        "wrong": _disagreement(exported, module),
    }


@dataclass
class FunctionSize:
    """The count of operations of a function, the depth of their regions, and their calls."""

    operations: int = 0
    depth: int = 0
    calls: list[tuple[str, int]] = field(default_factory=list)


def _inside(function: Any) -> Iterator[tuple[Any, int]]:
    """Yield a function and the operations in it, each with the depth of its region."""
    left = [(function, 0)]
    while left:
        operation, depth = left.pop()
        yield operation, depth
        for region in operation.regions:
            for block in region:
                left += [(each.operation, depth + 1) for each in block]


def _stretched(operation: Any) -> list[str]:
    """Return the types of an operation's array and window after padding and dilation.

    The compiler computes these sizes, which may be larger than those of the results, since padding
    may be negative. Here padding counts as positive, and a window is at least as wide as its
    stride.
    """
    from jax.extend.mlir.dialects import stablehlo

    attributes = operation.attributes

    def number(name: str, index: int, otherwise: int) -> int:
        return abs(int(attributes[name][index])) if name in attributes else otherwise

    array = [*operation.operands[0].type.shape]
    axes = window_axes = range(len(array))
    window = [1] * len(array)
    if operation.name == "stablehlo.convolution":
        axis_numbers: Any = stablehlo.ConvDimensionNumbers(attributes["dimension_numbers"])
        axes = axis_numbers.input_spatial_dimensions
        window_axes = axis_numbers.kernel_spatial_dimensions
        window = [*operation.operands[1].type.shape]
    for index, (axis, window_axis) in enumerate(zip(axes, window_axes, strict=True)):
        dilation = number("base_dilations", index, 1) * number("lhs_dilation", index, 1)
        dilation *= 1 + number("interior_padding", index, 0)
        edges = number("edge_padding_low", index, 0) + number("edge_padding_high", index, 0)
        edges += number("padding", 2 * index, 0) + number("padding", 2 * index + 1, 0)
        array[axis] = max(1, array[axis]) * dilation + edges
        for name in ("window_dimensions", "window_dilations", "rhs_dilation"):
            window[window_axis] *= number(name, index, 1)
        window[window_axis] = max(window[window_axis], number("window_strides", index, 1))
    elements = {str(operand.type.element_type) for operand in operation.operands}
    return [
        f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"
        for shape in (array, window)
        for element in elements
    ]


def _called(operation: Any) -> list[str]:
    """Return the functions that an operation names."""
    attributes = operation.attributes
    called = [attributes[name] for name in ("callee", "decomposition") if name in attributes]
    if "called_computations" in attributes:
        called += attributes["called_computations"]
    return [str(each.value) for each in called]


def _in_all(functions: dict[str, FunctionSize]) -> tuple[int, int]:
    """Return the count of operations of the largest function, and the largest depth, with inlining.

    A compiler inlines a function once per call. Raises ValueError for recursive functions and very
    deep calls.
    """
    known: dict[str, tuple[int, int]] = {}

    def expand(name: str, above: int) -> tuple[int, int]:
        if name not in known:
            if above > DEEPEST_CALL:
                raise ValueError(f"{name} calls itself, or stands {above} calls deep")
            function = functions[name]
            size, depth = function.operations, function.depth
            for callee, at in function.calls:
                more, below = expand(callee, above + 1)
                size, depth = size + more, max(depth, at + below)
            known[name] = size, depth
        return known[name]

    expanded = [expand(name, 0) for name in functions]
    return max(size for size, _ in expanded), max(depth for _, depth in expanded)


def _described(call: Any, symbols: Any) -> dict[str, Any]:
    """Return a custom call as texts of MLIR, which are equal for equal calls."""
    named = {name: call.attributes[name] for name in _names(call.attributes)}
    target = named.pop("call_target_name").value
    settings = named.pop("mhlo.backend_config", {})
    called = [str(symbols[each.value].type) for each in named.get("called_computations", ())]
    return {
        "target": target,
        "operands": [str(operand.type) for operand in call.operands],
        "results": [str(result.type) for result in call.results],
        "attributes": {name: str(value) for name, value in named.items()},
        "settings": {name: str(settings[name]) for name in _names(settings)},
        "called": called,
    }


def _names(attributes: Any) -> list[str]:
    """Return the names in a dictionary of MLIR, which older versions iterate in pairs."""
    return [each if isinstance(each, str) else each.name for each in attributes]


def _hide_divisors(module: Any) -> None:
    """Put a barrier before integer divisors that may be zero, so that MLIR does not divide."""
    from jax.interpreters.mlir import ir

    for operation, _ in list(_inside(module.operation)):
        if operation.name not in ("stablehlo.divide", "stablehlo.remainder"):
            continue
        operands = operation.operands
        divisor = operands[1]
        if _INTEGERS.fullmatch(str(divisor.type)) and not _is_never_zero(divisor):
            barrier = ir.Operation.create(
                "stablehlo.optimization_barrier",
                results=[divisor.type],
                operands=[divisor],
                ip=ir.InsertionPoint(operation),
            )
            operands[1] = barrier.results[0]


def _is_never_zero(value: Any) -> bool:
    """Return whether a value is a constant integer other than zero, of any shape."""
    from jax.interpreters.mlir import ir

    while True:
        owner = value.owner
        if isinstance(owner, ir.Block):
            return False
        operation = owner.operation
        if operation.name == "stablehlo.constant":
            constant: Any = operation.attributes["value"]
            return bool(constant.is_splat and constant.get_splat_value().value != 0)
        if operation.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
            return False
        value = operation.operands[0]


def _disagreement(exported: Any, module: Any) -> str:
    """Return how the types of `main` differ from those stated in the file; "" if they do not."""
    from jax.interpreters.mlir import ir

    if exported.ordered_effects:
        return f"it has the effects {exported.ordered_effects}"[:500]
    main: Any = ir.SymbolTable(module.operation)["main"]
    # The first input of a module for several platforms is the index of the platform.
    inputs = [str(type) for type in main.type.inputs][len(exported.platforms) > 1 :]
    results = [str(type) for type in main.type.results]
    stated_inputs = [_type(exported.in_avals[i]) for i in exported.module_kept_var_idx]
    stated_results = [_type(aval) for aval in exported.out_avals]
    if inputs == stated_inputs and results == stated_results:
        return ""
    return (
        f"main takes ({', '.join(inputs)}) and returns ({', '.join(results)}), stated are "
        f"({', '.join(stated_inputs)}) and ({', '.join(stated_results)})"
    )[:500]


def _type(aval: Any) -> str:
    """Return the MLIR type of a JAX input or output, as text."""
    import jax
    from jax.interpreters import mlir

    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return str(mlir.ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(aval.dtype)))


if __name__ == "__main__":
    main()
