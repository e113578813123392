"""How many rows each replica gets: every row once, in order, and parts of nearly one size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphdist.data.rebatching import batch_sizes_for_worker, even_sizes, filled_sizes

COUNTS = st.integers(1, 9)
ROWS = st.integers(0, 200)


@given(ROWS, COUNTS)
def test_even_sizes_take_every_row_and_fill_from_the_front(rows: int, num_replicas: int) -> None:
    sizes = even_sizes(rows, num_replicas)
    assert (sum(sizes), len(sizes)) == (rows, num_replicas)
    full = -(-rows // num_replicas)
    partial = [size for size in sizes if size != full]
    assert list(sizes) == [full] * (num_replicas - len(partial)) + partial
    assert partial[1:] == [0] * (len(partial) - 1)


@given(ROWS, st.lists(ROWS, max_size=9))
def test_filled_sizes_take_what_there_is_in_order(rows: int, sizes: list[int]) -> None:
    filled = filled_sizes(rows, sizes)
    assert sum(filled) == min(rows, sum(sizes))
    assert all(taken <= size for taken, size in zip(filled, sizes, strict=True))
    first_short = next((i for i, size in enumerate(sizes) if filled[i] < size), len(sizes))
    assert not any(filled[first_short + 1 :])


@given(st.integers(1, 200), COUNTS, COUNTS)
def test_workers_make_up_a_global_batch_together(
    global_batch: int, num_workers: int, num_replicas: int
) -> None:
    cycles = [
        batch_sizes_for_worker(global_batch, num_workers, num_replicas, worker)
        for worker in range(num_workers)
    ]
    for step in range(num_workers):
        of_step = slice(step * num_replicas, (step + 1) * num_replicas)
        taken = [size for cycle in cycles for size in cycle[of_step]]
        assert sum(taken) == global_batch
        assert max(taken) - min(taken) <= 1
    assert {tuple(sorted(cycle)) for cycle in cycles} == {tuple(sorted(cycles[0]))}
