"""Texts of modules that no program of JAX has, chosen at random: whoever writes a file can.

Each takes four floats and returns four. They have custom calls of LAPACK that are changed in one
place or in several, or they ask the compiler or the devices for more than there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any  # Any: the description of a custom call

import jax
import jax.numpy as jnp
from jax import export
from jax.lax import linalg

from graphdist.runtime.files.module_reader import read_module

F = "tensor<4xf32>"
_TYPE = re.compile(r"tensor<((?:\d+x)*)(complex<\w+>|\w+)>")
_NUMBER = re.compile(r"\d+")
_ELEMENTS = ("f32", "f64", "complex<f32>", "complex<f64>", "i32", "i8", "bf16")
_SIZES = (0, 1, 2, 3, 5, 17, 300)


def linear_algebra(x: jax.Array) -> list[Any]:
    """Return what the custom calls of a CPU compute."""
    rectangular = x[..., :3]
    return [
        linalg.cholesky(x),
        linalg.qr(rectangular, full_matrices=False),
        linalg.lu(rectangular),
        linalg.eigh(x),
        linalg.eig(x),
        linalg.svd(rectangular, full_matrices=False),
        linalg.schur(x),
        linalg.hessenberg(x),
        linalg.tridiagonal(x),
        linalg.triangular_solve(x, rectangular, left_side=True),
        linalg.tridiagonal_solve(x[..., 0], x[..., 1], x[..., 2], rectangular),
    ]


def described_calls(
    function: Callable[..., Any], *avals: jax.ShapeDtypeStruct, platform: str = "cpu"
) -> list[dict[str, Any]]:
    """Return the custom calls of a function as the reader of modules describes them."""
    exported = export.export(jax.jit(function), platforms=[platform])(*avals)
    found, _ = read_module(bytes(exported.serialize()))
    assert not found["wrong"], found
    calls: list[dict[str, Any]] = found["custom_calls"]
    return calls


def module(body: str, functions: str = "") -> str:
    """Return a module with a body that takes `%x` and returns a value of its type."""
    return f"{functions}\nfunc.func public @main(%x: {F}) -> {F} {{\n{body}\n}}"


class Modules:
    """Draws modules."""

    def __init__(self) -> None:
        """Describe the calls of JAX's own programs."""
        avals = (
            jax.ShapeDtypeStruct((*batch, 4, 4), dtype)
            for batch in ((), (2,))
            for dtype in (jnp.float32, jnp.complex64)
        )
        self._calls = [call for aval in avals for call in described_calls(linear_algebra, aval)]

    def draw(self, random: Random) -> str:
        """Return the text of a module."""
        kind = random.choices((self._call, _sized, _structure, _drawn_windows), (6, 2, 1, 2))[0]
        return kind(random)

    def _call(self, random: Random) -> str:
        call = random.choice(self._calls)
        call = {key: value.copy() if key != "target" else value for key, value in call.items()}
        for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
            random.choice((_retyped, _retyped, _attribute, _setting, _renamed))(call, random)
        return module(call_text(call))


def call_text(call: dict[str, Any]) -> str:
    """Return a body that makes a custom call of ones, and adds all its results to `%x`."""
    settings = ", ".join(f"{name} = {text}" for name, text in call["settings"].items())
    attributes = [f"{name} = {text}" for name, text in call["attributes"].items()]
    attributes += [
        f'call_target_name = "{call["target"]}"',
        f"mhlo.backend_config = {{{settings}}}",
    ]
    lines = [
        f"%o{number} = stablehlo.constant dense<{_one(type)}> : {type}"
        for number, type in enumerate(call["operands"])
    ]
    given = ", ".join(f"%o{number}" for number in range(len(lines)))
    types = f"({', '.join(call['operands'])}) -> ({', '.join(call['results'])})"
    made = f"%r:{len(call['results'])} = " if call["results"] else ""
    lines.append(f'{made}"stablehlo.custom_call"({given}) {{{", ".join(attributes)}}} : {types}')
    total = "%x"
    for number, type in enumerate(call["results"]):
        lines.append(_added(f"%r#{number}", type, total, f"%s{number}"))
        total = f"%s{number}"
    return "\n".join([*lines, f"return {total} : {F}"])


