"""Pytrees that hold what their classes do not expect.

Where a user's pytree has arrays, ours has variables or distributed values, and JAX makes it by a
call of the user's class. Most classes keep what they are given. Some look at it first, in
`__init__` or `__post_init__`, and fail. As JAX itself makes pytrees of plain objects, such classes
let these pass: they are made of plain objects, in whose places the leaves are put.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any  # Any: pytrees

import jax
from jax.tree_util import PyTreeDef, default_registry

from graphdist.errors import ArgumentTypeError
from graphdist.tracing.sources import here

_LEAF = jax.tree.structure(0)


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """Return the pytree of this structure with these leaves, which its classes may not expect.

    Raises `ArgumentTypeError` for a class that keeps them in no way.

    >>> unflatten(jax.tree.structure({"a": 1, "b": (2,)}), ["x", "y"])
    {'a': 'x', 'b': ('y',)}
    """
    try:
        return jax.tree.unflatten(structure, leaves)
    except Exception:
        return _built(structure, iter(leaves))


def unflatten_exactly(structure: Any, leaves: Sequence[Any]) -> Any:
    """Do the same for leaves that a class may also have converted."""
    tree = unflatten(structure, leaves)
    given = jax.tree.leaves(tree)
    if len(given) == len(leaves) and all(map(_is_same, given, leaves)):
        return tree
    return _built(structure, iter(leaves))


def map_leaves(fn: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool] | None) -> Any:
    """Return the pytree with `fn` of each leaf, which the pytree's classes may not expect."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_leaf)
    return unflatten(structure, [fn(leaf) for leaf in leaves])


def _is_same(one: Any, other: Any) -> bool:
    return one is other


def _built(structure: Any, leaves: Iterator[Any]) -> Any:
    """Return the pytree, made node by node."""
    if structure == _LEAF:
        return next(leaves)
    if structure.num_nodes == 1:  # an empty container, or None
        return jax.tree.unflatten(structure, [])
    children = [_built(child, leaves) for child in structure.children()]
    node = PyTreeDef.from_node_data_and_children(
        default_registry, structure.node_data(), [_LEAF] * len(children)
    )
    failure: Exception | None = None
    try:
        made = jax.tree.unflatten(node, children)
        if _holds(node, made, children):
            return made
    except Exception as error:
        failure = error
    return _of_plain_objects(node, children, failure)


def _of_plain_objects(node: Any, children: Sequence[Any], failure: Exception | None) -> Any:
    """Return one node, made of plain objects, in whose places its children are put."""
    places = [object() for _ in children]
    try:
        made = jax.tree.unflatten(node, places)
        given = {id(place): child for place, child in zip(places, children, strict=True)}
        attributes = vars(made)
        attributes.update(
            {name: given[id(value)] for name, value in attributes.items() if id(value) in given}
        )
        if _holds(node, made, children):
            return made
    except Exception as error:
        failure = failure or error
    kind, _ = node.node_data()
    raise ArgumentTypeError(
        f"a {kind.__name__} checks or converts its leaves when it is made, "
        f"and cannot hold {type(children[0]).__name__} objects",
        source=here(),
        hint="use its leaves, jax.tree.leaves(value), and make one of arrays where it is needed: "
        "jax.tree.unflatten(structure, leaves)",
    ) from failure


def _holds(node: Any, made: Any, children: Sequence[Any]) -> bool:
    """Return whether what was made has these very children."""
    return all(map(_is_same, node.flatten_up_to(made), children))


def argument_name(fn: Callable[..., Any], path: tuple[Any, ...]) -> str:
    """Return how the user would write a leaf of `(args, kwargs)`: `batch['image']`."""
    group, key, *rest = path
    if getattr(group, "idx", 0) == 1:
        name = str(key.key)
    else:
        try:
            parameters = list(inspect.signature(fn).parameters)
        except (TypeError, ValueError):  # some builtins
            parameters = []
        name = parameters[key.idx] if key.idx < len(parameters) else f"args[{key.idx}]"
    return name + jax.tree_util.keystr(tuple(rest))
