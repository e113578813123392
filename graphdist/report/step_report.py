"""The report on a step: memory, operations, collectives, and its predicted time.

The compiler reports the memory. Operations are counted in the graph (`graphdist.ir.cost`).
Collectives are listed twice: those of the graph, with the pass or the user's line that made them,
and those of the compiled module. The time is predicted, not measured: from the compiled module, or
from the graph if there is no module.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self  # Any: JSON

from graphdist.errors import DeviceMemoryError
from graphdist.ir.cost import cost, executions
from graphdist.ir.graph import Graph
from graphdist.ir.live_memory import live_memory
from graphdist.ir.ops import CONSTANT
from graphdist.report.amounts import size_text
from graphdist.report.collective_uses import CollectiveUse, as_in_timeline, matched_collectives
from graphdist.report.explanation import Explanation
from graphdist.report.json_records import json_of, read_record
from graphdist.report.memory_by_line import held_by_module
from graphdist.report.report_text import report_text
from graphdist.report.server_requests import ServerRequest
from graphdist.report.step_memory import (
    MemoryParts,
    StepMemory,
    memory_of_graph,
    memory_of_step,
    memory_parts,
)
from graphdist.report.step_timeline import StepTimeline, timeline_of, timeline_of_graph
from graphdist.report.verdict import Sentence, verdict_of
from graphdist.runtime.devices import Devices
from graphdist.runtime.module.collective_instructions import ModuleCollective, module_collectives
from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.line_labels import Labels
from graphdist.runtime.module.memory import Memory, ModuleMemory
from graphdist.runtime.targets.chips import HOST_BYTES

LARGE_CONSTANT = 2**20
"""The smallest size in bytes of a constant that causes a warning."""


@dataclass(frozen=True, slots=True)
class LargeConstant:
    """A large constant of the program, which should probably be an argument."""

    bytes: int
    type: str
    source: str

    def __str__(self) -> str:
        return (
            f"{self.type}, {self.bytes:,} bytes, is a constant of the program, used at "
            f"{self.source}: pass it as an argument, or make it a variable"
        )


@dataclass(frozen=True, slots=True)
class StoredVariables:
    """The storage of a step's variables: their number, how many are sharded, and their bytes."""

    count: int
    sliced: int
    full_bytes: int
    held_bytes: int
    """The bytes that each device keeps between steps."""


