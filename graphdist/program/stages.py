"""The stages of a function, each with its graph: `Traced`, `Lowered`, `Compiled`.

If a folder for pages is set, the viewer writes a page of each program before XLA compiles it, so
that a compilation that fails has its page, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, NoReturn, Self  # Any: compiler options, and the viewer

import jax

from graphdist.config import dump_folder, reproducer_folder, verifies_passes
from graphdist.errors import ArgumentError, DeviceMemoryError, GraphdistError
from graphdist.garbage import collection_put_off
from graphdist.ir.collective_bytes import Collectives, collectives_of
from graphdist.ir.graph import Graph
from graphdist.ir.variable_storage import StoredInPack, StoredUnsharded
from graphdist.passes.logical.choose_residuals import ChooseResiduals
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.manager import Pass, PassRecord, run_passes
from graphdist.passes.plans import NO_PLAN, Plan, identity_of
from graphdist.passes.servers.cut_step import CutStep
from graphdist.program.interface import Interface
from graphdist.program.progress import compiling, phase
from graphdist.report.explanation import Explanation, explanation
from graphdist.report.server_requests import ServerRequest, requests_of
from graphdist.report.step_report import Report, report_of, report_of_graph, report_of_refused
from graphdist.report.step_timeline import StepTimeline
from graphdist.runtime.compilation import compile_lowered
from graphdist.runtime.cpu_options import ChosenOption, cpu_options, divides_temporaries
from graphdist.runtime.devices import Devices
from graphdist.runtime.executable import Emitted, Executable, emitted
from graphdist.runtime.module.memory import Memory
from graphdist.state.variable import Variable
from graphdist.tracebacks import frames_hidden
from graphdist.tracing.jax_settings import Arithmetic
from graphdist.tracing.user_lines import here
from graphdist.values.copying import refuse_to_pickle
from graphdist.values.replica_warnings import warn_of_gathered_stacks

_viewer: Any  # the module `graphdist.viz.display`, which this package may not import


def set_viewer(viewer: Any) -> None:
    """Set the module that shows stages."""
    global _viewer
    _viewer = viewer


next_function = count(1).__next__
"""Return a new id for a function. The function's pages show the id."""


def dump_of(function: int, why: Callable[[], str]) -> Callable[[Lowered, str], None]:
    """Return a function that writes the page of a program, if a folder for pages is set.

    The returned function takes the program and the reason why it is compiled again. If this reason
    is "", the page shows the reason that `why` returns. `why` is called at once, since it refers to
    the arguments of a call.
    """
    reason = "" if dump_folder() is None else why()

    def dump(lowered: Lowered, moved: str) -> None:
        folder = dump_folder()
        if folder is not None:
            _viewer.dump_stage(lowered, folder, function, moved or reason)

    return dump


