"""Random plans for the residuals of random models: no bit of a step changes."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from graphdist.ir.compare import first_difference
from graphdist.ir.graph import Graph
from graphdist.ir.ops import SCAN
from graphdist.ir.residual_loops import outermost_loops, residual_loops
from graphdist.ir.value_names import ValueName
from graphdist.ir.verifier import verify
from graphdist.ir.written_out import written_out
from graphdist.passes.logical.choose_residuals import ChooseResiduals
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.plans import Keep, Plan
from tests.passes.execution import check_same_meaning
from tests.properties.effort import programs
from tests.properties.stacked_layers import REPEATED, RUNS, STEPS, WRAPPERS, traced

STEPS_OF_LAYER = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4)


@st.composite
def plans(draw: st.DrawFn, graph: Graph) -> dict[ValueName, Keep]:
    chosen = {}
    for passes in (*outermost_loops(graph), *written_out(graph)):
        for name, numbers in passes.named.items():
            relevant = set(passes.relevant).intersection(numbers)
            may_repeat = bool(relevant) and all(map(passes.can_be_repeated, numbers))
            keeps = [None, Keep.DEVICE, Keep.HOST, *[Keep.RECOMPUTE] * may_repeat]
            if relevant and (keep := draw(st.sampled_from(keeps))) is not None:
                chosen[name] = keep
    return chosen


@programs(30)
@given(
    data=st.data(),
    steps=STEPS_OF_LAYER,
    run=st.sampled_from(sorted(RUNS)),
    wrapper=st.sampled_from(sorted(WRAPPERS)),
    repeated=st.sampled_from(sorted(REPEATED)),
)
def test_no_bit_of_a_step_changes(
    data: st.DataObject, steps: list[str], run: str, wrapper: str, repeated: str
) -> None:
    graph = infer_layouts(traced(steps, run, wrapper, "momentum", repeated))
    residuals = data.draw(plans(graph))
    choose = ChooseResiduals(residuals)
    after = choose(graph)
    verify(after, full=True)
    check_same_meaning(graph, after, str(sorted(map(str, residuals))), to_the_bit=True)
    whole = choose.all_residuals(graph)
    assert Plan.from_json(Plan(whole).to_json()).residuals == whole
    assert first_difference(ChooseResiduals(whole)(graph), after) is None


@programs(20)
@given(steps=STEPS_OF_LAYER, wrapper=st.sampled_from(sorted(WRAPPERS)), data=st.data())
def test_the_backward_loop_scans_what_the_plan_keeps(
    steps: list[str], wrapper: str, data: st.DataObject
) -> None:
    graph = infer_layouts(traced(steps, "loop", wrapper, "sgd"))
    assume(residual_loops(graph))
    (loops,) = outermost_loops(graph)
    choose = ChooseResiduals(data.draw(plans(graph)))
    chosen = choose.all_residuals(graph)
    kept = [name for name in loops.named if chosen.get(name, Keep.RECOMPUTE) is not Keep.RECOMPUTE]
    after = choose(graph)
    assume(after is not graph)
    forward, backward = (node for node in after.nodes if node.op is SCAN)
    assert len(set(forward.results).intersection(backward.operands)) == len(kept)
