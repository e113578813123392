"""Converts the interface of a step, its arguments and results, to JSON and back.

Arguments may be pytrees of any class, because a call is compared with the file leaf by leaf, by the
paths that `jax.tree_util.keystr` writes. Results are built by the loaded step. Dicts, lists and
tuples can be built from the file. Other containers need code to build them, and the file must not
hold code, so saving a step that returns them raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any  # Any: JSON, and users' values

import jax

from graphdist.errors import UnsupportedError
from graphdist.ir.graph import Graph, GraphVariable, Stage, Value
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, sharded
from graphdist.program.argument_keys import LeafKey, StaticValue, is_static, static_key
from graphdist.program.interface import OUTPUT, Interface, MirroredLeaf
from graphdist.runtime.executable import jax_dtype
from graphdist.strategy_base import StrategyBase

_PLAIN = (str, int, float, bool, type(None))
_OF_VARIABLES = ("name", "synchronization", "aggregation", "trainable")
"""The fields of a variable that JSON holds under the same names."""


def type_to_json(type: Type) -> dict[str, Any]:
    """Return a type as JSON."""
    held = type.layout
    return {
        "dtype": type.dtype,
        "shape": list(type.shape),
        "distribution": held and [held.kind, held.dimension, held.axis],
    }


def type_from_json(data: Any) -> Type:
    """Return the type that JSON describes."""
    layout: Layout | None = None
    if data["distribution"] is not None:
        kind, dimension, axis = data["distribution"]
        by_kind = {"mirrored": MIRRORED, "per_replica": PER_REPLICA}
        layout = by_kind[kind] if kind in by_kind else sharded(int(dimension), axis)
    return Type(str(data["dtype"]), tuple(map(int, data["shape"])), layout)


def boundary_to_json(graph: Graph, output_shapes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Return inputs, outputs and variables of a graph as JSON."""
    return {
        "name": graph.name,
        "num_replicas": graph.num_replicas,
        "num_groups": graph.num_groups,
        "num_cores": graph.num_cores,
        "inputs": [
            {**type_to_json(value.type), "lies": str(layout)}
            for value, layout in zip(graph.inputs, graph.input_layouts, strict=True)
        ],
        "outputs": [type_to_json(output.type) for output in graph.outputs],
        "output_shapes": [list(shape) for shape in output_shapes],
        "variables": [
            {
                **{name: getattr(variable, name) for name in _OF_VARIABLES},
                "type": type_to_json(variable.type),
                "donated": variable.assigned,
                "sharded_along": variable.sharded_along,
                "core": variable.core,
            }
            for variable in graph.variables
        ],
        "returns_per_replica": list(graph.returns_per_replica),
    }


def boundary_from_json(data: Any) -> Graph:
    """Return a graph with these inputs, outputs and variables, and no nodes between them."""
    return Graph(
        str(data["name"]),
        Stage.SPMD,
        int(data["num_replicas"]),
        tuple(Value(type_from_json(value)) for value in data["inputs"]),
        (),
        tuple(Value(type_from_json(value)) for value in data["outputs"]),
        tuple(
            GraphVariable(
                type=type_from_json(variable["type"]),
                assigned=variable["donated"],
                core=variable["core"],
                **{name: variable[name] for name in _OF_VARIABLES},
            ).stored_along(variable["sharded_along"])
            for variable in data["variables"]
        ),
        tuple(map(bool, data["returns_per_replica"])),
        int(data["num_groups"]),
        int(data["num_cores"]),
        is_split=data["num_cores"] > 1,
    )


def interface_to_json(interface: Interface) -> dict[str, Any]:
    """Return an interface as JSON; raises `UnsupportedError` if JSON cannot describe it."""
    leaves = zip(interface.paths, interface.names, interface.keys, strict=True)
    return {
        "arguments": [
            {"place": path, "name": name, **_key_to_json(key, name)} for path, name, key in leaves
        ],
        "result": _tree_to_json(interface.structure, iter(interface.statics)),
        "per_replica": list(interface.per_replica),
        "shapes": [shapes and [list(shape) for shape in shapes] for shapes in interface.shapes],
    }


