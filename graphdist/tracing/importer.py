"""The import of one jaxpr: its equations become the nodes of a graph, in their order.

The table of rules in `jaxpr_to_graph.py` says, for the name of a primitive, how its equations are
imported. An operation of JAX without a rule becomes a `jax.*` node with its primitive and
parameters. While a jaxpr is imported, each variable of the jaxpr stands for an operand of the
graph. A ref stands for a variable of the user.

Each nested jaxpr (of a loop or branch) has its own importer. All importers share the versions of
variables, the names in use, and whether the equations are inside a checkpoint.

Apart from loops, branches and calls, an operation of JAX that has jaxprs among its parameters
becomes one opaque node. Passes do not look inside, so graphdist's operations inside are an error.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, TypeAlias  # Any: equations, avals and parameters of JAX are untyped

import numpy as np
from jax import dtypes
from jax.core import Tracer
from jax.extend import core as jex
from jax.sharding import NamedSharding

from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Operand, Stage, Value
from graphdist.ir.op_parameters import Holding
from graphdist.ir.ops import CONSTANT, READ
from graphdist.ir.source import Frame, Source
from graphdist.ir.types import Type, dtype_name
from graphdist.tracing.axis_name import RunBy, who_runs
from graphdist.tracing.jax_ops import jax_op
from graphdist.tracing.marks import IntegerMeans
from graphdist.tracing.named_collectives import is_over_replicas
from graphdist.tracing.primitives import LOGICAL
from graphdist.tracing.trace_in_progress import TraceError
from graphdist.tracing.user_lines import here, source_of_equation, with_lines_of, within_scope_of

Argument: TypeAlias = Operand | GraphVariable
"""What a variable of a jaxpr stands for."""

_NO_NUMBERS = dtype_name(dtypes.float0)


class Versions:
    """The versions of variables, by which a repeated read is checked to see the first read's value.

    `jax.checkpoint` runs its body again in the backward pass, and the body reads variables again.
    Every write of a variable makes a new version of the variable. Each first read is stored with
    its line and the version that it saw. A line may have seen several versions, in a Python loop or
    a function that is called several times. JAX does not say which of these reads is repeated. So
    there is an error unless the line has seen a single version, and the repeated read sees the same
    version. Without the error the checkpoint would change the program's results.
    """

    def __init__(self) -> None:
        """Start before any write."""
        self._written: Counter[str] = Counter()
        self._written_at: dict[str, Source] = {}
        self._seen: dict[tuple[str, tuple[Frame, ...]], set[int]] = defaultdict(set)
        self._pending: list[tuple[GraphVariable, Source, int]] = []

    def written(self, variable: GraphVariable, source: Source) -> None:
        """Record a write."""
        self._written[variable.name] += 1
        self._written_at[variable.name] = source

    def check_read(self, variable: GraphVariable, source: Source, is_replay: bool) -> None:
        """Record a first read, or check a repeated read.

        Raises `TraceError` if a repeated read sees another version than the first.
        """
        version = self._written[variable.name]
        if not is_replay:
            # Resolving a source is slow, and only needed for programs with a recomputation.
            self._pending.append((variable, source, version))
            return
        for earlier, where, seen in self._pending:
            self._seen[earlier.name, where.frames].add(seen)
        self._pending.clear()
        if self._seen.get((variable.name, source.frames), {0}) != {version}:
            raise TraceError(
                f"variable {variable.name!r} is read inside jax.checkpoint and assigned before the "
                f"backward pass reads it again: the two reads would differ",
                source=source,
                other=self._written_at.get(variable.name),
                hint="read the variable before the checkpointed function and pass it the value",
            )


class Importer:
    """Turns the equations of one jaxpr into the nodes of one graph."""

    def __init__(
        self,
        rules: Mapping[str, Rule],
        num_replicas: int,
        means: IntegerMeans,
        taken: Iterable[str] = (),
    ) -> None:
        """Start an empty graph; `taken` has the names of the user's variables."""
        self.rules, self.num_replicas, self.means = rules, num_replicas, means
        self.is_nested = self.in_checkpoint = self.is_replay = False
        self.builder, self.versions = Builder(), Versions()
        self.locals: list[GraphVariable] = []
        """The variables of refs that the program itself creates."""
        self.taken = set(taken)
        """The names of variables, which a new local variable must not have."""
        self._arguments: dict[Any, Argument] = {}
        """What each variable of the imported jaxpr stands for."""
        self._enclosing: tuple[Any, ...] = ()
        # The imported equation and the equations around it: (equation, enclosing pair or ()).

    def inlined(
        self, closed: jex.ClosedJaxpr, arguments: Sequence[Argument], call: Any = None
    ) -> list[Operand]:
        """Add the nodes of a jaxpr, and return its results.

        `call` is the equation that calls the jaxpr, if any.
        """
        before, enclosing = self._arguments, self._enclosing
        self._arguments = dict(zip(closed.jaxpr.invars, arguments, strict=True))
        self._bind_constants(closed)
        for equation in closed.jaxpr.eqns:
            if call is not None:
                equation = within_scope_of(call, equation)
            if enclosing:
                equation = with_lines_of(enclosing[0], equation)
            rule = self.rules.get(equation.primitive.name, Importer.add_jax_node)
            self._enclosing = (equation, enclosing)
            try:
                rule(self, equation)
            except (TraceError, TypeRuleError) as error:
                if error.source is None:
                    error.source = source_of_equation(equation)
                raise
        results = [self.operand(atom) for atom in closed.jaxpr.outvars]
        self._arguments, self._enclosing = before, enclosing
        return results

    @property
    def source(self) -> Source:
        """Return the user's line of the imported equation."""
        return source_of_equation(self._enclosing[0])

    def run_by(self) -> RunBy:
        """Return who runs the imported equation."""
        enclosing = self._enclosing
        while enclosing:
            equation, enclosing = enclosing
            if (run_by := who_runs(equation.source_info)) is not None:
                return run_by
        return RunBy.EACH_REPLICA  # JAX derived it from a replica function

    def _bind_constants(self, closed: jex.ClosedJaxpr) -> None:
        """Add a node for each array that the jaxpr closes over, or a literal for a scalar."""
        for variable, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            if isinstance(constant, Tracer):
                raise _leaked(closed.jaxpr, variable)
            self._arguments[variable] = self._constant(constant)

    def _constant(self, constant: Any) -> Operand:
        if not str(constant.dtype).startswith("key"):
            constant = np.asarray(constant)
            if not constant.shape:
                return _literal(constant, Type(dtype_name(constant.dtype), ()))
        (value,) = self.builder.add(CONSTANT, (), Holding(constant), at=Source())
        return value

    def argument(self, atom: Any) -> Argument:
        """Return what a jaxpr's variable or literal stands for: a `GraphVariable` for a ref."""
        if type(atom) is jex.Literal:
            return _literal(atom.val, _type_of(atom.aval))
        return self._arguments[atom]

    def operand(self, atom: Any) -> Operand:
        """Return the operand for a jaxpr's variable or a literal; raises `TraceError` for a ref."""
        operand = self.argument(atom)
        if isinstance(operand, GraphVariable):
            raise TraceError(
                f"variable {operand.name!r} is passed as a ref to an unsupported operation",
                hint="read the variable and pass the value",
            )
        return operand

    def operands(self, equation: Any) -> list[Operand]:
        """Return the operands of an equation."""
        return [self.operand(atom) for atom in equation.invars]

    def bind(self, equation: Any, results: Sequence[Argument]) -> None:
        """Let the outputs of an equation stand for `results`, which are operands or variables."""
        self._arguments.update(zip(equation.outvars, results, strict=True))

    @property
    def add(self) -> Callable[..., tuple[Value, ...]]:
        """Return `Builder.add` for nodes at the line of the imported equation."""
        return partial(self.builder.add, at=self.source)

    def used_nodes(self, outputs: Sequence[Operand]) -> tuple[Node, ...]:
        """Return the nodes, without `read` nodes whose result is unused.

        JAX makes such reads, since each write to a ref also reads the old value.
        """
        nodes = self.builder.nodes
        used = {operand for node in nodes for operand in node.operands if type(operand) is Value}
        used.update(output for output in outputs if type(output) is Value)
        return tuple([n for n in nodes if n.op is not READ or n.results[0] in used])

    def nested(self, closed: jex.ClosedJaxpr, outside: Sequence[Argument], name: str) -> Graph:
        """Return the graph of a nested jaxpr, with an input for each argument that is no variable.

        `outside` has what the jaxpr's arguments stand for in the graph around it.
        """
        inner = copy(self)  # with the versions, names and local variables of `self`
        inner.is_nested, inner.builder = True, Builder()
        arguments = [
            argument if isinstance(argument, GraphVariable) else Value(_type_of(atom.aval))
            for atom, argument in zip(closed.jaxpr.invars, outside, strict=True)
        ]
        outputs = inner.inlined(closed, arguments)
        return Graph(
            name,
            Stage.LOGICAL,
            self.num_replicas,
            tuple(argument for argument in arguments if isinstance(argument, Value)),
            inner.used_nodes(outputs),
            tuple(outputs),
        )

    def add_jax_node(self, equation: Any) -> None:
        """Add an operation of JAX unchanged, as a single node."""
        primitive, params = equation.primitive, equation.params
        if inner := list(jex.jaxprs_in_params(params)):
            takes_variables = any(
                isinstance(self.argument(atom), GraphVariable) for atom in equation.invars
            )
            _refuse_hidden_operations(equation, inner, takes_variables)
        types = [_type_of(atom.aval) for atom in equation.outvars]
        if types and types[0].dtype == _NO_NUMBERS:
            return  # the gradient of an integer, which no operation uses
        op = jax_op(primitive, bool(equation.effects))
        self.bind(equation, self.add(op, self.operands(equation), _stated(params), types=types))


