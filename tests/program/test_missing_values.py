"""Python that needs the value of an array, arguments of `tf.function`: what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd


def chosen(x: Any) -> Any:
    if x > 0:
        return x
    return -x


def chosen_in_a_line(x: Any) -> Any:
    return x if x > 0 else -x


def both(x: Any) -> Any:
    return x > 0 and x < 2


def repeated(x: Any) -> Any:
    while x > 1:
        x = x / 2
    return x


def counted(x: Any) -> Any:
    total = 0
    for i in range(x.astype(jnp.int32)):
        total += i
    return total


def counted_to_an_int(x: Any) -> Any:
    return sum(i for i in range(int(x)))


def indexed(x: Any) -> Any:
    return [1.0, 2.0, 3.0][x.astype(jnp.int32)]


def sized(x: Any) -> Any:
    return jnp.arange(x)


def zeros(x: Any) -> Any:
    return jnp.zeros(x.astype(jnp.int32))


def formatted(x: Any) -> Any:
    return len(f"{x:.3f}") + x


def as_float(x: Any) -> Any:
    return float(x) + 1


def of_numpy(x: Any) -> Any:
    return np.sqrt(np.asarray(x))


def masked(x: Any) -> Any:
    values = jnp.stack([x, x + 1])
    return values[values > 1]


NEEDS: list[tuple[Callable[[Any], Any], str, str]] = [
    (chosen, "if x > 0:", "jax.lax.cond(condition, f, g, x)"),
    (chosen_in_a_line, "return x if x > 0 else -x", "jnp.where(condition, a, b)"),
    (both, "return x > 0 and x < 2", "join conditions with & and |"),
    (repeated, "while x > 1:", "jax.lax.while_loop(goes_on, step, start)"),
    (counted, "for i in range(x.astype(jnp.int32)):", "jax.lax.fori_loop(0, n, step, start)"),
    (counted_to_an_int, "return sum(i for i in range(int(x)))", "jax.lax.fori_loop"),
    (indexed, "return [1.0, 2.0, 3.0][x.astype(jnp.int32)]", "jnp.stack(values)[i]"),
    (sized, "return jnp.arange(x)", "sizes are static"),
    (zeros, "return jnp.zeros(x.astype(jnp.int32))", "sizes are static"),
    (formatted, 'return len(f"{x:.3f}") + x', "jax.debug.print prints values"),
    (as_float, "return float(x) + 1", "convert what the function returns"),
    (of_numpy, "return np.sqrt(np.asarray(x))", "use jax.numpy in place of NumPy"),
    (masked, "return values[values > 1]", "jnp.where(mask, x, 0)"),
]


@pytest.mark.parametrize(("fn", "line", "hint"), NEEDS)
def test_the_error_has_the_line_and_what_to_write(
    fn: Callable[[Any], Any], line: str, hint: str
) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    calls: list[Callable[[Any], Any]] = [
        gd.function(fn),
        lambda x: strategy.run(fn, args=(x,)),
    ]
    for call in calls:
        with pytest.raises((TypeError, IndexError)) as caught:
            call(jnp.float32(3))
        said, _, of_jax = str(caught.value).partition("\n  hint: ")
        assert said.startswith("Python needs the value of an array inside a function")
        assert "test_missing_values.py:" in said
        assert said.endswith(f", in {fn.__name__}\n    {line}")
        assert hint in of_jax.splitlines()[0]
        assert str(caught.value).count("hint: ") == 1


def test_what_the_hints_say_runs() -> None:
    @gd.function(static_argnames="n")
    def step(x: Any, n: int) -> Any:
        x = jax.lax.cond(x > 0, lambda x: x, lambda x: -x, x)
        x = jax.lax.while_loop(lambda x: x > 1, lambda x: x / 2, x)
        return sum(jnp.stack([x, 2 * x])[i % 2] for i in range(n)) + jax.lax.fori_loop(
            0, n, lambda i, total: total + i, 0
        )

    assert float(step(jnp.float32(-4), 3)) == 4 + 3


SAME: list[dict[str, Any]] = [
    {"jit_compile": True},
    {"jit_compile": None, "input_signature": None},
    {"autograph": False, "reduce_retracing": False},
]


@pytest.mark.parametrize("options", SAME)
def test_arguments_of_tf_function_that_say_the_same_are_taken(options: dict[str, Any]) -> None:
    function: Any = gd.function
    assert float(function(**options)(lambda x: x + 1)(1.0)) == 2
    assert float(function(lambda x: x + 1, **options)(1.0)) == 2


OTHERS: list[tuple[dict[str, Any], str, str]] = [
    ({"jit_compile": False}, "jit_compile=False", "with jax.disable_jit()"),
    ({"autograph": True}, "autograph=True", "jax.lax.cond, jax.lax.while_loop and jnp.where"),
    ({"reduce_retracing": True}, "reduce_retracing=True", "drop_remainder=True"),
    (
        {"input_signature": [jax.ShapeDtypeStruct((3, 2), "f")]},
        "input_signature",
        "f.trace(spec)",
    ),
    ({"experimental_relax_shapes": True}, "experimental_relax_shapes=True", "leave it out"),
]


@pytest.mark.parametrize(("options", "name", "hint"), OTHERS)
def test_other_arguments_of_tf_function_are_refused(
    options: dict[str, Any], name: str, hint: str
) -> None:
    function: Any = gd.function
    with pytest.raises(gd.ArgumentError) as caught:
        function(**options)
    text = str(caught.value)
    assert text.startswith(f"gd.function takes no {name}, which is for tf.function\n")
    assert "function(**options)" in text
    assert hint in text


def test_an_argument_of_nobody_is_a_type_error() -> None:
    function: Any = gd.function
    with pytest.raises(TypeError, match=r"gd\.function takes no argument 'static_args'"):
        function(static_args="n")
