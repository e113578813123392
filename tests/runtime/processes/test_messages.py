"""Every kind of message comes back as it was; what is not exactly one of a kind is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from graphdist.runtime.processes import messages as ms

KINDS = [*ms.FROM_STRANGERS, *ms.FROM_WORKERS, *ms.TO_STRANGERS, *ms.TO_WORKERS]
VALUES: dict[Any, Any] = {str: "\u2028 \n é", int: -1, list[str]: ["1", ""], list[int]: [2, 0]}
VALUES[list[float]] = [0.5, 3]
WRONG: dict[Any, list[Any]] = {
    str: [1, None, ["x"]],
    int: [True, 1.5, "1", None],
    list[str]: ["x", [1], None],
    list[int]: [[True], [1.0], {}],
    list[float]: [["1"], [True, None], float("nan")],
}


def example(kind: type[ms.Message]) -> ms.Message:
    hints = get_type_hints(kind)
    return kind(**{field.name: VALUES[hints[field.name]] for field in fields(kind)})


@pytest.mark.parametrize("kind", KINDS)
def test_messages_come_back_as_they_were(kind: type[ms.Message]) -> None:
    message = example(kind)
    assert message.line().count(b"\n") == 1
    assert ms.parsed(message.line(), KINDS) == message


def test_kinds_differ_by_name() -> None:
    assert len({kind.kind for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_of_another_type_is_refused(kind: type[ms.Message]) -> None:
    hints = get_type_hints(kind)
    whole = json.loads(example(kind).line())
    for field in fields(kind):
        for wrong in WRONG[hints[field.name]]:
            line = json.dumps({**whole, field.name: wrong}).encode()
            with pytest.raises(ms.MessageError, match=rf"{kind.kind}\.{field.name}\S* is"):
                ms.parsed(line, KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_too_few_or_too_many_is_refused(kind: type[ms.Message]) -> None:
    whole = json.loads(example(kind).line())
    for changed in (
        {**whole, "more": 1},
        {name: value for name, value in whole.items() if name != fields(kind)[0].name},
    ):
        with pytest.raises(ms.MessageError, match=f"a {kind.kind} has the fields"):
            ms.parsed(json.dumps(changed).encode(), KINDS)


@pytest.mark.parametrize(
    "line", [b"x", b"[]", b"1", b"null", b'{"kind": "beat"', b'{"kind": 3}', b"\xff"]
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ms.MessageError):
        ms.parsed(line, KINDS)


def test_a_message_that_may_not_come_now_is_refused() -> None:
    with pytest.raises(ms.MessageError, match="'beat' is no message that may come"):
        ms.parsed(ms.Beat(1).line(), ms.FROM_STRANGERS)
