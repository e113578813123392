"""The bytes that nodes move after fusion, against counts made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdist.ir.parser import parse
from graphdist.ir.traffic import traffic

SQUARE = 8 * 8 * 4
ROW = 8 * 4


def moved_by(nodes: str, outputs: str, *, fuses_products: bool = True) -> list[tuple[str, int]]:
    """Return the nodes that move bytes, by the operation's name, with their bytes."""
    graph = parse(
        "graph f on 1 replica, stage spmd\n(%x: f32[8,8] mirrored, %w: f32[8,8] mirrored) {\n"
        + "".join(f"  {line.strip()} mirrored\n" for line in nodes.strip().splitlines())
        + f"  return {outputs}\n}}"
    )
    found = traffic(graph, fuses_products=fuses_products).items()
    return [(node.op.name.removeprefix("jax."), count) for node, count in found if count]


def moved(nodes: str, outputs: str, *, fuses_products: bool = True) -> dict[str, int]:
    return dict(moved_by(nodes, outputs, fuses_products=fuses_products))


DOT = "jax.dot_general({}) {{dimension_numbers=(((1,), (0,)), ((), ()))}} : f32[8,8]"


def test_elementwise_operations_are_one_fusion() -> None:
    chain = "%a = jax.mul(%x, %w) : f32[8,8]\n%b = jax.neg(%a) : f32[8,8]"
    assert moved(chain, "%b") == {"neg": 3 * SQUARE}
    assert moved(chain, "%a, %b") == {"neg": 4 * SQUARE}


def test_a_product_reads_what_its_operands_are_computed_from_and_writes_what_is_left() -> None:
    nodes = f"""%a = jax.neg(%x) : f32[8,8]
        %p = {DOT.format("%a, %w")}
        %b = jax.mul(%p, %x) : f32[8,8]"""
    # The fusion before reads x, the product reads w, the fusion behind reads x and writes b.
    assert moved(nodes, "%b") == {"dot_general": SQUARE * (1 + 1 + 1 + 1)}
    assert moved(nodes, "%b, %p") == {"dot_general": SQUARE * 5}
    # A library's product reads stored operands, and stores its result.
    apart = {"neg": 2 * SQUARE, "dot_general": 3 * SQUARE, "mul": 3 * SQUARE}
    assert moved(nodes, "%b", fuses_products=False) == apart


def of_products(nodes: str, outputs: str) -> list[int]:
    return [count for name, count in moved_by(nodes, outputs) if name == "dot_general"]


def test_each_term_of_a_sum_of_products_is_added_to_those_before() -> None:
    nodes = f"""%p = {DOT.format("%x, %w")}
        %q = {DOT.format("%w, %x")}
        %r = {DOT.format("%x, %x")}
        %a = jax.add(%p, %q) : f32[8,8]
        %s = jax.add(%a, %r) : f32[8,8]"""
    added = 2 * SQUARE // 3  # p and q are read; s is written in place of r
    assert of_products(nodes, "%s") == [3 * SQUARE + added, 3 * SQUARE + added, 2 * SQUARE + added]
    # A product of other values is one fusion, which reads both and is in the last product.
    apart = f"""%p = {DOT.format("%x, %w")}
        %q = {DOT.format("%w, %x")}
        %s = jax.mul(%p, %q) : f32[8,8]"""
    assert of_products(apart, "%s") == [3 * SQUARE, 3 * SQUARE + SQUARE]


@pytest.mark.parametrize(("count", "is_stored"), [(3, False), (4, True)])
def test_what_many_products_read_is_stored_if_that_is_less(count: int, is_stored: bool) -> None:
    nodes = ["%a = jax.mul(%x, %w) : f32[8,8]"]
    nodes += [f"%p{i} = {DOT.format('%a, %x')}" for i in range(count)]
    outputs = ", ".join(f"%p{i}" for i in range(count))
    # Each computes a from x and w, or reads a and x.
    assert of_products("\n".join(nodes), outputs) == [3 * SQUARE] * count
    assert ("mul" in moved("\n".join(nodes), outputs)) is is_stored


def test_what_two_reductions_read_is_stored_if_that_is_less() -> None:
    reductions = """%r = jax.reduce_sum(%a) {axes=(0,)} : f32[8]
        %s = jax.reduce_max(%a) {axes=(0,)} : f32[8]"""
    of_two = f"%a = jax.mul(%x, %w) : f32[8,8]\n{reductions}"
    read = SQUARE + ROW
    stored = {"mul": 3 * SQUARE, "reduce_sum": read, "reduce_max": read}
    assert moved(of_two, "%r, %s") == stored
    of_one = f"%a = jax.neg(%x) : f32[8,8]\n{reductions}"
    assert moved(of_one, "%r, %s") == {"reduce_sum": read, "reduce_max": read}


def test_a_slice_reads_the_slice() -> None:
    bounds = "{start_indices=(0, 0), limit_indices=(1, 8), strides=none}"
    nodes = f"""%a = jax.slice(%x) {bounds} : f32[1,8]
        %b = jax.neg(%a) : f32[1,8]"""
    assert moved(nodes, "%b") == {"neg": 2 * ROW}


