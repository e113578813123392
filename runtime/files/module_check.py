"""Portable modules of files: read by another process first, and checked for what they contain.

1. This process reads only bytes that `module_reader.py` wrote from what it had read. Bytes that
   crash MLIR's reader, or make it run for ever or allocate without end, harm that process only.
2. A module has operations of StableHLO and of the dialects around it, none that talk to the host,
   and custom calls of JAX's own linear algebra and sharding alone. Any other custom call is code
   that the process has registered, such as a callback to Python, or code that the module brings,
   such as a Pallas kernel. A custom call has the shapes, settings and layouts that JAX gives it: a
   kernel of LAPACK writes as much as its operand says, wherever its result ends.
3. A module is no larger, once its calls are resolved, than the compiler can take: functions that
   call each other twice double with each function. Nor are its values, and arrays and windows where
   an operation pads and dilates them.
4. It costs a start of Python and JAX, about a second, once for each module in a process.
"""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any  # Any: JSON

from graphdist.ir.source import Source
from graphdist.runtime.files import module_reader
from graphdist.runtime.files.artifact import ArtifactError, sha256
from graphdist.runtime.files.custom_call_check import TARGETS, Misfit, array, misfit

_DIALECTS = ("builtin", "chlo", "func", "sdy", "stablehlo")
_TALKING = ("stablehlo.infeed", "stablehlo.outfeed", "stablehlo.recv", "stablehlo.send")
"""Operations that wait for the host, which a step does not talk to."""
_OF_UNKNOWN_SIZES = re.compile(r"stablehlo\.(dynamic_(?!slice$|update_slice$)|real_dynamic_)\w+")
"""Operations whose paddings and windows are operands. JAX has them for unknown shapes alone."""
_ATTRIBUTES = {
    *("sym_name", "mhlo.num_partitions", "mhlo.num_replicas", "jax.uses_shape_polymorphism"),
}
"""The attributes of a module that JAX writes. Others say what the compiler has done already."""
MOST_OPERATIONS = 100_000
MOST_COPIES = 10
"""The most operations of a module once every call stands for the function it calls: so many, or so
many times those in the file. The compiler took 0.5 to 4 milliseconds and 50 KB for each."""
MOST_DEPTH = 64
"""The most regions and calls inside each other: the compiler's stack overflowed at about 200."""
LARGEST_VALUE = 2**50
"""The most bytes of a value, on all replicas together: the compiler counts in 64 bits, and crashes
where the count overflows. Dimensions of zero count as one."""
_ELEMENTS = re.compile(r"i1|u?i(2|4|8|16|32|64)|bf16|f(16|32|64)|complex<f(32|64)>|f4E2M1FN|f8E\w+")
"""The element types that JAX has; a sort of MLIR's f6 crashes the compiler for CPUs."""
_BITS = re.compile(r"\d+")
READER = Path(module_reader.__file__).resolve()
"""The program that reads a module; it imports nothing of graphdist."""
_DENSE = 2**24
"""The bytes of a module that may all be operations; beyond that it is large constants."""
_safe: set[str] = set()
"""The SHA-256 of modules that the other process wrote and this one has checked."""


def checked_module(data: bytes, name: str, at: Source) -> bytes:
    """Return the module of file `name`, safe to read; raises `ArtifactError` if it is not."""
    if sha256(data) in _safe:
        return data
    found, written = _read_elsewhere(data, name, at)
    if found["wrong"]:
        raise _refused(f"{name} has a module that is none: {found['wrong']}", at)
    _judge(found, name, at)
    _safe.add(sha256(written))
    return written


