"""Every pass against graphs written down: `<pass>.gd` holds what it takes and what it gives.

A pass with options has a line in `OPTIONS`, which chooses them so that cases are small; one with
several has more files, `<pass>.<option>.gd`.

A file is a list of cases:

    # title: what the case shows
    graph f on 2 replicas, stage spmd
    ..
    -->
    graph f on 2 replicas, stage spmd
    ..

Each case is run through the pass named by the file; the result must verify and be the graph below
the arrow. Then the reference interpreter runs both graphs on random numbers, which depend on the
title, and they must agree: to the bit if the pass promises it. Then the pass is run on its result,
and must return the same object. More lines under the title may say `# not idempotent: reason` or
`# not executed: reason`.

`pytest --update-golden` rewrites what is below the arrows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import optax
import pytest

from graphdist.ir.compare import first_difference
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques
from graphdist.ir.value_names import ValueName
from graphdist.ir.verifier import verify
from graphdist.passes.cores.replicas_as_cores import ReplicasAsCores
from graphdist.passes.cores.split_over_cores import SplitOverCores
from graphdist.passes.layouts.add_rows_to_tables import AddRowsToTables
from graphdist.passes.layouts.compute_by_owner import ComputeByOwner
from graphdist.passes.layouts.gather_ahead import GatherAhead
from graphdist.passes.layouts.limit_gathered import LimitGathered
from graphdist.passes.layouts.lookups_on_shards import LookupsOnShards
from graphdist.passes.layouts.place_conversions import PlaceConversions
from graphdist.passes.layouts.reductions_into_loops import ReductionsIntoLoops
from graphdist.passes.layouts.scatter_in_parts import ScatterInParts
from graphdist.passes.layouts.sharded_updates import UpdateSharding
from graphdist.passes.logical.choose_residuals import ChooseResiduals
from graphdist.passes.logical.local_steps import LocalSteps
from graphdist.passes.logical.shard_weights import ShardWeights
from graphdist.passes.lowering.delay_reductions import DelayReductions
from graphdist.passes.manager import Pass, run_on
from graphdist.passes.order.compute_in_chunks import ComputeInChunks
from graphdist.passes.order.products_around_rings import ProductsAroundRings
from graphdist.passes.order.slices_before_products import SlicesBeforeProducts
from graphdist.passes.order.stage_collectives import StageCollectives
from graphdist.passes.order.unroll_loops import UnrollLoops
from graphdist.passes.packs.bucket_collectives import BucketCollectives
from graphdist.passes.packs.compute_on_packs import ComputeOnPacks
from graphdist.passes.packs.pack_limits import PACK_LIMITS
from graphdist.passes.packs.pack_variables import PackVariables
from graphdist.passes.pipelines import PASSES, Run, module_of_pass
from graphdist.passes.plans import Keep
from graphdist.passes.servers.cut_step import CutStep, graphs_of
from graphdist.passes.servers.cut_updates import CutUpdates
from graphdist.strategies.local_steps import OuterOptimizer
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import TO_THE_BIT, check_same_meaning

FOLDER = Path(__file__).parent
OPTIONS: dict[str, Run] = {
    "add_rows_to_tables": AddRowsToTables(fewer=1),
    "bucket_collectives": BucketCollectives(PACK_LIMITS["cpu"]),
    "choose_residuals": ChooseResiduals(
        {ValueName("a"): Keep.DEVICE, ValueName("b"): Keep.RECOMPUTE}
    ),
    "compute_by_owner": ComputeByOwner(flops_per_byte=0),
    "compute_in_chunks": ComputeInChunks(largest=200),
    "compute_on_packs": ComputeOnPacks(PACK_LIMITS["cpu"]),
    "cut_updates": CutUpdates(),
    "delay_reductions": DelayReductions(),
    "gather_ahead": GatherAhead(most_bytes=3072),
    "limit_gathered": LimitGathered(most_bytes=64),
    "lookups_on_shards": LookupsOnShards(saving=0),
    "local_steps": LocalSteps(every=2),
    "local_steps.diloco": LocalSteps(2, OuterOptimizer(optax.sgd(0.7, momentum=0.9))),
    "place_conversions": PlaceConversions(UpdateSharding(), most_bytes=32),
    "replicas_as_cores": ReplicasAsCores(saving=1),
    "reductions_into_loops": ReductionsIntoLoops(UpdateSharding()),
    "pack_variables": PackVariables(PACK_LIMITS["cpu"]),
    "products_around_rings": ProductsAroundRings(smallest=32),
    "scatter_in_parts": ScatterInParts(most_bytes=64),
    "shard_weights": ShardWeights(saving=1, fewest_bytes=0, shards_unsharded=True),
    "slices_before_products": SlicesBeforeProducts(largest=200),
    "split_over_cores": SplitOverCores(),
    "stage_collectives": StageCollectives(),
    "unroll_loops": UnrollLoops(most_iterations=4, most_operations=12, fewest_bytes=0),
}
"""What the files of passes with options are for; the other passes are functions."""
MAX_NODES = 12  # of a case: larger ones are not read by anybody
TITLE = re.compile(r"^# title: ", re.MULTILINE)
ARROW = "\n-->\n"


@dataclass(frozen=True)
class Case:
    """One case of a golden file; `text` is all of it but the graph below the arrow."""

    path: Path
    title: str
    text: str
    expected: str

    def __str__(self) -> str:
        return f"{self.path.stem}: {self.title}"


def cases_of(path: Path) -> list[Case]:
    head, *parts = TITLE.split(path.read_text(encoding="utf-8"))
    assert not head.strip(), f"{path}: text before the first '# title:'"
    cases = []
    for part in parts:
        title, _, _ = part.partition("\n")
        text, arrow, expected = part.partition(ARROW)
        assert arrow, f"{path}: no line '-->' in {title!r}"
        cases.append(Case(path, title, f"# title: {text.strip()}", expected.strip()))
    return cases


CASES = [case for path in sorted(FOLDER.glob("*.gd")) for case in cases_of(path)]


def pass_of(path: Path) -> Pass:
    """Return the pass that a file is named after, with the options of the file."""
    name = path.name.partition(".")[0]
    run = OPTIONS.get(path.stem) or getattr(import_module(module_of_pass(name)), name)
    return PASSES[name].holding(run)


def test_every_pass_has_files_and_they_are_named_after_it() -> None:
    stems = {path.stem for path in FOLDER.glob("*.gd")}
    assert {stem.partition(".")[0] for stem in stems} == set(PASSES)
    assert set(OPTIONS) <= stems


@pytest.mark.parametrize("case", CASES, ids=str)
def test_golden(case: Case, update_golden: bool) -> None:
    run = pass_of(case.path)
    before = parse(case.text, ops=resolve)
    after = run_on(run, before)
    for graph in (before, *graphs_of(after)):
        verify(graph, full=True)
        assert first_difference(graph, parse(str(graph), opaques(graph), resolve)) is None
    if update_golden:
        rewrite_expected(case, str(after))
    elif isinstance(after, CutStep):
        assert str(after) == case.expected
    else:
        difference = first_difference(parse(case.expected, ops=resolve), after)
        assert difference is None, f"(expected, given) {difference}\n{after}"
    assert all(len(graph.nodes) <= MAX_NODES for graph in (before, *graphs_of(after)))
    if "\n# not executed:" not in case.text:
        check_same_meaning(before, after, case.title, to_the_bit=case.path.stem in TO_THE_BIT)
    if "\n# not idempotent:" not in case.text and graphs_of(after)[0].stage in run.takes:
        assert run_on(run, after) is after, "the pass changed its own result"


def rewrite_expected(case: Case, text: str) -> None:
    cases = [
        Case(one.path, one.title, one.text, text if one == case else one.expected)
        for one in cases_of(case.path)
    ]
    blocks = [f"{one.text}{ARROW}{one.expected}\n" for one in cases]
    case.path.write_text("\n".join(blocks), encoding="utf-8")
