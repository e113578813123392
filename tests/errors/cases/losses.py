"""Losses, metrics and random numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import graphdist as gd
from tests.errors.programs import pair
from tests.errors.refusal import Refused


def average_loss_in_cross_replica_context(refused: Refused) -> None:
    with pair().scope(), refused(RuntimeError):
        gd.nn.compute_average_loss([1.0, 3.0])


def regularization_in_cross_replica_context(refused: Refused) -> None:
    with pair().scope(), refused(RuntimeError):
        gd.nn.scale_regularization_loss(3.0)


def average_loss_of_a_scalar(refused: Refused) -> None:
    with refused(ValueError):
        pair().run(lambda: gd.nn.compute_average_loss(jnp.float32(1)))


def average_loss_with_a_float_batch_size(refused: Refused) -> None:
    with refused(TypeError):
        gd.nn.compute_average_loss([1.0, 3.0], global_batch_size=4.0)


def average_loss_with_too_many_weights(refused: Refused) -> None:
    with refused(ValueError):
        gd.nn.compute_average_loss([1.0, 3.0], sample_weight=[1.0, 1.0, 1.0])


def average_loss_with_weights_of_higher_rank(refused: Refused) -> None:
    with refused(ValueError):
        gd.nn.compute_average_loss([1.0, 3.0], sample_weight=[[1.0, 1.0]])


def metric_of_text(refused: Refused) -> None:
    with refused(TypeError):
        gd.metrics.Mean(name="loss").update_state("high")


def metric_of_other_shapes(refused: Refused) -> None:
    metric = gd.metrics.Accuracy()
    with refused(ValueError):
        metric.update_state([1, 2, 3], [1, 2])
    assert float(metric.result()) == 0


def metric_with_scores_in_place_of_labels(refused: Refused) -> None:
    with refused(ValueError):
        gd.metrics.SparseCategoricalAccuracy().update_state([[0, 1]], [[0.5, 0.5]])


def metric_with_too_many_weights(refused: Refused) -> None:
    with refused(ValueError):
        gd.metrics.Mean().update_state([1.0, 2.0], sample_weight=[1.0, 1.0, 1.0])


def metric_without_contributions(refused: Refused) -> None:
    class Largest(gd.metrics.Metric):
        pass

    with refused(NotImplementedError):
        Largest("largest").update_state([1.0])


def metric_without_a_value(refused: Refused) -> None:
    class Largest(gd.metrics.Metric):
        pass

    with refused(NotImplementedError):
        Largest("largest").result()


def metric_with_a_contribution_missing(refused: Refused) -> None:
    class Spread(gd.metrics.Mean):
        def contributions(self, values: jax.Array) -> list[jax.Array]:  # type: ignore[override]
            return [jnp.sum(values)]

    spread = Spread()
    with refused(ValueError):
        spread.update_state([1.0, 2.0])
    assert float(spread.total.read_value()) == 0


def metric_with_contributions_in_no_list(refused: Refused) -> None:
    class Total(gd.metrics.Sum):
        def contributions(self, values: jax.Array) -> jax.Array:  # type: ignore[override]
            return jnp.sum(values)

    with refused(TypeError):
        Total().update_state([1.0, 2.0])


def metric_with_a_contribution_of_another_shape(refused: Refused) -> None:
    class Spread(gd.metrics.Mean):
        def contributions(self, values: jax.Array) -> list[jax.Array]:  # type: ignore[override]
            return [jnp.sum(values), jnp.ones_like(values)]

    spread = Spread()
    with refused(ValueError):
        spread.update_state([1.0, 2.0])
    assert float(spread.total.read_value()) == 0


def replica_key_in_cross_replica_context(refused: Refused) -> None:
    with pair().scope(), refused(RuntimeError):
        gd.random.replica_key(jax.random.key(0))


def replica_key_of_a_number(refused: Refused) -> None:
    with refused(TypeError):
        gd.random.replica_key(3)  # type: ignore[arg-type]


def generator_of_several_keys(refused: Refused) -> None:
    with refused(ValueError):
        gd.random.Generator(jax.random.split(jax.random.key(0), 3))


def integers_without_an_end(refused: Refused) -> None:
    with refused(ValueError):
        gd.random.Generator.from_seed(0).uniform((2,), dtype=jnp.int32)
