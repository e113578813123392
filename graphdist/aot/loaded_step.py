"""A step that was loaded from a file: bound to variables, and called like the function.

A file holds the names, shapes and dtypes of the step's variables. If two of the variables given to
`load` fit the same description, an error is raised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any  # Any: users' arguments and results, pytrees of variables

import jax

from graphdist.aot.manifest import interface_from_json
from graphdist.aot.reading import StepFile
from graphdist.errors import ArgumentError, ContextError, GraphdistError, RuntimeFailure
from graphdist.ir.graph import Graph
from graphdist.ir.types import Type
from graphdist.program.argument_keys import UnusableLeaf, input_type, is_static, leaf_key
from graphdist.program.binding import Binding
from graphdist.program.interface import OUTPUT, Interface, MirroredLeaf
from graphdist.program.kept_programs import signature_difference
from graphdist.program.program import Program, compare_values
from graphdist.runtime.buffers import BufferStore
from graphdist.runtime.executable import Executable
from graphdist.state.program_storage import ProgramStorage
from graphdist.state.variable import Variable
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.user_lines import here


class LoadedStep:
    """A step from a file, called with the arguments of the function that was compiled."""

    def __init__(
        self,
        file: StepFile,
        graph: Graph,
        strategy: StrategyBase,
        variables: Sequence[Variable],
        executable: Executable,
    ) -> None:
        """Bind an executable to variables. `load` calls this; users call `load`."""
        manifest = self.manifest = file.manifest
        self.report: dict[str, Any] = json.loads(file.members["report.json"])
        """The report of the compilation, as JSON."""
        self.graph_text = file.members["graph.txt"].decode()
        self.strategy = strategy
        self.name = graph.name
        self._interface = interface_from_json(manifest["interface"], strategy)
        _require_interface(self._interface, graph)
        shapes = [tuple(shape) for shape in manifest["boundary"]["output_shapes"]]
        values = {
            wanted.name: variable.stored
            for wanted, variable in zip(graph.variables, variables, strict=True)
        }
        storage = ProgramStorage(graph, values, strategy)
        with BufferStore.lock:  # no step may run while variables move
            storage.apply()
        compare_values(executable, graph, self._interface)
        self._program = Program(Binding(executable, self._interface, storage, shapes))

    def __repr__(self) -> str:
        return f"<loaded step {self.name} on {self.strategy.devices}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step.

        Raises `ArgumentError` for arguments that the step was not compiled for, `RuntimeFailure` if
        the step fails on the devices.
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
                hint="the devices lack something that it needs, or its file was changed",
            ) from error

    def _check(self, paths: list[str], leaves: list[Any]) -> None:
        expected = self._interface
        if tuple(paths) != expected.paths:
            different = [f"no {path}" for path in expected.paths if path not in paths]
            different += [f"{path} too" for path in paths if path not in expected.paths]
            raise ArgumentError(
                f"step {self.name!r} is called with {len(paths)} leaves, it was compiled for "
                f"{len(expected.paths)}: {', '.join(different)}"
            )
        try:
            keys = tuple(_loose(leaf_key(leaf, False)) for leaf in leaves)
        except UnusableLeaf as unusable:
            raise ArgumentError(f"an argument {unusable.args[0]}") from None
        wanted = tuple(map(_loose, expected.keys))
        if keys != wanted:
            raise ArgumentError(
                f"step {self.name!r} was compiled for other arguments: "
                f"{signature_difference(expected.names, wanted, keys)}",
                hint="compile it for these shapes, or call it with those",
            )


def _require_interface(interface: Interface, graph: Graph) -> None:
    """Raise ValueError if arguments and results do not fit inputs and outputs of the graph."""
    arguments = zip(interface.names, interface.keys, strict=True)
    dynamic = [(name, key) for name, key in arguments if not is_static(key)]
    inputs = graph.inputs[len(graph.variables) :]
    for (name, key), value in zip(dynamic, inputs, strict=True):
        stated = input_type(None, key, graph.num_replicas, name)
        if not _takes(value.type, stated):
            raise ValueError(f"argument {name!r} is {stated}, the step takes {value.type}")
    if graph.num_replicas % graph.num_groups:
        raise ValueError(f"{graph.num_replicas} replicas in {graph.num_groups} groups")
    for variable, value in zip(graph.variables, graph.inputs, strict=False):
        if not _takes(value.type, variable.held(graph.mesh)):
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
    """Return a leaf's key without weak typing, which makes no difference to a compiled step."""
    return (*key[:3], False) if key[0] == "array" else key


def variables_for(name: str, graph: Graph, strategy: StrategyBase, tree: Any) -> list[Variable]:
    """Return the variables that a step reads and assigns, found by name, shape and dtype."""
    left = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Variable)]
    matches = []
    for wanted in graph.variables:
        type = wanted.whole(graph.num_cores)
        match = _match(name, left, wanted.name, type)
        if match is None:
            names = ", ".join(f"{each.name!r} {each.spec(each.name).type}" for each in left[:8])
            raise ArgumentError(
                f"{name} needs a variable {wanted.name!r} {type}, which is not among the "
                f"{len(left)} remaining ones{': ' if names else ''}{names}",
                hint="make the variables as for the function, and pass them: "
                "load(path, variables=[params, state])",
            )
        if match.strategy is not strategy and not match.is_plain:
            raise ContextError(
                f"variable {match.name!r} belongs to {match.strategy}, the step runs on "
                f"{'another ' if str(match.strategy) == str(strategy) else ''}{strategy}",
                hint="give load the variables' strategy: load(path, strategy=strategy, ..); a "
                "second strategy on the same devices is another strategy",
            )
        left = [variable for variable in left if variable is not match]
        matches.append(match)
    return matches


def _match(name: str, left: list[Variable], wanted: str, type: Type) -> Variable | None:
    """Return the variable with the name `wanted` in the graph and this type, or None."""
    base, _, count = wanted.rpartition("_")
    # A graph appends a number to the name of a second variable with the same name. A variable that
    # has the number in its own name is preferred.
    for wanted_name in (wanted, base) if count.isdigit() else (wanted,):
        named = [variable for variable in left if variable.name == wanted_name]
        fitting = [variable for variable in named if variable.spec(wanted).type == type]
        if len(fitting) > 1:
            raise ArgumentError(
                f"{name} needs a variable {wanted!r} {type}, and {len(fitting)} "
                f"variables are called {wanted_name!r}: any of them could be meant",
                hint="give the variables different names where they are made, before the step is "
                "saved",
            )
        if fitting:
            return fitting[0]
    return None


def _takes(input: Type, stated: Type) -> bool:
    """Return whether an input is of a stated type; the scalars of several replicas are rows."""
    return input.dtype == stated.dtype and input.shape in (stated.shape, stated.shape or (1,))
