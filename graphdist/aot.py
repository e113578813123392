"""Save a compiled step in a file, and load it where it is to run.

    compiled = train_step.trace(batch).lower().compile()
    gd.aot.save("step.gdx", compiled)
    ...
    step = gd.aot.load("step.gdx", strategy=strategy, variables=params)
    loss = step(batch)

The file has the program twice. `module.mlir` is portable StableHLO, as `jax.export` writes it:
loading compiles it for the devices that are here. `executable.bin` is what the compiler made, which
runs on the same kind of devices with the same versions alone, and which JAX stores as a pickle:
loading it runs code from the file. It is used only if asked for.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any  # Any: users' arguments and results, JSON

import jax

from graphdist.aot_variables import variables_for
from graphdist.config import compiler_flags
from graphdist.context import current_entry
from graphdist.errors import ArgumentError, ArtifactError, GraphdistError
from graphdist.ir.graph import Graph
from graphdist.manifest import (
    boundary_from_json,
    boundary_to_json,
    interface_from_json,
    interface_to_json,
)
from graphdist.program import Program
from graphdist.runtime.artifact import read_artifact, sha256, write_artifact
from graphdist.runtime.buffers import BufferStore
from graphdist.runtime.devices import Devices
from graphdist.runtime.executable import Executable
from graphdist.runtime.serialization import (
    PLATFORMS,
    export_module,
    load_module,
    load_native,
    serialize_native,
)
from graphdist.signature import UnusableLeaf, difference, leaf_key
from graphdist.stages import Compiled
from graphdist.strategies.base import StrategyBase
from graphdist.strategies.mirrored import MirroredStrategy
from graphdist.tracing.sources import here
from graphdist.variable_storage import lay_out, layout_of
from graphdist.variables import Variable
from graphdist.version import versions


def save(
    path: str | os.PathLike[str], compiled: Compiled, *, platforms: Sequence[str] | None = None
) -> None:
    """Write a compiled step to a file, by custom `name.gdx`.

    The portable module is for the platform it was compiled for, or for `platforms`: "cpu", "gpu",
    "tpu". Values of variables are not in the file. Raises `UnsupportedError` for arguments and
    results that the file cannot describe, `MissingExtraError` without flatbuffers, and OSError
    where the file cannot be written, of which nothing is left then.
    """
    traced = compiled.lowered.traced
    assert traced is not None
    assert traced.interface is not None
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
        "target": _target(compiled.devices),
        "mesh": {"axes": {"replica": len(compiled.devices)}},
        "boundary": boundary_to_json(final, shapes),
        "interface": interface_to_json(traced.interface),
        "unplaced": sorted(i for i, one in (traced.given or {}).items() if one.sharding is None),
        "graph_hash": sha256(str(final).encode()),
    }
    members = {
        "graph.txt": graphs,
        "module.mlir": export_module(compiled.lowered.emitted, chosen, here()),
        "executable.bin": serialize_native(compiled.executable.compiled),
        "report.json": json.dumps(compiled.report().to_json(), indent=1).encode(),
    }
    write_artifact(path, manifest, members)


def load(
    path: str | os.PathLike[str],
    *,
    strategy: StrategyBase | None = None,
    variables: Any = None,
    native: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> LoadedStep:
    """Return the step in a file, to be called as the function was.

    `strategy` runs it: by default the current one, or else a `MirroredStrategy` of as many devices
    as the step has replicas. `variables` is a pytree that holds the step's variables, made in that
    strategy's scope with the names, shapes and dtypes they had; others in it are left alone.

    By default nothing in the file is run: its portable module is compiled for the devices here,
    with `compiler_options`, or else with those of the file that are numbers and switches. Text
    can name a file for the compiler to write, so a file that has such options is refused until
    they are given here.

    With `native` the compiler's own executable is loaded, which starts at once and needs the same
    kind of devices, versions and flags. It is a pickle, and loading it RUNS CODE FROM THE FILE: ask
    for it only with files you trust.

    Raises `ArtifactError` for a file that is damaged or was changed, and for one that was made by
    other versions or for other devices; `ArgumentError` for variables that are missing.
    """
    if native and compiler_options is not None:
        raise ArgumentError(
            "load is given compiler_options and native=True, which compiles nothing",
            source=here(),
            hint="leave one of them out",
        )
    name = os.path.basename(os.fspath(path))
    manifest, members = read_artifact(path, here())
    try:
        return _loaded(name, manifest, members, strategy, variables, native, compiler_options)
    except GraphdistError:
        raise
    except _CONTRADICTIONS as error:
        raise ArtifactError(
            f"{name} has a manifest and a module that describe no step: {error!r}",
            source=here(),
            hint="compile the step anew",
        ) from error


def _loaded(
    name: str,
    manifest: Any,
    members: dict[str, bytes],
    strategy: StrategyBase | None,
    variables: Any,
    native: bool,
    compiler_options: Mapping[str, Any] | None,
) -> LoadedStep:
    _check_versions(name, manifest)
    graph = boundary_from_json(manifest["boundary"])
    chosen = _strategy_for(name, manifest, graph, strategy)
    devices = chosen.devices
    if native:
        _check_native(name, manifest, devices)
        executable = load_native(members["executable.bin"], graph, devices)
    else:
        options = _options(name, manifest, devices, compiler_options)
        executable = load_module(members["module.mlir"], graph, devices, options, here())
    owned = variables_for(name, graph, chosen, variables)
    return LoadedStep(manifest, members, graph, chosen, owned, executable)


_CONTRADICTIONS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""What reading a file raises whose hashes are right and whose contents are not."""


