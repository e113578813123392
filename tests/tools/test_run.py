"""`graphdist-run`: what it starts, shows, forwards, restarts, and never leaves behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # Any: what stands for streams

import pytest

from graphdist.config import worker_environment
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.tools.console import OUTPUT_LOST
from graphdist.tools.run import main
from graphdist.tools.worker_process import LONGEST_LINE, lines_of
from tests.multi_worker.launch import command, environment, run

_SAID = re.compile(r"\[worker (\d)\] SAYS (.*)")


def test_the_workers_ask_for_huge_pages_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tunables() -> str:
        return worker_environment(["127.0.0.1:1"], 0, JobIdentity("job"))["GLIBC_TUNABLES"]

    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert tunables() == "glibc.malloc.hugetlb=1"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=3")
    assert tunables() == "glibc.malloc.check=3:glibc.malloc.hugetlb=1"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0:glibc.malloc.check=3")
    assert tunables() == "glibc.malloc.hugetlb=0:glibc.malloc.check=3"


@pytest.mark.long
def test_every_worker_knows_its_task() -> None:
    outcome = run(3, "plain", "say", "--flag", "x", devices=2)
    assert outcome.status == 0
    for index in range(3):
        ((number, count, devices, arguments),) = outcome.said[index]
        assert (number, count, devices) == (index, 3, "2")
        assert arguments[1:] == ["say", "--flag", "x"]
        assert f"[worker {index}] to stderr" in outcome.err


@pytest.mark.long
def test_what_failed_is_shown_last_and_ends_the_others() -> None:
    began = time.monotonic()
    outcome = run(2, "plain", "fail")
    assert outcome.status == 1
    assert outcome.err.endswith('KeyError: "the user\'s own"\n')
    assert "[graphdist-run] worker 1 failed with exit status 1, and said last:" in outcome.err
    assert time.monotonic() - began < 60  # worker 0 would sleep as long


def test_a_job_is_started_again(tmp_path: Path) -> None:
    outcome = run(2, "plain", "once", str(tmp_path / "marker"), options=("--max-restarts", "2"))
    assert outcome.status == 0
    assert outcome.said == {0: [2, 2], 1: [2, 2]}
    assert "restart 1 of 2, with 2 workers" in outcome.err


@pytest.mark.long
def test_a_restart_with_fewer_workers(tmp_path: Path) -> None:
    options = ("--max-restarts", "1", "--min-workers", "1")
    outcome = run(2, "plain", "once", str(tmp_path / "marker"), options=options)
    assert outcome.status == 0
    assert outcome.said == {0: [2, 1], 1: [2]}


@pytest.mark.long
def test_restarts_are_counted(tmp_path: Path) -> None:
    outcome = run(2, "plain", "fail", options=("--max-restarts", "1"))
    assert outcome.status == 1
    assert outcome.err.count("restart 1 of 1") == 1


def launched(program: str, what: str, grace: str = "2") -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(2, program, what, options=("--grace", grace)),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def started(what: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a job that waits, and return it with the processes it has made."""
    job = launched("plain", what)
    assert job.stdout is not None
    pids = []
    for _ in range(2):
        pids += [int(word) for word in job.stdout.readline().split()[3:]]
    return job, pids


@pytest.mark.long
def test_a_worker_too_slow_for_an_interrupt_ends_with_its_status() -> None:
    job = launched("plain", "deaf", grace="0.2")
    assert job.stdout is not None
    for _ in range(2):
        job.stdout.readline()
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=30)
    assert job.returncode == 128 + signal.SIGINT
    assert re.search(r"\[graphdist-run\] worker [01] was ended by SIGTERM\n\Z", err)


@pytest.mark.long
def test_signals_reach_the_workers() -> None:
    job, _ = started("catch")
    job.send_signal(signal.SIGUSR1)
    out, _ = job.communicate(timeout=30)
    assert job.returncode == 0
    assert out.count('SAYS "caught"') == 2


@pytest.mark.long
def test_an_interrupt_ends_all() -> None:
    job, pids = started("child")
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=30)
    assert job.returncode == 128 + signal.SIGINT
    assert err.count("KeyboardInterrupt") == 2  # once a worker: nothing is shown again
    assert re.search(r"\[graphdist-run\] worker [01] was ended by SIGINT\n\Z", err)
    assert_gone(pids)


@pytest.mark.long
@pytest.mark.parametrize("which", ["all", "one"])
def test_an_interrupt_in_a_step_stays_one(which: str) -> None:
    job = launched("interrupted", which, grace="50")
    assert job.stdout is not None
    ready = 0
    while ready < 2:
        ready += job.stdout.readline().endswith('SAYS "steps"\n')
    time.sleep(0.5)
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=90)
    assert job.returncode == 128 + signal.SIGINT, err
    said = {int(worker): json.loads(text) for worker, text in _SAID.findall(out)}
    assert said.keys() == {0, 1}
    lost = "the value of variable 'count' is lost"  # a step that not all had come to
    assert lost in str(said[0]) or (which == "all" and said[0] in (0, 1))
    assert said[1] in (0, 1) or (which == "all" and lost in str(said[1]))
    assert "Fatal Python error" not in err
    assert "SIGABRT" not in err


