"""Checks the portable module of a file, which another process reads first.

1. This process reads only the bytes that `module_reader.py` has written again. Bytes that crash
   MLIR's reader, or make it run for ever or allocate without end, harm only that process.
2. A module may have operations of StableHLO and its dialects, but none that communicate with the
   host, and custom calls of JAX's own linear algebra and sharding. Any other custom call is code
   that the process has registered, such as a callback to Python, or code in the module, such as a
   Pallas kernel. A custom call must have the shapes, settings and layouts that JAX gives it: a
   kernel of LAPACK writes as many elements as its operand has, also beyond the end of its result.
3. With its calls inlined, a module must not be too large for the compiler: functions that call the
   next one twice double the size each time. Values must not be too large either, nor the arrays and
   windows of operations that pad and dilate them.
4. The check starts Python and JAX, about a second, once per module and process.
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

from graphdist.runtime.files import module_reader
from graphdist.runtime.files.artifact import ArtifactError, Refusal, sha256
from graphdist.runtime.files.custom_call_check import TARGETS, Misfit, array, misfit

_DIALECTS = ("builtin", "chlo", "func", "sdy", "stablehlo")
_TALKING = ("stablehlo.infeed", "stablehlo.outfeed", "stablehlo.recv", "stablehlo.send")
"""Operations that communicate with the host, which no saved step does."""
_OF_UNKNOWN_SIZES = re.compile(r"stablehlo\.(dynamic_(?!slice$|update_slice$)|real_dynamic_)\w+")
"""Operations whose paddings and windows are operands. JAX uses them for unknown shapes only."""
_ATTRIBUTES = {
    *("sym_name", "mhlo.num_partitions", "mhlo.num_replicas", "jax.uses_shape_polymorphism"),
}
"""The attributes of a module that JAX writes. The compiler adds others."""
MOST_OPERATIONS = 100_000
MOST_COPIES = 10
"""A module with its calls inlined may have `MOST_OPERATIONS` operations, or `MOST_COPIES` times
those in the file. The compiler took 0.5 to 4 milliseconds and 50 KB for each."""
MOST_DEPTH = 64
"""How deep regions and calls may be nested: the compiler's stack overflowed at about 200."""
LARGEST_VALUE = 2**50
"""The most bytes of a value, on all replicas together: the compiler counts in 64 bits, and crashes
if the count overflows. Dimensions of size 0 count as 1."""
_ELEMENTS = re.compile(r"i1|u?i(2|4|8|16|32|64)|bf16|f(16|32|64)|complex<f(32|64)>|f4E2M1FN|f8E\w+")
"""The element types that JAX has; a sort of MLIR's f6 crashes the compiler for CPUs."""
_BITS = re.compile(r"\d+")
READER = Path(module_reader.__file__).resolve()
"""The program that reads a module; the program imports nothing of graphdist."""
_DENSE = 2**24
"""How many bytes of a module may be operations; more bytes are large constants."""
_ANEW = "compile the step anew"
_TRUST = "if you trust the file, as you would a program: load(path, trusted=True)"
_ENDED = "no valid module: the process that reads it"
_UNCHECKED = "a module that cannot be checked: the process that would read it fails"
_safe: set[str] = set()
"""The SHA-256 of modules that the other process wrote and this process has checked."""


def checked_module(data: bytes, name: str) -> bytes:
    """Return the module of file `name`, safe to read; raises `ArtifactError` if it is not."""
    if sha256(data) in _safe:
        return data
    try:
        findings, written = _read_elsewhere(data)
        _check(findings)
    except Refusal as refusal:
        raise ArtifactError(f"{name} has {refusal}", hint=refusal.hint) from None
    _safe.add(sha256(written))
    return written


