"""Equal numbers of what loops and branches compute, and other numbers for other values."""

from __future__ import annotations

import pytest

from graphdist.ir.analyses import walk
from graphdist.ir.parser import parse
from graphdist.ir.value_numbering import ValueNumbers

TEXT = """graph f on 1 replica, stage spmd
(%x: f32[4] mirrored, %y: f32[4] mirrored, %p: i32[] mirrored, %w: f32[2,4] mirrored) {
  %a, %as = scan(%y, %x, %w) {num_consts=1, num_carry=1, length=2, reverse=false} : f32[4] mirrored, f32[2,4] mirrored
    body(%k: f32[4] mirrored, %c: f32[4] mirrored, %s: f32[4] mirrored) {
      %m = jax.mul(%c, %s) : f32[4] mirrored
      %n = jax.add(%m, %k) : f32[4] mirrored
      return %n, %c
    }
  %b, %e, %bs = scan(%y, %y, %x, %w) {num_consts=1, num_carry=2, length=2, reverse=false} : f32[4] mirrored, f32[4] mirrored, f32[2,4] mirrored
    body(%k: f32[4] mirrored, %d: f32[4] mirrored, %c: f32[4] mirrored, %s: f32[4] mirrored) {
      %o = jax.sin(%d) : f32[4] mirrored
      %m = jax.mul(%c, %s) : f32[4] mirrored
      %n = jax.add(%m, %k) : f32[4] mirrored
      return %o, %n, %m
    }
  %i, %j = cond(%p, %a, %x) : f32[4] mirrored, f32[4] mirrored
    branch0(%q: f32[4] mirrored, %r: f32[4] mirrored) {
      %t = jax.sin(%q) : f32[4] mirrored
      return %t, %r
    }
    branch1(%q: f32[4] mirrored, %r: f32[4] mirrored) {
      %t = jax.cos(%r) : f32[4] mirrored
      return %t, %r
    }
  %l = cond(%p, %x, %e) : f32[4] mirrored
    branch0(%r: f32[4] mirrored, %q: f32[4] mirrored) {
      %t = jax.sin(%q) : f32[4] mirrored
      return %t
    }
    branch1(%r: f32[4] mirrored, %q: f32[4] mirrored) {
      %t = jax.cos(%r) : f32[4] mirrored
      return %t
    }
  return %a, %as, %b, %e, %bs, %i, %j, %l
}"""  # noqa: E501 - a line is a node


def equal_values(text: str) -> list[tuple[str, str]]:
    """Return the pairs of outputs that have equal numbers."""
    graph = parse(text)
    numbers = ValueNumbers()
    numbers.add_new(graph.inputs)
    for node in graph.nodes:
        numbers.add(node)
    names = ("a", "as", "b", "e", "bs", "i", "j", "l")
    found = dict(zip(names, map(numbers.of, graph.outputs), strict=True))
    assert None not in found.values()
    return [(x, y) for x in names for y in names if x < y and found[x] == found[y]]


def test_results_of_loops_and_branches_are_compared_one_by_one() -> None:
    assert equal_values(TEXT) == [("a", "e"), ("i", "l")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%n = jax.add(%m, %k)", "%n = jax.add(%m, %c)"),
        ("length=2, reverse=false", "length=2, reverse=true"),
        ("scan(%y, %x, %w)", "scan(%y, %y, %w)"),
        ("jax.mul(%c, %s)", "jax.mul(%c, 2.0:f32)"),
    ],
)
def test_one_other_step_is_another_value(old: str, new: str) -> None:
    found = equal_values(TEXT.replace(old, new, 1))
    assert ("a", "e") not in found
    assert ("i", "l") not in found


def test_nested_values_keep_no_number() -> None:
    graph = parse(TEXT)
    numbers = ValueNumbers()
    numbers.add_new(graph.inputs)
    for node in graph.nodes:
        numbers.add(node)
    inner = {value for node in walk(graph) for value in node.results}
    inner -= {value for node in graph.nodes for value in node.results}
    assert all(numbers.of(value) is None for value in inner)
