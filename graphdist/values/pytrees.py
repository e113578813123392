"""Pytrees whose leaves are of other types than their classes expect.

Where a user's pytree has arrays, ours has variables or distributed values, and JAX builds it by a
call of the user's class. Most classes keep the leaves they get. Some check them in `__init__` or
`__post_init__`, and fail. Such classes accept plain objects, of which JAX itself builds pytrees, so
they are built of plain objects, which are then replaced by the leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any  # Any: pytrees

import jax
from jax.tree_util import PyTreeDef, default_registry

from graphdist.errors import ArgumentTypeError
from graphdist.tracing.user_lines import here

_LEAF = jax.tree.structure(0)


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """Return the pytree of this structure with these leaves, which its classes may not expect.

    Raises `ArgumentTypeError` for a class that cannot hold them.

    >>> unflatten(jax.tree.structure({"a": 1, "b": (2,)}), ["x", "y"])
    {'a': 'x', 'b': ('y',)}
    """
    try:
        return jax.tree.unflatten(structure, leaves)
    except Exception:
        return _built(structure, iter(leaves))


def unflatten_exactly(structure: Any, leaves: Sequence[Any]) -> Any:
    """Do the same, and make sure that no class has converted a leaf."""
    tree = unflatten(structure, leaves)
    given = jax.tree.leaves(tree)
    if len(given) == len(leaves) and all(map(_is_same, given, leaves)):
        return tree
    return _built(structure, iter(leaves))


def map_leaves(fn: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool] | None) -> Any:
    """Apply `fn` to each leaf; the pytree's classes may not expect the results."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_leaf)
    return unflatten(structure, [fn(leaf) for leaf in leaves])


def _is_same(leaf: Any, other: Any) -> bool:
    return leaf is other


def _built(structure: Any, leaves: Iterator[Any]) -> Any:
    """Return the pytree, built node by node."""
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
    """Return a node that is built of plain objects, which its children then replace."""
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
    """Return whether the children of a built node are these very objects."""
    return all(map(_is_same, node.flatten_up_to(made), children))


def argument_name(fn: Callable[..., Any], path: tuple[Any, ...]) -> str:
    """Return a leaf of `(args, kwargs)` as the user would write it: `batch['image']`."""
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
