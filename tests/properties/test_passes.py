"""Every pass on random programs, which `pass_examples.py` draws and the pipelines compile.

Of each pass, for every graph that it changes:

1. the graph after it verifies, and leaves behind what the graph before it does: to the bit if the
   pass promises that;
2. what the graph calls mirrored is equal on all replicas;
3. the pass has nothing to do on the graph that it returned.

Each graph on the way is interpreted once, and a process sends all programs once: the test of a pass
looks up what happened at that pass. It fails, too, if the pass changed no graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given

from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph
from graphdist.ir.interpreter import Outcome
from graphdist.ir.parser import parse
from graphdist.ir.printer import print_graph
from graphdist.ir.verifier import verify
from graphdist.passes.manager import Pass, run_on
from graphdist.passes.pipelines import PASSES, Run
from graphdist.passes.servers.cut_step import CutStep, graphs_of
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import TO_THE_BIT, Trial, check_outcome, close, equal, same_bits
from tests.properties.effort import programs
from tests.properties.examples import Drawn, Example
from tests.properties.pass_examples import SOURCES, Source
from tests.properties.probes import Probes
from tests.properties.remembered import Remembered

_ONCE = {"choose_residuals"}
"""A plan names values of the graph that it was made for."""
LARGEST = 2**22
"""Sums of larger numbers are rounded, and depend on the order of the terms."""


@dataclass
class Record:
    """What a pass did: how many graphs it changed, and those that it did not change as it must."""

    changed: int = 0
    failures: list[tuple[Pass, Graph, Exception]] = field(default_factory=list)


@cache
def records() -> Mapping[str, Record]:
    """Send the programs of all sources through their pipelines."""
    found: Mapping[str, Record] = defaultdict(Record)
    for source in SOURCES.values():
        send_all(source, found)
    return found


def send_all(source: Source, found: Mapping[str, Record]) -> None:
    @programs(source.count)
    @given(source.programs)
    def send(drawn: Drawn) -> None:
        send_through(drawn(), found)

    send()


def send_through(example: Example, found: Mapping[str, Record]) -> None:
    """Send a graph through the passes, up to the first that fails, and record what each does."""
    evaluate = Remembered()

    def outcome(step: Graph | CutStep) -> Outcome:
        probes = Probes(evaluate)
        return example.trial.outcome(with_probes(step, probes), probes.evaluate)

    step: Graph | CutStep = example.trial.graph
    before = outcome(step)
    if example.compare is equal and not is_small(before):
        return
    for entry in example.passes:
        graph = graphs_of(step)[0]
        if graph.stage not in entry.takes:  # that of a graph which is drawn as devices run it
            continue
        try:
            after = run_on(entry, step)
            if after is step:
                continue
            for changed in graphs_of(after):
                verify(changed, full=True)
            left = outcome(after)
            check_outcome(left, before, same_bits if entry.name in TO_THE_BIT else example.compare)
            if graphs_of(after)[0].stage in entry.takes and entry.name not in _ONCE:
                assert run_on(entry, after) is after, "the pass changed its own result"
        except Exception as error:
            found[entry.name].failures.append((entry, graph, error))
            return
        found[entry.name].changed += 1
        step, before = after, left


def with_probes(step: Graph | CutStep, probes: Probes) -> Graph | CutStep:
    """Return a step with probes in all of its graphs."""
    if isinstance(step, Graph):
        return probes.inserted(step)
    updates = (replace(one, graph=probes.inserted(one.graph)) for one in step.updates)
    return replace(step.on_worker(probes.inserted), updates=tuple(updates))


def is_small(outcome: Outcome) -> bool:
    held = [array for arrays in (*outcome.outputs, *outcome.state.values()) for array in arrays]
    return not any(np.any(np.abs(array.astype(np.float64)) > LARGEST) for array in held)


@pytest.mark.parametrize("name", PASSES)
def test_keeps_the_meaning_and_is_done(name: str) -> None:
    record = records()[name]
    if record.failures:
        entry, graph, error = min(record.failures, key=lambda failure: len(walk(failure[1])))
        raise AssertionError(
            f"{len(record.failures)} graphs, of which this is the smallest, by {entry.run}:\n"
            f"{print_graph(graph)}"
        ) from error
    assert record.changed, "no program is changed by it: tests/properties/pass_examples.py"


TEXT = """graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica) {
  %a = jax.neg(%x) : f32[3] per_replica
  %b = all_reduce(%a) {reducer="sum", group_size=2} : f32[3] mirrored
  %c = jax.exp(%b) : f32[3] mirrored
  return %b
}"""


def replaced(old: str, new: str) -> Callable[[Graph], Graph]:
    """Return a pass that makes another graph, once."""
    after = parse(TEXT.replace(old, new), ops=resolve)
    return lambda graph: after


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (replaced("  %c = jax.exp(%b) : f32[3] mirrored\n", ""), None),
        (replaced("neg", "sign"), "output 0"),
        (replaced("all_reduce(%a)", "all_reduce(%x)"), "output 0"),
        (replaced("sum", "max"), "output 0"),
        (replaced("per_replica", "mirrored"), "a mirrored value differs"),
        (lambda graph: parse(TEXT, ops=resolve), "the pass changed its own result"),
        (lambda graph: graph.nodes[3], "out of range"),
    ],
    ids=["right", "operation", "operand", "reducer", "distribution", "not done", "error"],
)
def test_a_pass_that_does_wrong_is_found(run: Run, says: str | None) -> None:
    graph = parse(TEXT, ops=resolve)
    found: Mapping[str, Record] = defaultdict(Record)
    trial = Trial.at_random(graph, np.random.default_rng(0))
    send_through(Example(trial, [Pass("trial", run)], close), found)
    if says is None:
        assert found == {"trial": Record(changed=1)}
    else:
        ((_, failed, error),) = found["trial"].failures
        assert failed is graph
        assert says in str(error)
        assert not found["trial"].changed
