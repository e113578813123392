"""Programs for tests of several processes, and workers that speak through files.

Run as a program with the name of one of its functions and arguments. `FileWorkers` is to the tests
what a strategy of several processes installs: it holds the rules of
`graphdist.runtime.processes.workers`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from graphdist.runtime.processes.workers import Workers

SIZES = {"a": 9, "b": 5, "c": 4, "d": 1}
ROOT = Path(__file__).parents[2]


class FileWorkers(Workers):
    """Workers that say things by linking files into a folder, which one of them does first."""

    def __init__(self, folder: str | Path, index: int, count: int) -> None:
        self.folder, self.index, self.count = Path(folder), index, count
        self.folder.mkdir(exist_ok=True, parents=True)

    def publish(self, name: str, value: str) -> None:
        written = self.folder / f"writing-{self.index}-{time.monotonic_ns()}"
        written.write_text(value)
        with contextlib.suppress(FileExistsError):
            os.link(written, self._file(name))
        written.unlink()

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        deadline = time.monotonic() + timeout_seconds
        while not self._file(name).exists():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.005)
        return self._file(name).read_text()

    def heard_from(self, worker: int, name: str, timeout_seconds: float) -> str | None:
        return self.heard(f"{name}/{worker}", timeout_seconds)

    def _file(self, name: str) -> Path:
        return self.folder / name.replace("/", "+")


def start(function: str, *arguments: Any, **variables: str) -> subprocess.Popen[str]:
    """Start a process that runs a function of this file, with variables of its environment."""
    command = [sys.executable, "-W", "ignore", __file__, function, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **variables}
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], code: int = 0) -> list[str]:
    """Return what a process printed, once it has ended with this exit code."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out.splitlines()


def joined(folder: str, index: str, count: str) -> FileWorkers:
    """Be one of several workers."""
    from graphdist.runtime.files import checkpoint as checkpoints
    from graphdist.runtime.processes.workers import set_workers

    checkpoints.SECONDS_TO_WRITE = 60.0  # a test that fails should say so

    workers = FileWorkers(folder, int(index), int(count))
    set_workers(workers)
    return workers


def save_for_ever(directory: str) -> None:
    """Save a checkpoint after the other, each with arrays that hold its number."""
    import numpy as np

    import graphdist as gd

    checkpoint = gd.train.Checkpoint(step=0, arrays=[np.zeros(200_000, int)] * 8)
    manager = gd.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
    manager.restore_or_initialize()
    print("ready", flush=True)
    while True:
        checkpoint.step += 1
        checkpoint.arrays = [np.full(200_000, checkpoint.step) for _ in range(8)]
        manager.save()
        manager.sync()
        print(checkpoint.step, flush=True)


def save_once(directory: str) -> None:
    """Save, and go on until a line is given."""
    import graphdist as gd

    manager = gd.train.CheckpointManager(gd.train.Checkpoint(step=1), directory, max_to_keep=2)
    try:
        manager.save()
        manager.sync()
        print("saved", flush=True)
        sys.stdin.readline()
    except gd.CheckpointError as error:
        print(error.what)


def fork_and_save(directory: str) -> None:
    """Save, then have a fork try to; it outlives the process, which is killed."""
    import signal

    import graphdist as gd
    from graphdist.runtime.files.checkpoint_disk import DiskFolder
    from graphdist.runtime.files.checkpoint_lock import CheckpointWriter

    manager = gd.train.CheckpointManager(gd.train.Checkpoint(step=1), directory, max_to_keep=2)
    manager.save()
    manager.sync()
    parent = os.getpid()
    if os.fork() == 0:
        try:
            CheckpointWriter(DiskFolder(Path(directory)), "ckpt").take()
            print("the fork writes", flush=True)
        except gd.CheckpointError as error:
            print(f"process {parent}" in error.what, flush=True)
        os.kill(parent, signal.SIGKILL)
        while os.getppid() == parent:
            time.sleep(0.01)
        with contextlib.suppress(gd.CheckpointError):
            CheckpointWriter(DiskFolder(Path(directory)), "other").take()
        sys.stdin.readline()
        os._exit(0)
    time.sleep(60)


