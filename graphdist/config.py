"""Process-wide settings. The only module that reads environment variables.

* `GRAPHDIST_VERIFY=0` turns the verifier between passes off;
* `GRAPHDIST_REPRODUCER_DIR` is where a failing pass leaves the graph it failed on (default: the
  system's temporary folder);
* `GRAPHDIST_DUMP_DIR` is the folder for pages of compiled functions; `set_dump` overrides it;
* `GRAPHDIST_COMPILATION_CACHE` is the folder that keeps compiled programs for the next start;
  `set_compilation_cache` overrides it;
* `GRAPHDIST_PROGRESS=0` shows no line while a program is compiled;
* `LESS` has the options of the pager, which shows texts that are longer than the terminal;
* `NO_COLOR`, if not empty, keeps colours out of terminals (https://no-color.org);
* `GRAPHDIST_WORKER_START_SECONDS`, `GRAPHDIST_WORKER_SILENCE_SECONDS` and
  `GRAPHDIST_WORKER_STEP_SECONDS` set how long the workers of a cluster wait for each other;
  `set_worker_timeouts` overrides them;
* `GRAPHDIST_VALUE_CHECK_STEPS` is the number of steps after which workers compare the values they
  should all have, 0 for the first call alone; `set_value_checks` overrides it;
* `GRAPHDIST_JOB_TOKEN` is a secret that all workers of a job share; `GRAPHDIST_JOB_ID` and
  `GRAPHDIST_JOB_GENERATION` tell the job from other jobs and from its own earlier starts;
* `GRAPHDIST_WORKER_BIND` is the address that worker 0 listens at; the default is its address in the
  cluster;
* `RAY_AUTH_MODE`, `RAY_AUTH_TOKEN` and `RAY_AUTH_TOKEN_PATH` are Ray's own: whether its processes
  ask each other for a token, and which;
* `TF_CONFIG` describes the cluster this process belongs to, in JSON, as for TensorFlow;
* `SLURM_PROCID` and the other variables of Slurm describe the task that this process runs,
  `TPU_NAME` and `TPU_WORKER_ID` the TPU of this host;
* `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` is the address of a server that speaks S3, other than
  Amazon's, `AWS_REGION` or `AWS_DEFAULT_REGION` its region, `AWS_ACCESS_KEY_ID` the name of the
  key, as for Amazon's own programs;
* `GLIBC_TUNABLES` and the variables of mallopt(3) are settings of the C library of Linux;
* `CUDA_VISIBLE_DEVICES` lists the GPUs that this process may use;
* `KERAS_BACKEND` is the backend of Keras, which `graphdist.keras` sets to `jax` unless it is set.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any  # Any: JSON

import jax

from graphdist.errors import ArgumentError, DeviceError
from graphdist.quoted import quoted
from graphdist.runtime import freed_memory
from graphdist.runtime.backpressure import backpressure
from graphdist.runtime.compilation import keep_compiled
from graphdist.runtime.files.bucket_objects import S3Server
from graphdist.runtime.processes.addresses import BIND_VARIABLE, is_host
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.runtime.processes.workers import WorkerTimeouts
from graphdist.tracing.user_lines import here
from graphdist.version import versions
from graphdist.whole_numbers import whole_number


def set_logical_cpu_devices(count: int) -> None:
    """Split the host's processor into `count` logical CPU devices.

    Call it before anything runs on a device. Raises `DeviceError` when devices are already in use
    with another count, `ArgumentError` when `count` is not a positive integer.

    >>> set_logical_cpu_devices(0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    graphdist.errors.ArgumentError: 0 logical CPU devices: there must be at least 1
    ...
    """
    _require_positive(count, "logical CPU devices")
    least = _least_cpu_devices
    try:
        jax.config.update("jax_num_cpu_devices", max(count, least))
    except RuntimeError as error:
        there = jax.local_device_count("cpu")
        if there == count or (least and there > count):
            return
        raise DeviceError(
            f"{count} logical CPU devices asked for, {there} are already in use",
            source=here(),
            hint="call gd.config.set_logical_cpu_devices first, before any array is made",
        ) from error


def _require_positive(count: object, what: str) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError(f"{count!r} {what}: there must be at least 1")


@contextmanager
def at_least_cpu_devices(count: int) -> Iterator[None]:
    """Keep at least `count` logical CPU devices in a `with` block, if a program asks for fewer.

    Commands that load a program use this if they need devices of their own for the program. If JAX
    was started with fewer devices, the number of devices does not change.
    """
    global _least_cpu_devices
    before, _least_cpu_devices = _least_cpu_devices, count
    try:
        if count > 1:
            with suppress(DeviceError):
                set_logical_cpu_devices(count)
        yield
    finally:
        _least_cpu_devices = before


_least_cpu_devices = 0


def set_max_steps_in_flight(platform: str, count: int) -> None:
    """Allow `count` unfinished steps on a platform ("cpu", "gpu", "tpu").

    The default is 32, and 1 for steps over several CPU devices, where more can deadlock. Raises
    `ArgumentError` when `count` is not a positive integer.

    >>> set_max_steps_in_flight("gpu", 8)
    """
    _require_positive(count, "steps in flight")
    for spans_devices in (False, True):
        backpressure(platform, spans_devices=spans_devices).bound = count


def verifies_passes() -> bool:
    """Return whether the graph is verified after every pass that changed it."""
    return os.environ.get("GRAPHDIST_VERIFY", "1") != "0"


def reproducer_folder() -> Path:
    """Return the folder to which a failing pass writes its reproducer."""
    return Path(os.environ.get("GRAPHDIST_REPRODUCER_DIR", tempfile.gettempdir()))


def set_dump(folder: str | os.PathLike[str] | None) -> None:
    """Write a page for every function that is compiled from now on to a folder.

    `index.html` in the folder lists the pages, with the reason why a function was compiled again
    and what changed. With None no pages are written. The default is `GRAPHDIST_DUMP_DIR` of the
    environment. Raises `ArgumentError` for anything but a path.

    >>> set_dump(None)
    """
    _require_path(folder, 'set_dump("pages")')
    _chosen["dump"] = Path(folder).absolute() if folder else None


def _require_path(folder: object, call: str) -> None:
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise ArgumentError(
            f"the folder is {quoted(folder)}, which is no path",
            hint=f"write for instance {call}, or None for none",
        )


_chosen: dict[str, Any] = {}
"""The settings that the program has made, which have precedence over the environment."""


def dump_folder() -> Path | None:
    """Return the folder for pages of compiled functions; None if there is none."""
    named = os.environ.get("GRAPHDIST_DUMP_DIR")
    folder: Path | None = _chosen.get("dump", Path(named) if named else None)
    return folder


def set_compilation_cache(folder: str | os.PathLike[str] | None) -> None:
    """Keep compiled programs in a folder, where the next start of a program finds them.

    The folder becomes JAX's persistent compilation cache, which from now on keeps small programs
    too, programs of `jax.jit` and of single operations included. All workers of a job name the same
    folder, to which worker 0 writes. None keeps no programs. The default is
    `GRAPHDIST_COMPILATION_CACHE` of the environment, or else JAX's own setting. Raises
    `ArgumentError` for anything but a path, and for that of a file.

    >>> set_compilation_cache(None)
    """
    _require_path(folder, 'set_compilation_cache("compiled")')
    if folder is not None and (not os.fspath(folder) or Path(folder).is_file()):
        raise ArgumentError(
            f"the folder is {quoted(os.fspath(folder))}, which is no name of a folder",
            hint='write for instance set_compilation_cache("compiled"), or None for none',
        )
    keep_compiled(None if folder is None else os.fspath(folder))


if _folder := os.environ.get("GRAPHDIST_COMPILATION_CACHE"):
    set_compilation_cache(_folder)


def show_compilation(shown: bool = True) -> None:
    """Turn on or off the line that a terminal shows during a compilation of several seconds.

    By default the line is shown if stderr is a terminal, unless `GRAPHDIST_PROGRESS` is 0 in the
    environment.

    >>> show_compilation(False)
    >>> shows_compilation()
    False
    >>> show_compilation()
    """
    _chosen["progress"] = bool(shown)


def shows_compilation() -> bool:
    """Return whether a terminal shows that a compilation takes long."""
    return bool(_chosen.get("progress", os.environ.get("GRAPHDIST_PROGRESS", "1") != "0"))


def prepare_compilers() -> None:
    """Tell the TPU compiler that this host has no TPUs; variables that the user has set stay.

    Without this, libtpu asks the cloud for the TPUs of this host, and allows one process at a time.
    On a host with TPUs nothing is set, since the same process may use them.
    """
    if any(Path("/dev").glob("accel*")) or Path("/dev/vfio").is_dir():
        return
    for name, value in (
        ("TPU_SKIP_MDS_QUERY", "1"),
        ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
        ("TPU_ACCELERATOR_TYPE", "v5litepod-8"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
        ("TPU_MIN_LOG_LEVEL", "3"),
        ("TPU_STDERR_LOG_LEVEL", "3"),
        ("TF_CPP_MIN_LOG_LEVEL", "3"),
    ):
        os.environ.setdefault(name, value)


def compiler_flags() -> dict[str, str]:
    """Return the flags that the environment sets for XLA's compilers, by variable."""
    flags = {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    return {name: text for name, text in flags.items() if text}


def wants_no_colour() -> bool:
    """Return whether the user wants text without colours."""
    return bool(os.environ.get("NO_COLOR"))


def prepare_pager() -> None:
    """Let `less` show colours, and end if the text fits, unless the user has set its options.

    Without options `less` shows the codes of the colours. Git sets the same options.
    """
    os.environ.setdefault("LESS", "FRX")


def tf_config_text() -> str:
    """Return the text of `TF_CONFIG`, "{}" if it is unset."""
    return os.environ.get("TF_CONFIG", "{}")


def launch_variables() -> dict[str, str]:
    """Return the variables that launchers set for the processes that they start."""
    prefixes = ("SLURM_", "OMPI_", "PMI_", "MV2_", "JOB_", "KUBERNETES_", "TPU_", "MEGASCALE_")
    return {name: text for name, text in os.environ.items() if name.startswith(prefixes)}


def slurm_variable(name: str) -> str | None:
    """Return a variable of this task of Slurm, such as "PROCID"; None outside Slurm."""
    return os.environ.get(f"SLURM_{name}")


def visible_gpus() -> str | None:
    """Return the text with the ids of the GPUs that this process may use; None for all GPUs."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def set_visible_gpus(ids: Iterable[int]) -> None:
    """Let this process see these GPUs alone. This has no effect after devices are in use."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, ids))


def s3_server() -> S3Server:
    """Return the server that speaks S3, as the environment names it."""
    return S3Server(
        os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", ""),
        os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", ""),
        "AWS_ACCESS_KEY_ID" in os.environ,
    )


def choose_keras_backend(name: str) -> str:
    """Set the backend with which Keras is imported, unless the environment has one; return it."""
    return os.environ.setdefault("KERAS_BACKEND", name)


def choose_cpu_threads(count: int) -> None:
    """Set the threads of XLA for CPU devices not made yet, unless the environment sets them."""
    os.environ.setdefault("NPROC", str(count))


def tpu_name() -> str | None:
    """Return the name of the TPU that this host belongs to, if it is known."""
    return os.environ.get("TPU_NAME")


def tpu_worker_id() -> int | None:
    """Return the index of this host among the hosts of its TPU, if it is known.

    Raises `ArgumentError` if the environment has a text that is no index.
    """
    text = os.environ.get("TPU_WORKER_ID")
    return whole_number(text, "TPU_WORKER_ID") if text else None


def set_worker_timeouts(
    start_seconds: float | None = None,
    silence_seconds: float | None = None,
    step_seconds: float | None = None,
) -> None:
    """Set how long the processes of a cluster wait for each other, in seconds.

    Within `start_seconds`, 300 by default, all workers must start, and reach the same point of the
    program. A worker that sends nothing for `silence_seconds`, 60 by default, counts as dead; a
    worker whose process ends counts as dead at once. A step that has not ended after
    `step_seconds`, 1800 by default, fails: `float("inf")` lets it take any time, and
    `CommunicationOptions(timeout_seconds)` has precedence. The first two limits apply to parameter
    servers and their workers, too. Call this before the strategy is made. Raises
    `ArgumentError` for a value that is not a positive number, or more than ten million.

    >>> set_worker_timeouts(start_seconds=600)
    """
    limits = {"start": start_seconds, "silence": silence_seconds, "step": step_seconds}
    for name, seconds in limits.items():
        if seconds is not None:
            _chosen[name] = _seconds(seconds, f"{name}_seconds", name)


_MOST_SECONDS = 1e7
"""Four months. Timers of the system and of JAX overflow far beyond that time."""


def worker_timeouts() -> WorkerTimeouts:
    """Return how long the workers of a cluster wait for each other.

    Raises `ArgumentError` if `GRAPHDIST_WORKER_START_SECONDS`, `.._SILENCE_SECONDS` or
    `.._STEP_SECONDS` is set in the environment, but is no positive number.
    """
    limits: dict[str, Any] = {}
    for name in ("start", "silence", "step"):
        variable = f"GRAPHDIST_WORKER_{name.upper()}_SECONDS"
        if text := os.environ.get(variable):
            limits[name] = _seconds(_number_or_text(text), variable, name)
        if name in _chosen:
            limits[name] = _chosen[name]
    if limits.get("step") == float("inf"):
        limits["step"] = None
    return WorkerTimeouts(**limits)


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _seconds(seconds: Any, variable: str, name: str) -> float:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not seconds > 0:
        raise ArgumentError(f"{variable} is {quoted(seconds)}, not a positive number")
    if seconds > _MOST_SECONDS and not (name == "step" and seconds == float("inf")):
        raise ArgumentError(
            f"{variable} is {quoted(seconds)}: it must be at most {_MOST_SECONDS:.0f}",
            hint="only a step may take any time: step_seconds=float('inf')",
        )
    return float(seconds)


def set_value_checks(every_steps: int | None) -> None:
    """Set after how many steps the workers of a cluster compare the values they should all have.

    Mirrored arguments, Python numbers and variables have one value. The values are compared before
    the first call of each program, and again after every `every_steps` steps, 1000 by default. With
    None the values are compared before the first call only. All workers must set the same number,
    before they compile. Raises `ArgumentError` for anything else.

    >>> set_value_checks(every_steps=100)
    >>> set_value_checks(every_steps=1000)
    """
    if every_steps is not None:
        _require_steps(every_steps, "every_steps")
    _chosen["every"] = every_steps


def value_check_interval() -> int | None:
    """Return the number of steps between two comparisons; None if there is only the first.

    Raises `ArgumentError` if the environment has a text that is no positive number.
    """
    text = os.environ.get("GRAPHDIST_VALUE_CHECK_STEPS") or "1000"
    if "every" in _chosen or text == "0":
        return _chosen.get("every")
    return _require_steps(int(text) if text.isdecimal() else text, "GRAPHDIST_VALUE_CHECK_STEPS")


def _require_steps(count: Any, name: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError(f"{name} is {count!r}, not a positive whole number")
    return count


def job_identity() -> JobIdentity:
    """Return the job of this process, as the environment or else Slurm names it.

    Raises `ArgumentError` for a generation that is not a number, and for an id that is too long.
    """
    allocation, step = slurm_variable("JOB_ID"), slurm_variable("STEP_ID")
    of_slurm = f"slurm {allocation}.{step}" if allocation else ""
    job = os.environ.get("GRAPHDIST_JOB_ID") or of_slurm
    if len(job) > _LONGEST_JOB:
        raise ArgumentError(
            f"the id of the job is {quoted(job)}, of {len(job)} characters: the limit is "
            f"{_LONGEST_JOB}"
        )
    variables = ("GRAPHDIST_JOB_GENERATION", "SLURM_RESTART_COUNT")
    set_one = next((name for name in variables if os.environ.get(name)), None)
    generation = whole_number(os.environ[set_one], set_one) if set_one else 0
    token, installed = os.environ.get("GRAPHDIST_JOB_TOKEN", ""), versions()
    made_with = f"graphdist {installed['graphdist']}, jax {installed['jax']}"
    return JobIdentity(job, generation, token, made_with)


_LONGEST_JOB = 256
"""The largest length of a job's id. The first message has the id, and its length is limited."""


def ray_authenticates() -> bool:
    """Return whether processes of Ray ask for a token; known once Ray is started or joined."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def names_ray_token() -> bool:
    """Return whether the environment has Ray's token, or names its file."""
    return bool(os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"))


def worker_bind_address() -> str:
    """Return the address at which worker 0 listens; "" for its address in the cluster.

    Raises `ArgumentError` if the environment has something else.
    """
    text = os.environ.get(BIND_VARIABLE, "")
    if text and not is_host(text):
        raise ArgumentError(
            f"{BIND_VARIABLE} is {quoted(text)}, not an address without a port",
            hint="write for instance 0.0.0.0",
        )
    return text


def worker_environment(
    addresses: Sequence[str], index: int, job: JobIdentity, devices_per_worker: int = 0
) -> dict[str, str]:
    """Return the environment for the process of one worker; all workers run on this host.

    With `devices_per_worker` the worker sees this number of GPUs, which no other worker sees, or
    has this number of logical CPU devices. The C library asks for huge pages, unless the user has
    set whether it does.
    """
    task = {"type": "worker", "index": index}
    cluster = {"cluster": {"worker": list(addresses)}, "task": task}
    pages = HUGE_PAGES if may_ask_for_huge_pages() else ""
    environment = {
        **os.environ,
        "GLIBC_TUNABLES": ":".join(filter(None, (os.environ.get("GLIBC_TUNABLES"), pages))),
        "TF_CONFIG": json.dumps(cluster),
        "GRAPHDIST_JOB_ID": job.id,
        "GRAPHDIST_JOB_GENERATION": str(job.generation),
        "GRAPHDIST_JOB_TOKEN": job.token,
    }
    if devices_per_worker:
        environment["JAX_NUM_CPU_DEVICES"] = str(devices_per_worker)
        gpus = [gpu for gpu in (visible_gpus() or "").split(",") if gpu]
        if len(gpus) >= len(addresses) * devices_per_worker:
            own = gpus[index * devices_per_worker :][:devices_per_worker]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    return environment


HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""The tunable with which the C library of Linux asks for huge pages, read when a process starts."""


def may_ask_for_huge_pages() -> bool:
    """Return whether this is Linux and the environment does not set `HUGE_PAGES` in any way."""
    return sys.platform.startswith("linux") and not _sets_malloc("hugetlb")


def _sets_malloc(name: str) -> bool:
    """Return whether the environment has a setting of the C library's malloc (mallopt(3))."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return f"glibc.malloc.{name}" in tunables or f"MALLOC_{name.upper()}_" in os.environ


freed_memory.given.update(filter(_sets_malloc, freed_memory.SETTINGS))