@dataclass(frozen=True, repr=False)
class FunctionStage:
    """The base of all stages: a graph, and the passes that have run."""

    graph: Graph
    devices: Devices
    history: tuple[PassRecord, ...] = field(default=(), kw_only=True)

    logical: Graph | None = field(default=None, kw_only=True)
    """The graph before all passes, if it is known."""

    @property
    def cut(self) -> CutStep | None:
        """Return the graphs of a step with parameter servers; None for any other step.

        `graph` is the worker's graph.
        """
        return self.history[-1].cut if self.history else None

    @property
    def collectives(self) -> Collectives:
        """Return the collectives of the graph, those in loops and branches included, to print."""
        return collectives_of(self.graph)

    @property
    def server_requests(self) -> tuple[ServerRequest, ...]:
        """Return what a worker requests of parameter servers; () without servers."""
        return requests_of(self.cut)

    def as_text(self, form: str = "graph") -> str:
        """Return the graph as text; some stages have more forms."""
        raise NotImplementedError

    def show(self, format: str = "html") -> None:
        """Show the program and the changes of each pass: inside a notebook, else in a browser.

        `format` "text" prints the graph. See `graphdist.viz.render` for the formats.
        """
        _viewer.show(self, format)

    def _repr_html_(self) -> str:
        return str(_viewer.notebook_cell(self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.graph!r}>"

    def __copy__(self) -> Self:
        return self  # it never changes

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(
            f"{self!r}, which is compiled by this process,",
            "keep a compiled step in a file with gd.aot.save, or its text: as_text('stablehlo')",
        )

    def _unknown(self, form: str, *known: str) -> ArgumentError:
        return ArgumentError(
            f"as_text({form!r}): this stage has {', '.join(map(repr, known))}",
            hint={"stablehlo": "call .lower() first", "hlo": "call .compile() first"}.get(form, ""),
        )


@contextmanager
def _blames_the_caller() -> Iterator[None]:
    """Set the source of an error that has none to the user's line that compiles."""
    try:
        yield
    except GraphdistError as error:
        if error.source is None or error.source.frame is None:
            error.source = here()
        raise


@dataclass(frozen=True, repr=False)
class Traced(FunctionStage):
    """A traced function: the logical graph, with the strategy's operations.

    `variables` are the variables that the function uses, in the graph's order.
    """

    variables: tuple[Variable, ...] = ()
    pipeline: Sequence[Pass] = ()
    plan: Plan = NO_PLAN
    """What is chosen about the step; the passes apply it."""
    pipeline_for: Callable[[Plan], Sequence[Pass]] | None = None
    """Returns the passes for a plan; None if the passes are fixed."""
    compiler_options: Mapping[str, Any] | None = None
    given: Mapping[int, jax.ShapeDtypeStruct] | None = None
    """Types of the arguments that calls do not pass as arrays on the devices, by index."""
    interface: Interface = field(kw_only=True)
    """The leaves of arguments and results, as inputs and outputs of the graph."""
    arithmetic: Arithmetic = field(default_factory=Arithmetic.current)
    """The settings of JAX at the trace."""

    @property
    def named_variables(self) -> dict[str, Variable]:
        """Return the variables by their names in the graph."""
        names = [variable.name for variable in self.graph.variables if not variable.is_local]
        return dict(zip(names, self.variables, strict=True))

    @collection_put_off()
    def lower(self) -> Lowered:
        """Run the passes, unless they have run; return the SPMD program.

        Raises `DistributionError` if one value is needed where the replicas have different values.
        """
        with frames_hidden, self.arithmetic.restored(), _blames_the_caller(), phase("passes"):
            self.plan.require_made_for(self.graph)
            history = self.history or run_passes(
                self._as_declared,
                self.pipeline,
                verifies=verifies_passes(),
                reproducer_folder=reproducer_folder(),
            )
        final = history[-1].graph if history else self.graph
        warn_of_gathered_stacks(final, self.devices.memory_bytes)
        return Lowered(
            final, self.devices, traced=self, history=history, logical=self.logical or self.graph
        )

    @property
    def _as_declared(self) -> Graph:
        """Return the graph in which a plan may choose what cores shard.

        Other variables, such as the slots of an optimizer, follow those that the plan shards. So
        they begin as they were declared, not as a step without the plan has left them.
        """
        if not self.plan.cores:
            return self.graph
        declared = iter(self.variables)
        return self.graph.replace(
            variables=tuple(
                each if each.is_local else replace(each, core=next(declared).core)
                for each in self.graph.variables
            )
        )

    def as_text(self, form: str = "graph") -> str:
        """Return the logical graph as text."""
        if form != "graph":
            raise self._unknown(form, "graph")
        return str(self.graph)

    def planned(self, plan: Plan) -> Traced:
        """Return the traced function with another plan.

        Raises `ArgumentError` if the function has passes of its own.
        """
        if self.pipeline_for is None:
            raise ArgumentError(f"the passes of {self.graph.name} are fixed: they take no plan")
        return replace(self, plan=plan, pipeline=self.pipeline_for(plan), history=())

    def unpacked(self) -> Traced:
        """Return the traced function with no variable in a pack."""
        alone = StoredUnsharded(is_alone=True)
        variables = tuple(
            replace(variable, storage=alone)
            if isinstance(variable.storage, StoredUnsharded | StoredInPack)
            else variable
            for variable in self.graph.variables
        )
        return replace(self, graph=self.graph.replace(variables=variables))


@dataclass(frozen=True, repr=False)
class Lowered(FunctionStage):
    """The program that one device runs, after the last pass."""

    traced: Traced = field(kw_only=True)
    donates: bool = True
    """Whether a step donates the buffers of the variables that it assigns."""
    when_traced: Callable[[], None] | None = None
    """A function that JAX calls when it traces the step, for example under new settings."""

    @property
    def compiler_options(self) -> Mapping[str, Any]:
        """Return the options of XLA that the graph and the function have; the function's win."""
        chosen = {option.name: option.value for option in self.chosen_options}
        return {**chosen, **(self.traced.compiler_options or {})}

    @property
    def plan(self) -> Plan:
        """Return what was chosen about the step: by the plan of the function, else by rules.

        The plan names all values of the forward pass that the backward pass may need, and the
        variables of which the cores of a replica hold shards.
        """
        graph = self.traced.graph
        residuals = ChooseResiduals(self.traced.plan.residuals).all_residuals(infer_layouts(graph))
        sharded = {each.name: each.core for each in self.graph.variables if each.core is not None}
        cores = {**self.traced.plan.cores, **sharded}
        return Plan(residuals, identity_of(graph), cores, self.traced.plan.unrolled)

    @cached_property
    def chosen_options(self) -> tuple[ChosenOption, ...]:
        """Return the options of XLA that graphdist chose, unless the function has others."""
        given = self.traced.compiler_options or {}
        chosen = cpu_options(self.graph, self.devices.platform)
        return tuple(option for option in chosen if option.name not in given)

    @property
    def stablehlo(self) -> jax.stages.Lowered:
        """Return JAX's lowered stage of the graph, which is made at the first access."""
        return self.emitted.lowered

    @cached_property
    def emitted(self) -> Emitted:
        """Return the graph as a function of JAX, which is emitted at the first access."""
        with collection_put_off(), self.traced.arithmetic.restored(), phase("emission"):
            return emitted(
                self.graph,
                self.devices,
                self.compiler_options,
                self.traced.given,
                donates=self.donates,
                when_traced=self.when_traced,
            )

    def as_text(self, form: str = "graph") -> str:
        """Return the graph after the last pass, or the StableHLO module, as text.

        For a step with parameter servers the text has the worker's graph and the graphs of updates,
        and the module is the worker's module.
        """
        if form == "graph":
            return str(self.cut or self.graph)
        if form == "stablehlo":
            return self.stablehlo.as_text()
        raise self._unknown(form, "graph", "stablehlo")

    def report(self, compiler_options: Mapping[str, Any] | None = None) -> Report:
        """Compile and return the report, even if the program is too large for the devices.

        Raises the errors of `compile` except `DeviceMemoryError`.
        """
        try:
            return self.compile(compiler_options).report()
        except DeviceMemoryError as error:
            return self.report_of_refused(error)

    def report_of_refused(self, error: DeviceMemoryError) -> Report:
        """Return the report on the program that the compiler refused with an error."""
        return self._judged(report_of_refused(self.graph, self.devices, error))

    def _judged(self, report: Report) -> Report:
        return report.judged(self.graph, self.server_requests, self.explain)

    def estimate(self) -> Report:
        """Return a report to print, counted on the graph: nothing is compiled.

        This takes a second where the compilation takes minutes. How far memory and time are from
        those of the compiled program is in `docs/estimates.md`.
        """
        return self._judged(report_of_graph(self.graph, self.devices))

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled:
        """Compile for the strategy's devices.

        `compiler_options` are options of XLA; they override the options of the function. Raises
        `DeviceMemoryError` for a program that needs more memory than a device has, and
        `CompilerOptionError` for options that the compiler refuses.
        """
        options = {**self.compiler_options, **(compiler_options or {})}
        with frames_hidden, _blames_the_caller(), compiling(self.graph.name):
            emitted = self.emitted
            with phase("XLA"):
                compiled = compile_lowered(
                    emitted.lowered,
                    self.devices,
                    compiler_options,
                    divides_temporaries=divides_temporaries(options),
                )
            executable = Executable(self.graph, self.devices, emitted.function, compiled)
        return Compiled(
            self.graph,
            self.devices,
            executable=executable,
            lowered=self,
            compiler_options=options,
            history=self.history,
            logical=self.logical,
        )

    def explain(self) -> Explanation:
        """Return an explanation to print: what each pass changed, saved and left unchanged."""
        traced = self.traced
        options = tuple(map(str, self.chosen_options))
        return explanation(str(self.devices), traced.graph, traced.pipeline, self.history, options)


@dataclass(frozen=True, repr=False)
class Compiled(FunctionStage):
    """A compiled program."""

    executable: Executable = field(kw_only=True)
    lowered: Lowered = field(kw_only=True)
    compiler_options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def memory(self) -> Memory:
        """Return the memory of a step on each device, in bytes."""
        return self.executable.memory

    def report(self) -> Report:
        """Return a report to print: a step's memory, operations, collectives and estimated time."""
        report = report_of(self.graph, self.devices, self.memory, self.as_text("hlo"))
        return report.judged(self.graph, self.server_requests, self.explain)

    @property
    def timeline(self) -> StepTimeline:
        """Return the predicted timeline of a step on the devices that it was compiled for.

        Raises `ArgumentError` for a step that was not compiled for a topology, or whose module does
        not state the cycles of its instructions.
        """
        report = self.report()
        if report.timeline is None:
            why = report.no_timeline or "it was not compiled for a topology"
            raise ArgumentError(
                f"{self.graph.name!r} has no timeline: {why}",
                hint="make the strategy with topology=.., such as gd.TPUStrategy"
                '(topology="v5e:16x16")',
            )
        return report.timeline

    def explain(self) -> Explanation:
        """Return an explanation to print: what each pass changed, saved and left unchanged."""
        return self.lowered.explain()

    def unpacked(self) -> Compiled:
        """Return the step for variables that are in no pack; compile it again if it has packs."""
        if not any(variable.pieces for variable in self.graph.variables):
            return self
        return self.lowered.traced.unpacked().lower().compile(self.compiler_options)

    @property
    def cost(self) -> dict[str, float]:
        """Return XLA's own cost estimates by name; they are rough."""
        return self.executable.cost

    def as_text(self, form: str = "graph") -> str:
        """Return the graph, the StableHLO module or the optimised HLO module, as text."""
        if form == "hlo":
            return str(self.executable.compiled.as_text())
        if form not in ("graph", "stablehlo"):
            raise self._unknown(form, "graph", "stablehlo", "hlo")
        return self.lowered.as_text(form)
