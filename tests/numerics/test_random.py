"""`gd.random`: which replicas draw the same numbers, and which others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

DRAWS: dict[str, Callable[[gd.random.Generator], jax.Array]] = {
    "uniform": lambda generator: generator.uniform((3,)),
    "between": lambda generator: generator.uniform((3,), minval=-2.0, maxval=5.0),
    "integers": lambda generator: generator.uniform((3,), 0, 1 << 30, jnp.int32),
    "normal": lambda generator: generator.normal((3,), mean=4.0, stddev=2.0),
    "truncated": lambda generator: generator.truncated_normal((3,), mean=1.0),
}


def mirrored(replicas: int) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])


def lists(value: Any) -> list[Any]:
    return [np.asarray(one).tolist() for one in value.values]


def replica_bits(key: jax.Array) -> jax.Array:
    return jax.random.bits(gd.random.replica_key(key), (2,))


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_a_replica_has_its_stream_whatever_the_number_of_replicas(make: Any) -> None:
    key = make(3)
    four = lists(mirrored(4).run(replica_bits, args=(key,)))
    assert lists(mirrored(2).run(replica_bits, args=(key,))) == four[:2]
    assert gd.OneDeviceStrategy("cpu:3").run(replica_bits, args=(key,)).tolist() == four[0]
    assert replica_bits(key).tolist() == four[0]
    assert len({tuple(bits) for bits in four}) == 4
    assert jax.random.bits(key, (2,)).tolist() not in four
    for replica, bits in enumerate(four):
        expected = jax.random.bits(jax.random.fold_in(key, replica), (2,))
        assert bits == expected.tolist()


def test_the_same_where_the_number_is_a_python_value() -> None:
    def replica_fn(key: jax.Array) -> Any:
        number = int(gd.get_replica_context().replica_id_in_sync_group)
        return replica_bits(key) + jnp.uint32(0 * number)

    key = jax.random.key(3)
    assert lists(mirrored(2).run(replica_fn, args=(key,))) == lists(
        mirrored(2).run(replica_bits, args=(key,))
    )


def test_the_same_inside_a_function_and_a_loop() -> None:
    strategy = mirrored(2)

    @gd.function
    def step(key: jax.Array) -> Any:
        def replica_fn(key: jax.Array) -> jax.Array:
            keys = jax.random.split(gd.random.replica_key(key), 3)
            return jax.lax.map(lambda key: jax.random.bits(key), keys)

        return strategy.run(replica_fn, args=(key,))

    key = jax.random.key(9)
    expected = [
        [int(jax.random.bits(one)) for one in jax.random.split(jax.random.fold_in(key, replica), 3)]
        for replica in range(2)
    ]
    assert lists(step(key)) == expected


@pytest.mark.long
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_generator_draws_other_numbers_each_time_on_each_replica(
    draw: Callable[[gd.random.Generator], jax.Array],
) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        generator = gd.random.Generator.from_seed(5)
    drawn: list[jax.Array] = []
    for _ in range(2):
        drawn += strategy.experimental_local_results(strategy.run(lambda: draw(generator)))
    with strategy.scope():
        drawn += [draw(generator), draw(generator)]
    assert len({tuple(np.asarray(one).tolist()) for one in drawn}) == 6


def test_what_is_drawn_lies_where_it_should() -> None:
    generator = gd.random.Generator.from_seed(1)
    uniform = generator.uniform((1000,), minval=-2.0, maxval=5.0)
    assert uniform.dtype == jnp.float32
    assert -2 <= float(uniform.min()) < -1.5
    assert 4.5 < float(uniform.max()) < 5
    integers = generator.uniform((1000,), 2, 5, jnp.int32)
    assert set(integers.tolist()) == {2, 3, 4}
    normal = generator.normal((4000,), mean=4.0, stddev=2.0)
    assert float(normal.mean()) == pytest.approx(4, abs=0.2)
    assert float(normal.std()) == pytest.approx(2, abs=0.1)
    truncated = generator.truncated_normal((1000,), mean=1.0, stddev=0.5)
    assert 0 <= float(truncated.min()) < float(truncated.max()) <= 2


def test_the_state_is_one_value_that_moves_on_alike() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        generator = gd.random.Generator.from_seed(5)
    before = [value.tolist() for value in generator.state.values]
    strategy.run(lambda: generator.uniform(()))
    after = [value.tolist() for value in generator.state.values]
    assert before[0] == before[1] != after[0] == after[1]


def test_drawing_moves_no_data_between_devices() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        generator = gd.random.Generator.from_seed(5)
    step = gd.function(lambda: strategy.run(lambda: generator.uniform((2,))))
    assert step.trace().lower().collectives == ()


def test_outside_strategies_it_draws_as_in_cross_replica_context() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        inside = gd.random.Generator.from_seed(5)
        drawn = inside.uniform((2,)).tolist()
    outside = gd.random.Generator.from_seed(5)
    assert outside.uniform((2,)).tolist() == drawn
    assert outside.uniform((2,)).tolist() != drawn


def test_one_replica_draws_as_the_first_of_several() -> None:
    seeded = gd.random.Generator.from_seed
    one, two = gd.OneDeviceStrategy("cpu:1"), mirrored(2)
    with one.scope():
        alone = seeded(5)
    with two.scope():
        shared = seeded(5)
    drawn = two.run(lambda: shared.uniform((2,)))
    assert one.run(lambda: alone.uniform((2,))).tolist() == lists(drawn)[0]


def test_replicas_of_other_shapes_draw_together() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        generator = gd.random.Generator.from_seed(5)
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: np.zeros(3 - context.replica_id_in_sync_group, np.float32)
    )
    noise = strategy.run(lambda x: x + generator.uniform(x.shape), args=(rows,))
    assert [value.shape for value in noise.values] == [(3,), (2,)]
    first, second = (value.tolist() for value in generator.state.values)
    assert first == second


def test_made_in_a_replica_function() -> None:
    drawn = mirrored(2).run(lambda: gd.random.Generator.from_seed(5).uniform((2,)))
    first, second = lists(drawn)
    assert first != second


def test_reset_and_split() -> None:
    generator = gd.random.Generator.from_seed(5)
    drawn = generator.uniform((2,)).tolist()
    parts = [part.uniform((2,)).tolist() for part in generator.split(3)]
    assert len({tuple(part) for part in [*parts, drawn, generator.uniform((2,)).tolist()]}) == 5
    generator.reset_from_seed(5)
    assert generator.uniform((2,)).tolist() == drawn


def test_the_global_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gd.random, "_global", [])
    assert gd.random.get_global_generator() is gd.random.get_global_generator()
    generator = gd.random.Generator.from_seed(5)
    gd.random.set_global_generator(generator)
    assert gd.random.get_global_generator() is generator


def test_keys_of_other_implementations() -> None:
    key = jax.random.key(0, impl="rbg")
    generator = gd.random.Generator(key)
    assert generator.uniform((2,)).shape == (2,)
    assert str(jax.random.key_impl(generator.next_key())) == "rbg"
