"""Saves a compiled step to a file, and loads it where it runs.

    compiled = train_step.trace(batch).lower().compile()
    gd.aot.save("step.gdx", compiled)
    ...
    step = gd.aot.load("step.gdx", strategy=strategy, variables=params)
    loss = step(batch)

The file holds the program twice. `module.mlir` is portable StableHLO, as `jax.export` writes it.
When it is loaded, another process reads the module first, because a damaged module can crash the
reader (`runtime/files/module_check.py`). Then the module is compiled for the present devices.
`executable.bin` is the compiler's executable. It runs only on the same kind of devices with the
same versions. JAX stores the executable as a pickle. Loading it runs code from the file, so it is
loaded only on request.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any  # Any: users' arguments and results, JSON

from graphdist.aot.compatibility import (
    check_native,
    check_versions,
    require_memory,
    strategy_that_runs,
    target_of,
)
from graphdist.aot.file_options import options_for
from graphdist.aot.loaded_step import LoadedStep, variables_for
from graphdist.aot.manifest import boundary_from_json, boundary_to_json, interface_to_json
from graphdist.aot.reading import read_checked, reading, require_path
from graphdist.config import compiler_flags
from graphdist.data.elements import at_the_users_line
from graphdist.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from graphdist.passes.plans import NO_PLAN
from graphdist.program.stages import Compiled
from graphdist.runtime.compilation import has_cache, without_cache
from graphdist.runtime.cpu_options import BLOCK, ONE_BLOCK, divides_temporaries
from graphdist.runtime.files.artifact import sha256, try_to_write, write_artifact
from graphdist.runtime.files.module_check import checked_module
from graphdist.runtime.files.serialization import (
    PLATFORMS,
    export_module,
    load_module,
    load_native,
    serialize_native,
)
from graphdist.runtime.program_agreement import agree_on_file, wait_until_compiled
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name
from graphdist.version import versions

_CUSTOM_CALL = re.compile(r"stablehlo\.custom_call @(\w+)")
"""A custom call in the text of a module; JAX's error has an example of each."""


@at_the_users_line()
def save(
    path: str | os.PathLike[str], compiled: Compiled, *, platforms: Sequence[str] | None = None
) -> None:
    """Write a compiled step to a file; its name usually ends in `.gdx`.

    The portable module is for the platform that the step was compiled for, or for `platforms`:
    "cpu", "gpu", "tpu". Values of variables are not in the file. Raises `UnsupportedError` for
    arguments and results that the file cannot describe, for programs with callbacks or custom calls
    and for variables on parameter servers, `MissingExtraError` without flatbuffers, `ArtifactError`
    for a step of more than about ten thousand variables, `ArgumentError` if no file can be made at
    `path`, and `OSError` if writing fails, such as on a full disk. After a failure no part of the
    file remains.
    """
    require_path(path, "gd.aot.save")
    require_replaceable(path)
    if not isinstance(compiled, Compiled):
        raise ArgumentTypeError(
            f"gd.aot.save is given {type_name(compiled)}, not a compiled step",
            hint="compile it for its arguments: gd.aot.save(path, step.trace(x).lower().compile())",
        )
    uses = f"{compiled.graph.name!r} uses variables"
    if any(variable.is_in_copies or variable.serves for variable in compiled.graph.variables):
        raise UnsupportedError(
            f"{uses} of which each replica has a copy, by sync_every: a file of a step cannot "
            f"describe them",
            hint="compile it in the process that runs it, or save it for a strategy without "
            "sync_every",
        )
    if compiled.cut is not None:
        hint = "compile it in a scope of a strategy that keeps variables on its own devices"
        what = f"{uses} on parameter servers, which a file of a step cannot read"
        raise UnsupportedError(what, hint=hint)
    # The process that loads the step may store its variables in other packs, or in none.
    compiled = compiled.unpacked()
    traced = compiled.lowered.traced
    chosen = _checked_platforms(platforms, compiled.devices.platform)
    logical, final = traced.graph, compiled.graph
    graphs = f"# logical\n{logical}\n\n# final\n{final}\n".encode()
    shapes = [output.type.shape for output in logical.outputs]
    manifest = {
        "project": "graphdist",
        "versions": versions(),
        "flags": compiler_flags(),
        "compiler_options": dict(compiled.compiler_options),
        "platforms": chosen,
        "target": target_of(compiled.devices),
        "mesh": {"axes": {"replica": len(compiled.devices)}},
        "boundary": boundary_to_json(final, shapes),
        "interface": interface_to_json(traced.interface),
        "graph_hash": sha256(str(final).encode()),
    }
    members = {
        "graph.txt": graphs,
        "module.mlir": _exported(compiled, chosen),
        "executable.bin": serialize_native(_as_compiled_here(compiled).executable.compiled),
        "report.json": json.dumps(compiled.report().to_json(), indent=1).encode(),
    }
    if traced.plan != NO_PLAN:
        members["plan.json"] = traced.plan.to_json().encode()
    write_artifact(path, manifest, members)


def _as_compiled_here(compiled: Compiled) -> Compiled:
    """Return the step with an executable that can be written completely, and read.

    If JAX has read an executable for CPUs from its compilation cache, JAX writes only a part of the
    executable, and calls of the loaded part fail. Such a step is compiled again without the cache.
    XLA cannot read an executable with several blocks of temporaries. Such a step is compiled again
    with one.
    """
    has_blocks = divides_temporaries(compiled.compiler_options)
    if compiled.devices.platform != "cpu" or not (has_cache() or has_blocks):
        return compiled
    one_block = {BLOCK: ONE_BLOCK} if has_blocks else {}
    with without_cache():
        return replace(compiled.lowered).compile({**compiled.compiler_options, **one_block})