def _one(type: str) -> str:
    element = _TYPE.fullmatch(type)
    if element is not None and element[2].startswith("complex"):
        return "(1.0, 0.0)"
    return "1" if element is None or element[2].startswith(("i", "ui")) else "1.0"


def _added(value: str, type: str, total: str, name: str) -> str:
    """Return lines that add the sum of a value to the total, under a name."""
    match = _TYPE.fullmatch(type)
    assert match is not None
    rank, element = match[1].count("x"), match[2]
    scalar = f"tensor<{element}>"
    dimensions = ", ".join(map(str, range(rank)))
    real = re.sub(r"complex<(\w+)>", r"\1", element)
    convert = "real" if real != element else "convert"
    lines = [
        f"{name}z = stablehlo.constant dense<{_one(type)}> : {scalar}",
        f"{name}a = stablehlo.reduce({value} init: {name}z) applies stablehlo.add across "
        f"dimensions = [{dimensions}] : ({type}, {scalar}) -> {scalar}",
        f"{name}b = stablehlo.{convert} {name}a : ({scalar}) -> tensor<{real}>",
        f"{name}c = stablehlo.convert {name}b : (tensor<{real}>) -> tensor<f32>",
        f"{name}d = stablehlo.broadcast_in_dim {name}c, dims = [] : (tensor<f32>) -> {F}",
        f"{name} = stablehlo.add {total}, {name}d : {F}",
    ]
    return "\n".join(lines)


def _retyped(call: dict[str, Any], random: Random) -> None:
    """Change the type of an operand or a result: a size, the rank, or the element type."""
    values = random.choice([call["operands"], call["results"]])
    at = random.randrange(len(values))
    match = _TYPE.fullmatch(values[at])
    assert match is not None
    sizes, element = match[1].split("x")[:-1], match[2]
    change = random.random()
    if change < 0.2:
        element = random.choice(_ELEMENTS)
    elif change < 0.3 or not sizes:
        sizes.insert(random.randrange(len(sizes) + 1), str(random.choice(_SIZES)))
    elif change < 0.4:
        del sizes[random.randrange(len(sizes))]
    else:
        sizes[random.randrange(len(sizes))] = str(random.choice(_SIZES))
    values[at] = f"tensor<{''.join(f'{size}x' for size in sizes)}{element}>"


def _changed(texts: dict[str, str], random: Random) -> None:
    """Drop a text, or change a number in it."""
    if not texts:
        return
    name = random.choice(sorted(texts))
    if random.random() < 0.3:
        del texts[name]
        return
    found = [*_NUMBER.finditer(texts[name])]
    if found:
        one, other = random.choice(found), str(random.choice((0, 1, 3, 78, 86, 255)))
        texts[name] = texts[name][: one.start()] + other + texts[name][one.end() :]


def _attribute(call: dict[str, Any], random: Random) -> None:
    _changed(call["attributes"], random)
    if random.random() < 0.2:
        call["attributes"]["api_version"] = f"{random.randrange(5)} : i32"


def _setting(call: dict[str, Any], random: Random) -> None:
    _changed(call["settings"], random)


def _renamed(call: dict[str, Any], random: Random) -> None:
    call["target"] = re.sub(
        "lapack_.", f"lapack_{random.choice('sdcz')}", random.choice((call["target"], "Qr", "Eigh"))
    )


