"""A traced jaxpr as a logical graph.

The jaxpr is walked once, in order:

* an equation of JAX's own becomes a `jax.*` node with its primitive and parameters;
* a logical primitive becomes the graph's operation of that name;
* calls (`jit`, `closed_call`, `custom_jvp_call`, `custom_vjp_call`, `checkpoint`) are inlined,
  since differentiation is over by now; a checkpoint's replay keeps the barrier that stops XLA from
  merging it with the first computation;
* JAX's collectives over the replicas become ours (`named_collectives.py`);
* `scan`, `while` and `cond` become nodes with nested graphs (`control_flow.py`);
* the mark of a mean of integers is noted, and left out (`integer_means.py`);
* refs are resolved to the variables they are the handles of, their gets and swaps become `read` and
  `assign`. No ref is left. A ref the program made itself becomes a local variable.

A replay of `jax.checkpoint` reads variables a second time. That means the same as the first read
only if nothing was assigned in between, which `Versions` checks; a write inside a checkpoint would
happen twice and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias  # Any: equations, avals and parameters of JAX are untyped

import jax
import numpy as np
from jax import dtypes
from jax.core import Tracer
from jax.extend import core as jex
from jax.extend.core import primitives as jax_primitives

from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graph, Literal, Node, Operand, Stage, Value, Variable
from graphdist.ir.ops import ASSIGN, CONSTANT, OPS, READ
from graphdist.ir.source import Source
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, dtype_name
from graphdist.tracing.axis_name import Side, side_of
from graphdist.tracing.control_flow import import_cond, import_scan, import_while
from graphdist.tracing.integer_means import IntegerMeans, integer_mean_p
from graphdist.tracing.jax_ops import jax_op, optimization_barrier
from graphdist.tracing.named_collectives import NAMED, import_named
from graphdist.tracing.primitives import LOGICAL, read_variable_p
from graphdist.tracing.refusals import is_higher_order, leaked, refuse_nested
from graphdist.tracing.sources import source_of
from graphdist.tracing.state import TraceError
from graphdist.tracing.versions import Versions

Environment: TypeAlias = dict[Any, Operand | Variable]

_NO_NUMBERS = dtype_name(dtypes.float0)

_CALLS = {"jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat2"}
_CALLS |= {"checkpoint", "custom_vjp_call_jaxpr"}


def import_jaxpr(
    closed: jex.ClosedJaxpr,
    *,
    name: str,
    num_replicas: int,
    inputs: Sequence[Value],
    variables: Sequence[Variable],
    returns_per_replica: Sequence[bool],
    means: IntegerMeans,
) -> Graph:
    """Return the logical graph of a traced program.

    `inputs` are the values of the jaxpr's arguments, with distribution and name; `variables` are
    those the trace touched; `means` learns where its integers are. Raises `TraceError` where a
    program cannot mean the same as a graph.
    """
    importer = Importer(num_replicas, means)
    importer.taken.update(variable.name for variable in variables)
    environment: Environment = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    importer.bind_constants(closed, environment)
    importer.run(closed.jaxpr, environment)
    outputs = importer.outputs(closed.jaxpr, environment)
    return Graph(
        name,
        Stage.LOGICAL,
        num_replicas,
        tuple(inputs),
        importer.nodes(outputs),
        outputs,
        (*variables, *importer.locals),
        tuple(returns_per_replica),
    )


class Importer:
    """Turns the equations of one jaxpr, and of those nested in it, into nodes."""

    def __init__(
        self, num_replicas: int, means: IntegerMeans, parent: Importer | None = None
    ) -> None:
        """Start an empty graph; `parent` is the importer of the graph it is nested in."""
        self.num_replicas, self.means = num_replicas, means
        self.is_nested = parent is not None
        self.builder = Builder()
        self.locals: list[Variable] = parent.locals if parent else []
        self.taken: set[str] = parent.taken if parent else set()
        """The names of variables, which cells must not have."""
        self.versions: Versions = parent.versions if parent else Versions()
        self.in_checkpoint: bool = parent is not None and parent.in_checkpoint
        self.is_replay: bool = parent is not None and parent.is_replay
        self.around: tuple[Any, ...] = parent.around if parent else ()
        """Where the equation is that is imported, and around it those it is nested in: pairs."""

    def run(self, jaxpr: jex.Jaxpr, environment: Environment) -> None:
        """Add the nodes of every equation."""
        around = self.around
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            handler = _HANDLERS.get(name, Importer.add_jax_node)
            self.around = (equation.source_info, around)
            try:
                handler(self, equation, environment)
            except (TraceError, TypeRuleError) as error:
                if error.source is None:
                    error.source = source_of(equation.source_info)
                raise
        self.around = around

    def side(self) -> Side:
        """Return for whom the equation was written that is imported."""
        around = self.around
        while around:
            source_info, around = around
            if (side := side_of(source_info)) is not None:
                return side
        return Side.REPLICAS  # JAX has made it, of what was written for them

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
                return literal(constant, Type(dtype_name(constant.dtype), ()))
        (value,) = self.builder.add(CONSTANT, (), {"value": constant}, at=Source())
        return value

    def operand(self, atom: Any, environment: Environment) -> Operand:
        """Return what stands for a jaxpr's variable or literal; a ref is refused."""
        if type(atom) is jex.Literal:
            return literal(atom.val, type_of(atom.aval))
        found = environment[atom]
        if isinstance(found, Variable):
            raise TraceError(
                f"variable {found.name!r} is passed as a ref to an operation that is not supported",
                hint="read the variable and pass the value",
            )
        return found

    def outputs(self, jaxpr: jex.Jaxpr, environment: Environment) -> tuple[Operand, ...]:
        """Return the operands the jaxpr returns."""
        return tuple(self.operand(atom, environment) for atom in jaxpr.outvars)

    def nodes(self, outputs: tuple[Operand, ...]) -> tuple[Node, ...]:
        """Return the nodes but for reads nobody uses: every write comes with a read of what was."""
        nodes = self.builder.nodes
        used = {operand for node in nodes for operand in node.operands if type(operand) is Value}
        used.update(output for output in outputs if type(output) is Value)
        return tuple([n for n in nodes if n.op is not READ or n.results[0] in used])

    def nested(self, closed: jex.ClosedJaxpr, bound: Sequence[Variable | None], name: str) -> Graph:
        """Return the graph of a nested jaxpr.

        `bound` says, input by input, which variable it is the handle of, or None for a value.
        """
        inner = Importer(self.num_replicas, self.means, self)
        environment: Environment = {}
        inputs: list[Value] = []
        for atom, variable in zip(closed.jaxpr.invars, bound, strict=True):
            if variable is None:
                inputs.append(Value(type_of(atom.aval)))
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
        source = source_of(equation.source_info)
        primitive, params = equation.primitive, equation.params
        if is_higher_order(primitive, params):
            refuse_nested(equation, source)
        types = [type_of(atom.aval) for atom in equation.outvars]
        if types and types[0].dtype == _NO_NUMBERS:
            return  # the gradient of an integer, which nothing can be computed from
        results = self.builder.add(
            jax_op(primitive, bool(equation.effects)),
            [self.operand(atom, environment) for atom in equation.invars],
            params,
            at=source,
            types=types,
        )
        self._add(equation, results, environment)

    def _add(self, equation: Any, results: Sequence[Operand], environment: Environment) -> None:
        environment.update(zip(equation.outvars, results, strict=True))

    def _logical(self, equation: Any, environment: Environment) -> None:
        op = OPS[LOGICAL[equation.primitive]]
        operands = [self.operand(atom, environment) for atom in equation.invars]
        source = source_of(equation.source_info)
        results = self.builder.add(op, operands, equation.params, at=source)
        self._add(equation, results, environment)

    def _integer_mean(self, equation: Any, environment: Environment) -> None:
        self._forward(equation, environment)
        operand = self.operand(equation.invars[0], environment)
        # Another branch, which other replicas take, may have another literal.
        is_found = isinstance(operand, Value) or not self.is_nested
        self.means.note(equation.params["number"], operand if is_found else None)

    def _read_variable(self, equation: Any, environment: Environment) -> None:
        environment[equation.outvars[0]] = equation.params["variable"]

    def _new_ref(self, equation: Any, environment: Environment) -> None:
        atom = equation.invars[0]
        initial = None if type(atom) is jex.Literal else environment[atom]
        if isinstance(initial, Variable):  # the handle of a user's variable
            environment[equation.outvars[0]] = initial
            return
        value = self.operand(atom, environment)
        distribution = MIRRORED if self.num_replicas == 1 else PER_REPLICA
        name = f"cell_{len(self.locals)}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        cell = Variable(
            name,
            value.type.distributed(distribution),
            synchronization="on_read",
            is_local=True,
        )
        self.locals.append(cell)
        environment[equation.outvars[0]] = cell
        self.builder.add(ASSIGN, (value,), {"variable": cell}, at=source_of(equation.source_info))

    def _get(self, equation: Any, environment: Environment) -> None:
        variable = self._whole(equation, environment, 1)
        source = source_of(equation.source_info)
        self.versions.check_read(variable, source, self.is_replay)
        self._add(equation, self._read(variable, source), environment)

    def _read(self, variable: Variable, source: Source) -> tuple[Value, ...]:
        return self.builder.add(READ, (), {"variable": variable}, at=source, hint=variable.name)

    def _swap(self, equation: Any, environment: Environment) -> None:
        variable = self._whole(equation, environment, 2)
        source = source_of(equation.source_info)
        self._check_write(variable, source)
        self._add(equation, self._read(variable, source), environment)
        value = self.operand(equation.invars[1], environment)
        self.builder.add(ASSIGN, (value,), {"variable": variable}, at=source)
        self.versions.written(variable, source)

    def _add_update(self, equation: Any, environment: Environment) -> None:
        variable = self._whole(equation, environment, 2)
        source = source_of(equation.source_info)
        self._check_write(variable, source)
        old = self._read(variable, source)
        total = self.builder.add(
            jax_op(jax_primitives.add_p),
            (*old, self.operand(equation.invars[1], environment)),
            at=source,
            types=[variable.type],
        )
        self.builder.add(ASSIGN, total, {"variable": variable}, at=source)
        self.versions.written(variable, source)

    def _freeze(self, equation: Any, environment: Environment) -> None:
        variable = environment[equation.invars[0]]
        assert isinstance(variable, Variable)
        self._add(equation, self._read(variable, source_of(equation.source_info)), environment)

    def _check_write(self, variable: Variable, source: Source) -> None:
        if self.in_checkpoint and not variable.is_local:
            raise TraceError(
                f"variable {variable.name!r} is assigned inside jax.checkpoint, "
                f"which would run the assignment twice",
                source=source,
                hint="return the value from the checkpointed function and assign it outside",
            )

    def _whole(self, equation: Any, environment: Environment, plain: int) -> Variable:
        """Return the variable of a ref that is accessed whole; indexing takes more operands."""
        variable = environment[equation.invars[0]]
        if not isinstance(variable, Variable):
            raise TraceError("a ref that is not a variable", source=source_of(equation.source_info))
        value = equation.outvars[0] if equation.outvars else equation.invars[1]
        views = jax.tree.unflatten(equation.params["tree"], equation.invars[plain:])
        for view in views:  # beside indices: of another dtype, shape or order
            if not hasattr(view, "indices"):
                raise TraceError(
                    f"{_ref_name(variable)} is seen through a {type(view).__name__}",
                    source=source_of(equation.source_info),
                    hint="read the whole, ref[...], and transform what is read",
                )
        if len(equation.invars) != plain or tuple(value.aval.shape) != variable.type.shape:
            raise TraceError(
                f"{_ref_name(variable)} of shape {list(variable.type.shape)} is read or written "
                f"in part: a graph reads and writes it whole",
                source=source_of(equation.source_info),
                hint="write the whole: ref[...] = ref[...].at[index].set(value)",
            )
        return variable

    def _call(self, equation: Any, environment: Environment) -> None:
        params = equation.params
        closed = params.get("jaxpr", params.get("call_jaxpr"))
        if not isinstance(closed, jex.ClosedJaxpr):
            closed = jex.ClosedJaxpr(closed, ())
        arguments: list[Any] = [
            literal(atom.val, type_of(atom.aval))
            if type(atom) is jex.Literal
            else environment[atom]
            for atom in equation.invars
        ]
        is_checkpoint = equation.primitive.name in ("checkpoint", "remat2")
        before = self.in_checkpoint, self.is_replay
        if is_checkpoint:
            self.in_checkpoint, self.is_replay = True, params["differentiated"] or self.is_replay
            if params["differentiated"] and params["prevent_cse"]:
                arguments = self._behind_barrier(arguments, source_of(equation.source_info))
        inner: Environment = dict(zip(closed.jaxpr.invars, arguments, strict=True))
        self.bind_constants(closed, inner)
        self.run(closed.jaxpr, inner)
        self.in_checkpoint, self.is_replay = before
        for outside, inside in zip(equation.outvars, closed.jaxpr.outvars, strict=True):
            environment[outside] = self.operand(inside, inner)

    def _behind_barrier(self, arguments: list[Any], source: Source) -> list[Any]:
        values = [argument for argument in arguments if isinstance(argument, Value)]
        if not values:
            return arguments
        results = self.builder.add(
            optimization_barrier(), values, at=source, types=[value.type for value in values]
        )
        behind = dict(zip(values, results, strict=True))
        return [behind.get(a, a) if isinstance(a, Value) else a for a in arguments]

    def _forward(self, equation: Any, environment: Environment) -> None:
        environment[equation.outvars[0]] = self.operand(equation.invars[0], environment)