def require_file_path(path: str | os.PathLike[str]) -> None:
    """Raise `ArgumentError` if there is no folder for the file, or the path is a folder."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        hint = "make the folder first, or write somewhere else"
        raise _not_writable(path, f"there is no folder {folder}", hint)
    if os.path.isdir(path):
        hint = f"name a file in it: {os.path.join(path, 'step.gdx')}"
        raise _not_writable(path, "it is a folder", hint)


def _not_writable(path: str | os.PathLike[str], why: str, hint: str) -> ArgumentError:
    return ArgumentError(f"{os.fspath(path)} cannot be written: {why}", hint=hint)


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise `ArgumentError` if no file can be written at `path`, or `path` is no regular file."""
    require_writable(path)
    if os.path.exists(path) and not os.path.isfile(path):
        why = "it is a pipe, a socket or a device, which the file would replace"
        raise _not_writable(path, why, "name a file: step.gdx")


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise `ArgumentError` if no file can be written at `path`. Make a file and remove it."""
    require_file_path(path)
    try:
        try_to_write(path)
    except (OSError, ValueError) as error:  # ValueError: the name has a zero byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _not_writable(path, str(reason), "write somewhere else") from error


def _exported(compiled: Compiled, platforms: Sequence[str]) -> bytes:
    """Return the portable module; raises `UnsupportedError` for callbacks and custom calls."""
    try:
        return export_module(compiled.lowered.emitted, platforms)
    except (NotImplementedError, ValueError) as error:
        reason = str(error).splitlines()[0]
        hint = "callbacks, prints and custom calls of your own do not go into a file"
        if targets := ", ".join(sorted(set(_CUSTOM_CALL.findall(str(error))))):
            promise = "JAX does not guarantee that other versions of it have"
            reason = f"{promise} the custom calls {targets}"
            hint = (
                "compute it by other operations, or compile the step in the process that runs it; "
                "of JAX's own, lax.linalg.ormqr and scipy.linalg.qr(pivoting=True) make such calls"
            )
        raise UnsupportedError(
            f"the step cannot be made a portable module for {' and '.join(platforms)}: {reason}",
            hint=hint,
        ) from error


@at_the_users_line()
def load(
    path: str | os.PathLike[str],
    *,
    strategy: StrategyBase | None = None,
    variables: Any = None,
    native: bool = False,
    trusted: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> LoadedStep:
    """Load the step in a file; call it with the arguments of the function that was compiled.

    `strategy` runs the step. By default it is the current strategy, or else a `MirroredStrategy`
    with as many devices as the step has replicas. `variables` is a pytree that holds the step's
    variables, made in the strategy's scope with the same names, shapes and dtypes; other variables
    in the pytree are ignored.

    By default another process reads the file's portable module first. This takes about a second,
    once for each module. `load` raises `ArtifactError` for a module that crashes that process,
    needs too much time or memory, or has a custom call that JAX's own operations, such as linear
    algebra, do not make. `trusted=True` skips this check, for files that you trust like a program.

    Then the module is compiled for the strategy's devices, with `compiler_options` or, if None,
    with the options in the file. If an option in the file is not known to be safe, `load` raises
    `ArtifactError`, unless you pass `compiler_options` or `trusted=True`.

    With `native` the executable in the file is loaded and nothing is compiled. The executable needs
    the same kind of devices, and the same versions and flags. It is a pickle, and loading it RUNS
    CODE FROM THE FILE: use `native` only with files you trust.

    On several workers, each worker loads the same file, and the workers wait for each other.

    Raises `ArtifactError` for a file that is damaged, was changed, or was made by other versions or
    for other devices; `ArgumentError` for variables that are missing; `DeviceMemoryError` for a
    step that needs more memory than there is; `WorkerError` if workers load different files.
    """
    if native and compiler_options is not None:
        raise ArgumentError(
            "load is given compiler_options and native=True, which compiles nothing",
            hint="leave one of them out",
        )
    program = "executable.bin" if native else "module.mlir"
    file = read_checked(path, "gd.aot.load", ("graph.txt", "report.json", program))
    check_versions(file)
    with reading(file.name):
        graph = boundary_from_json(file.manifest["boundary"])
    chosen = strategy_that_runs(file, graph, strategy)
    devices = chosen.devices
    agree_on_file(file.name, file.manifest["hash"], devices, here())
    owned = variables_for(file.name, graph, chosen, variables)
    with reading(file.name):
        data = file.members[program]
        if native:
            check_native(file, devices)
            executable = load_native(data, graph, devices)
        else:
            options = options_for(file, devices, compiler_options, trusted=trusted)
            module = data if trusted else checked_module(data, file.name)
            executable = load_module(module, graph, devices, options)
            if not trusted:
                require_memory(file.name, executable, devices)
        step = LoadedStep(file, graph, chosen, owned, executable)
    wait_until_compiled(graph, devices, here())
    return step


def _checked_platforms(platforms: Sequence[str] | None, default: str) -> list[str]:
    chosen = [default] if platforms is None else list(platforms)
    for platform in chosen:
        if platform not in PLATFORMS:
            raise ArgumentError(f"platform {platform!r} is not one of {', '.join(PLATFORMS)}")
    return chosen
