"""Timelines of graphs that are small enough to add up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphdist.ir.collective_bytes import Exchange
from graphdist.ir.parser import parse
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.topologies import find_topology
from graphdist.runtime.timing.graph_timeline import GraphTurn, turn_of_graph
from graphdist.runtime.timing.lanes import COMPUTE, all_events

SIZE = 4096
FULL, SHARD = SIZE * SIZE * 2, SIZE * SIZE // 2
PRODUCT = "jax.dot_general({}) {{dimension_numbers=(((1,), (0,)), ((), ()))}} : bf16[4096,4096]"


def rates_of(name: str) -> ChipRates:
    topology = find_topology(name)
    return ChipRates(topology, replace(TIMINGS[topology.chip.name], slowdown=1.0))


V5E, TPU7X, H100 = map(rates_of, ("v5e:2x2", "tpu7x:2x1x1", "h100:1x4"))


def turn(nodes: str, outputs: str = "%z", rates: ChipRates = V5E) -> GraphTurn:
    text = f"""graph f on 4 replicas, stage spmd
    (%x: bf16[4096,4096] per_replica, %w: bf16[1024,4096] sharded(0)) {{
    {nodes}
      return {outputs}
    }}"""
    return turn_of_graph(parse(text), rates)


def product(rates: ChipRates) -> float:
    return rates.products("bf16", 2 * SIZE**3)


def gather(rates: ChipRates) -> float:
    return rates.collective(Exchange("all_gather", SHARD, range(4)))


LOOP = "length=5, reverse=false, unroll=1, num_consts=0, num_carry=3"
GATHER = "%g = all_gather(%w) {axis=0, group_size=4} : bf16[4096,4096] mirrored"
FIRST = f"%y = {PRODUCT.format('%x, %x')} per_replica"
SECOND = f"%z = {PRODUCT.format('%y, %g')} per_replica"


@pytest.mark.parametrize("rates", [V5E, TPU7X, H100], ids=["v5e", "tpu7x", "h100"])
def test_a_gather_hides_behind_the_product_before_its_reader(rates: ChipRates) -> None:
    for nodes in (f"{GATHER}\n{FIRST}\n{SECOND}", f"{FIRST}\n{GATHER}\n{SECOND}"):
        made = turn(nodes, rates=rates)
        assert made.compute == pytest.approx(2 * (product(rates) + rates.timing.launch))
        hidden = product(rates) + rates.timing.launch
        assert made.exposed == pytest.approx(max(gather(rates) - hidden, 0))
        assert made.seconds == made.compute + made.exposed
    # Nothing computes before the first reader: all of it is exposed.
    alone = turn(f"{GATHER}\n%z = {PRODUCT.format('%x, %g')} per_replica", rates=rates)
    assert alone.exposed == pytest.approx(gather(rates))


@pytest.mark.parametrize(("rates", "is_hidden"), [(V5E, False), (TPU7X, True), (H100, True)])
def test_reductions_are_asynchronous_where_the_compiler_makes_them_so(
    rates: ChipRates, is_hidden: bool
) -> None:
    params = '{reducer="sum", axis=0, group_size=4}'
    scatter = f"%s = reduce_scatter(%x) {params} : bf16[1024,4096] sharded(0)"
    first = f"%z = {PRODUCT.format('%x, %x')} per_replica"
    made = turn(f"{scatter}\n{first}", "%s, %z", rates)
    seconds = rates.collective(Exchange("reduce_scatter", FULL, range(4)))
    hidden = product(rates) + rates.timing.launch if is_hidden else 0
    assert made.exposed == pytest.approx(max(seconds - hidden, 0))


def test_stages_are_exchanges_one_after_the_other() -> None:
    pod = rates_of("v5e:4x4")
    params = '{reducer="sum", axis=0, group_size=16, stages=(8, 2)}'
    graph = parse(f"""graph f on 16 replicas, stage spmd
