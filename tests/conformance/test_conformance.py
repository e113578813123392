"""Every recorded case of `tf.distribute`, family by family, and the runner itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any  # Any: JSON

import pytest

import graphdist as gd
from tests.conformance.compare import Comparison, pattern_of_equality
from tests.conformance.declared import DECLARED
from tests.conformance.families.table import FAMILIES
from tests.conformance.patterns import expression
from tests.conformance.runner import judge, load, report, run_case

CASES = load([Path(__file__).with_name("cases.json")])
RECORDED = list(dict.fromkeys(case["name"].partition("/")[0] for case in CASES))
OURS = {"error": ["ArgumentError", "GraphdistError", "ValueError"], "message": "no"}
LARGEST_SHARE = 0.1  # of cases that are declared


def tensor(value: Any, dtype: str = "float32", shape: tuple[int, ...] = ()) -> Any:
    return {"t": "tensor", "dtype": dtype, "shape": list(shape), "v": value}


def text(value: str) -> Any:
    return {"t": "str", "v": value}


def per_replica(*parts: Any) -> Any:
    return {"t": "PerReplica", "v": list(parts)}


def case(name: str, **fields: Any) -> dict[str, Any]:
    base = {"strategy": {"kind": "mirrored", "replicas": 2}, "mode": "eager", "input": {}}
    return {"name": name, **base, **fields}


@pytest.mark.long
@pytest.mark.parametrize("family", RECORDED)
def test_family(family: str) -> None:
    outcomes = [run_case(one) for one in CASES if one["name"].partition("/")[0] == family]
    failed = [f"{one.name}: {one.differences[0]}" for one in outcomes if one.differences]
    needless = [f"{one.name}: {entry}" for one in outcomes for entry in one.needless]
    assert not failed, "\n".join(failed)
    assert not needless, "declared, but passes:\n" + "\n".join(needless)


def test_few_cases_are_declared_whole() -> None:
    whole = [entry for entry in DECLARED if entry.at == "*"]
    declared = [one for one in CASES if any(entry.names(one["name"]) for entry in whole)]
    assert len(declared) <= LARGEST_SHARE * len(CASES)


def test_the_documents_give_every_reason() -> None:
    page = Path(__file__).parents[2] / "docs" / "compatibility.md"
    rows = page.read_text(encoding="utf-8").splitlines()
    given = {row.split(" | ")[0].removeprefix("| ") for row in rows if row.startswith("| ")}
    assert not {entry.reason for entry in DECLARED} - given


def test_every_declaration_is_about_a_family() -> None:
    assert all(entry.pattern.partition("/")[0] in FAMILIES for entry in DECLARED)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (tensor(1.0), tensor(1.0 + 1e-7)),
        (tensor(1, "int64"), tensor(1, "int32")),
        (tensor("nan"), tensor("nan")),
        (tensor(3.0), {"t": "float", "v": 3.0}),
        (per_replica(tensor(1.0), tensor(1.0)), {"t": "Mirrored", "v": [tensor(1.0)] * 2}),
        (per_replica({"t": "int", "v": 7}, {"t": "int", "v": 7}), {"t": "int", "v": 7}),
        (
            {"t": "str", "v": "/job:localhost/replica:0/task:0/device:CPU:1"},
            {"t": "str", "v": "cpu:1"},
        ),
        (
            {"error": {"type": "ValueError"}},
            {"error": ["ArgumentError", "GraphdistError", "ValueError"]},
        ),
        ({"error": "NotFoundError"}, {"error": ["ArgumentError", "GraphdistError"]}),
        ({"error": "AssertionError"}, {"error": ["ArgumentError", "GraphdistError"]}),
    ],
)
def test_same(expected: Any, actual: Any) -> None:
    assert not list(Comparison().differences(expected, actual))


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (tensor(1.0), tensor(1.0 + 1e-5)),
        (tensor(1, "int32"), tensor(1.0)),
        (tensor([1.0], shape=(1,)), tensor(1.0)),
        (tensor(True, "bool"), tensor(1, "int32")),
        (tensor(1.0), None),
        (tensor(1.0), per_replica(tensor(1.0), tensor(1.0))),
        (per_replica(tensor(1.0), tensor(2.0)), tensor(1.0)),
        (per_replica(tensor(1.0), tensor(2.0)), per_replica(tensor(1.0), tensor(3.0))),
        ({"t": "tuple", "v": []}, {"t": "list", "v": []}),
        ({"t": "dict", "v": {"a": None}}, {"t": "dict", "v": {"b": None}}),
        (
            {"t": "IndexedSlices", "values": tensor(1.0), "indices": None, "dense_shape": None},
            {"t": "IndexedSlices", "values": tensor(2.0), "indices": None, "dense_shape": None},
        ),
        ({"error": "TypeError"}, OURS),
        ({"error": "ValueError"}, tensor(1.0)),
        (tensor(1.0), {"error": ["ArgumentError"], "message": ""}),
        ({"error": "AttributeError"}, {"error": ["Tripped"]}),
    ],
)
def test_different(expected: Any, actual: Any) -> None:
    assert len(list(Comparison().differences(expected, actual))) == 1


def test_a_difference_says_where() -> None:
    expected = {"t": "dict", "v": {"a": {"t": "list", "v": [tensor(1.0), tensor(2.0)]}}}
    actual = {"t": "dict", "v": {"a": {"t": "list", "v": [tensor(1.0), tensor(3.0)]}}}
    (difference,) = Comparison().differences(expected, actual)
    assert str(difference) == ".a[1]: expected float32[] 2.0, got float32[] 3.0"


def test_random_numbers_are_equal_where_theirs_are() -> None:
    theirs = pattern_of_equality(per_replica(tensor(0.1), tensor(0.2)))
    ours = pattern_of_equality(per_replica(tensor(0.7), tensor(0.8)))
    same = pattern_of_equality(per_replica(tensor(0.7), tensor(0.7)))
    assert not list(Comparison().differences(theirs, ours))
    assert list(Comparison().differences(theirs, same))


def test_a_pattern_is_of_the_whole_name() -> None:
    pattern = expression("gather/{even,other}/*/axis=-1|{mirrored,central}{2,4}")
    assert pattern.fullmatch("gather/even/f32/axis=-1|mirrored2")
    assert not pattern.fullmatch("gather/even/f32/axis=-1|mirrored2|function")
    assert not pattern.fullmatch("gather/even/f32/axis=1|mirrored2")


def test_an_unknown_label_fails() -> None:
    outcome = run_case(case("run/no_such_label|mirrored2", output=None))
    assert outcome.status == "failed"
    assert "no program for this label" in str(outcome.differences[0])


def test_an_unknown_family_fails() -> None:
    outcome = run_case(case("no_such_family/label|mirrored2", output=None))
    assert "no program for the family" in str(outcome.differences[0])


def test_a_wrong_result_fails() -> None:
    values = {"values": [1.0, 2.0], "dtype": "f32", "op": "SUM", "axis": None}
    name = "reduce/SUM/axis=None/f32/scalar|mirrored2"
    assert run_case(case(name, input=values, output=tensor(3.0))).status == "passed"
    assert run_case(case(name, input=values, output=tensor(4.0))).status == "failed"
    assert run_case(case(name, input=values, error={"type": "ValueError"})).status == "failed"


def test_a_declared_case_that_passes_is_named() -> None:
    outcome = judge("run/returns_ragged|mirrored2", ())
    assert outcome.status == "passed"
    assert [entry.pattern for entry in outcome.needless] == ["run/returns_ragged|*"]


def test_a_case_leaves_nothing_behind() -> None:
    run_case(case("context/set_strategy_twice_same|mirrored2", output=None))
    assert not gd.has_strategy()


def test_the_report_counts_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    report([run_case(case("run/no_such_label|mirrored2", output=None))], sys.stdout)
    printed = capsys.readouterr().out
    assert "FAILED run/no_such_label|mirrored2" in printed
    assert "declared: 0.0%" in printed
