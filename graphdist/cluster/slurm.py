"""The cluster of a Slurm job step: the tasks on each node, and the GPUs of each task.

Slurm sets in the environment of every task how many tasks run on each node, in the order of the
nodes, and the rank of the task itself. Tasks are ranked node by node (Slurm's default, block
distribution), which gives their addresses: the n-th task of a node listens at the n-th port
from `port_base` on.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

from graphdist.cluster.resolver import TaskResolver
from graphdist.cluster.spec import ClusterSpec
from graphdist.config import set_visible_gpus, slurm_variable, visible_gpus
from graphdist.errors import ArgumentError, ContextError
from graphdist.quoted import quoted, unquoted
from graphdist.whole_numbers import MOST_TASKS, whole_number


class SlurmClusterResolver(TaskResolver):
    """The cluster of the Slurm job step this process runs in, as started by `srun`.

    `jobs` has the number of tasks of each job; by default all tasks are workers. The first ranks of
    the step belong to the job whose name is first in the alphabet. `tasks_per_node` is a number for
    all nodes, or a dict by node; by default Slurm's numbers. Every task gets `gpus_per_task` GPUs
    of its node, in order, by default an equal part.
    If `auto_set_gpu`, `cluster_spec()` makes these GPUs the only visible GPUs of this process, and
    must be called before anything runs on a device.

    Raises `ContextError` outside a job step, if the jobs have more or fewer tasks than the step, if
    Slurm's variables describe different numbers of nodes, and if tasks need more GPUs than a node
    has. Raises `ArgumentError` for a count that is no whole number, and for a variable of Slurm
    that cannot be parsed.
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        self._rank = _number("PROCID")
        counts = jobs or {"worker": _number("STEP_NUM_TASKS", "NTASKS")}
        self._jobs = {job: _count(count, f"job {quoted(job)}") for job, count in counts.items()}
        self._port_base, self._auto_set_gpu = port_base, auto_set_gpu
        self._rpc_layer = rpc_layer
        tasks_of = _tasks_by_node(tasks_per_node)
        self._places = [(node, index) for node, count in tasks_of.items() for index in range(count)]
        """The node of each task in order of rank, and the index of the task on its node."""
        num_tasks = len(self._places)
        if sum(self._jobs.values()) != num_tasks:
            raise ContextError(
                f"the jobs have {sum(self._jobs.values())} tasks, the Slurm step has {num_tasks}",
                hint="let srun start as many tasks as the jobs have together",
            )
        if self._rank >= num_tasks:
            raise ContextError(
                f"SLURM_PROCID is {self._rank}, and the Slurm step has {num_tasks} tasks",
                hint="tasks are numbered from 0; start the program with srun",
            )
        most = max(tasks_of.values(), default=1)
        num_gpus = num_visible_gpus() if gpus_per_node is None else gpus_per_node
        self._gpus_per_task = num_gpus // most if gpus_per_task is None else gpus_per_task
        if most * self._gpus_per_task > num_gpus:
            raise ContextError(
                f"{most} tasks with {self._gpus_per_task} GPUs each need "
                f"{most * self._gpus_per_task} GPUs of a node, which has {num_gpus}",
                hint="run fewer tasks on a node, or give each fewer GPUs",
            )
        self._num_accelerators = {"GPU": self._gpus_per_task}
        self._tasks = [(job, i) for job, count in sorted(self._jobs.items()) for i in range(count)]
        self._task_type, self._task_id = self._tasks[self._rank]

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of all tasks by job; sets the visible GPUs if `auto_set_gpu`."""
        spec: dict[str, list[str]] = {job: [] for job in sorted(self._jobs)}
        for (job, _), (node, index) in zip(self._tasks, self._places, strict=True):
            spec[job].append(f"{node}:{self._port_base + index}")
        if self._auto_set_gpu and self._gpus_per_task:
            _, index = self._places[self._rank]
            first = index * self._gpus_per_task
            set_visible_gpus(range(first, first + self._gpus_per_task))
        return ClusterSpec(spec)

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Return the job of this process's task, and the index of the task in the job."""
        return self.task_type, self.task_id


