"""Pytrees with leaves that their classes do not expect.

graphdist replaces the arrays of a user's pytree by variables or distributed values, and JAX builds
the new pytree by a call of the user's class. Most classes keep their leaves unchanged. Some classes
check the leaves in `__init__` or `__post_init__`, and raise an error. But such a class accepts
leaves of the class `object`, because JAX itself builds pytrees with such leaves. So graphdist
builds the pytree with leaves of the class `object`, and replaces these by the true leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import Any  # Any: pytrees

import jax
from jax.tree_util import PyTreeDef, default_registry

from graphdist.errors import ArgumentTypeError

_LEAF = jax.tree.structure(0)


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """Return the pytree of this structure with these leaves, of any type.

    Raises `ArgumentTypeError` for a class that cannot hold these leaves.

    >>> unflatten(jax.tree.structure({"a": 1, "b": (2,)}), ["x", "y"])
    {'a': 'x', 'b': ('y',)}
    """
    try:
        return jax.tree.unflatten(structure, leaves)
    except Exception:
        return _built(structure, iter(leaves))


def unflatten_exactly(structure: Any, leaves: Sequence[Any]) -> Any:
    """Return the pytree with exactly these leaves, even if one of its classes converts leaves."""
    tree = unflatten(structure, leaves)
    actual = jax.tree.leaves(tree)
    if len(actual) == len(leaves) and all(map(is_, actual, leaves)):
        return tree
    return _built(structure, iter(leaves))


def map_leaves(fn: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool] | None) -> Any:
    """Apply `fn` to each leaf. The results of `fn` may be of any type."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_leaf)
    return unflatten(structure, [fn(leaf) for leaf in leaves])


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
        tree = jax.tree.unflatten(node, children)
        if _holds(node, tree, children):
            return tree
    except Exception as error:
        failure = error
    return _of_plain_objects(node, children, failure)


def _of_plain_objects(node: Any, children: Sequence[Any], failure: Exception | None) -> Any:
    """Return a node, built of plain objects that are then replaced by its children."""
    stand_ins = [object() for _ in children]
    try:
        tree = jax.tree.unflatten(node, stand_ins)
        child_of = {id(key): child for key, child in zip(stand_ins, children, strict=True)}
        attributes = vars(tree)
        attributes.update(
            {name: child_of[id(x)] for name, x in attributes.items() if id(x) in child_of}
        )
        if _holds(node, tree, children):
            return tree
    except Exception as error:
        failure = failure or error
    kind, _ = node.node_data()
    raise ArgumentTypeError(
        f"a {kind.__name__} checks or converts its leaves when it is made, "
        f"and cannot hold {type(children[0]).__name__} objects",
        hint="use its leaves, jax.tree.leaves(value), and make one of arrays where it is needed: "
        "jax.tree.unflatten(structure, leaves)",
    ) from failure


def _holds(node: Any, tree: Any, children: Sequence[Any]) -> bool:
    """Return whether the children of a pytree's root are exactly these objects."""
    return all(map(is_, node.flatten_up_to(tree), children))


def argument_name(fn: Callable[..., Any], path: tuple[Any, ...]) -> str:
    """Return the name of a leaf of `(args, kwargs)` as users write it, such as `batch['image']`."""
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
