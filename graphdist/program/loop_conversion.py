"""Source conversion of functions that loop over datasets: statements become calls of operators.

The package `diastatic-malt`, which is TensorFlow's AutoGraph, converts the statements. The
converted function shares globals and closure with the user's function, and its code has the user's
file and lines. Loops are converted, and these statements in loops: `if`, `break`, `continue`,
`and`, `or`, `not`. Conditions outside of loops are not converted.

Before the conversion, some calls are replaced by calls of operators. A loop over a range that calls
`next(iterator)` once becomes a loop over pairs of a number and an element if the two loops are
equivalent. They are if every iteration makes the call, no statement leaves the loop, and no
enclosing statement catches the end of the iterator. A sum of a generator expression becomes a loop.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any  # Any: users' functions, syntax trees with annotations

from graphdist.errors import UnsupportedError
from graphdist.ir.source import Frame, Source
from graphdist.program.code_names import names_of
from graphdist.runtime.extras import require_package


def converted(fn: Callable[..., Any], operators: object) -> Callable[..., Any]:
    """Return the function with its loops as calls of operators.

    Raises `MissingExtraError` without the extra `loops`, `UnsupportedError` for a function without
    source, a generator, and a loop that `return` leaves.
    """
    instance = getattr(fn, "instance", None)  # set by `Function._bound_to`
    if instance is not None:
        method = converted(vars(fn)["__wrapped__"], operators)
        return lambda *args, **kwargs: method(instance(), *args, **kwargs)
    if isinstance(fn, types.MethodType):
        return types.MethodType(converted(fn.__func__, operators), fn.__self__)
    function: Any = fn
    name = getattr(function, "__name__", "function")
    if name == "<lambda>":  # an expression has no loop
        return fn
    if not isinstance(function, types.FunctionType):
        raise _refused(f"{name} is no function with a source that can be read", None)
    return with_code(function, converted_code(function), operators)


def converted_code(function: types.FunctionType) -> types.CodeType:
    """Return the code of a function with its loops as calls of operators.

    Raises the errors of `converted`.
    """
    # A wrapper's `__wrapped__` would make Python find the source of the wrapped function.
    function = with_code(function, function.__code__, None)
    name = function.__name__
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise _refused(f"{name} is a generator", function)
    if not _has_source(function):
        raise _refused(f"the source of {name} cannot be read", function)
    return _code(_transformed(function), function)


def with_code(
    function: types.FunctionType, code: types.CodeType, operators: object
) -> types.FunctionType:
    """Return `function` with other code, whose variable `OPERATORS` has the value `operators`."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[OPERATORS] = types.CellType(operators)
    closure = tuple(cells[free] for free in code.co_freevars)
    variables, defaults = function.__globals__, function.__defaults__
    result = types.FunctionType(code, variables, code.co_name, defaults, closure)
    result.__kwdefaults__ = function.__kwdefaults__
    return result


def has_operators(function: types.FunctionType) -> bool:
    """Return whether a function was made by `with_code`, so that its code calls operators."""
    return OPERATORS in function.__code__.co_freevars


def _has_source(function: types.FunctionType) -> bool:
    """Return whether Python finds the source of `function`, and not that of another function.

    Code run by `exec` has the file name "<string>". Since Python 3.13, code of `python -c` has the
    same file name, and Python finds its source for code run by `exec`, too.
    """
    try:
        statements = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError):
        return False
    except SyntaxError:  # a multi-line string whose lines are indented less
        return True
    names = [one.name for one in statements if isinstance(one, ast.FunctionDef)]
    return names == [function.__code__.co_name]


def _transformed(function: types.FunctionType) -> Any:
    """Return the syntax tree of the converted function."""
    require_package(
        "malt",
        "a loop over a dataset inside a function",
        otherwise="write the loop as dataset.reduce(initial_state, fn)",
    )
    from malt.converters import (
        break_statements,
        conditional_expressions,
        continue_statements,
        logical_expressions,
        variables,
    )
    from malt.core import converter, unsupported_features_checker
    from malt.impl import api
    from malt.pyct import errors

    class Converter(api.PyToPy):  # type: ignore[misc]
        """Converts the statements that loops need."""

        def transform_ast(self, node: Any, context: Any) -> Any:
            unsupported_features_checker.verify(node)
            _refuse_returns(node, function)
            node.decorator_list = []
            node = _Calls(_is_builtin_next(function)).visit(node)
            node = self.initial_analysis(node, context)
            node = break_statements.transform(node, context)
            node = continue_statements.transform(node, context)
            node = _control_flow(node, context, _names_around(function))
            node = conditional_expressions.transform(node, context)
            node = logical_expressions.transform(node, context)
            return variables.transform(node, context)

    context = converter.ProgramContext(options=converter.ConversionOptions(recursive=False))
    try:
        tree, _ = super(api.transpiler.PyToPy, Converter()).transform_function(function, context)
    except errors.PyCTError as error:
        raise _refused(f"{function.__name__}: {error}", function) from error
    return tree


def _names_around(function: types.FunctionType) -> frozenset[str]:
    """Return the names of the function's closure and global variables."""
    code = function.__code__
    names = {*code.co_freevars, *names_of(code).globals}
    return frozenset(names.difference(code.co_varnames, code.co_cellvars))


