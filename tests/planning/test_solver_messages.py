"""What HiGHS prints by mistake does not reach a program's output; all else does."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from graphdist.planning.solver_messages import without_solver_messages


def _printed_in_c(text: bytes) -> None:
    ctypes.CDLL(None).puts(text)


def test_only_messages_of_the_solver_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    with without_solver_messages():
        print("of the program")
        _printed_in_c(b"HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();")
        _printed_in_c(b"of a library")
    print("after")
    assert capfd.readouterr().out.split("\n") == [
        "before",
        "of the program",
        "of a library",
        "after",
        "",
    ]


def test_solving_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(5)
    weights = random.uniform(0, 1, (20, 60))
    with without_solver_messages():
        found = milp(
            -random.uniform(0, 1, 60),
            integrality=np.ones(60),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(weights, -np.inf, weights.sum(1) / 3),
            options={"mip_rel_gap": 1e-2},
        )
    assert found.x is not None
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == ""


def test_output_comes_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), without_solver_messages():
        raise KeyboardInterrupt
    print("after")
    assert capfd.readouterr().out == "after\n"


def test_a_process_without_standard_output_may_solve() -> None:
    output = os.dup(1)
    os.close(1)
    try:
        with without_solver_messages():
            solved = True
    finally:
        os.dup2(output, 1)
        os.close(output)
    assert solved
