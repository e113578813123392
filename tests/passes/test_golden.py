"""Every pass against graphs written down: `<pass>.gd` holds what it takes and what it gives.

A pass with other options than the table's has a file `<pass>.<option>.gd` and a line in `OF_FILES`.

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
from pathlib import Path

import optax
import pytest

from graphdist.ir.compare import first_difference
from graphdist.ir.parser import parse
from graphdist.ir.printer import print_graph
from graphdist.ir.verifier import verify
from graphdist.passes import PASSES
from graphdist.passes.local_steps import LocalSteps
from graphdist.passes.manager import Pass
from graphdist.strategies.local_steps import OuterOptimizer
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import check_same_meaning

FOLDER = Path(__file__).parent
TO_THE_BIT = {
    "canonicalize",
    "cut_updates",
    "eliminate_common_subexpressions",
    "eliminate_dead_code",
    "fold_constants",
    "narrow_gathers",
    "order_loops",
    "scatter_in_parts",
    "simplify",
}
OF_FILES = {
    **PASSES,
    "local_steps.diloco": Pass(
        "local_steps",
        LocalSteps(2, OuterOptimizer(optax.sgd(0.7, momentum=0.9))),
        PASSES["local_steps"].takes,
    ),
}
"""The pass of each file: one of the table, or one with other options."""
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


def test_every_file_is_named_after_a_pass() -> None:
    assert {path.stem for path in FOLDER.glob("*.gd")} <= set(OF_FILES)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
def test_golden(case: Case, update_golden: bool) -> None:
    run = OF_FILES[case.path.stem]
    before = parse(case.text, ops=resolve)
    verify(before, full=True)
    after = run(before)
    verify(after, full=True)
    if update_golden:
        rewrite_expected(case, print_graph(after))
    else:
        difference = first_difference(parse(case.expected, ops=resolve), after)
        assert difference is None, f"(expected, given) {difference}\n{print_graph(after)}"
    assert max(len(before.nodes), len(after.nodes)) <= MAX_NODES
    if "\n# not executed:" not in case.text:
        check_same_meaning(before, after, case.title, to_the_bit=case.path.stem in TO_THE_BIT)
    if "\n# not idempotent:" not in case.text and after.stage in run.takes:
        assert run(after) is after, "the pass changed its own result"


def rewrite_expected(case: Case, text: str) -> None:
    cases = [
        Case(one.path, one.title, one.text, text if one == case else one.expected)
        for one in cases_of(case.path)
    ]
    blocks = [f"{one.text}{ARROW}{one.expected}\n" for one in cases]
    case.path.write_text("\n".join(blocks), encoding="utf-8")
