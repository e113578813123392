"""Raises an error if a user's function changes an argument in place while it is traced.

A traced function gets copies of its caller's dicts, lists and modules, with values of the trace.
Without tracing, the function would change the caller's own objects, and under `nnx.jit` it also
changes the caller's modules of flax. Here the change would be lost, so it is an error, as in
`tf.function`.

An argument is changed if its structure differs after the call, or one of its leaves is another
object. This is checked once per trace, not in calls of a compiled program.

There is one exception. A module that `nnx.merge` makes shares the variables of a state, so training
the module changes the state. If the function returns these variables, for example as
`nnx.state(module)`, its caller gets the changed state, as under `jax.jit`, and there is no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any  # Any: users' functions, arguments and results

import jax
from jax.tree_util import DictKey, SequenceKey, keystr, tree_flatten_with_path

from graphdist.errors import ArgumentError
from graphdist.program.python_holders import is_same_value
from graphdist.tracing.user_lines import (
    CodeOwner,
    code_of,
    owner_of,
    source_of_function,
    source_of_value,
)
from graphdist.values.distributed import is_distributed, type_name
from graphdist.values.pytrees import argument_name


def call_with_copies(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], what: str
) -> Any:
    """Return `fn(*args, **kwargs)`; raises `ArgumentError` if the function changes an argument.

    `what` names the function in the error. graphdist's own functions are not checked, since they
    only pass their arguments on to a user's function.
    """
    code = code_of(fn)
    if code is not None and owner_of(code.co_filename) is CodeOwner.GRAPHDIST:
        return fn(*args, **kwargs)
    paths = [(SequenceKey(0), SequenceKey(index)) for index in range(len(args))]
    paths += [(SequenceKey(1), DictKey(name)) for name in kwargs]
    contents = [
        _Contents(argument, path)
        for argument, path in zip((*args, *kwargs.values()), paths, strict=True)
        if not jax.tree_util.all_leaves([argument])
    ]
    result = fn(*args, **kwargs)
    for before in contents:
        for path, leaf in before.changes(result):
            raise _refused(fn, what, before.argument, path, leaf)
    return result


class _Contents:
    """The current contents of an argument: its structure, and its leaves by their paths."""

    def __init__(self, argument: Any, path: tuple[Any, ...]) -> None:
        """Store the contents of an argument that is at `path` in `(args, kwargs)`."""
        self.argument, self.path = argument, path
        leaves, structure = tree_flatten_with_path(argument, is_leaf=is_distributed)
        self.structure: Any = structure
        self.leaves = {keystr(at): (at, leaf) for at, leaf in leaves}

    def changes(self, result: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield the path of each change with the new leaf there, or None if no leaf is new."""
        now, again = (_Contents(self.argument, self.path) for _ in range(2))
        old = {id(leaf) for _, leaf in self.leaves.values()}
        returned = _ids_below("State", self.argument) & _ids_below("Variable", result)
        for name, (path, leaf) in now.leaves.items():
            if again.leaves[name][1] is not leaf or id(leaf) in returned:
                continue  # each flattening makes a new leaf, or the function returns the leaf
            if name not in self.leaves or not is_same_value(self.leaves[name][1], leaf):
                yield (*self.path, *path), None if id(leaf) in old else leaf
        for name, (path, _) in self.leaves.items():
            if name not in now.leaves:
                yield (*self.path, *path), None
        if self.structure != now.structure:
            yield self.path, None


def _is_of_flax(value: Any, name: str) -> bool:
    """Return whether `value` is an instance of the flax class `name`; "" means any flax class."""
    return any(
        kind.__module__.startswith("flax.") and name in ("", kind.__name__)
        for kind in type(value).__mro__
    )


def _ids_below(name: str, tree: Any) -> set[int]:
    """Return the ids of all leaves inside instances of the flax class `name` in a pytree."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: _is_of_flax(node, name))
    of_class = [node for node in nodes if _is_of_flax(node, name)]
    return {id(leaf) for leaf in jax.tree.leaves(of_class)}


def _refused(
    fn: Callable[..., Any], what: str, argument: Any, path: tuple[Any, ...], leaf: Any
) -> ArgumentError:
    name, parameter = argument_name(fn, path), argument_name(fn, path[:2])
    if _is_of_flax(argument, "State"):
        hint = (
            "return nnx.state of the module that was merged, and give it to the next call; or "
            "leave the state alone: nnx.merge(definition, state, copy=True)"
        )
    elif _is_of_flax(argument, ""):
        hint = (
            f"give it definition, state = nnx.split({parameter}), and inside change "
            f"nnx.merge(definition, state) and return nnx.state of it; or keep the state in "
            f"gd.variables(state), and assign it with gd.assign"
        )
    else:
        copy = {"dict": f"dict({parameter})", "list": f"list({parameter})"}.get(
            type(argument).__name__
        )
        hint = (
            f"change a copy, such as {copy or f'copy.copy({parameter})'}, and return the values "
            f"that the caller needs; keep state from call to call in a gd.Variable"
        )
    return ArgumentError(
        f"argument {name!r} of {what} is changed in place: a compiled function gets a copy of the "
        f"{type_name(argument)}, so that the caller's would not change",
        source=source_of_value(leaf) or source_of_function(fn),
        hint=hint,
    )