def fork_and_read(directory: str) -> None:
    """Read a bucket, then have a fork do so."""
    import graphdist as gd

    gd.train.latest_checkpoint(directory)
    if os.fork() == 0:
        try:
            gd.train.latest_checkpoint(directory)
        except gd.CheckpointError as error:
            print(error.what, flush=True)
        os._exit(0)
    os.wait()


def save_on_a_full_disk(path: str) -> None:
    """Save where files may not be long, and say what is said."""
    import resource

    import numpy as np

    import graphdist as gd

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    checkpoint = gd.train.Checkpoint(small=np.ones(10), large=np.ones(100_000), step=1)
    checkpoint.write(path)
    try:
        checkpoint.sync()
    except gd.CheckpointError as error:
        print(error.what)


def write_together(meeting: str, index: str, count: str, path: str) -> None:
    """Write and restore a checkpoint, each worker its part."""
    import numpy as np

    import graphdist as gd

    joined(meeting, index, count)
    params = gd.variables({name: np.full(size, size) for name, size in SIZES.items()})
    iterator = iter(gd.data.Dataset.range(10))
    next(iterator)
    checkpoint = gd.train.Checkpoint(params=params, step=3, iterator=iterator)
    for _ in range(2):
        checkpoint.write(path)
    checkpoint.step = 0
    gd.assign(params, {name: np.zeros(v.shape, int) for name, v in params.items()})
    checkpoint.restore(path).assert_consumed()
    sums = {name: int(value[...].sum()) for name, value in params.items()}
    print(index, checkpoint.step, sums, int(next(iterator)))


def export_together(meeting: str, index: str, count: str, path: str, format: str) -> None:
    """Export arrays, of which each worker writes some."""
    import numpy as np

    import graphdist as gd

    joined(meeting, index, count)
    arrays = {name: np.full(300, ord(name), np.float32) for name in "abcd"}
    options = {"max_shard_bytes": 1200} if format == "safetensors" else {}
    gd.train.export(path, arrays, format, **options)  # type: ignore[arg-type]


def fail_to_write(meeting: str, index: str, count: str, path: str) -> None:
    """Write a checkpoint on a full disk, as worker 1 has it, and print what is said of it."""
    import graphdist as gd
    from graphdist.runtime.files import checkpoint as checkpoints

    def full(*arguments: Any) -> None:
        raise OSError("no space left")

    joined(meeting, index, count)
    checkpoint = gd.train.Checkpoint(step=1)
    checkpoint.write(path)
    checkpoint.sync()
    if index == "1":
        setattr(checkpoints, "write_arrays", full)  # noqa: B010 - mypy has a type for it
    try:
        checkpoint.write(path)
        checkpoint.sync()
    except (OSError, gd.CheckpointError) as error:
        print(type(error).__name__, str(error).splitlines()[0])


def save_and_end(path: str) -> None:
    """Save a checkpoint, and do not wait for it."""
    import numpy as np

    import graphdist as gd

    gd.train.Checkpoint(array=np.ones(10_000_000)).write(path)


def save_in_every_ending(directory: str) -> None:
    """Save at every moment of the end of a process, and print the names that `write` returned."""
    import atexit
    import threading
    from concurrent.futures import ThreadPoolExecutor

    def save(name: str) -> None:
        import numpy as np

        import graphdist as gd

        checkpoint = gd.train.Checkpoint(array=np.ones(300_000), step=1)
        checkpoint.write(f"{directory}/{name}")
        print(name, flush=True)
        if name == "late":
            checkpoint.restore(f"{directory}/thread").assert_consumed()
            print("restored", flush=True)

    def save_when_the_main_thread_has_ended(name: str) -> None:
        threading.main_thread().join()
        save(name)
        sys.exit(3)

    atexit.register(save, "early")
    import graphdist  # noqa: F401 - has a function at exit, too

    atexit.register(save, "late")
    pool = ThreadPoolExecutor(1)
    pool.submit(time.sleep, 0.3)
    pool.submit(save, "pool")
    threading.Thread(target=save_when_the_main_thread_has_ended, args=("thread",)).start()
    daemon = threading.Thread(target=save, args=("daemon",), daemon=True)
    daemon.start()
    daemon.join()
    print("end", flush=True)


