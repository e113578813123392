"""What the examples say of arguments that make no sense, before they load anything."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import train_digits
import train_multi_worker
import train_text


@pytest.mark.parametrize(
    ("example", "arguments", "said"),
    [
        (train_digits, "--replicas 65", "--replicas is 65: from 1 to 64, the rows of a batch"),
        (train_digits, "--epochs 0", "--epochs is 0: at least 1"),
        (train_text, "--replicas 0", "--replicas is 0: from 1 to 16, the rows of a batch"),
        (train_text, "--steps 0", "--steps is 0: at least 1"),
        (train_text, "--synchronous-steps 5", "--synchronous-steps is given without --sync-every"),
        (
            train_text,
            "--sync-every 2 --steps 5 --synchronous-steps 5",
            "--synchronous-steps is 5: fewer than --steps",
        ),
        (train_multi_worker, "--steps-a-checkpoint 0", "--steps-a-checkpoint is 0: at least 1"),
    ],
)
def test_a_wrong_argument_is_named(
    example: ModuleType,
    arguments: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["example.py", *arguments.split()])
    with pytest.raises(SystemExit) as caught:
        example.main()
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
