"""Pytrees of variables: how to make, read and assign all variables at once."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload  # Any: pytrees

import jax

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.quoted import did_you_mean
from graphdist.state.sharded_variable import ShardedVariable
from graphdist.state.variable import Variable
from graphdist.values.distributed import PerReplica, structure_text, type_name
from graphdist.values.pytrees import unflatten_exactly

Tree = TypeVar("Tree")
Leaf = TypeVar("Leaf", bound=jax.typing.ArrayLike | jax.ShapeDtypeStruct)
Key = TypeVar("Key")
Name = TypeVar("Name")

_VARIABLES = (Variable, ShardedVariable)

# The overloads tell type checkers the types for the commonest pytrees of parameters. For any other
# pytree they assume that variables have the type of the arrays.


@overload
def variables(tree: jax.typing.ArrayLike | jax.ShapeDtypeStruct, **options: Any) -> Variable: ...


@overload
def variables(tree: dict[Key, Leaf], **options: Any) -> dict[Key, Variable]: ...


@overload
def variables(
    tree: dict[Key, dict[Name, Leaf]], **options: Any
) -> dict[Key, dict[Name, Variable]]: ...


@overload
def variables(tree: Tree, **options: Any) -> Tree: ...


def variables(tree: Any, **options: Any) -> Any:
    """Return the pytree with every array replaced by a `Variable` named after its path.

    `options` are options of `Variable`, the same for all. With `cores` as a mapping, the variables
    whose name matches a pattern of `fnmatch`, such as "*_query", get its `cores`; the first pattern
    that matches counts. A Python number becomes a variable too; a
    function, such as a layer's activation, is kept. Raises `ArgumentError` for a pattern that no
    variable matches, `ArgumentTypeError` for any other leaf,
    and for a pytree whose class cannot hold variables.

    >>> import jax.numpy as jnp
    >>> params = variables({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)})
    >>> params["w"].name
    'w'
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = {path: _name(path) for path, leaf in paths if not _is_function(leaf)}
    cores = cores_by_name(options.pop("cores", None), list(names.values()))
    return unflatten_exactly(
        structure,
        [
            _variable(leaf, names[path], {**options, "cores": cores[names[path]]})
            if path in names
            else leaf
            for path, leaf in paths
        ],
    )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="_")


def _variable(leaf: Any, name: str, options: dict[str, Any]) -> Variable:
    return Variable(leaf, name=name or None, **options)


def cores_by_name(cores: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the `cores` of the variables with these names; see `variables`.

    >>> cores_by_name({"*up": (None, "sharded")}, ["layer_up", "norm"])
    {'layer_up': (None, 'sharded'), 'norm': None}
    """
    if not isinstance(cores, Mapping):
        return dict.fromkeys(names, cores)
    found: dict[str, Any] = {}
    for pattern, entry in cores.items():
        if not isinstance(pattern, str):
            raise ArgumentTypeError(f"cores has the pattern {pattern!r}, which is no string")
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise ArgumentError(
                f"cores has the pattern {pattern!r}, and none of {len(names)} variables has such a "
                f"name",
                hint=did_you_mean(pattern, names) or f"the first is {names[0]!r}" if names else "",
            )
        found = dict.fromkeys(matching, entry) | found
    return dict.fromkeys(names) | found


def _is_function(leaf: Any) -> bool:
    """Return whether a leaf is a function; arrays of some libraries are callable, too."""
    return callable(leaf) and not hasattr(leaf, "__array__")


@overload
def read(tree: Variable) -> jax.Array: ...


@overload
def read(tree: dict[Key, Variable]) -> dict[Key, jax.Array]: ...


@overload
def read(tree: dict[Key, dict[Name, Variable]]) -> dict[Key, dict[Name, jax.Array]]: ...


@overload
def read(tree: Tree) -> Tree: ...


def read(tree: Any) -> Any:
    """Return the pytree with every `Variable` replaced by its value.

    >>> import jax.numpy as jnp
    >>> read(variables({"b": jnp.zeros(3)}))
    {'b': Array([0., 0., 0.], dtype=float32)}
    """
    return jax.tree.map(
        lambda leaf: leaf.read_value() if isinstance(leaf, _VARIABLES) else leaf, tree
    )


def assign(tree: Any, values: Any) -> None:
    """Assign a pytree of values to the pytree of variables of the same structure.

    Functions among the leaves stay. Raises `ArgumentError` when the structures differ or a value
    does not fit its variable, and `ArgumentTypeError` for a leaf that is not a variable and would
    change. After an error nothing is assigned.

    >>> import jax.numpy as jnp
    >>> params = variables({"b": jnp.zeros(3)})
    >>> assign(params, {"b": jnp.ones(3)})
    >>> read(params)
    {'b': Array([1., 1., 1.], dtype=float32)}
    """
    structure: Any
    targets, structure = jax.tree_util.tree_flatten_with_path(tree)
    sources, other = jax.tree_util.tree_flatten_with_path(
        values, is_leaf=lambda leaf: isinstance(leaf, PerReplica)
    )
    if structure != other:
        raise ArgumentError(
            _difference([path for path, _ in targets], [path for path, _ in sources])
            or f"the values are in {structure_text(other)}, "
            f"the variables in {structure_text(structure)}: the containers differ",
            hint="give the values the structure that gd.read(variables) has",
        )
    pairs = [
        (path, target, value)
        for (path, target), (_, value) in zip(targets, sources, strict=True)
        if not (_is_function(target) and value is target)
    ]
    for path, target, _ in pairs:
        if not isinstance(target, _VARIABLES):
            raise ArgumentTypeError(
                f"gd.assign to leaf {jax.tree_util.keystr(path) or 0} of type {type_name(target)}, "
                f"which is not a variable",
                hint="make variables of all leaves: gd.variables(tree)",
            )
    # All values are checked before the first is written, so that an error leaves all unchanged.
    arrays = [target.checked(value) for _, target, value in pairs]
    for (_, target, _), array in zip(pairs, arrays, strict=True):
        target.write("assign", array)


def _difference(targets: list[Any], sources: list[Any]) -> str:
    """Describe the first leaf that only one of two pytrees has; "" if the paths are the same."""
    only = [
        f"only the {name} have a leaf {jax.tree_util.keystr(missing[0])}"
        for name, missing in (
            ("variables", [path for path in targets if path not in sources]),
            ("values", [path for path in sources if path not in targets]),
        )
        if missing
    ]
    return f"values of another structure than the variables: {', '.join(only)}" if only else ""