Rule: TypeAlias = Callable[[Importer, Any], None]
"""A rule adds the nodes of an equation, and binds its results."""


def _literal(value: Any, type: Type) -> Literal:
    """Return the literal of a scalar, with the fewest digits that give the same scalar.

    >>> _literal(np.float32(0.1), Type("f32", ())).value
    0.1
    """
    scalar = np.asarray(value)
    if scalar.dtype == np.float32:
        return Literal.of(float(str(scalar[()])), type)
    return Literal.of(scalar.item(), type)


def _stated(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an equation without a sharding over no device.

    JAX gives the gradient of a conversion such a sharding where the program states none.
    """
    sharding = params.get("sharding")
    if isinstance(sharding, NamedSharding) and sharding.mesh.empty:
        return {**params, "sharding": None}
    return params


def _type_of(aval: Any) -> Type:
    """Return the type of an abstract value, without a layout."""
    return Type(dtype_name(aval.dtype), aval.shape)


def _leaked(jaxpr: jex.Jaxpr, variable: Any) -> TraceError:
    """Return the error for a constant of a jaxpr that was computed in another trace."""
    users = [e for e in jaxpr.eqns if any(atom is variable for atom in e.invars)]
    return TraceError(
        "a value that was computed while another function was traced, or in an earlier trace of "
        "this one, is used here: it belongs to that trace and has no numbers",
        source=source_of_equation(users[0]) if users else here(),
        hint="return it from where it was computed and pass it, or keep it in a gd.Variable",
    )


_ACCESSES = {
    "get": "a variable or ref is read",
    "swap": "a variable or ref is assigned",
    "addupdate": "a variable or ref is added to",
}


_OVER_MESHES = ("shard_map", "xla_pmap")


def _refuse_hidden_operations(equation: Any, pending: list[Any], takes_variables: bool) -> None:
    """Raise `TraceError` for graphdist's operations and variables in the jaxprs `pending`.

    `equation` is the opaque operation that has these jaxprs among its parameters.

    Also raise it for an operation over a mesh of the user, since the strategy decides what each
    device computes. If the operation takes no variables, refs inside are its own, such as the
    blocks of a Pallas kernel, and are allowed.
    """
    source = source_of_equation(equation)
    if equation.primitive.name in _OVER_MESHES:
        raise TraceError(
            f"{equation.primitive.name} inside a function: the strategy decides what each device "
            f"computes",
            source=source,
            hint="write what one replica does, with gd.get_replica_context() for collectives, and "
            "give it to strategy.run",
        )
    while pending:
        for inner in pending.pop().eqns:
            name = inner.primitive.name
            opaque = LOGICAL.get(inner.primitive)
            if opaque is None and takes_variables:
                opaque = _ACCESSES.get(name)
            if opaque is None and is_over_replicas(inner):
                opaque = name
            if opaque is not None:
                raise TraceError(
                    f"{opaque} inside {equation.primitive.name}, an operation of JAX that is one "
                    f"node of the graph",
                    source=source_of_equation(inner),
                    other=source,
                    hint="read the variable before the operation, and assign it after"
                    if name in _ACCESSES
                    else f"move the {opaque} out of the operation",
                )
            pending.extend(jex.jaxprs_in_params(inner.params))