def literal(value: Any, type: Type) -> Literal:
    """Return the literal of a scalar, written with the fewest digits that give it back.

    >>> literal(np.float32(0.1), Type("f32", ())).value
    0.1
    """
    scalar = np.asarray(value)
    if scalar.dtype == np.float32:
        return Literal.of(float(str(scalar[()])), type)
    return Literal.of(scalar.item(), type)


def type_of(aval: Any) -> Type:
    """Return the type of an abstract value, its distribution not known."""
    return Type(dtype_name(aval.dtype), aval.shape)


def _ref_name(variable: Variable) -> str:
    return "a ref" if variable.is_local else f"variable {variable.name!r}"


_HANDLERS: dict[str, Callable[[Importer, Any, Environment], None]] = {
    **dict.fromkeys(_CALLS, Importer._call),
    **{primitive.name: Importer._logical for primitive in LOGICAL},
    **dict.fromkeys(NAMED, import_named),
    integer_mean_p.name: Importer._integer_mean,
    read_variable_p.name: Importer._read_variable,
    "new_ref": Importer._new_ref,
    "get": Importer._get,
    "swap": Importer._swap,
    "addupdate": Importer._add_update,
    "freeze": Importer._freeze,
    "stop_gradient": Importer._forward,
    "scan": import_scan,
    "while": import_while,
    "cond": import_cond,
}