def test_updates_and_gathers_move_the_part() -> None:
    nodes = """%u = jax.sort(%x) {dimension=1, is_stable=true, num_keys=1} : f32[8,8]
        %t = jax.neg(%w) : f32[8,8]
        %d = jax.dynamic_update_slice(%t, %u, 0:i32, 0:i32) : f32[8,8]"""
    # The target is written by a fusion, the sort reads and writes, the update is read and written.
    assert moved(nodes, "%d") == {
        "sort": 2 * SQUARE, "neg": 2 * SQUARE, "dynamic_update_slice": 2 * SQUARE
    }  # fmt: skip


def test_slices_that_are_results_are_copied() -> None:
    bounds = "{start_indices=(0, 0), limit_indices=(1, 8), strides=none}"
    assert moved(f"%a = jax.slice(%x) {bounds} : f32[1,8]", "%a") == {"slice": 2 * ROW}


def test_a_long_chain_is_one_fusion() -> None:
    lines = ["%v0 = jax.neg(%x) : f32[8,8]"]
    for number in range(1, 1500):
        lines.append(f"%m{number} = jax.mul(%x, %w) : f32[8,8]")
        lines.append(f"%v{number} = jax.add(%m{number}, %v{number - 1}) : f32[8,8]")
    assert sum(moved("\n".join(lines), "%v1499").values()) == 3 * SQUARE


@given(st.lists(st.sampled_from(["neg", "mul", "dot", "sum"]), min_size=1, max_size=12), st.data())
def test_no_program_moves_less_than_its_results_and_more_than_every_value_alone(
    kinds: list[str], data: st.DataObject
) -> None:
    values, lines, alone = ["%x", "%w"], [], 0
    for number, kind in enumerate(kinds):
        operands = [data.draw(st.sampled_from(values)) for _ in range(2)]
        name = f"%v{number}"
        text = {
            "neg": f"jax.neg({operands[0]}) : f32[8,8]",
            "mul": f"jax.mul({operands[0]}, {operands[1]}) : f32[8,8]",
            "dot": DOT.format(", ".join(operands)),
            "sum": f"jax.reduce_sum({operands[0]}) {{axes=(0,)}} : f32[8]",
        }[kind]
        lines.append(f"{name} = {text}")
        alone += (2 + (kind in ("mul", "dot"))) * SQUARE
        if kind != "sum":
            values.append(name)
    last = lines[-1].partition(" ")[0]
    total = sum(moved("\n".join(lines), last).values())
    assert (ROW if kinds[-1] == "sum" else SQUARE) <= total <= alone


@pytest.mark.parametrize("fuses_products", [True, False])
def test_bytes_of_bodies_are_apart(fuses_products: bool) -> None:
    graph = parse("""graph f on 1 replica, stage spmd
(%x: f32[8,8] mirrored) {
  %y = scan(%x) {length=4, reverse=false, unroll=1, num_consts=0, num_carry=1} : f32[8,8] mirrored
    body(%c: f32[8,8] mirrored) {
      %n = jax.neg(%c) : f32[8,8] mirrored
      return %n
    }
  return %y
}""")
    (loop,) = graph.nodes
    assert traffic(graph, fuses_products=fuses_products) == {}
    assert list(traffic(loop.graphs[0]).values()) == [2 * SQUARE]


def copied(body: str, *, unroll: int = 1) -> float:
    """Return how many slices each iteration of a loop copies; it scans %s and returns %n, %t."""
    graph = parse(
        "graph f on 1 replica, stage spmd\n(%x: f32[8,8] mirrored, %w: f32[4,8,8] mirrored) {\n"
        f"  %y, %z = scan(%x, %w) {{length=4, reverse=false, unroll={unroll}, num_consts=0, "
        "num_carry=1} : f32[8,8] mirrored, f32[4,8,8] mirrored\n"
        "    body(%c: f32[8,8] mirrored, %s: f32[8,8] mirrored) {\n"
        + "".join(f"      {line.strip()} mirrored\n" for line in body.strip().splitlines())
        + "      return %n, %t\n    }\n  return %y, %z\n}"
    )
    return sum(traffic(graph).values()) / (4 * 2 * SQUARE)


PRODUCT, SQUARED = DOT.format("%c, %s"), DOT.format("%t, %t")


@pytest.mark.parametrize(
    ("body", "count"),
    [
        pytest.param(f"%t = {PRODUCT}\n%n = jax.neg(%t) : f32[8,8]", 0, id="a product"),
        pytest.param(f"%t = jax.neg(%c) : f32[8,8]\n%n = {SQUARED}", 0, id="what one node reads"),
        pytest.param(
            f"%t = jax.neg(%c) : f32[8,8]\n%a = {SQUARED}\n%n = {DOT.format('%t, %a')}",
            1,
            id="what two nodes read",
        ),
        pytest.param(
            "%t = jax.neg(%c) : f32[8,8]\n%n = jax.sort(%t) : f32[8,8]", 1, id="what is sorted"
        ),
        pytest.param(
            f"%t = {PRODUCT}\n%a = jax.reduce_sum(%s) {{axes=(0,)}} : f32[8]\n"
            "%n = jax.broadcast_in_dim(%a) {shape=(8, 8), broadcast_dimensions=(1,)} : f32[8,8]",
            1,
            id="a slice that a reduction reads",
        ),
    ],
)
def test_loops_copy_into_stacks_and_out_of_them(body: str, count: int) -> None:
    assert copied(body) == count
    assert copied(body, unroll=4) == 0
