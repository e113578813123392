"""Errors where Python needs the value of an array while a function is traced.

`if`, `while`, `range`, `float` and functions of NumPy need values, which a trace does not have. JAX
raises an error, which keeps its class because programs may catch it. The user's line, and a hint
what to write there, are put before JAX's message.
"""

from __future__ import annotations

import re

import jax

from graphdist.ir.errors import GraphdistError
from graphdist.tracing.user_lines import where_raised

_NEEDS_A_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_SHAPE, _FORMAT = "Shapes must be 1D sequences of concrete values", "Tracer.__format__"
"""Parts of the messages of Python and JAX where a shape or a format needs a value."""

_WHAT = "Python needs the value of an array inside a function, where arrays have no values yet"
_IN_LOOP = re.compile(r"^while\b|(?<![\w.])range\(")
_STATIC = 'an argument that is a setting is made static: gd.function(static_argnames="n")'
_LOOP = (
    "write jax.lax.fori_loop(0, n, step, start), or jax.lax.while_loop(goes_on, step, start) where "
    "the end is not known; a loop over a distributed dataset compiles its body by itself; "
)


def explain(error: Exception) -> None:
    """Put the user's line and a hint before JAX's message, if Python needs the value of an array.

    Other errors stay as they are.
    """
    text = str(error)
    needs_value = isinstance(error, _NEEDS_A_VALUE) or _SHAPE in text or _FORMAT in text
    if not needs_value or text.startswith(_WHAT):
        return
    source = where_raised(error)
    line = "" if source.frame is None else source.frame.text
    explanation = GraphdistError(_WHAT, source=source, hint=_hint(error, line))
    error.args = (f"{explanation}\n{text}",)


def _hint(error: Exception, line: str) -> str:
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return (
            "use jax.numpy in place of NumPy; code that needs NumPy goes outside the function, or "
            "into jax.pure_callback"
        )
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return "shapes are static: write jnp.where(mask, x, 0), or weight by the mask"
    if _IN_LOOP.search(line):
        return _LOOP + _STATIC
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return (
            "choose with jnp.where(condition, a, b) or jax.lax.cond(condition, f, g, x), join "
            f"conditions with & and |; {_STATIC}"
        )
    if isinstance(error, jax.errors.TracerIntegerConversionError):
        return f"an array takes an array as index, a list does not: jnp.stack(values)[i]; {_STATIC}"
    return (
        "keep it an array, and convert what the function returns; jax.debug.print prints values; "
        f"sizes are static; {_STATIC}"
    )