def save_for_ever_on_a_daemon(directory: str) -> None:
    """Save on a daemon thread, which the end of the process interrupts at any moment."""
    import threading

    import numpy as np

    import graphdist as gd

    checkpoint = gd.train.Checkpoint(array=np.ones(100_000))

    def save() -> None:
        while True:
            checkpoint.write(f"{directory}/ckpt")

    threading.Thread(target=save, daemon=True).start()
    while not os.path.exists(f"{directory}/ckpt"):
        time.sleep(0.01)


def fork_in_a_write(directory: str) -> None:
    """Fork while a write waits; restore and save in both kinds of forks."""
    import multiprocessing
    import threading

    import numpy as np

    import graphdist as gd
    from graphdist.runtime.files import checkpoint as checkpoints
    from graphdist.runtime.files.checkpoint_arrays import write_arrays
    from graphdist.train.writing import finish_writing

    checkpoint = gd.train.Checkpoint(array=np.ones(1000), step=1)
    checkpoint.write(f"{directory}/first-1")
    checkpoint.sync()
    may_end = threading.Event()

    def wait(*arguments: Any) -> dict[str, str]:
        may_end.wait()
        return write_arrays(*arguments)

    def use(name: str) -> None:
        may_end.set()  # in this process alone
        print(os.path.basename(str(gd.train.latest_checkpoint(directory))))
        checkpoint.restore(f"{directory}/first-1").assert_consumed()
        checkpoint.write(f"{directory}/{name}")
        print(name, flush=True)

    setattr(checkpoints, "write_arrays", wait)  # noqa: B010 - mypy has a type for it
    checkpoint.write(f"{directory}/second-2")
    waiting = threading.Thread(target=finish_writing)  # holds the lock while the process is forked
    waiting.start()
    time.sleep(0.1)
    process = multiprocessing.get_context("fork").Process(target=use, args=("child",))
    process.start()
    process.join()
    if os.fork() == 0:
        use("fork")
        sys.exit(7)
    print(process.exitcode, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    may_end.set()


def save_under_names_in_bytes(directory: str) -> None:
    """Save under names that are no ASCII, and say how many were restored."""
    import numpy as np

    import graphdist as gd

    print(sys.getfilesystemencoding())
    for name in (b"\xc3\xbcber", b"\xfcber"):
        folder = os.path.join(directory, os.fsdecode(name))
        checkpoint = gd.train.Checkpoint(array=np.ones(3), text="\u00fc", step=1)
        manager = gd.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
        manager.save()
        checkpoint.text, checkpoint.step = "", 0
        manager.restore_or_initialize()
        print(checkpoint.step, ascii(checkpoint.text))
    try:
        checkpoint.write(f"{directory}/\u00fc")
    except gd.ArgumentError as error:
        print(ascii(error.what.replace(directory, "")))


def train_until_stopped(meeting: str, index: str, count: str, directory: str, steps: str) -> None:
    """Count steps, which all workers take together, under a handler."""
    import graphdist as gd
    from graphdist.runtime.processes.workers import exchange

    workers = joined(meeting, index, count)
    checkpoint = gd.train.Checkpoint(total=gd.Variable(0))
    handler = gd.train.PreemptionCheckpointHandler(None, checkpoint, directory)
    print("ready", handler.total_run_calls, flush=True)

    def step(number: int) -> None:
        exchange(workers, f"step/{number}", "", 60, "steps are taken")  # as a collective does
        checkpoint.total.assign_add(1)
        time.sleep(0.01 * int(index))

    for number in range(handler.total_run_calls, int(steps)):
        handler.run(step, number)
        print("step", number, flush=True)
    handler.close()
    print("done", int(checkpoint.total), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