def _control_flow(node: Any, context: Any, around: frozenset[str]) -> Any:
    """Convert loops, and the conditions in them.

    If a function in a loop has a parameter with the name of a variable in `around`, the loop does
    not assign that variable.
    """
    from malt.converters import control_flow
    from malt.pyct import cfg, qual_names
    from malt.pyct.static_analysis import activity, liveness, reaching_definitions, reaching_fndefs

    class Transformer(control_flow.ControlFlowTransformer):  # type: ignore[misc]
        depth = 0
        outermost: Any = None

        def _get_block_vars(self, node: Any, modified: Any) -> Any:
            scope = self.state[control_flow._Function].scope
            read = around.difference(map(str, scope.globals | scope.nonlocals))
            own = {name for name in modified if str(name) not in read}
            return super()._get_block_vars(node, own)

        def visit_FunctionDef(self, node: Any) -> Any:
            self.outermost = self.outermost or node
            if node is not self.outermost and _returns_early(node):
                return node  # its statements are not converted
            return super().visit_FunctionDef(node)

        def visit(self, node: Any) -> Any:
            is_loop = isinstance(node, ast.For | ast.While)
            self.depth += is_loop
            result = super().visit(node)
            self.depth -= is_loop
            return result

        def visit_If(self, node: Any) -> Any:
            return super().visit_If(node) if self.depth else self.generic_visit(node)

    graphs = cfg.build(node)
    node = activity.resolve(qual_names.resolve(node), context, None)
    node = reaching_definitions.resolve(node, context, graphs)
    node = reaching_fndefs.resolve(node, context, graphs)
    return Transformer(context).visit(liveness.resolve(node, context, graphs))


def _refuse_returns(tree: Any, function: types.FunctionType) -> None:
    from malt.pyct import anno

    def refuse_first(kind: Any, block: ast.AST, what: str, hint: str) -> None:
        for node in _own_nodes(block):
            if isinstance(node, kind):
                line = anno.getanno(node, anno.Basic.ORIGIN).loc.lineno
                raise _refused(what, function, line, hint)

    for loop in _own_nodes(tree):
        if isinstance(loop, ast.For | ast.While):
            refuse_first(ast.Return, loop, "a loop is left by return", "use break")
    for nested in ast.walk(tree):
        if isinstance(nested, ast.FunctionDef) and nested is not tree and _returns_early(nested):
            what = f"{nested.name} has break or continue, and return in a condition or loop"
            hint = f"define {nested.name} outside of the function with the loop"
            refuse_first(ast.Break | ast.Continue, nested, what, hint)


def _returns_early(function: ast.FunctionDef) -> bool:
    """Return whether a condition or loop of a function has a `return`."""
    blocks = (ast.For, ast.While, ast.If, ast.With, ast.Try)
    return any(
        isinstance(inner, ast.Return)
        for block in _own_nodes(function)
        if isinstance(block, blocks)
        for inner in _own_nodes(block)
    )


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the descendants of a node, without functions and classes that it defines."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from _own_nodes(child)


def _code(tree: Any, function: types.FunctionType) -> types.CodeType:
    """Compile the converted function, with the user's lines; return its code."""
    from malt.pyct import anno

    line = function.__code__.co_firstlineno
    for node in ast.walk(tree):
        origin = anno.getanno(node, anno.Basic.ORIGIN, default=None)
        if isinstance(node, ast.stmt | ast.expr):
            line = origin.loc.lineno if origin is not None else line
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = 0
    tree.name = function.__name__
    free = dict.fromkeys([*function.__code__.co_freevars, OPERATORS])
    module = ast.parse(f"def factory({', '.join(free)}): return {tree.name}")
    factory_body: Any = module.body[0]
    factory_body.body.insert(0, tree)
    ast.fix_missing_locations(module)
    compiled = compile(module, function.__code__.co_filename, "exec")
    factory = next(code for code in compiled.co_consts if isinstance(code, types.CodeType))
    return next(
        code
        for code in factory.co_consts
        if isinstance(code, types.CodeType) and code.co_name == tree.name
    )


def _refused(
    what: str, function: types.FunctionType | None, line: int | None = None, hint: str = ""
) -> UnsupportedError:
    source = Source()
    if function is not None:
        code = function.__code__
        frame = Frame(code.co_filename, line or code.co_firstlineno, code.co_name)
        source = Source(lambda: ((frame,), ""))
    return UnsupportedError(
        f"a loop over a dataset inside a function cannot be converted: {what}",
        source=source,
        hint=hint or "write the loop as dataset.reduce(initial_state, fn), or outside the function",
    )


OPERATORS = "ag__"
"""The name of the operators in converted code."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
"""Nodes of functions and classes, whose statements are not statements of the code around them."""


class _Calls(ast.NodeTransformer):
    """Replaces calls by calls of operators.

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
        is_catching = any(map(_suppresses, node.items))
        return self._catching(node) if is_catching else self.generic_visit(node)

    def _catching(self, node: ast.AST) -> Any:
        """Visit a statement that may catch `StopIteration`; keep the loops in it as they are."""
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
    """Return the call that reads an iterator once in each iteration of a loop over a range.

    None if there is no such call, or if the loop must not be changed.
    """
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
    """Yield a statement and its descendants that run exactly once each time the statement runs."""
    yield node
    if not isinstance(node, _SOMETIMES_RUN):
        for child in ast.iter_child_nodes(node):
            yield from _always_run(child)


_SOMETIMES_RUN = (
    ast.If, ast.For, ast.While, ast.Match, ast.IfExp, ast.BoolOp, ast.Compare, ast.Lambda,
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assert,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