def _sized(random: Random) -> str:
    """Return a module whose arrays, windows or loops have any size."""
    size = random.choice((1, 10, 2**10, 10**5, 2**24, 2**33, 2**40, 2**62))
    wide = f"tensor<{size}xf32>"
    arrays = {
        "constant": f"%w = stablehlo.constant dense<2.0> : {wide}",
        "iota": f"%w = stablehlo.iota dim = 0 : {wide}",
        "broadcast": f"%w = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> {wide}",
    }
    # Other windows of these arrays would run for hours, which a step may.
    windows = [each for each in (1, 100, 10**4) if size * each < 2 * 10**7 or size > 2**30]
    window = random.choice(windows)
    uses = {
        "sum": f"%y = stablehlo.reduce(%w init: %z) applies stablehlo.add across dimensions = [0] "
        f": ({wide}, tensor<f32>) -> tensor<f32>",
        "sort": f'%v = "stablehlo.sort"(%w) <{{dimension = 0 : i64}}> ({{\n^bb0(%a: tensor<f32>, '
        f"%c: tensor<f32>):\n%l = stablehlo.compare LT, %a, %c : (tensor<f32>, tensor<f32>) -> "
        f"tensor<i1>\nstablehlo.return %l : tensor<i1>\n}}) : ({wide}) -> {wide}\n"
        f"%e = stablehlo.slice %v [0:1] : ({wide}) -> tensor<1xf32>\n"
        f"%y = stablehlo.reshape %e : (tensor<1xf32>) -> tensor<f32>",
        "window": f'%v = "stablehlo.reduce_window"(%w, %z) <{{window_dimensions = array<i64: '
        f"{window}>, padding = dense<[[{window - 1}, 0]]> : tensor<1x2xi64>}}> ({{\n"
        f"^bb0(%a: tensor<f32>, %c: tensor<f32>):\n%s = stablehlo.add %a, %c : tensor<f32>\n"
        f"%t = stablehlo.sine %s : tensor<f32>\nstablehlo.return %t : tensor<f32>\n}}) : "
        f"({wide}, tensor<f32>) -> {wide}\n"
        f"%e = stablehlo.slice %v [0:1] : ({wide}) -> tensor<1xf32>\n"
        f"%y = stablehlo.reshape %e : (tensor<1xf32>) -> tensor<f32>",
    }
    use = random.choice(sorted(uses))
    if use == "sum" and size > 2**33:
        use = "sort"  # a sum needs no memory, and would run for hours as well
    lines = [_ZERO, arrays[random.choice(sorted(arrays))], uses[use]]
    return module("\n".join([*lines, *_END]))


_END = (
    f"%f = stablehlo.broadcast_in_dim %y, dims = [] : (tensor<f32>) -> {F}",
    f"%g = stablehlo.add %x, %f : {F}",
    f"return %g : {F}",
)


def padded(low: int, high: int, interior: int = 0, *, result: int = 4) -> str:
    """Return a module that pads `%x` and drops the result."""
    edges = f"low = [{low}], high = [{high}], interior = [{interior}]"
    return module(
        f"{_ZERO}\n%y = stablehlo.pad %x, %z, {edges} : "
        f"({F}, tensor<f32>) -> tensor<{result}xf32>\nreturn %x : {F}"
    )


def windowed(
    operation: str,
    low: int,
    high: int,
    *,
    window: int = 1,
    stride: int = 1,
    dilation: int = 1,
    window_dilation: int = 1,
) -> str:
    """Return a module that takes windows of `%x`, and drops a result of four numbers."""
    scalars = "^bb0(%a: tensor<f32>, %b: tensor<f32>):"
    chosen = "stablehlo.return %s : tensor<"
    add = f"{{ {scalars} %s = stablehlo.add %a, %b : tensor<f32> {chosen}f32> }}"
    select = (
        f"{{ {scalars} %s = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> "
        f"tensor<i1> {chosen}i1> }}"
    )
    padding = f"padding = dense<[[{low}, {high}]]> : tensor<1x2xi64>"
    strides = f"window_strides = array<i64: {stride}>"
    windows = f"window_dimensions = array<i64: {window}>, {strides}, {padding}"
    dilations = (
        f"base_dilations = array<i64: {dilation}>, window_dilations = array<i64: {window_dilation}>"
    )
    made = {
        "reduce_window": f'%y = "stablehlo.reduce_window"(%x, %z) <{{{windows}, {dilations}}}> '
        f"({add}) : ({F}, tensor<f32>) -> {F}",
        "select_and_scatter": f'%y = "stablehlo.select_and_scatter"(%x, %x, %z) <{{{windows}}}> '
        f"({select}, {add}) : ({F}, {F}, tensor<f32>) -> {F}",
        "convolution": f"%l = stablehlo.reshape %x : ({F}) -> tensor<1x1x4xf32>\n"
        f"%k = stablehlo.constant dense<1.0> : tensor<1x1x{window}xf32>\n"
        f'%y = "stablehlo.convolution"(%l, %k) <{{{strides}, {padding}, lhs_dilation = '
        f"array<i64: {dilation}>, rhs_dilation = array<i64: {window_dilation}>, "
        f"dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, "
        f"feature_group_count = 1 : i64, batch_group_count = 1 : i64}}> : "
        f"(tensor<1x1x4xf32>, tensor<1x1x{window}xf32>) -> tensor<1x1x4xf32>",
    }[operation]
    return module(f"{_ZERO}\n{made}\nreturn %x : {F}")