def expand_hostlist(hostlist: str) -> list[str]:
    """Return the nodes of a list as Slurm writes it; raises `ArgumentError` for another text.

    >>> expand_hostlist("n[01-03],m5,o[3-4,6]")
    ['n01', 'n02', 'n03', 'm5', 'o3', 'o4', 'o6']
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+|(?<=,)(?=,)|^(?=,)", hostlist):
        match = re.fullmatch(r"([^,\[\]]*)(?:\[([^\[\]]+)\])?", part)
        numbers = match and match[2] and _range_numbers(match[2])
        if match is None or not part or numbers == []:
            raise ArgumentError(
                f"{quoted(hostlist)} is no list of Slurm nodes: {quoted(part)} is not a name with "
                f"one range at its end"
            )
        hosts += [match[1]] if numbers is None else [match[1] + number for number in numbers[1:]]
    return hosts


def _range_numbers(text: str) -> list[str]:
    """Return "" and the numbers of a range like "3-4,6"; [] if it is no range."""
    numbers = [""]
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        if match is None:
            return []
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) >= MOST_TASKS:
            return []
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def expand_tasks_per_node(tasks_per_node: str) -> list[int]:
    """Return the count of tasks of each node, in order, from a text as Slurm writes it.

    Raises `ArgumentError` for another text.

    >>> expand_tasks_per_node("3(x2),2,1")
    [3, 3, 2, 1]
    """
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        if match is None:
            raise ArgumentError(
                f"{quoted(tasks_per_node)} does not say how many tasks run on each node: "
                f"{quoted(part)} is not like '2' or '2(x3)'"
            )
        nodes = whole_number(match[2] or "1", f"the number of nodes in {quoted(part)}")
        counts += [whole_number(match[1], "the number of tasks of a node")] * nodes
    return counts


def num_visible_gpus() -> int:
    """Return the number of GPUs that this process may use, without starting the GPUs."""
    visible = visible_gpus()
    if visible is not None:
        return len([gpu for gpu in visible.split(",") if gpu])
    command = shutil.which("nvidia-smi")
    if command is None:
        return 0
    listed = subprocess.run([command, "--list-gpus"], capture_output=True, text=True, check=False)
    if listed.returncode:
        raise ContextError(
            f"nvidia-smi does not say how many GPUs there are: {unquoted(listed.stderr.strip())}",
            hint="give gpus_per_node",
        )
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def _tasks_by_node(tasks_per_node: int | Mapping[str, int] | None) -> dict[str, int]:
    if isinstance(tasks_per_node, Mapping):
        return {node: _count(tasks, node) for node, tasks in tasks_per_node.items()}
    nodes = expand_hostlist(_variable("STEP_NODELIST"))
    if tasks_per_node is not None:
        return dict.fromkeys(nodes, _count(tasks_per_node, "a node"))
    counts = expand_tasks_per_node(_variable("STEP_TASKS_PER_NODE"))
    tasks_of = dict(zip(nodes, counts, strict=False))
    if len(counts) != len(tasks_of):
        raise ContextError(
            f"SLURM_STEP_NODELIST has {len(tasks_of)} nodes, "
            f"SLURM_STEP_TASKS_PER_NODE the tasks of {len(counts)}",
            hint="start the program with srun, which sets both",
        )
    return tasks_of


def _count(tasks: object, of: str) -> int:
    return whole_number(tasks, f"the number of tasks of {of}")


def _number(*names: str) -> int:
    """Return the number in the first of these variables of Slurm that is set."""
    return whole_number(_variable(*names), f"SLURM_{names[0]}")


def _variable(*names: str) -> str:
    """Return the text of the first of these variables of Slurm that is set."""
    for name in names:
        value = slurm_variable(name)
        if value is not None:
            return value
    raise ContextError(
        f"SLURM_{names[0]} is not set: this process is no task of a Slurm step",
        hint="start the program with srun",
    )
