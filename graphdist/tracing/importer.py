"""The import of one jaxpr: its equations become the nodes of a graph, in their order.

The table of rules in `jaxpr_to_graph.py` says, for the name of a primitive, how its equations are
imported. An operation of JAX without a rule becomes a `jax.*` node with its primitive and
parameters. An environment maps each variable of a jaxpr to an operand of the graph, or to the
user's variable if the jaxpr's variable is a ref.

Each nested jaxpr (of a loop or branch) has its own importer. All importers share the versions of
variables, the names in use, and whether the equations are inside a checkpoint.

Apart from loops, branches and calls, an operation of JAX that has jaxprs among its parameters
becomes one opaque node. Passes do not look inside, so graphdist's operations are refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias  # Any: equations, avals and parameters of JAX are untyped

import numpy as np
from jax import dtypes
from jax.core import Tracer
from jax.extend import core as jex

from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Operand, Stage, Value
from graphdist.ir.op_parameters import Holding
from graphdist.ir.ops import CONSTANT, READ
from graphdist.ir.source import Source
from graphdist.ir.types import Type, dtype_name
from graphdist.tracing.axis_name import Audience, audience_of
from graphdist.tracing.integer_mean_marks import IntegerMeans
from graphdist.tracing.jax_ops import jax_op
from graphdist.tracing.named_collectives import is_over_replicas
from graphdist.tracing.primitives import LOGICAL
from graphdist.tracing.state import TraceError
from graphdist.tracing.user_lines import here, source_of_equation, within_scope_of
from graphdist.tracing.variable_versions import Versions

Environment: TypeAlias = dict[Any, Operand | GraphVariable]

_NO_NUMBERS = dtype_name(dtypes.float0)


class Importer:
    """Turns the equations of one jaxpr into the nodes of one graph."""

    def __init__(
        self,
        rules: Mapping[str, Rule],
        num_replicas: int,
        means: IntegerMeans,
        parent: Importer | None = None,
    ) -> None:
        """Start an empty graph; `parent` is the importer of the graph it is nested in."""
        self.rules, self.num_replicas, self.means = rules, num_replicas, means
        self.is_nested = parent is not None
        self.builder = Builder()
        self.locals: list[GraphVariable] = parent.locals if parent else []
        """The variables of refs that the program itself creates."""
        self.taken: set[str] = parent.taken if parent else set()
        """The names of variables; a local variable gets another name."""
        self.versions: Versions = parent.versions if parent else Versions()
        self.in_checkpoint: bool = parent is not None and parent.in_checkpoint
        self.is_replay: bool = parent is not None and parent.is_replay
        self._enclosing: tuple[Any, ...] = parent._enclosing if parent else ()
        # Pairs (equation, enclosing pair): the imported equation and those that it is nested in.

    def run(self, jaxpr: jex.Jaxpr, environment: Environment, call: Any = None) -> None:
        """Add the nodes of every equation; `call` is the equation that calls the jaxpr, if any."""
        enclosing = self._enclosing
        for equation in jaxpr.eqns:
            if call is not None:
                equation = within_scope_of(call, equation)
            rule = self.rules.get(equation.primitive.name, Importer.add_jax_node)
            self._enclosing = (equation, enclosing)
            try:
                rule(self, equation, environment)
            except (TraceError, TypeRuleError) as error:
                if error.source is None:
                    error.source = source_of_equation(equation)
                raise
        self._enclosing = enclosing

    def audience(self) -> Audience:
        """Return who executes the imported equation."""
        enclosing = self._enclosing
        while enclosing:
            equation, enclosing = enclosing
            if (audience := audience_of(equation.source_info)) is not None:
                return audience
        return Audience.REPLICAS  # JAX derived it from a replica function

    def bind_constants(self, closed: jex.ClosedJaxpr, environment: Environment) -> None:
        """Add a node for each array that the jaxpr closes over, or a literal for a scalar."""
        for variable, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            if isinstance(constant, Tracer):
                raise _leaked(closed.jaxpr, variable)
            environment[variable] = self._constant(constant)

    def _constant(self, constant: Any) -> Operand:
        if not str(constant.dtype).startswith("key"):
            constant = np.asarray(constant)
            if not constant.shape:
                return _literal(constant, Type(dtype_name(constant.dtype), ()))
        (value,) = self.builder.add(CONSTANT, (), Holding(constant), at=Source())
        return value

    def resolved(self, atom: Any, environment: Environment) -> Operand | GraphVariable:
        """Return the operand of a jaxpr's variable or literal, or the user's variable of a ref."""
        if type(atom) is jex.Literal:
            return _literal(atom.val, _type_of(atom.aval))
        return environment[atom]

    def operand(self, atom: Any, environment: Environment) -> Operand:
        """Return the operand of a jaxpr's variable or literal; raises `TraceError` for a ref."""
        operand = self.resolved(atom, environment)
        if isinstance(operand, GraphVariable):
            raise TraceError(
                f"variable {operand.name!r} is passed as a ref to an unsupported operation",
                hint="read the variable and pass the value",
            )
        return operand

    def operands(self, equation: Any, environment: Environment) -> list[Operand]:
        """Return the operands of an equation."""
        return [self.operand(atom, environment) for atom in equation.invars]

    def outputs(self, jaxpr: jex.Jaxpr, environment: Environment) -> tuple[Operand, ...]:
        """Return the operands the jaxpr returns."""
        return tuple(self.operand(atom, environment) for atom in jaxpr.outvars)

    def nodes(self, outputs: tuple[Operand, ...]) -> tuple[Node, ...]:
        """Return the nodes without unused reads: each write of JAX also reads the old value."""
        nodes = self.builder.nodes
        used = {operand for node in nodes for operand in node.operands if type(operand) is Value}
        used.update(output for output in outputs if type(output) is Value)
        return tuple([n for n in nodes if n.op is not READ or n.results[0] in used])

    def nested(
        self, closed: jex.ClosedJaxpr, bound: Sequence[GraphVariable | None], name: str
    ) -> Graph:
        """Return the graph of a nested jaxpr.

        `bound` has, for each input, the variable whose handle it is, or None for a value.
        """
        inner = Importer(self.rules, self.num_replicas, self.means, self)
        environment: Environment = {}
        inputs: list[Value] = []
        for atom, variable in zip(closed.jaxpr.invars, bound, strict=True):
            if variable is None:
                inputs.append(Value(_type_of(atom.aval)))
            environment[atom] = inputs[-1] if variable is None else variable
        inner.bind_constants(closed, environment)
        inner.run(closed.jaxpr, environment)
        outputs = inner.outputs(closed.jaxpr, environment)
        return Graph(
            name,
            Stage.LOGICAL,
            self.num_replicas,
            tuple(inputs),
            inner.nodes(outputs),
            outputs,
        )

    def add_jax_node(self, equation: Any, environment: Environment) -> None:
        """Add an operation of JAX unchanged, as one node."""
        primitive, params = equation.primitive, equation.params
        if _is_higher_order(primitive, params):
            arguments = [self.resolved(atom, environment) for atom in equation.invars]
            takes_variables = any(isinstance(arg, GraphVariable) for arg in arguments)
            _refuse_hidden_operations(equation, takes_variables=takes_variables)
        types = [_type_of(atom.aval) for atom in equation.outvars]
        if types and types[0].dtype == _NO_NUMBERS:
            return  # the gradient of an integer: no operation uses it
        results = self.builder.add(
            jax_op(primitive, bool(equation.effects)),
            self.operands(equation, environment),
            params,
            at=source_of_equation(equation),
            types=types,
        )
        bind(equation, results, environment)