(%x: f32[4096,4096] per_replica) {{
  %s = reduce_scatter(%x) {params} : f32[256,4096] sharded(0)
  return %s
}}""")
    made = turn_of_graph(graph, pod)
    size = SIZE * SIZE * 4
    first = pod.collective(Exchange("reduce_scatter", size, range(0, 16, 2)))
    second = pod.collective(Exchange("reduce_scatter", size // 8, range(2)))
    assert [event.wait for event in made.events] == pytest.approx([first, second])
    assert made.seconds == pytest.approx(first + second)


def test_a_loop_counts_for_all_of_its_iterations_and_gathers_ahead_behind_one() -> None:
    names = ("%x: bf16[4096,4096] per_replica", "%g: bf16[4096,4096] mirrored")
    types = [*(name.partition(": ")[2] for name in names), "bf16[1024,4096] sharded(0)"]
    inside = ", ".join(f"%{name}: {type}" for name, type in zip("chv", types, strict=True))
    text = f"""graph f on 4 replicas, stage spmd
    ({", ".join(names)}, %w: {types[2]}) {{
      %a, %b, %d = scan(%x, %g, %w) {{{LOOP}}} : {", ".join(types)}
        body({inside}) {{
          %n = all_gather(%v) {{axis=0, group_size=4}} : bf16[4096,4096] mirrored
          %p = {PRODUCT.format("%c, %h")} per_replica
          return %p, %n, %v
        }}
      return %a
    }}"""
    made = turn_of_graph(parse(text), V5E)
    assert made.compute == pytest.approx(5 * product(V5E))
    assert made.exposed == pytest.approx(5 * max(gather(V5E) - product(V5E), 0))
    times = {event.work.op.name: times for event, times in all_events(made)}
    assert times == {"scan": 1, "all_gather": 5, "jax.dot_general": 5}


def test_a_collective_that_reads_another_ones_result_starts_after_it() -> None:
    params = '{reducer="sum", group_size=4}'
    made = turn(
        f"""{GATHER}
        %a = all_reduce(%g) {params} : bf16[4096,4096] mirrored
        %z = {PRODUCT.format("%x, %a")} per_replica""",
        rates=TPU7X,
    )
    first, second = (event for event in made.events if event.collective)
    assert second.start >= first.end


@pytest.mark.parametrize(("leaves", "products_before"), [("p", 0), ("q", 1), ("r", 2), ("c", 3)])
def test_a_value_leaves_for_the_host_until_the_next_one_takes_its_place(
    leaves: str, products_before: int
) -> None:
    type = "bf16[4096,4096] per_replica"
    loop = "length=5, reverse=false, unroll=1, num_consts=0, num_carry=1"
    text = f"""graph f on 4 replicas, stage spmd
    (%x: {type}) {{
      %a, %s = scan(%x) {{{loop}}} : {type}, bf16[5,4096,4096] per_replica
        body(%c: {type}) {{
          %p = {PRODUCT.format("%c, %c")} per_replica
          %q = {PRODUCT.format("%p, %p")} per_replica
          %r = {PRODUCT.format("%q, %q")} per_replica
          %h = copy_to(%{leaves}) {{memory="host"}} : {type}
          return %r, %h
        }}
      return %a, %s
    }}"""
    made = turn_of_graph(parse(text), V5E)
    assert V5E.host(FULL) < 2 * product(V5E)
    hidden = products_before * product(V5E)
    assert made.idle == pytest.approx(5 * max(V5E.host(FULL) - hidden, 0))


@pytest.mark.parametrize(("rates", "fills"), [(V5E, True), (H100, False)])
def test_a_loop_that_copies_to_the_host_fills_its_other_stacks_on_tpus(
    rates: ChipRates, fills: bool
) -> None:
    type, stack = "bf16[4096,4096] per_replica", "bf16[5,4096,4096] per_replica"
    loop = "length=5, reverse=false, unroll=1, num_consts=0, num_carry=1"

    def computed(memory: str) -> float:
        text = f"""graph f on 4 replicas, stage spmd
        (%x: {type}) {{
          %a, %s, %k = scan(%x) {{{loop}}} : {type}, {stack}, {stack}
            body(%c: {type}) {{
              %p = {PRODUCT.format("%c, %c")} per_replica
              %h = {memory}
              return %p, %h, %p
            }}
          return %a, %s, %k
        }}"""
        return sum(
            event.seconds
            for event in turn_of_graph(parse(text), rates).events
            if event.lane == COMPUTE
        )

    kept = computed(f'copy_to(%c) {{memory="device"}} : {type}')
    copied = computed(f'copy_to(%c) {{memory="host"}} : {type}')
    expected = rates.filling(5 * FULL)
    assert (expected > 0) is fills
    assert copied - kept == pytest.approx(expected, abs=1e-9)


def test_permutations_of_each_other_run_while_the_products_before_their_reader_do() -> None:
    permute = "collective_permute(%{}) {{pairs=((0, 1), (1, 0)), group_size=2}} : bf16[4096,4096]"
    made = turn(
        f"""%first = {permute.format("x")} per_replica
        %second = {permute.format("first")} per_replica
        {FIRST}
        %z = {PRODUCT.format("%y, %second")} per_replica"""
    )
    one, two = (event for event in made.events if event.collective)
    assert two.start == pytest.approx(one.end)
    assert made.compute == pytest.approx(2 * product(V5E))
    assert made.exposed == pytest.approx(max(two.end - product(V5E), 0))
