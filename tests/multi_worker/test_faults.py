"""What goes wrong ends in time, on every worker, with an error that names who and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import graphdist as gd
from tests.multi_worker.launch import Outcome, run
from tests.multi_worker.strangers import job_among_strangers

TIMEOUTS = {"GRAPHDIST_WORKER_START_SECONDS": "20", "GRAPHDIST_WORKER_SILENCE_SECONDS": "20"}


def errors_of(outcome: Outcome, worker: int) -> str:
    """Return the lines of a worker's stderr from its last graphdist error on."""
    lines = [
        line.removeprefix(f"[worker {worker}] ")
        for line in outcome.err.splitlines()
        if line.startswith(f"[worker {worker}] ")
    ]
    starts = [i for i, line in enumerate(lines) if re.match(r"graphdist\.\S+Error: ", line)]
    return "\n".join(lines[starts[-1] :]) if starts else ""


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_named(victim: int) -> None:
    outcome = run(2, "faulty", "kill", str(victim), variables=TIMEOUTS)
    assert outcome.status == 128 + 9
    assert re.search(f"WorkerError: worker {victim} .* died", errors_of(outcome, 1 - victim))
    [(number, caught)] = outcome.said[1 - victim]  # an exception as any other, worker 0's too
    assert number == 6
    assert re.fullmatch(rf"worker {victim} \(127.0.0.1:\d+\) died", caught)
    assert "Terminating process" not in outcome.err  # what JAX says when it aborts
    assert f"[graphdist-run] worker {victim} was ended by SIGKILL" in outcome.err


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_worker_is_a_timeout(victim: int) -> None:
    limit = {} if victim else {"GRAPHDIST_WORKER_STEP_SECONDS": "4"}
    fault = "stop" if victim else "silent"  # which leaves the options as they are
    outcome = run(2, "faulty", fault, str(victim), variables={**TIMEOUTS, **limit})
    assert outcome.status == 1
    error = errors_of(outcome, 1 - victim)
    message = rf"CollectiveTimeoutError: step \d+, 'step', did not end within 4 s: worker {victim} "
    assert re.search(message, error)
    assert "faulty.py:" in error
    assert "all_reduce" in error


@pytest.mark.long
def test_a_silent_worker_is_noticed_without_a_timeout() -> None:
    patience = {**TIMEOUTS, "GRAPHDIST_WORKER_SILENCE_SECONDS": "4"}
    outcome = run(2, "faulty", "silent", "1", variables=patience)
    assert outcome.status == 1
    assert re.search(r"worker 1 .* was not heard of for \d s", errors_of(outcome, 0))


@pytest.mark.long
def test_an_exception_is_told_to_the_others_and_shown_last() -> None:
    outcome = run(2, "faulty", "raise", "1", variables=TIMEOUTS)
    assert outcome.status == 1
    assert "worker 1 (127.0.0.1" in errors_of(outcome, 0)
    assert 'failed: KeyError: "the user\'s own"' in errors_of(outcome, 0)
    assert outcome.err.endswith('KeyError: "the user\'s own"\n')


