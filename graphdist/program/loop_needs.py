"""Errors where Python needs numbers that the body of a loop over a dataset has not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from graphdist.errors import ArgumentError, GraphdistError
from graphdist.tracing.user_lines import where_raised

NEED_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""The errors of JAX where Python needs a value that a trace has not."""


class NeedsNumbers(Exception):
    """Python may need the numbers of an array that is an input."""


@contextmanager
def noticed_needs(can_retry: bool) -> Iterator[None]:
    """Raise `NeedsNumbers` for errors that a tracer in place of an array may have caused.

    If the step cannot be traced with numbers in its place, say in the words of loops what JAX says.
    """
    try:
        yield
    except GraphdistError:
        raise
    except (TypeError, ValueError, AttributeError, *NEED_VALUES) as error:
        if can_retry:
            raise NeedsNumbers from error
        found = _need(error)
        if found is None:
            raise
        what, hint = found
        raise ArgumentError(
            f"{what} in a loop over a dataset, whose body is traced once for all elements",
            source=where_raised(error),
            hint=hint,
        ) from error


def _need(error: Exception) -> tuple[str, str] | None:
    """Return the need in words, and a hint."""
    text = str(error)
    if isinstance(error, jax.errors.TracerIntegerConversionError):
        return (
            "a traced value is an index of a Python sequence, or a Python integer,",
            "make the sequence an array: jnp.asarray(sequence)[index]",
        )
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return (
            "a traced value is given to a function that takes NumPy arrays",
            "use the function of jax.numpy; change arrays by x = x.at[i].add(value)",
        )
    if isinstance(error, NEED_VALUES):
        return (
            "Python needs the number of a traced value",
            "write the condition with jnp.where, or leave the loop first",
        )
    if "item assignment" in text or "setting an array element" in text:
        return "an array is changed in place", "assign a new one: x = x.at[i].set(value)"
    if "unhashable type" in text and "Tracer" in text:
        return (
            "a traced value is a key of a dict or set",
            "use an array that it is an index of: x = x.at[i].set(value)",
        )
    return None
