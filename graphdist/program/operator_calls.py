"""Replaces calls in functions that loop over datasets by calls of operators.

This comes before the conversion of loops. A loop over a range that calls `next(iterator)` once
becomes a loop over pairs of a number and an element, if both do the same: every iteration makes the
call, no other statement leaves the loop, and no enclosing statement catches the end of the
iterator. A sum of a generator expression becomes a loop.
"""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Iterator
from typing import Any  # Any: syntax trees that are visited

OPERATORS = "ag__"
"""The name of the operators in converted code."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
"""Nodes whose statements and expressions run when they are called, not where they are written."""


def with_operators(tree: Any, function: types.FunctionType) -> Any:
    """Return the syntax tree of a function with its calls replaced by calls of operators."""
    return _Calls(_is_builtin_next(function)).visit(tree)


class _Calls(ast.NodeTransformer):
    """Replaces calls by operators.

    `range`, `zip`, `enumerate` and `islice` in a loop may have distributed arguments. A function
    that is called may have a loop over a dataset. A loop over a range that reads one element of an
    iterator in each iteration becomes a loop over the numbers and the elements.
    """

    def __init__(self, next_is_python: bool) -> None:
        self._next_is_python = next_is_python
        self._num_tries = 0

    def visit_For(self, node: ast.For) -> Any:
        asked = None if self._num_tries else _asked_each_time(node, self._next_is_python)
        if asked is not None:
            iterator = asked.args[0] if asked.args else asked.func.value  # type: ignore[attr-defined]
            element = ast.Name(_ELEMENT, ast.Load())
            node.body = [_Replaced(asked, element).visit(statement) for statement in node.body]
            node.target = ast.Tuple([node.target, ast.Name(_ELEMENT, ast.Store())], ast.Store())
            self._replace(node.iter)
            node.iter = _operator_call(
                "in_turn", node.iter, node.iter, _lambda(copy.deepcopy(iterator)), _lambda(asked)
            )
        else:
            self._replace(node.iter)
        return self.generic_visit(node)

    def visit_Try(self, node: ast.Try | ast.TryStar) -> Any:
        return self._catching(node)

    visit_TryStar = visit_Try

    def visit_With(self, node: ast.With) -> Any:
        return (
            self._catching(node) if any(map(_suppresses, node.items)) else self.generic_visit(node)
        )

    def _catching(self, node: ast.AST) -> Any:
        """Visit statements that catch `StopIteration`, in which loops are not changed."""
        self._num_tries += 1
        result = self.generic_visit(node)
        self._num_tries -= 1
        return result

    def visit_Call(self, node: ast.Call) -> Any:
        match node:
            case ast.Call(
                func=ast.Name(id="sum") as add,
                args=[ast.GeneratorExp(elt=each, generators=[only]), *start],
                keywords=[],
            ) if isinstance(only.target, ast.Name) and _is_plain(only, each):
                self._replace(only.iter)
                fn = _lambda(each, only.target.id)
                node = _operator_call("sum_of", node, add, only.iter, fn, *start)
            case ast.Call(func=fn) if not _is_operator(fn):
                node.func = _operator_call("called", fn, fn)
        return self.generic_visit(node)

    def _replace(self, iterable: ast.expr) -> None:
        match iterable:
            case ast.Call(func=ast.Name() | ast.Attribute() as fn):
                iterable.func = _operator_call("iterating", fn, fn)
                for argument in iterable.args:
                    self._replace(argument)


class _Replaced(ast.NodeTransformer):
    """Replaces one expression by another."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        if node is self._old:
            return ast.copy_location(self._new, node)
        return super().visit(node)


_ELEMENT = "ag__element"
"""The name of the element that a loop reads from an iterator."""


def _lambda(result: ast.expr, *parameters: str) -> ast.Lambda:
    named = [ast.arg(name) for name in parameters]
    return ast.Lambda(ast.arguments([], named, None, [], [], None, []), result)


def _is_plain(only: ast.comprehension, each: ast.expr) -> bool:
    """Return whether a generator expression applies a function to every element."""
    assigns = any(isinstance(node, ast.NamedExpr) for node in ast.walk(each))
    return not (only.ifs or only.is_async or assigns)


def _suppresses(item: ast.withitem) -> bool:
    names = (getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(item))
    return "suppress" in names


def _is_operator(fn: ast.expr) -> bool:
    match fn:
        case (
            ast.Attribute(value=ast.Name(id=name))
            | ast.Call(func=ast.Attribute(value=ast.Name(id=name)))
        ):
            return name == OPERATORS
    return False


def _operator_call(name: str, like: ast.expr, *arguments: ast.expr) -> ast.Call:
    operator = ast.Attribute(ast.Name(OPERATORS, ast.Load()), name, ast.Load())
    call = ast.Call(operator, list(arguments), [])
    return ast.fix_missing_locations(ast.copy_location(call, like))


def _is_builtin_next(function: types.FunctionType) -> bool:
    code = function.__code__
    own = {*code.co_varnames, *code.co_freevars, *code.co_cellvars}
    return "next" not in function.__globals__ and "next" not in own


def _asked_each_time(loop: ast.For, next_is_python: bool) -> ast.Call | None:
    """Return the only call by which a loop over a range reads an iterator, else None."""
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    asking = [node for node in nodes if _asks(node, next_is_python)]
    match loop:
        case ast.For(
            target=ast.Name(id=number), iter=ast.Call(func=ast.Name(id="range")), orelse=[]
        ) if len(asking) == 1:
            names = [node for node in nodes if isinstance(node, ast.Name)]
            stored = {name.id for name in names if not isinstance(name.ctx, ast.Load)}
            (call,) = asking
            assert isinstance(call, ast.Call)
            iterator: Any = call.args[0] if call.args else call.func
            while isinstance(iterator, ast.Attribute):
                iterator = iterator.value
            is_sound = (
                isinstance(iterator, ast.Name)
                and iterator.id not in {*stored, number}
                and number not in {name.id for name in names}
                and not any(map(_may_leave, loop.body))
                and any(node is call for each in loop.body for node in _always_run(each))
            )
            return call if is_sound else None
    return None


def _may_leave(node: ast.AST, in_inner_loop: bool = False) -> bool:
    """Return whether a statement may end an iteration of its loop early, or catch its errors."""
    if isinstance(node, ast.Break | ast.Continue):
        return not in_inner_loop
    if isinstance(node, ast.Return | ast.Try | ast.TryStar):
        return True
    in_inner_loop = in_inner_loop or isinstance(node, ast.For | ast.While)
    children = [] if isinstance(node, FUNCTIONS) else ast.iter_child_nodes(node)
    return any(_may_leave(child, in_inner_loop) for child in children)


def _asks(node: ast.AST, next_is_python: bool) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="next"), args=[_], keywords=[]):
            return next_is_python
        case ast.Call(func=ast.Attribute(attr="get_next"), args=[], keywords=[]):
            return True
    return False


def _always_run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the descendants of a statement that run exactly once when it runs."""
    yield node
    if not isinstance(node, _SOMETIMES_RUN):
        for child in ast.iter_child_nodes(node):
            yield from _always_run(child)


_SOMETIMES_RUN = (
    ast.If, ast.For, ast.While, ast.Match, ast.IfExp, ast.BoolOp, ast.Compare, ast.Lambda,
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assert,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