@dataclass(frozen=True)
class Report:
    """The memory, traffic and time of a step per device, in bytes and seconds.

    `needed_bytes` is the program's peak, `available_bytes` the memory of a device; 0 means unknown.
    `refusal` is the compiler's message if the compiler refused the program, so that there is no
    module.
    """

    name: str
    target: str
    num_devices: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    needed_bytes: int
    available_bytes: int
    flops: dict[str, int]
    memory_traffic: int
    collectives: tuple[CollectiveUse, ...]
    module_collectives: tuple[ModuleCollective, ...]
    constants: tuple[LargeConstant, ...]
    refusal: str = ""
    variables: StoredVariables = StoredVariables(0, 0, 0, 0)
    parts: MemoryParts | None = None
    """The counted memory of a step with sharded variables; None without such variables."""
    timeline: StepTimeline | None = None
    """The predicted timeline on a topology: of the compiled module, else of the graph."""
    no_timeline: str = ""
    """The reason why the timeline is the graph's."""
    memory: StepMemory | None = None
    """The arrays that are held at the peak."""
    is_compiled: bool = True
    servers: tuple[ServerRequest, ...] = ()
    """What a worker requests of parameter servers."""
    verdict: tuple[Sentence, ...] = ()
    """What is said first, and what is suggested; () in reports of earlier versions."""

    @property
    def is_refused_without_sizes(self) -> bool:
        """Return whether the program is refused though the bytes that are counted would fit."""
        return bool(self.refusal) and self.needed_bytes <= self.available_bytes

    @property
    def fits(self) -> bool:
        """Return whether a device has the memory that the step needs; True if unknown.

        If the step is not compiled, this is by the memory that is counted on its graph.
        """
        if self.refusal:
            return False
        return not self.available_bytes or self.needed_bytes <= self.available_bytes

    @property
    def total_flops(self) -> int:
        """Return the operations per device and step, of all dtypes."""
        return sum(self.flops.values())

    @property
    def collective_bytes(self) -> dict[str, int]:
        """Return the bytes of the operands of collectives per device and step, by kind."""
        return _bytes_by_kind(self.collectives)

    @property
    def module_bytes(self) -> dict[str, int]:
        """Return the bytes of the operands of the module's collectives per device and step.

        The keys are kinds of collectives. XLA may have chosen other kinds than those of the graph.
        """
        return _bytes_by_kind(self.module_collectives)

    @property
    def module_kinds(self) -> list[tuple[str, int, int]]:
        """Return the kinds of the module's collectives, how many there are, and their bytes."""
        counts = Counter(each.kind for each in self.module_collectives)
        return [(kind, counts[kind], size) for kind, size in self.module_bytes.items()]

    def judged(
        self, graph: Graph, servers: tuple[ServerRequest, ...], explain: Callable[[], Explanation]
    ) -> Self:
        """Return the report with the requests of its servers and its verdict."""
        report = replace(self, servers=servers)
        return replace(report, verdict=verdict_of(report, graph, explain))

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        found: dict[str, Any] = json_of(
            self, "fits", "total_flops", "collective_bytes", "module_bytes"
        )
        return found

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """Return the report that a JSON object describes. The report's timeline has no events.

        Raises `KeyError` for a missing field, `TypeError` for a field of another type.
        """
        return read_record(cls, found)

    def __str__(self) -> str:
        return report_text(self)

    __repr__ = __str__  # in a REPL and in a notebook


