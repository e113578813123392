"""Source conversion of functions that loop over datasets: statements become calls of operators.

`diastatic-malt`, TensorFlow's AutoGraph as a package, converts them. The converted function shares
globals and closure with the user's function, and its code has the user's file and lines. Loops are
converted, and the statements in them: `if`, `break`, `continue`, `and`, `or`, `not`. Conditions
outside of loops are not converted.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any  # Any: users' functions, syntax trees with annotations

from graphdist.errors import MissingExtraError, UnsupportedError
from graphdist.ir.source import Frame, Source
from graphdist.program.code_names import names_of
from graphdist.program.operator_calls import FUNCTIONS, OPERATORS, with_operators


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
    function = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__code__.co_name,
        function.__defaults__,
        function.__closure__,
    )
    name = function.__name__
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise _refused(f"{name} is a generator", function)
    if not _has_source(function):
        raise _refused(f"the source of {name} cannot be read", function)
    return _code(_transformed(function), function)


def with_code(
    function: types.FunctionType, code: types.CodeType, operators: object
) -> types.FunctionType:
    """Return a function with its converted code, from `converted_code`."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[OPERATORS] = types.CellType(operators)
    closure = tuple(cells[free] for free in code.co_freevars)
    result = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    result.__kwdefaults__ = function.__kwdefaults__
    return result


def has_operators(function: types.FunctionType) -> bool:
    """Return whether a function is the result of `with_code`: its code calls the operators."""
    return OPERATORS in function.__code__.co_freevars


def _has_source(function: types.FunctionType) -> bool:
    """Return whether Python finds the source of a function, and not that of another function.

    All code of `exec` has the file "<string>", and since Python 3.13 also the code of `python -c`,
    whose source Python then finds for both.
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
    try:
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
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "a loop over a dataset inside a function needs the package diastatic-malt",
            hint='pip install "graphdist[loops]", or write the loop as '
            "dataset.reduce(initial_state, fn)",
        ) from error

    class Converter(api.PyToPy):  # type: ignore[misc]
        """Converts the statements that loops need."""

        def transform_ast(self, node: Any, context: Any) -> Any:
            unsupported_features_checker.verify(node)
            _refuse_returns(node, function)
            node.decorator_list = []
            node = self.initial_analysis(with_operators(node, function), context)
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

    A parameter of a function in a loop may have the name of a variable in `around`: the loop does
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

        def visit_For(self, node: Any) -> Any:
            return self._inside(super().visit_For, node)

        def visit_While(self, node: Any) -> Any:
            return self._inside(super().visit_While, node)

        def visit_If(self, node: Any) -> Any:
            return super().visit_If(node) if self.depth else self.generic_visit(node)

        def _inside(self, visit: Callable[[Any], Any], node: Any) -> Any:
            self.depth += 1
            result = visit(node)
            self.depth -= 1
            return result

    graphs = cfg.build(node)
    node = activity.resolve(qual_names.resolve(node), context, None)
    node = reaching_definitions.resolve(node, context, graphs)
    node = reaching_fndefs.resolve(node, context, graphs)
    return Transformer(context).visit(liveness.resolve(node, context, graphs))


def _refuse_returns(tree: Any, function: types.FunctionType) -> None:
    from malt.pyct import anno

    for loop in _own_nodes(tree):
        if isinstance(loop, ast.For | ast.While):
            end = next((node for node in _own_nodes(loop) if isinstance(node, ast.Return)), None)
            if end is not None:
                line = anno.getanno(end, anno.Basic.ORIGIN).loc.lineno
                raise _refused("a loop is left by return", function, line, "use break")
    for nested in ast.walk(tree):
        if isinstance(nested, ast.FunctionDef) and nested is not tree and _returns_early(nested):
            left = next(
                (n for n in _own_nodes(nested) if isinstance(n, ast.Break | ast.Continue)), None
            )
            if left is not None:
                line = anno.getanno(left, anno.Basic.ORIGIN).loc.lineno
                raise _refused(
                    f"{nested.name} has break or continue, and return in a condition or loop",
                    function,
                    line,
                    f"define {nested.name} outside of the function with the loop",
                )


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
    """Yield the descendants of a node, except those of functions that are defined in it."""
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
    free = [*function.__code__.co_freevars, OPERATORS]
    parameters = [ast.arg(name) for name in dict.fromkeys(free)]
    outer = ast.FunctionDef(
        "factory",
        ast.arguments([], parameters, None, [], [], None, []),
        [tree, ast.Return(ast.Name(tree.name, ast.Load()))],
        [],
    )
    module = ast.fix_missing_locations(ast.Module([outer], []))
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
