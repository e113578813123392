"""The import of one jaxpr: its equations become the nodes of a graph, in their order.

The table of rules in `jaxpr_to_graph.py` says, for the name of a primitive, how its equations are
imported. An operation of JAX without a rule becomes a `jax.*` node with its primitive and
parameters. An environment maps each variable of a jaxpr to an operand of the graph, or to the
user's variable if JAX has a ref to it.

Each nested jaxpr (of a loop or branch) has its own importer. They share the knowledge of the
outermost importer: versions of variables, names that are taken, whether a checkpoint is around.
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
from graphdist.tracing.hidden_operations import is_higher_order, leaked, refuse_nested
from graphdist.tracing.integer_mean_marks import IntegerMeans
from graphdist.tracing.jax_ops import jax_op
from graphdist.tracing.state import TraceError
from graphdist.tracing.user_lines import source_of_equation, within_scope_of
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
        """The variables of refs that the program made itself."""
        self.taken: set[str] = parent.taken if parent else set()
        """The names of variables, which local variables must not have."""
        self.versions: Versions = parent.versions if parent else Versions()
        self.in_checkpoint: bool = parent is not None and parent.in_checkpoint
        self.is_replay: bool = parent is not None and parent.is_replay
        self._around: tuple[Any, ...] = parent._around if parent else ()
        # The imported equation, and the equations it is nested in, as pairs from the inside out.

    def run(self, jaxpr: jex.Jaxpr, environment: Environment, call: Any = None) -> None:
        """Add the nodes of every equation; `call` is the equation that calls the jaxpr, if any."""
        around = self._around
        for equation in jaxpr.eqns:
            if call is not None:
                equation = within_scope_of(call, equation)
            rule = self.rules.get(equation.primitive.name, Importer.add_jax_node)
            self._around = (equation, around)
            try:
                rule(self, equation, environment)
            except (TraceError, TypeRuleError) as error:
                if error.source is None:
                    error.source = source_of_equation(equation)
                raise
        self._around = around

    def audience(self) -> Audience:
        """Return for whom the imported equation was written."""
        around = self._around
        while around:
            equation, around = around
            if (audience := audience_of(equation.source_info)) is not None:
                return audience
        return Audience.REPLICAS  # JAX derived it from the user's code for them

    def bind_constants(self, closed: jex.ClosedJaxpr, environment: Environment) -> None:
        """Give the arrays the jaxpr closes over a node, or a literal if they are scalars."""
        for variable, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            if isinstance(constant, Tracer):
                raise leaked(closed.jaxpr, variable)
            environment[variable] = self._constant(constant)

    def _constant(self, constant: Any) -> Operand:
        if not str(constant.dtype).startswith("key"):
            constant = np.asarray(constant)
            if not constant.shape:
                return _literal(constant, Type(dtype_name(constant.dtype), ()))
        (value,) = self.builder.add(CONSTANT, (), Holding(constant), at=Source())
        return value

    def resolved(self, atom: Any, environment: Environment) -> Operand | GraphVariable:
        """Return what stands for a jaxpr's variable or literal: an operand, or a ref's variable."""
        if type(atom) is jex.Literal:
            return _literal(atom.val, _type_of(atom.aval))
        return environment[atom]

    def operand(self, atom: Any, environment: Environment) -> Operand:
        """Return the operand of a jaxpr's variable or literal; raises `TraceError` for a ref."""
        found = self.resolved(atom, environment)
        if isinstance(found, GraphVariable):
            raise TraceError(
                f"variable {found.name!r} is passed as a ref to an operation that is not supported",
                hint="read the variable and pass the value",
            )
        return found

    def operands(self, equation: Any, environment: Environment) -> list[Operand]:
        """Return the operands of an equation."""
        return [self.operand(atom, environment) for atom in equation.invars]

    def outputs(self, jaxpr: jex.Jaxpr, environment: Environment) -> tuple[Operand, ...]:
        """Return the operands the jaxpr returns."""
        return tuple(self.operand(atom, environment) for atom in jaxpr.outvars)

    def nodes(self, outputs: tuple[Operand, ...]) -> tuple[Node, ...]:
        """Return the nodes without unused reads: JAX's write returns the old value every time."""
        nodes = self.builder.nodes
        used = {operand for node in nodes for operand in node.operands if type(operand) is Value}
        used.update(output for output in outputs if type(output) is Value)
        return tuple([n for n in nodes if n.op is not READ or n.results[0] in used])

    def nested(
        self, closed: jex.ClosedJaxpr, bound: Sequence[GraphVariable | None], name: str
    ) -> Graph:
        """Return the graph of a nested jaxpr.

        `bound` says, input by input, which variable it is the handle of, or None for a value.
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
        """Add an operation of JAX's own as it is."""
        primitive, params = equation.primitive, equation.params
        if is_higher_order(primitive, params):
            arguments = [self.resolved(atom, environment) for atom in equation.invars]
            takes_variables = any(isinstance(found, GraphVariable) for found in arguments)
            refuse_nested(equation, takes_variables=takes_variables)
        types = [_type_of(atom.aval) for atom in equation.outvars]
        if types and types[0].dtype == _NO_NUMBERS:
            return  # the gradient of an integer, which nothing can be computed from
        results = self.builder.add(
            jax_op(primitive, bool(equation.effects)),
            self.operands(equation, environment),
            params,
            at=source_of_equation(equation),
            types=types,
        )
        bind(equation, results, environment)


Rule: TypeAlias = Callable[[Importer, Any, Environment], None]
"""What adds the nodes of an equation, and binds its results in the environment."""


def bind(equation: Any, results: Sequence[Operand], environment: Environment) -> None:
    """Say what stands for the results of an equation."""
    environment.update(zip(equation.outvars, results, strict=True))


def _literal(value: Any, type: Type) -> Literal:
    """Return the literal of a scalar, written with the fewest digits that give it back.

    >>> _literal(np.float32(0.1), Type("f32", ())).value
    0.1
    """
    scalar = np.asarray(value)
    if scalar.dtype == np.float32:
        return Literal.of(float(str(scalar[()])), type)
    return Literal.of(scalar.item(), type)


def _type_of(aval: Any) -> Type:
    """Return the type of an abstract value, its distribution not known."""
    return Type(dtype_name(aval.dtype), aval.shape)