Rule: TypeAlias = Callable[[Importer, Any, Environment], None]
"""A rule adds the nodes of an equation, and binds its results in the environment."""


def bind(equation: Any, results: Sequence[Operand], environment: Environment) -> None:
    """Bind the results of an equation to operands of the graph."""
    environment.update(zip(equation.outvars, results, strict=True))


def _literal(value: Any, type: Type) -> Literal:
    """Return the literal of a scalar, with the fewest digits that give the same scalar.

    >>> _literal(np.float32(0.1), Type("f32", ())).value
    0.1
    """
    scalar = np.asarray(value)
    if scalar.dtype == np.float32:
        return Literal.of(float(str(scalar[()])), type)
    return Literal.of(scalar.item(), type)


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


_higher_order: dict[Any, bool] = {}


def _is_higher_order(primitive: Any, params: dict[str, Any]) -> bool:
    """Return whether a primitive has jaxprs among its parameters."""
    known = _higher_order.get(primitive)
    if known is None:
        known = _higher_order[primitive] = any(True for _ in _jaxprs(params.values()))
    return known


def _jaxprs(params: Any) -> Any:
    for param in params:
        if isinstance(param, jex.ClosedJaxpr):
            yield param.jaxpr
        elif isinstance(param, jex.Jaxpr):
            yield param
        elif isinstance(param, tuple | list):
            yield from _jaxprs(param)


_ACCESSES = {
    "get": "a variable or ref is read",
    "swap": "a variable or ref is assigned",
    "addupdate": "a variable or ref is added to",
}


_OVER_MESHES = ("shard_map", "xla_pmap")


def _refuse_hidden_operations(equation: Any, *, takes_variables: bool) -> None:
    """Raise `TraceError` for graphdist's operations and variables inside an opaque operation.

    A mesh of the user is refused, too: the strategy decides what each device computes. If the
    operation takes no variables, refs inside are its own, such as the blocks of a Pallas kernel.
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
    pending = list(_jaxprs(equation.params.values()))
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
            pending.extend(_jaxprs(inner.params.values()))
