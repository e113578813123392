"""Batches that cannot be accumulated over, and dtypes that cannot be reduced in."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import graphdist as gd
from tests.errors.refusal import Refused


def microbatches_that_do_not_divide(refused: Refused) -> None:
    with refused(ValueError):
        gd.accumulate(jnp.sum, 4)(jnp.ones((6, 2)))


def microbatches_of_leaves_of_unequal_length(refused: Refused) -> None:
    with refused(ValueError):
        gd.accumulate(lambda batch: batch[0].sum(), 2)((jnp.ones(4), jnp.ones(2)))


def microbatches_of_a_scalar(refused: Refused) -> None:
    with refused(ValueError):
        gd.accumulate(jnp.sum, 2)(jnp.float32(1))


def microbatches_without_a_batch(refused: Refused) -> None:
    with refused(ValueError):
        gd.accumulate(jnp.sum, 2, batch_argnums=1)(jnp.ones(2))


def microbatches_zero(refused: Refused) -> None:
    with refused(ValueError):
        gd.accumulate(jnp.sum, 0)


def microbatches_of_no_function(refused: Refused) -> None:
    with refused(TypeError):
        gd.accumulate(None, 2)  # type: ignore[arg-type]


def microbatches_of_arguments_by_name(refused: Refused) -> None:
    with refused(TypeError):
        gd.accumulate(jnp.sum, 2, batch_argnums="x")  # type: ignore[arg-type]


def microbatches_that_give_text(refused: Refused) -> None:
    with refused(TypeError):
        gd.accumulate(lambda batch: "text", 2)(jnp.ones(2))


def microbatches_that_give_random_keys(refused: Refused) -> None:
    with refused(TypeError):
        gd.accumulate(lambda batch: jax.random.key(0), 2)(jnp.ones(2))


def microbatches_of_text(refused: Refused) -> None:
    with refused(TypeError):
        gd.accumulate(jnp.sum, "4")  # type: ignore[arg-type]


def reduce_dtype_of_integers(refused: Refused) -> None:
    with refused(ValueError):
        gd.CommunicationOptions(reduce_dtype="int32")


def reduce_dtype_unknown(refused: Refused) -> None:
    with refused(ValueError):
        gd.CommunicationOptions(reduce_dtype="float31")
