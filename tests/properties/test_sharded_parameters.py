"""Training steps of stacked layers with parameters in slices: nothing is ever held in full."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphdist.ir.analyses import walk
from graphdist.ir.ops import ALL_GATHER, REDUCE_SCATTER, SCAN, TAKE_PART
from graphdist.passes import Target, pipeline, pipelines
from graphdist.passes.manager import run_passes
from tests.properties.stacked_layers import LAYERS, WIDTH, WRAPPERS, in_slices, traced


@pytest.fixture(autouse=True, scope="module")
def _all_sizes() -> Iterator[None]:
    """Move collectives of any size into loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "SMALLEST_IN_LOOPS", 0)
        yield


@pytest.mark.parametrize("wrapper", sorted(WRAPPERS))
def test_no_stack_is_ever_in_full(wrapper: str) -> None:
    graph = in_slices(traced(["product", "narrow"], "loop", wrapper, "momentum"), [1] * 6)
    target = Target("cpu", True, packs_variables=False, shard_parameters=True)
    final = run_passes(graph, pipeline(target))[-1].graph
    stack = LAYERS * WIDTH * WIDTH
    values = [value for node in walk(final) for value in node.results]
    assert all(value.type.size < stack for value in values)
    loops = [node.graphs[0] for node in final.nodes if node.op is SCAN]
    assert len(loops) == 2
    inside = [node.op for loop in loops for node in loop.nodes]
    assert inside.count(ALL_GATHER) >= 2
    assert REDUCE_SCATTER in inside


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_widened_gradients_are_scattered_in_parts(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "LARGEST_WIDENED", 2 * WIDTH * WIDTH)
    graph = in_slices(traced(["narrow rows", "clip"], "loop", "recomputed", "sgd"), [1] * 6)
    target = Target(platform, True, packs_variables=False, shard_parameters=True)
    final = run_passes(graph, pipeline(target))[-1].graph
    widened = [node for node in walk(final) if node.op.name == "jax.convert_element_type"]
    sizes = {node.results[0].type.size for node in widened if node.results[0].type.dtype == "f32"}
    assert max(sizes) <= WIDTH * WIDTH // 2
    assert any(node.op is TAKE_PART for node in walk(final))


@pytest.mark.parametrize("repeated", ["accumulated", "accumulated of read"])
def test_no_stack_is_in_full_over_microbatches(repeated: str) -> None:
    graph = in_slices(traced(["product"], "loop", "recomputed", "sgd", repeated), [1] * 6)
    target = Target("cpu", True, packs_variables=False, shard_parameters=True, gathered_bytes=0)
    final = run_passes(graph, pipeline(target))[-1].graph
    stack = LAYERS * WIDTH * WIDTH
    large = [node for node in walk(final) if any(v.type.size >= stack for v in node.results)]
    assert large == []