def _bytes_by_kind(collectives: Iterable[CollectiveUse | ModuleCollective]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for each in collectives:
        counted[each.kind] += each.bytes_a_step
    return dict(counted)


def report_of(graph: Graph, devices: Devices, memory: Memory, text: str) -> Report:
    """Return the report of a compiled program; `text` is its optimised module."""
    topology, module = devices.topology, CompiledModule(text)
    report = _report(graph, devices, memory, module_collectives(module, len(devices.devices)))
    if topology is None:
        return report
    buffers, peak = ModuleMemory(module), memory.peak_bytes
    unseen = peak - buffers.entry.peak
    labels = Labels(module)
    held = held_by_module(module, buffers, labels, unseen)
    timeline = timeline_of(module, graph, topology, held)
    if isinstance(timeline, str):
        return replace(report, no_timeline=timeline)
    seconds: defaultdict[str, float] = defaultdict(float)
    if topology.num_slices == 1:  # else a part of each collective is in sends over the network
        for each in timeline.collectives:
            seconds[each.name] += each.seconds
    matched = matched_collectives(graph, report.module_collectives)
    return replace(
        report,
        timeline=timeline,
        memory=memory_of_step(buffers, labels, peak),
        collectives=as_in_timeline(report.collectives, matched, seconds),
    )


def report_of_refused(graph: Graph, devices: Devices, error: DeviceMemoryError) -> Report:
    """Return the report of a program that the compiler refused for lack of memory.

    If the compiler does not say how much the program needs, this is counted on the graph.
    """
    least = _arguments_and_outputs(graph)
    needs = error.needed_bytes or max(least.peak_bytes, live_memory(graph).peak)
    temporary = max(needs - least.peak_bytes, 0)
    report = _report(graph, devices, replace(least, temp_bytes=temporary, peak_bytes=needs), None)
    return replace(
        report,
        needed_bytes=needs,
        available_bytes=error.available_bytes or report.available_bytes,
        refusal=error.what,
        no_timeline="the compiler refused the program",
    )


def report_of_graph(graph: Graph, devices: Devices) -> Report:
    """Return the report of a program that is not compiled, counted on its graph."""
    least, needs = _arguments_and_outputs(graph), live_memory(graph).peak
    temporary = max(needs - least.peak_bytes, 0)
    memory = replace(least, temp_bytes=temporary, peak_bytes=needs)
    report = _report(graph, devices, memory, None)
    return replace(
        report,
        refusal=_too_much_on_host(graph, devices.platform),
        no_timeline="the program is not compiled",
        is_compiled=False,
    )


def _too_much_on_host(graph: Graph, platform: str) -> str:
    """Return why the host's memory is not enough; "" if it is."""
    needed, available = live_memory(graph).host_peak, HOST_BYTES.get(platform)
    if available is None or needed <= available:
        return ""
    return (
        f"it needs {size_text(needed)} of the host's memory for each device, the compiler allows "
        f"{size_text(int(available))}"
    )


def _arguments_and_outputs(graph: Graph) -> Memory:
    """Return the memory of a step that needs no temporary memory."""
    arguments = sum(value.type.bytes for value in graph.inputs)
    outputs = sum(output.type.bytes for output in graph.outputs)
    shared = sum(output.type.bytes for output in graph.outputs[: len(graph.assigned)])
    return Memory(arguments, outputs, shared, 0, peak_bytes=arguments + outputs - shared)


def _report(
    graph: Graph, devices: Devices, memory: Memory, module: tuple[ModuleCollective, ...] | None
) -> Report:
    """Return the report with the graph's timeline. `module` is None if there is no module."""
    counted, topology, stored = cost(graph), devices.topology, stored_variables(graph)
    matched = matched_collectives(graph, module or ())
    return Report(
        name=graph.name,
        target=str(devices),
        num_devices=len(devices.devices),
        argument_bytes=memory.argument_bytes,
        output_bytes=memory.output_bytes,
        alias_bytes=memory.alias_bytes,
        temp_bytes=memory.temp_bytes,
        needed_bytes=memory.peak_bytes,
        available_bytes=devices.memory_bytes if topology else 0,
        flops=dict(counted.flops),
        memory_traffic=counted.bytes,
        collectives=tuple(each.use(topology, is_compiled=module is not None) for each in matched),
        module_collectives=module or (),
        constants=large_constants(graph),
        variables=stored,
        parts=memory_parts(graph) if stored.sliced else None,
        timeline=timeline_of_graph(graph, topology) if topology else None,
        # The graph's count has the padding of TPUs.
        memory=memory_of_graph(graph, memory.peak_bytes) if topology or module is None else None,
    )


def stored_variables(graph: Graph) -> StoredVariables:
    """Return how the variables of a graph are stored; a pack counts as one variable."""
    stored = [variable for variable in graph.variables if not variable.is_local]
    buffers = [variable for variable in stored if variable.piece is None]
    return StoredVariables(
        count=len(buffers),
        sliced=sum(each.sharded_along is not None or each.core is not None for each in buffers),
        full_bytes=sum(variable.whole(graph.num_cores).bytes for variable in buffers),
        held_bytes=sum(variable.held(graph.mesh).bytes for variable in buffers),
    )


def large_constants(graph: Graph) -> tuple[LargeConstant, ...]:
    """Return the constants of a graph that should probably be arguments, the largest first."""
    nodes = [node for node, _, _ in executions(graph)]
    found = []
    for node in nodes:
        if node.op is CONSTANT and node.results[0].type.bytes >= LARGE_CONSTANT:
            (value,) = node.results
            # A value from outside the function has no line in it, so its first use is shown.
            line = next((user.source for user in nodes if value in user.operands), node.source)
            found.append(LargeConstant(value.type.bytes, str(value.type), str(line)))
    return tuple(sorted(found, key=lambda constant: -constant.bytes))