def _check(findings: dict[str, Any]) -> None:
    """Raise `Refusal` for contents that no saved step has, or that only a trusted file may have."""
    if findings["wrong"]:
        raise Refusal(f"no valid module: {findings['wrong']}", _ANEW)
    for operation in findings["operations"]:
        is_known = operation.partition(".")[0] in _DIALECTS and operation not in _TALKING
        if not is_known or _OF_UNKNOWN_SIZES.fullmatch(operation):
            raise Refusal(f"a module with the operation {operation}", _ANEW)
    for attribute in findings["attributes"]:
        if attribute not in _ATTRIBUTES:
            raise Refusal(f"a module with the attribute {attribute}", _ANEW)
    for call in findings["custom_calls"]:
        target = call["target"]
        if target not in TARGETS:
            raise Refusal(
                f"a module with the custom call {target!r}, which is none of JAX's linear algebra "
                f"and sharding: it runs other code",
                _TRUST,
            )
        if what := misfit(call):
            raise Refusal(
                f"a module whose custom call {target!r} JAX has not made: it {what}", _TRUST
            )
    for type in findings["types"]:
        _require_size(f"a value {type:.100}", type)
    for operation, type in findings["stretched"]:
        _require_size(f"{operation} over {type:.100}", type)
    most = max(MOST_OPERATIONS, MOST_COPIES * findings["num_operations"])
    if findings["num_inlined"] > most:
        raise Refusal(
            f"a module of {findings['num_operations']:,} operations, which become "
            f"{findings['num_inlined']:,} where functions are called; the limit is {most:,}",
            _TRUST,
        )
    if findings["depth"] > MOST_DEPTH:
        raise Refusal(
            f"a module with {findings['depth']} regions and calls inside each other; "
            f"the limit is {MOST_DEPTH}",
            _TRUST,
        )


def _require_size(what: str, type: str) -> None:
    """Raise `Refusal` for a type whose size is unknown, or too large for the compiler."""
    try:
        dimensions, element = array(type)
    except Misfit as misfit:
        raise Refusal(f"a module that {misfit}", _ANEW) from None
    if not _ELEMENTS.fullmatch(element):
        raise Refusal(f"a module with elements of type {element:.100}", _ANEW)
    bits = _BITS.search(element)
    size = math.prod(max(1, dimension) for dimension in dimensions)
    size = size * int(bits[0] if bits else 8) * (2 if "complex" in element else 1) // 8
    if size > LARGEST_VALUE:
        size_text = f"{size:,}" if size < 2**200 else "2^200 or more"
        raise Refusal(
            f"a module with {what} of {size_text} bytes; the limit is {LARGEST_VALUE:,}", _TRUST
        )


def _read_elsewhere(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return another process's findings on a module, and the module that it wrote again."""
    memory, seconds = _limits(len(data))
    request = json.dumps({"path": sys.path, "memory": memory, "seconds": seconds}).encode()
    command = [sys.executable, "-P", str(READER)]
    try:
        done = subprocess.run(
            command, input=request + b"\n" + data, capture_output=True, timeout=4 * seconds
        )
    except subprocess.TimeoutExpired:
        raise Refusal(f"{_ENDED} does not end within {4 * seconds} seconds") from None
    except OSError as error:
        raise Refusal(f"{_UNCHECKED}: {error}", _TRUST) from None
    if done.returncode < 0:
        number = -done.returncode
        ended = f"crashes: {signal.Signals(number).name}"
        if number in (signal.SIGKILL, signal.SIGXCPU):
            ended = f"does not end within {seconds} seconds of processor time"
        raise Refusal(f"{_ENDED} {ended}")
    line, _, written = done.stdout.partition(b"\n")
    try:
        return json.loads(line), written
    except ValueError:
        errors = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise Refusal(f"{_UNCHECKED}: {errors[-1]}", _TRUST) from None


def _limits(size: int) -> tuple[int, int]:
    """Return the limits of bytes and seconds for a module of a size: several times those measured.

    A megabyte of operations took 150 MB and 2 seconds, a megabyte of constants 8 MB and 20
    milliseconds.
    """
    megabytes = min(size, _DENSE) / 2**20
    return (
        2**29 + 200 * min(size, _DENSE) + 10 * size,
        int(10 + 10 * megabytes + size / 2**22),
    )