def _judge(found: dict[str, Any], name: str, at: Source) -> None:
    """Raise `ArtifactError` for what no saved step has, or what only a trusted one may have."""
    for operation in found["operations"]:
        is_known = operation.partition(".")[0] in _DIALECTS and operation not in _TALKING
        if not is_known or _OF_UNKNOWN_SIZES.fullmatch(operation):
            raise _refused(f"{name} has a module with the operation {operation}", at)
    for attribute in found["attributes"]:
        if attribute not in _ATTRIBUTES:
            raise _refused(f"{name} has a module with the attribute {attribute}", at)
    for call in found["custom_calls"]:
        target = call["target"]
        if target not in TARGETS:
            raise _untrusted(
                f"{name} has a module with the custom call {target!r}, which is none of JAX's "
                f"linear algebra and sharding: it runs other code",
                at,
            )
        if said := misfit(call):
            raise _untrusted(
                f"{name} has a module whose custom call {target!r} JAX has not made: it {said}", at
            )
    for type in found["types"]:
        _require_size(f"a value {type:.100}", type, name, at)
    for operation, type in found["stretched"]:
        _require_size(f"{operation} over {type:.100}", type, name, at)
    most = max(MOST_OPERATIONS, MOST_COPIES * found["num_operations"])
    if found["num_inlined"] > most:
        raise _untrusted(
            f"{name} has a module of {found['num_operations']:,} operations, which become "
            f"{found['num_inlined']:,} where functions are called; {most:,} is most",
            at,
        )
    if found["depth"] > MOST_DEPTH:
        raise _untrusted(
            f"{name} has a module with {found['depth']} regions and calls inside each other; "
            f"{MOST_DEPTH} is most",
            at,
        )


def _require_size(what: str, type: str, name: str, at: Source) -> None:
    """Raise `ArtifactError` for a type whose size is unknown, or no compiler can count."""
    try:
        dimensions, element = array(type)
    except Misfit as misfit:
        raise _refused(f"{name} has a module that {misfit}", at) from None
    if not _ELEMENTS.fullmatch(element):
        raise _refused(f"{name} has a module with elements of type {element:.100}", at)
    bits = _BITS.search(element)
    size = math.prod(max(1, dimension) for dimension in dimensions)
    size = size * int(bits[0] if bits else 8) * (2 if "complex" in element else 1) // 8
    if size > LARGEST_VALUE:
        found = f"{size:,}" if size < 2**200 else "2^200 or more"
        raise _untrusted(
            f"{name} has a module with {what} of {found} bytes; {LARGEST_VALUE:,} is most",
            at,
        )


def _read_elsewhere(data: bytes, name: str, at: Source) -> tuple[dict[str, Any], bytes]:
    """Return the findings of another process on a module, and the module as it wrote it."""
    memory, seconds = _limits(len(data))
    request = json.dumps({"path": sys.path, "memory": memory, "seconds": seconds}).encode()
    command = [sys.executable, "-P", str(READER)]
    try:
        done = subprocess.run(
            command, input=request + b"\n" + data, capture_output=True, timeout=4 * seconds
        )
    except subprocess.TimeoutExpired:
        raise _ended(name, f"does not end within {4 * seconds} seconds", at) from None
    except OSError as error:
        raise _unchecked(name, str(error), at) from error
    if done.returncode < 0:
        number = -done.returncode
        ended = f"crashes: {signal.Signals(number).name}"
        if number in (signal.SIGKILL, signal.SIGXCPU):
            ended = f"does not end within {seconds} seconds of processor time"
        raise _ended(name, ended, at)
    line, _, written = done.stdout.partition(b"\n")
    try:
        found = json.loads(line)
    except ValueError:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise _unchecked(name, said[-1], at) from None
    return found, written


def _limits(size: int) -> tuple[int, int]:
    """Return bytes and seconds for a module of a size: several times the measured ones.

    A megabyte of operations took 150 MB and 2 seconds, one of constants 8 MB and 20 milliseconds.
    """
    megabytes = min(size, _DENSE) / 2**20
    return (
        2**29 + 200 * min(size, _DENSE) + 10 * size,
        int(10 + 10 * megabytes + size / 2**22),
    )


def _refused(what: str, at: Source) -> ArtifactError:
    return ArtifactError(what, source=at, hint="compile the step anew")


def _ended(name: str, how: str, at: Source) -> ArtifactError:
    return ArtifactError(
        f"{name} has a module that is none: the process that reads it {how}",
        source=at,
        hint="the file was damaged or changed: get it again, or compile the step anew",
    )


def _unchecked(name: str, why: str, at: Source) -> ArtifactError:
    return _untrusted(
        f"the module of {name} cannot be checked: the process that would read it fails: {why}", at
    )


def _untrusted(what: str, at: Source) -> ArtifactError:
    return ArtifactError(
        what,
        source=at,
        hint="if you trust the file, as you would a program: load(path, trusted=True)",
    )