@pytest.mark.long
@pytest.mark.parametrize(("what", "count"), [("wait", 2), ("child", 4)])
def test_no_orphans_when_the_launcher_is_killed(what: str, count: int) -> None:
    job, pids = started(what)
    assert len(pids) == count
    job.kill()
    job.communicate(timeout=30)
    assert_gone(pids)


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} are left"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"  # dead, and only its parent has not asked yet


@pytest.mark.long
def test_a_hangup_that_nohup_has_ignored_ends_nobody() -> None:
    line = ["nohup", *command(2, "plain", "catch")]
    with subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert sorted(job.stdout.readline() for _ in range(2))[0] == "[worker 0] READY\n"
        job.send_signal(signal.SIGHUP)
        job.send_signal(signal.SIGUSR1)
        assert job.stdout.read().count('SAYS "caught"') == 2
    assert job.returncode == 0


# Output.


def read_in(*chunks: bytes) -> list[bytes]:
    """Return the lines of a stream that gives these chunks, one in each read."""
    left = [*chunks, b""]
    stream: Any = SimpleNamespace(read=lambda size: left.pop(0))
    return list(lines_of(stream))


def test_lines_of_a_worker() -> None:
    assert read_in(b"a\nb\r\nc\rd", b"e\r", b"\nf\n\n", b"g") == [
        *(b"a", b"b", b"c", b"de", b"f", b"", b"g")
    ]
    assert read_in() == []
    assert read_in(b"\r", b"\r", b"\n") == [b"", b""]


def test_a_line_without_end_goes_on_in_parts() -> None:
    chunk = b"x" * LONGEST_LINE
    parts = read_in(*[chunk[:1000], chunk, chunk] * 20, b"\n", b"end\n")
    assert b"".join(parts) == b"x" * (20 * (2 * LONGEST_LINE + 1000)) + b"end"
    assert max(map(len, parts)) < 2 * LONGEST_LINE


TALKING = """
import sys
while True:
    print("x" * 1000, file=sys.stderr if sys.argv[1:] else sys.stdout, flush=True)
"""


STOPPED = """
import json, os, signal
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_a_worker_that_is_stopped_when_all_others_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stopped.py").write_text(STOPPED)
    monkeypatch.setenv("GRAPHDIST_WORKER_SILENCE_SECONDS", "0.2")
    assert main(["-n", "2", str(tmp_path / "stopped.py")]) == 128 + 9
    said = capfd.readouterr().err
    assert "worker 1 is stopped, and all others have ended: it is killed" in said


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, where earlier tests have started devices
@pytest.mark.parametrize(
    ("stream", "path", "flag"),
    [("stdout", "/dev/full", os.O_WRONLY), ("stderr", os.devnull, os.O_RDONLY)],
)
def test_a_job_whose_output_cannot_be_written_ends(
    stream: str, path: str, flag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talking.py").write_text(TALKING)
    full = io.TextIOWrapper(io.FileIO(os.open(path, flag), "w"), write_through=True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, stream, full)
        arguments = ["stderr"] if stream == "stderr" else []
        program = str(tmp_path / "talking.py")
        assert main(["-n", "2", "--grace", "9", program, *arguments]) == OUTPUT_LOST
    full.close()


def test_a_slow_reader_gets_all_lines(tmp_path: Path) -> None:
    (tmp_path / "talking.py").write_text("for i in range(2000): print(i, 'x' * 100)")
    command = [sys.executable, "-m", "graphdist.tools.run", "-n", "1", str(tmp_path / "talking.py")]
    with subprocess.Popen(
        command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        parts = []
        while part := launcher.stdout.read(4096):
            parts.append(part)
            time.sleep(0.04)  # in all longer than the launcher waits for lines that do not come
        lines = b"".join(parts).splitlines()
        assert (len(lines), launcher.stderr.read(), launcher.wait()) == (2000, b"", 0)


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, where earlier tests have started devices
def test_a_module_may_come_after_two_dashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "says.py").write_text("import sys; print(sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    assert main(["-n", "1", "-m", "--", "says", "--", "x"]) == 0
    assert "['--', 'x']" in capfd.readouterr().out


@pytest.mark.parametrize("host", ["nobody.invalid", "192.0.2.1", "a" * 64, "a..b"])
def test_a_host_that_is_not_this_machine(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["-n", "2", "--host", host, __file__])
    assert caught.value.code == 2
    assert f"the workers cannot listen at --host {host}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "0", __file__], "-n is 0: it must be at least 1"),
        (["-n", "2", "--min-workers", "3", __file__], "--min-workers is 3: it is from 1 to the"),
        (["-n", "2", "--devices-per-worker", "0", __file__], "worker is 0: it must be at least 1"),
        (
            ["-n", "2", "--max-restarts", "-1", __file__],
            "--max-restarts is -1: it must be at least 0",
        ),
        (["-n", "2", "--grace", "nan", __file__], "--grace is nan: it must be at least 0"),
        (["-n", "2", "--max-restarts", "3", "no/train.py"], "there is no file no/train.py; a"),
        (["-n", "2"], "no program is given"),
        (["-n", "2", "-m", "--"], "no program is given"),
        (["-n", "1", "/dev/null"], "/dev/null is a device or a socket, and no program"),
        (["train.py"], "-n"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("graphdist-run: ")
    assert said in err
