"""A step that was loaded from a file: bound to variables, and called like the function."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any  # Any: users' arguments and results, JSON

import jax

from graphdist.aot.manifest import interface_from_json
from graphdist.errors import ArgumentError, GraphdistError, RuntimeFailure
from graphdist.ir.graph import Graph
from graphdist.program.argument_keys import (
    UnusableLeaf,
    input_type,
    is_static,
    leaf_key,
)
from graphdist.program.binding import Binding
from graphdist.program.interface import OUTPUT, Interface, MirroredLeaf
from graphdist.program.program import Program
from graphdist.program.retracing import signature_difference
from graphdist.program.steps import compare_values
from graphdist.runtime.buffers import BufferStore
from graphdist.runtime.executable import Executable
from graphdist.state.layout import Layout
from graphdist.state.variable import Variable
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.user_lines import here


class LoadedStep:
    """A step from a file; it takes the arguments of the function that was compiled."""

    def __init__(
        self,
        manifest: Any,
        members: dict[str, bytes],
        graph: Graph,
        strategy: StrategyBase,
        variables: Sequence[Variable],
        executable: Executable,
    ) -> None:
        """Bind an executable to variables; call `load` to make a step."""
        self.manifest = manifest
        self.report: dict[str, Any] = json.loads(members["report.json"])
        """The report of the compilation, as JSON."""
        self.graph_text = members["graph.txt"].decode()
        self.strategy = strategy
        self.name = graph.name
        self._interface = interface_from_json(manifest["interface"], strategy)
        _require_interface(self._interface, graph)
        shapes = [tuple(shape) for shape in manifest["boundary"]["output_shapes"]]
        named = zip(graph.variables, variables, strict=True)
        values = {wanted.name: variable.stored for wanted, variable in named}
        layout = Layout(graph, values, strategy)
        with BufferStore.lock:  # no step may run while variables move
            layout.apply()
        compare_values(executable, graph, self._interface)
        self._program = Program(Binding(executable, self._interface, layout, shapes))

    def __repr__(self) -> str:
        return f"<loaded step {self.name} on {self.strategy.devices}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step.

        Raises `ArgumentError` for other arguments than it was compiled for, `RuntimeFailure` if it
        fails on the devices.
        """
        paths, _ = jax.tree_util.tree_flatten_with_path((args, kwargs))
        leaves = [leaf for _, leaf in paths]
        self._check([jax.tree_util.keystr(path) for path, _ in paths], leaves)
        try:
            return self._program.call(leaves)
        except (jax.errors.JaxRuntimeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, GraphdistError):
                raise
            # The arguments were checked, so the step itself is at fault.
            raise RuntimeFailure(
                f"the loaded step {self.name!r} failed: {str(error).strip() or repr(error):.500}",
                source=here(),
                hint="it needs what the devices do not have, or its file was changed",
            ) from error

    def _check(self, places: list[str], leaves: list[Any]) -> None:
        expected = self._interface
        if tuple(places) != expected.paths:
            missing = [name for name in expected.paths if name not in places]
            added = [name for name in places if name not in expected.paths]
            raise ArgumentError(
                f"step {self.name!r} is called with {len(places)} leaves, it was compiled for "
                f"{len(expected.paths)}: "
                + ", ".join(
                    [*(f"no {name}" for name in missing), *(f"{name} too" for name in added)]
                ),
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
                f"{signature_difference(expected.names, wanted, keys)}",
                source=here(),
                hint="compile it for these shapes, or call it with those",
            )


def _require_interface(interface: Interface, graph: Graph) -> None:
    """Raise ValueError where arguments and results do not fit inputs and outputs of the graph."""
    arguments = zip(interface.names, interface.keys, strict=True)
    dynamic = [(name, key) for name, key in arguments if not is_static(key)]
    inputs = graph.inputs[len(graph.variables) :]
    for (name, key), value in zip(dynamic, inputs, strict=True):
        stated = input_type(None, key, graph.num_replicas, name)
        # The scalars of several replicas are the rows of an array.
        shapes = (stated.shape, stated.shape or (1,))
        if value.type.dtype != stated.dtype or value.type.shape not in shapes:
            raise ValueError(f"argument {name!r} is {stated}, the step takes {value.type}")
    for variable, value in zip(graph.variables, graph.inputs, strict=False):
        if graph.num_replicas % variable.num_copies:
            raise ValueError(f"variable {variable.name!r} has {variable.num_copies} copies")
        if variable.held(graph.num_replicas)[:2] != value.type[:2]:
            raise ValueError(f"variable {variable.name!r} is not {value.type}")
    results = len(graph.outputs) - len(graph.assigned)
    leaves = sum(leaf is OUTPUT or isinstance(leaf, MirroredLeaf) for leaf in interface.statics)
    if not results == leaves == len(interface.per_replica) == len(interface.shapes):
        raise ValueError(f"the result has {leaves} arrays, the step returns {results}")
    for shapes_of_each in interface.shapes:
        if shapes_of_each is not None and len(shapes_of_each) != graph.num_replicas:
            raise ValueError(f"{len(shapes_of_each)} shapes for {graph.num_replicas} replicas")
    for leaf in interface.statics:
        if isinstance(leaf, MirroredLeaf) and leaf.num_replicas != graph.num_replicas:
            raise ValueError(f"a value of {leaf.num_replicas} replicas, not {graph.num_replicas}")


def _loose(key: Any) -> Any:
    """Return a leaf's key as if it were not weakly typed: a compiled step makes no difference."""
    return (*key[:3], False) if key[0] == "array" else key