def _options(
    name: str, manifest: Any, devices: Devices, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return XLA's options for the portable module; raises for those a file may not choose."""
    if given is not None:
        return dict(given)
    if devices.platform != manifest["target"]["platform"]:
        return {}
    options = dict(manifest["compiler_options"])
    for option, value in options.items():
        if not isinstance(value, bool | int | float) and str(value) not in ("true", "false"):
            raise ArtifactError(
                f"{name} asks for the compiler option {option}={value!r}: text in a file may "
                f"name a file to write",
                source=here(),
                hint=f"if you want it, ask for it: "
                f"load(path, compiler_options={{{option!r}: {value!r}}})",
            )
    return options


class LoadedStep:
    """A step from a file: call it with what the function was called with."""

    def __init__(
        self,
        manifest: Any,
        members: dict[str, bytes],
        graph: Graph,
        strategy: StrategyBase,
        variables: Sequence[Variable],
        executable: Executable,
    ) -> None:
        """Bind an executable to variables; `load` does it."""
        self.manifest = manifest
        self.report: dict[str, Any] = json.loads(members["report.json"])
        """What was reported when it was compiled."""
        self.graph_text = members["graph.txt"].decode()
        self.strategy = strategy
        self.name = graph.name
        self._interface = interface_from_json(manifest["interface"], strategy)
        shapes = [tuple(shape) for shape in manifest["boundary"]["output_shapes"]]
        along = [variable.sharded_along for variable in graph.variables]

        def again() -> int:
            """Have variables lie as the step takes them: it cannot be compiled for others."""
            with BufferStore.lock:
                lay_out(variables, along, alone=True)
                return layout_of(variables, strategy)

        self._program = Program(
            self._interface, variables, variables, graph, shapes, executable, again(), again
        )

    def __repr__(self) -> str:
        return f"<loaded step {self.name} on {self.strategy.devices}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step; raises `ArgumentError` for other arguments than it was compiled for."""
        paths, _ = jax.tree_util.tree_flatten_with_path((args, kwargs))
        leaves = [leaf for _, leaf in paths]
        self._check([jax.tree_util.keystr(path) for path, _ in paths], leaves)
        return self._program.call(leaves)

    def _check(self, places: list[str], leaves: list[Any]) -> None:
        expected = self._interface
        if tuple(places) != expected.paths:
            missing = [name for name in expected.paths if name not in places]
            added = [name for name in places if name not in expected.paths]
            raise ArgumentError(
                f"step {self.name!r} is called with {len(places)} leaves, it was compiled for "
                f"{len(expected.paths)}: "
                + ", ".join([*(f"no {one}" for one in missing), *(f"{one} too" for one in added)]),
                source=here(),
            )
        try:
            keys = tuple(_loose(leaf_key(leaf, False)) for leaf in leaves)
        except UnusableLeaf as unusable:
            raise ArgumentError(f"an argument {unusable.args[0]}", source=here()) from None
        wanted = tuple(map(_loose, expected.keys))
        if keys != wanted:
            raise ArgumentError(
                f"step {self.name!r} was compiled for other arguments: "
                f"{difference(expected.names, wanted, keys)}",
                source=here(),
                hint="compile it for these shapes, or call it with those",
            )


def _loose(key: Any) -> Any:
    """Return a leaf's key without whether it was weakly typed, which a compiled step ignores."""
    return (*key[:3], False) if key[0] == "array" else key


def _target(devices: Devices) -> dict[str, Any]:
    topology = devices.topology
    return {
        "platform": devices.platform,
        "device_kind": devices.devices[0].device_kind,
        "num_devices": len(devices),
        "topology": None if topology is None else topology.name,
        "num_slices": 1 if topology is None else topology.num_slices,
        "layout": _layout(devices),
    }


def _layout(devices: Devices) -> str:
    """Return how many chips lie along each dimension of how many slices; of TPUs alone.

    It is read from the devices, so that those of a topology and those that are here compare.
    """
    places = [tuple(getattr(device, "coords", None) or ()) for device in devices.devices]
    if not all(places):
        return ""
    sides = (max(along) - min(along) + 1 for along in zip(*places, strict=True))
    slices = {getattr(device, "slice_index", 0) or 0 for device in devices.devices}
    return f"{len(slices)} of {'x'.join(map(str, sides))}"


def _checked_platforms(platforms: Sequence[str] | None, default: str) -> list[str]:
    if platforms is None:
        return [default]
    for platform in platforms:
        if platform not in PLATFORMS:
            raise ArgumentError(
                f"platform {platform!r} is not one of {', '.join(PLATFORMS)}", source=here()
            )
    return list(platforms)


def _check_versions(name: str, manifest: Any) -> None:
    made_by, here_are = manifest["versions"], versions()
    for package in ("graphdist", "jax", "jaxlib"):
        if made_by[package] != here_are[package]:
            raise ArtifactError(
                f"{name} was made with {package} {made_by[package]}, here is {package} "
                f"{here_are[package]}",
                source=here(),
                hint=f"install {package}=={made_by[package]}, or compile the step anew",
            )


def _check_native(name: str, manifest: Any, devices: Devices) -> None:
    """Raise `ArtifactError` where the native executable would not be the program it was."""
    made, found = manifest["target"], _target(devices)
    pairs = [
        ("devices", f"{made['num_devices']} {made['device_kind']}",
         f"{found['num_devices']} {found['device_kind']}"),
        ("slices", made["layout"], found["layout"]),
        ("compiler flags", str(manifest["flags"]), str(compiler_flags())),
    ]  # fmt: skip
    if devices.platform == "tpu":
        pairs.append(("libtpu", manifest["versions"]["libtpu"], versions()["libtpu"]))
    for what, made_for, present in pairs:
        if made_for != present:
            raise ArtifactError(
                f"the native executable in {name} was made for {what} {made_for}, here are "
                f"{present}",
                source=here(),
                hint="leave out native=True: the portable module is compiled for what is here",
            )


def _strategy_for(
    name: str, manifest: Any, graph: Graph, strategy: StrategyBase | None
) -> StrategyBase:
    """Return the strategy that runs the step; raises where its devices are others."""
    entry = current_entry()
    if strategy is None and entry is not None:
        strategy = entry.strategy
    if strategy is None:
        local = jax.local_devices()
        strategy = MirroredStrategy(local[: graph.num_replicas])
    if len(strategy.devices) != graph.num_replicas:
        raise ArtifactError(
            f"{name} was compiled for {graph.num_replicas} replicas, {strategy} has "
            f"{len(strategy.devices)}",
            source=here(),
            hint="give load a strategy of as many replicas, or compile the step for these",
        )
    if strategy.devices.is_absent:
        strategy.devices.refuse_to_run(f"loading {name}", here())
    platform = strategy.devices.platform
    if platform not in manifest["platforms"]:
        raise ArtifactError(
            f"{name} was compiled for {' and '.join(manifest['platforms'])}, the devices are of "
            f"{platform}",
            source=here(),
            hint=f"save it for {platform} too: gd.aot.save(path, compiled, platforms=[..])",
        )
    return strategy
