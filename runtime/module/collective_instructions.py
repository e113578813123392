"""The collectives of a compiled module.

XLA combines, splits, fuses and moves collectives; only its optimised module shows the result:

    %all-reduce.1 = (f32[8]{0}, f32[]) all-reduce(%a, %b), replica_groups={{0,1}}, ...

The arrays of the type, before the operation, are the results. Some starts of asynchronous
collectives list operands and handles in their type, too: `((f32[8]{0}), f32[8]{0})`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from graphdist.ir.collective_bytes import Exchange
from graphdist.runtime.module.instructions import CompiledModule, Instruction, bytes_of_element

_KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "collective-broadcast": "collective_broadcast",
    "send": "network_send",
}
_SCATTERING = "all-reduce-scatter"
"""Part of a computation's name if the TPU compiler runs its all-reduce as a reduce-scatter."""
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_TRANSPOSED = re.compile(
    r"replica_groups=\[(?P<groups>\d+),(?P<size>\d+)\]<=\[(?P<sides>[\d,]+)\]"
    r"(?:T\((?P<order>[\d,]+)\))?"
)
_MESH = re.compile(r"replica_groups=mesh\[(?P<axes>[^\]]*)\][^{}]*\{(?P<names>[^}]*)\}")
"""A mesh with its axes, and the axes of which the members of a group differ (from JAX 0.11 on)."""
_AXIS = re.compile(r"'(?P<name>[^']*)'=(?P<size>\d+)")
_PAIRS = re.compile(r"source_target_pairs=\{([{}\d,]*)\}")
_CHAIN = re.compile(r'chain_id="(\d+)"')
_NESTED = re.compile(r"= \(\(")
_CONTEXT = ("u32", 1)


@dataclass(frozen=True, slots=True)
class ModuleCollective:
    """One collective of a compiled module.

    `shapes` are the dtype and the number of elements of each operand on a replica, `bytes` the
    bytes of all operands, `times` the number of runs per step.
    """

    name: str
    kind: str
    shapes: tuple[tuple[str, int], ...]
    bytes: int
    group_size: int
    times: int
    is_async: bool
    is_fused: bool
    every: int = 1
    """Only one step in `every` runs the collective; more than 1 in the branch of local steps."""

    @property
    def bytes_sent(self) -> float:
        """Return the bytes that each replica sends in one run."""
        return Exchange(self.kind, self.bytes, range(self.group_size)).bytes_sent

    @property
    def bytes_a_step(self) -> int:
        """Return the bytes of the operands per replica and step, on average."""
        return round(self.bytes * self.times / self.every)


def module_collectives(module: CompiledModule, num_devices: int) -> tuple[ModuleCollective, ...]:
    """Return the collectives of an optimised HLO module.

    >>> module = CompiledModule('''ENTRY %main (a: f32[8]) -> f32[8] {
    ...   ROOT %r = f32[8]{0} all-reduce(%a), replica_groups={{0,1}}, to_apply=%sum
    ... }''')
    >>> module_collectives(module, 2)[0].bytes
    32
    """
    found = []
    parts: set[tuple[str, str, object]] = set()
    for computation in module:
        times, every = module.executions[computation], module.branches.get(computation, 1)
        for instruction in module[computation]:
            if kind_of(instruction) is None or is_local(instruction):
                continue
            collective = _collective(instruction, computation, num_devices, times, every)
            # On TPU an asynchronous collective appears three times: start, continuation, end.
            part = (chain_of(instruction), collective.kind, collective.shapes)
            if part not in parts or not part[0]:
                found.append(collective)
            parts.add(part)
    return tuple(found)


def exchange_of(instruction: Instruction, kind: str, num_devices: int) -> Exchange:
    """Return the exchange of an instruction that runs a collective of this kind."""
    size = _collective(instruction, "", num_devices).bytes
    return Exchange(kind, size, members_of(instruction, num_devices))


def kind_of(instruction: Instruction, inside: str = "") -> str | None:
    """Return the kind of the collective that an instruction runs or starts; None for no collective.

    `inside` is the name of the computation that contains the instruction, if it is known.
    """
    kind = _KINDS.get(instruction.opcode.removesuffix("-start"))
    return "reduce_scatter" if kind == "all_reduce" and _SCATTERING in inside else kind


def is_local(instruction: Instruction) -> bool:
    """Return whether an instruction sends within a TPU slice or to the host, not over a network."""
    return instruction.opcode == "send" and "megascale" not in instruction.line