def interface_from_json(data: Any, strategy: StrategyBase) -> Interface:
    """Return the interface that JSON describes, for a strategy."""
    statics: list[Any] = []
    template = _tree_from_json(data["result"], statics)
    return Interface(
        tuple(_key_from_json(leaf, strategy) for leaf in data["arguments"]),
        [str(leaf["name"]) for leaf in data["arguments"]],
        strategy,
        tuple(str(leaf["place"]) for leaf in data["arguments"]),
        structure=jax.tree.structure(template),
        statics=statics,
        per_replica=list(map(bool, data["per_replica"])),
        shapes=[shapes and tuple(map(tuple, shapes)) for shapes in data["shapes"]],
    )


def _key_to_json(key: LeafKey, name: str) -> dict[str, Any]:
    match key:
        case ("array", shape, dtype, weak):
            return {"kind": "array", "shape": list(shape), "dtype": str(dtype), "weak": bool(weak)}
        case ("number", kind):
            return {"kind": "number", "type": kind.__name__}
        case ("per_replica", _, component, shapes):
            listed = shapes and [list(shape) for shape in shapes]
            return {"kind": "per_replica", "type": type_to_json(component), "shapes": listed}
        case ("static", StaticValue(value=value)) if isinstance(value, _PLAIN):
            return {"kind": "static", "value": value}
    what = f"a {type(key[1].value).__name__}" if is_static(key) else "a PerReplica of single values"
    raise UnsupportedError(
        f"argument {name!r} is {what}, which the file of a step cannot describe",
        hint="pass arrays, numbers, strings, and elements of a distributed dataset",
    )


def _key_from_json(data: Any, strategy: StrategyBase) -> LeafKey:
    match data["kind"]:
        case "array":
            dtype = data["dtype"]
            dtype = jax_dtype(dtype) if dtype.startswith("key<") else jax.numpy.dtype(dtype)
            return "array", tuple(data["shape"]), dtype, data["weak"]
        case "number":
            return "number", {"int": int, "float": float, "complex": complex}[data["type"]]
        case "per_replica":
            shapes = data["shapes"] and tuple(map(tuple, data["shapes"]))
            return "per_replica", strategy, type_from_json(data["type"]), shapes
    return static_key(data["value"])


def _tree_to_json(structure: Any, statics: Iterator[Any]) -> Any:
    """Return the structure of a result as JSON, with the values of leaves that are not arrays."""
    if jax.tree_util.treedef_is_leaf(structure) and structure.num_leaves == 1:
        leaf = next(statics)
        if leaf is OUTPUT:
            return {"leaf": "output"}
        if isinstance(leaf, MirroredLeaf):
            return {"leaf": "mirrored", "num_replicas": leaf.num_replicas}
        if isinstance(leaf, _PLAIN):
            return {"leaf": "static", "value": leaf}
        raise _unsaved(f"a leaf of type {type(leaf).__name__}")
    kind, keys = structure.node_data()
    if kind is type(None):
        return {"node": "none"}
    children = [_tree_to_json(child, statics) for child in structure.children()]
    if kind is dict and all(isinstance(key, str) for key in keys):
        return {"node": "dict", "keys": list(keys), "children": children}
    if kind in (list, tuple):
        return {"node": kind.__name__, "children": children}
    raise _unsaved(f"a {kind.__name__}")


def _unsaved(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the function returns {what}, which the file of a step cannot describe",
        hint="return arrays in dicts with string keys, lists and tuples",
    )


def _tree_from_json(data: Any, statics: list[Any]) -> Any:
    if "leaf" in data:
        leaves = {"output": OUTPUT, "mirrored": MirroredLeaf(data.get("num_replicas", 0))}
        statics.append(leaves.get(data["leaf"], data.get("value")))
        return 0
    if data["node"] == "none":
        return None
    children = [_tree_from_json(child, statics) for child in data["children"]]
    if data["node"] == "dict":
        return dict(zip(data["keys"], children, strict=True))
    return children if data["node"] == "list" else tuple(children)
