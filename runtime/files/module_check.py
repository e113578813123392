"""Portable modules of files: read by another process first, and checked for what they contain.

1. This process reads only bytes that `module_reader.py` wrote from what it had read. Bytes that
   crash MLIR's reader, or make it run for ever or allocate without end, harm that process only.
2. A module has operations of StableHLO and of the dialects around it, none that talk to the host,
   and custom calls of JAX's own linear algebra and sharding alone. Any other custom call is code
   that the process has registered, such as a callback to Python, or code that the module brings,
   such as a Pallas kernel.
3. It costs a start of Python and JAX, about a second, once for each module in a process.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any  # Any: JSON

from graphdist.ir.source import Source
from graphdist.runtime.files import module_reader
from graphdist.runtime.files.artifact import ArtifactError, sha256

_DIALECTS = ("builtin", "chlo", "func", "sdy", "stablehlo")
_TALKING = ("stablehlo.infeed", "stablehlo.outfeed", "stablehlo.recv", "stablehlo.send")
"""Operations that wait for the host, which a step does not talk to."""
_LAPACK = (
    *("potrf", "geqrf", "orgqr", "ungqr", "syevd", "heevd", "geev", "gesdd", "getrf", "sytrd"),
    *("hetrd", "gehrd", "gees", "trsm", "gtsv"),
)
_CUDA = (
    *("cusolver_getrf_ffi", "cusolver_geqrf_ffi", "cusolver_orgqr_ffi", "cusolver_potrf_ffi"),
    *("cusolver_syevd_ffi", "cusolver_gesvd_ffi", "cusolver_gesvdj_ffi", "cusolver_sytrd_ffi"),
    *("cusparse_gtsv2_ffi", "cu_lu_pivots_to_permutation", "cu_threefry2x32_ffi"),
)
CUSTOM_CALLS = frozenset(
    [
        *("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"),
        *(f"lapack_{letter}{routine}_ffi" for letter in "sdcz" for routine in _LAPACK),
        *_CUDA,
        *("Eigh", "Qr", "ProductOfElementaryHouseholderReflectors", "LuDecomposition"),  # of TPUs
        *("ApproxTopK", "AllocateBuffer"),
    ]
)
"""The custom calls a module may have: what JAX's own operations become on CPU, GPU and TPU."""
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
    """Raise `ArtifactError` for operations that no saved step has."""
    for operation in found["operations"]:
        if operation.partition(".")[0] not in _DIALECTS or operation in _TALKING:
            raise _refused(f"{name} has a module with the operation {operation}", at)
    unknown = [call for call in found["custom_calls"] if call not in CUSTOM_CALLS]
    if unknown:
        raise ArtifactError(
            f"{name} has a module with the custom call {unknown[0]!r}, which is none of JAX's "
            f"linear algebra and sharding: it runs other code",
            source=at,
            hint="if you trust the file, as you would a program: load(path, trusted=True)",
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
    return ArtifactError(
        f"the module of {name} cannot be checked: the process that would read it fails: {why}",
        source=at,
        hint="if you trust the file, as you would a program: load(path, trusted=True)",
    )