@pytest.mark.long
def test_a_worker_that_leaves_early_is_named() -> None:
    outcome = run(2, "faulty", "leave", "1", variables=TIMEOUTS)
    assert outcome.status == 1
    assert re.search("worker 1 .* ended its program before the others", errors_of(outcome, 0))


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("ending", ["returns", "raises", "is interrupted"])
def test_a_worker_that_ends_early_leaves_the_others_time(
    ending: str, victim: int, tmp_path: Path
) -> None:
    outcome = run(2, "ending", ending, str(victim), str(tmp_path), options=("--grace", "20"))
    why = {
        "returns": "ended its program before the others",
        "raises": 'failed: KeyError: "the user\'s own"',
        "is interrupted": "was interrupted",
    }[ending]
    [told, saved] = outcome.said[1 - victim]
    assert re.fullmatch(rf"worker {victim} \(127.0.0.1:\d+\) {re.escape(why)}", told)
    assert saved == "saved"
    assert outcome.status == (130 if ending == "is interrupted" else 1)
    assert "Terminating process" not in outcome.err  # what JAX says when it aborts
    # The checkpoint that was being written is complete: the worker's thread took part to its end.
    assert gd.train.load_variable(tmp_path / "last", "total").tolist() == [6.0] * 4


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_the_worker_that_failed_is_shown_where_the_others_catch_its_error(
    victim: int, tmp_path: Path
) -> None:
    how = "raises, and others catch it"
    outcome = run(2, "ending", how, str(victim), str(tmp_path), options=("--grace", "20"))
    assert outcome.said[1 - victim][-1] == "saved"
    assert f"worker {victim} failed with exit status 1, and said last:" in outcome.err
    assert outcome.err.endswith('KeyError: "the user\'s own"\n')
    assert "WorkerError" in errors_of(outcome, 1 - victim)  # which ends with status 1, and says why


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("first", "second"), r"checkpoint \S+/first, and worker 1 \S+ restores \S+ \S+/second"),
        (("second", ""), r"checkpoint \S+/second, and worker 1 \S+ restores none"),
    ],
)
def test_workers_that_restore_other_checkpoints_are_told(
    names: tuple[str, str], told: str, tmp_path: Path
) -> None:
    outcome = run(2, "restoring", str(tmp_path), *names)
    for worker in range(2):
        assert re.fullmatch(rf"worker 0 \S+ restores {told}", outcome.said[worker][0])


@pytest.mark.long
def test_workers_that_restore_the_same_checkpoint(tmp_path: Path) -> None:
    outcome = run(2, "restoring", str(tmp_path), "first", "first")
    assert outcome.status == 0, outcome.err
    assert outcome.said == {worker: [[[1.0] * 3, 1]] for worker in range(2)}
    (line,) = [line for line in outcome.err.splitlines() if "differs" in line]
    assert re.fullmatch(
        r"\[worker 1\] the value of a variable at \S+restoring.py:\d+.* differs from that of "
        r"worker 0 \(\S+\), which all workers have now",
        line,
    )


@pytest.mark.long
def test_a_forked_child_is_no_worker() -> None:
    outcome = run(2, "forking", "the child fails")
    assert outcome.status == 0, outcome.err
    assert outcome.said == {0: [[2.0] * 3], 1: [[2.0] * 3]}


@pytest.mark.long
def test_a_killed_worker_is_noticed_though_its_child_lives() -> None:
    outcome = run(2, "forking", "the worker is killed")
    assert outcome.status == 137
    assert re.fullmatch(r"worker 1 \(127.0.0.1:\d+\) died", outcome.said[0][0])


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_ctrl_c_at_the_end_leaves_the_others_alone(victim: int, tmp_path: Path) -> None:
    arguments = "ending", "interrupted at the end", str(victim), str(tmp_path)
    outcome = run(2, *arguments, options=("--grace", "20"))
    assert outcome.status in ((130,) if victim == 0 else (0, 130))  # 0: it had ended already
    assert outcome.said[1 - victim] == ["done"]
    assert "Traceback" not in outcome.err
    assert "Terminating process" not in outcome.err


@pytest.mark.long
def test_a_job_goes_on_among_strangers() -> None:
    said = job_among_strangers(num_idle=400)
    assert said[0] == said[1]
    steps, total, saved = said[0]
    assert steps == total / 2 == saved / 2


@pytest.mark.long
def test_programs_that_differ_are_shown_on_every_worker() -> None:
    outcome = run(2, "faulty", "differ", "1", variables=TIMEOUTS)
    assert outcome.status == 1
    for worker in range(2):
        error = errors_of(outcome, worker)
        assert re.search("differs between worker 0 .* and worker 1", error)
        assert 'return gd.get_replica_context().all_reduce("SUM", x)' in error
        assert "x = x + 1" in error
        assert "worker 0: %1 = all_reduce(%0)" in error
        assert "worker 1: %1 = jax.add(%0" in error


@pytest.mark.long
def test_variables_that_differ() -> None:
    outcome = run(2, "faulty", "variable", "1", variables=TIMEOUTS)
    assert outcome.status == 1
    for worker in range(2):
        assert re.search(
            r"the value of a variable is int32\[\] on worker 0 .* and float32\[2\] on worker 1",
            errors_of(outcome, worker),
        )