def sends_back(instruction: Instruction) -> bool:
    """Return whether an instruction is a permutation that sends to the device before.

    In a rotation of a ring one device, the first or the last, sends the other way round. A ring of
    two devices is the same both ways, and counts as sending back.

    >>> module = CompiledModule('''ENTRY %main (a: f32[8]) -> f32[8] {
    ...   %b = f32[8]{0} collective-permute(%a), source_target_pairs={{1,0},{2,1},{0,2}}
    ...   ROOT %r = f32[8]{0} collective-permute(%b), source_target_pairs={{2,0},{0,1},{1,2}}
    ... }''')
    >>> [sends_back(each) for each in module["main"][-2:]]
    [True, False]
    """
    numbers = [int(each) for each in re.findall(r"\d+", instruction.matched(_PAIRS))]
    back = sum(source > target for source, target in zip(numbers[::2], numbers[1::2], strict=True))
    return 0 < len(numbers) <= 4 * back


def chain_of(instruction: Instruction) -> str:
    """Return the id that the parts of an asynchronous collective share on v5e; "" without one."""
    return instruction.matched(_CHAIN)


def _collective(
    instruction: Instruction, computation: str, num_devices: int, times: int = 1, every: int = 1
) -> ModuleCollective:
    line, group = instruction.line, len(members_of(instruction, num_devices))
    kind = kind_of(instruction)
    assert kind is not None
    is_start = instruction.opcode.endswith("-start")
    shapes = [(array.dtype, prod(array.dimensions)) for array in instruction.arrays]
    if kind == "network_send":
        shapes = shapes[:1]  # the rest is a handle
    elif is_start and kind == "collective_permute":
        shapes = [shape for shape in shapes if shape != _CONTEXT]
        shapes = shapes[: max(len(shapes) // 2, 1)]  # operands, then results, then handles
    elif is_start and (kind in ("all_gather", "reduce_scatter") or _NESTED.search(line)):
        shapes = shapes[: max(len(shapes) // 2, 1)]  # operands, then results
    elif kind == "all_gather":
        shapes = [(dtype, size // group) for dtype, size in shapes]
    elif kind == "reduce_scatter":
        shapes = [(dtype, size * group) for dtype, size in shapes]
    elif kind == "all_to_all" and len(shapes) == group:  # on CPU it has one value per replica
        shapes = [(shapes[0][0], sum(size for _, size in shapes))]
    marks = ('is_sync":false', "async_collective", "chain_id")
    in_async = "async" in computation or any(mark in line for mark in marks)
    kind = kind_of(instruction, computation) or kind
    size = sum(count * bytes_of_element(dtype) for dtype, count in shapes)
    is_async = in_async or (is_start and 'is_sync":true' not in line)
    facts = instruction.name, kind, tuple(shapes), size, group, times
    return ModuleCollective(*facts, is_async, is_fused="fus" in computation, every=every)


def members_of(instruction: Instruction, num_devices: int) -> Sequence[int]:
    """Return the indices of the replicas of a collective's first group.

    Groups are listed, or written as a transposed array of all replicas: `[2,2]<=[2,2]T(1,0)` are
    {0, 2} and {1, 3}. Or they lie along axes of a mesh: `mesh['a'=2,'b'=2] {'a'}` are the same. A
    collective without groups has all replicas. Of a permutation, the members are the replicas that
    send or receive. In a module for several slices, replicas that exchange without the network are
    counted within their slice.
    """
    if pairs := instruction.matched(_PAIRS):
        return sorted({int(replica) for replica in re.findall(r"\d+", pairs)})
    if listed := instruction.matched(_LISTED):
        return tuple(map(int, listed.split(",")))
    if mesh := _MESH.search(instruction.line):
        axes = {axis["name"]: int(axis["size"]) for axis in _AXIS.finditer(mesh["axes"])}
        replicas = np.arange(prod(axes.values())).reshape(tuple(axes.values()))
        named = re.findall(r"'([^']*)'", mesh["names"])
        first = tuple(slice(None) if axis in named else 0 for axis in axes)
        return tuple(replicas[first].reshape(-1).tolist())
    found = _TRANSPOSED.search(instruction.line)
    if found is None:
        return range(num_devices)
    sides = [int(side) for side in found["sides"].split(",")]
    replicas = np.arange(prod(sides)).reshape(sides)
    if found["order"]:
        replicas = replicas.transpose([int(axis) for axis in found["order"].split(",")])
    return tuple(replicas.reshape(-1)[: int(found["size"])].tolist())
