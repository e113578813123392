"""Strangers at worker 0's port: they say all kinds of things, or nothing, while a job trains.

    python -m tests.multi_worker.strangers --idle 2000

The workers may open few files, fewer than there are strangers, and save checkpoints all the while.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.multi_worker.launch import SECONDS, command, environment
from tests.runtime.processes.test_handshake import PAYLOADS

FILES_OF_A_WORKER = 256


def job_among_strangers(num_idle: int) -> dict[int, list[float]]:
    """Return what each worker says of its steps at the end: their number, the sum, and as saved."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as crowd:
        line = command(2, "crowded", folder, str(FILES_OF_A_WORKER))
        line[line.index("2") + 1 : line.index("2") + 1] = ["--devices-per-worker", "1"]
        job = subprocess.Popen(
            line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert job.stdout is not None
        address = None
        while address is None:
            read = job.stdout.readline()
            assert read, job.communicate()[1]
            address = re.search(r"ADDRESS ([\d.]+):(\d+)", read)
        place = address[1], int(address[2])
        for number in range(num_idle):
            stranger = crowd.enter_context(socket.create_connection(place, timeout=SECONDS))
            if number % 10 == 0:
                with suppress(ConnectionError), socket.create_connection(place) as talker:
                    talker.sendall(PAYLOADS[number // 10 % len(PAYLOADS)])
            if number % 2:
                with suppress(ConnectionError):
                    stranger.sendall(b'{"kind": ')
        Path(folder, "enough").touch()
        out, err = job.communicate(timeout=SECONDS)
    assert job.returncode == 0, err
    said = re.findall(r"\[worker (\d+)\] SAYS (.*)", out)
    return {int(worker): json.loads(text) for worker, text in said}


def main() -> None:
    """Run a job among strangers, and print what it came to."""
    parser = argparse.ArgumentParser(description="Crowd worker 0's port while a job trains.")
    parser.add_argument("--idle", type=int, default=2000)
    idle = parser.parse_args().idle
    print(f"{idle} strangers, {FILES_OF_A_WORKER} files: {job_among_strangers(idle)}")


if __name__ == "__main__":
    main()
