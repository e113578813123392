"""Custom calls are as JAX makes them, or refused: each size, type, setting, alias and layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any  # Any: descriptions of custom calls

import pytest

from graphdist.runtime.files.custom_call_check import TARGETS, misfit
from tests.runtime.files.custom_call_programs import (
    DTYPES,
    PLATFORMS,
    linear_algebra_calls,
    other_calls,
)

SHAPES = [((), 5, 3), ((2, 3), 5, 3), ((0,), 5, 3), ((2,), 1, 1), ((), 40, 33), ((2,), 3, 0)]
TYPE = re.compile(r"tensor<((?:\d+x)*)(complex<\w+>|\w+)>")
NOT_DETERMINED = {
    "AllocateBuffer": ("results",),
    "cu_lu_pivots_to_permutation": ("operands", "results"),
}
"""Values of which another size makes another call that is right."""


def as_jax_makes_them(calls: list[dict[str, Any]]) -> None:
    assert {call["target"] for call in calls} <= TARGETS
    assert [(call, said) for call in calls if (said := misfit(call))] == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_calls_of_jax_are_as_jax_makes_them(platform: str) -> None:
    as_jax_makes_them(linear_algebra_calls(platform, "complex64", (2,), 5, 3))


@pytest.mark.long
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "m", "n"), SHAPES)
def test_calls_of_jax_of_every_type_and_shape(
    platform: str, dtype: str, batch: tuple[int, ...], m: int, n: int
) -> None:
    as_jax_makes_them(linear_algebra_calls(platform, dtype, batch, m, n))


def test_calls_of_jax_that_are_no_linear_algebra() -> None:
    calls = other_calls()
    assert {"ApproxTopK", "AllocateBuffer", "annotate_device_placement"} <= {
        call["target"] for call in calls
    }
    as_jax_makes_them(calls)


Change = tuple[str, dict[str, Any]]


def changed(call: dict[str, Any], key: str, at: Any, value: Any) -> Change:
    other = deepcopy(call)
    if value is None:
        del other[key][at]
    else:
        other[key][at] = value
    return f"{call['target']} {key} {at}: {call[key].__getitem__(at)} -> {value}", other


def of_types(call: dict[str, Any]) -> Iterator[Change]:
    """Yield the call with another size, rank or element type of each value, one value less."""
    for key in ("operands", "results"):
        if key in NOT_DETERMINED.get(call["target"], ()):
            continue
        for at, type in enumerate(call[key]):
            match = TYPE.fullmatch(type)
            assert match is not None
            sizes, element = match[1].split("x")[:-1], match[2]
            for place, size in enumerate(sizes):
                for other in (str(int(size) + 7), "?"):
                    of_other = [*sizes[:place], other, *sizes[place + 1 :]]
                    yield changed(call, key, at, f"tensor<{'x'.join([*of_other, element])}>")
            yield changed(call, key, at, f"tensor<{'x'.join([*sizes, '7', element])}>")
            yield changed(call, key, at, f"tensor<{'x'.join([*sizes, 'i8'])}>")
            yield changed(call, key, at, "!stablehlo.token")
            yield changed(call, key, at, None)
        more = deepcopy(call)
        more[key].append("tensor<f32>")
        yield f"{call['target']}: another of {key}", more


def of_texts(call: dict[str, Any]) -> Iterator[Change]:
    """Yield the call with each number of a setting or attribute changed, and with another one."""
    for key in ("attributes", "settings"):
        for name, text in call[key].items():
            # The text of these two is JAX's own and free, or bounds nothing.
            if name == "mhlo.sharding" or (name, key) == ("called_computations", "attributes"):
                continue
            yield changed(call, key, name, "unit")
            for number in re.finditer(r"(?<![\w.])\d+", text):
                other = f"{text[: number.start()]}251{text[number.end() :]}"
                if name not in ("reduction_input_size_override", "recall_target"):
                    yield changed(call, key, name, other)
        for name, text in [("api_version", "3 : i32"), ("backend_config", '"x"')]:
            more = deepcopy(call)
            more[key][name] = text
            yield f"{call['target']} {key} {name}: {text}", more
    optional = ("mhlo.frontend_attributes", "sdy.sharding_rule", "called_computations")
    for name in call["attributes"]:
        if name.endswith(("layouts", "aliases")) and name not in optional:
            yield changed(call, "attributes", name, None)
    for name in call["settings"]:
        if name not in ("is_fallback",):
            yield changed(call, "settings", name, None)
    if call["called"]:
        yield f"{call['target']}: another function", {**call, "called": ["() -> tensor<i1>"]}


@pytest.mark.parametrize("changes", [of_types, of_texts])
@pytest.mark.parametrize("platform", [*PLATFORMS, "other"])
def test_a_call_that_differs_in_one_place_is_refused(
    platform: str, changes: Callable[[dict[str, Any]], Iterator[Change]]
) -> None:
    calls = (
        other_calls()
        if platform == "other"
        else linear_algebra_calls(platform, "float32", (2,), 5, 3)
    )
    tried = [change for call in calls for change in changes(call)]
    assert len(tried) > len(calls)
    assert [what for what, call in tried if not misfit(call)] == []


def test_the_error_has_the_two_that_disagree() -> None:
    calls = linear_algebra_calls("cpu", "float32", (), 5, 3)
    (call,) = [each for each in calls if each["target"] == "lapack_spotrf_ffi"]
    for key, at, value, says in [
        ("operands", 0, "tensor<300x300xf32>", "has the result 0 f32[3,3], not f32[300,300]"),
        ("results", 1, "tensor<i64>", "has the result 1 i64[], not i32[]"),
        ("settings", "uplo", "0 : ui8", "has the setting uplo = 0 : ui8, not 76 : ui8 or 85"),
        ("attributes", "has_side_effect", "true", "has has_side_effect = true, not nothing"),
    ]:
        other = deepcopy(call)
        other[key][at] = value
        assert says in misfit(other)
