"""The example of Ray Train refuses arguments that make no sense, before it starts Ray."""

from __future__ import annotations

import sys

import pytest


@pytest.mark.needs("ray_train")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--workers 0", "--workers is 0: at least 1"),
        ("--steps 0", "--steps is 0: at least 1"),
        ("--steps-a-checkpoint -1", "--steps-a-checkpoint is -1: at least 1"),
        ("--max-failures -2", "--max-failures is -2: at least -1"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import train_ray

    monkeypatch.setattr(sys, "argv", ["example.py", *arguments.split()])
    with pytest.raises(SystemExit) as caught:
        train_ray.main()
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