_ZERO = "%z = stablehlo.constant dense<0.0> : tensor<f32>"
WINDOWED = ("reduce_window", "select_and_scatter", "convolution")


def _drawn_windows(random: Random) -> str:
    """Return a module that pads, dilates or takes windows by any size, and has a small result."""
    size = random.choice((1, 3, 2**20, 2**40, 2**50, 2**60, 2**61, 2**62)) + random.choice((0, 1))
    kind = random.choice(("edges", "inside", "strides"))
    if random.random() < 0.3:
        return padded(0, -3 * size, size) if kind == "inside" else padded(size, -size)
    if kind == "edges":
        return windowed(random.choice(WINDOWED), size, -size)
    operation = random.choice(("reduce_window", "convolution"))
    if kind == "strides":
        return windowed(operation, 0, 0, dilation=size, stride=size)
    return windowed(operation, size, 0, window=2, window_dilation=size)


def _structure(random: Random) -> str:
    """Return a module of functions that call each other: in a row, twice each, or in a circle."""
    return functions(random.choice((1, 2, 6, 40, 70, 300, 5000)), random.choice((1, 2)),
                     circle=random.random() < 0.2)  # fmt: skip


def functions(count: int, calls: int, *, circle: bool = False) -> str:
    """Return a module with a chain of functions, each of which calls the next so many times."""
    texts = []
    for number in range(count):
        last = number == count - 1
        callee = f"@f{0 if last else number + 1}"
        made = [
            f"%v{i + 1} = call {callee}(%v{i}) : ({F}) -> {F}" for i in range(calls)
        ] if not last or circle else [f"%v{calls} = stablehlo.sine %v0 : {F}"]  # fmt: skip
        texts.append(
            f"func.func private @f{number}(%v0: {F}) -> {F} {{\n"
            + "\n".join([*made, f"return %v{calls} : {F} }}"])
        )
    return module(f"%y = call @f0(%x) : ({F}) -> {F}\nreturn %y : {F}", "\n".join(texts))


def branches(depth: int) -> str:
    """Return a module of branches inside each other."""
    opened: Sequence[str] = [f'%w{number} = "stablehlo.if"(%p) ({{' for number in range(depth)]
    closed = f"}}, {{ stablehlo.return %x : {F} }}) : (tensor<i1>) -> {F}"
    inner = [f"stablehlo.return %x : {F}", closed]
    for number in reversed(range(1, depth)):
        inner += [f"stablehlo.return %w{number} : {F}", closed]
    start = (
        f"%s = stablehlo.slice %x [0:1] : ({F}) -> tensor<1xf32>",
        "%h = stablehlo.reshape %s : (tensor<1xf32>) -> tensor<f32>",
        "%p = stablehlo.compare GT, %h, %h : (tensor<f32>, tensor<f32>) -> tensor<i1>",
    )
    return module("\n".join([*start, *opened, *inner, f"return %w0 : {F}"]))
