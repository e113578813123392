"""The cost of a compiled module's instructions: operations and bytes, from the module's text.

* The operations of matrix multiplications and convolutions, in the instruction or its fusion, and
  of calls of cuBLAS and cuDNN.
* The bytes that cross between the chip and its memory: operands and results, but not arrays in a
  core's own memory. Of an operand of which a fusion reads only slices, the slices count. Of an
  operand that a fusion updates in place, the update counts. Of an operand that a collective in the
  fusion sends, nothing counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from graphdist.runtime.module.collective_instructions import kind_of
from graphdist.runtime.module.instructions import CompiledModule, Instruction, ModuleArray

_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
_LABELS = re.compile(r"dim_labels=(?P<input>\w+)_(?P<kernel>\w+)->(?P<output>\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "opt-barrier", "add-dependency", "domain",
}  # fmt: skip
_SLICES = ("dynamic-slice", "slice", "gather")
_CUBLAS, _CUDNN = "__cublas", "__cudnn$conv"
_UPDATE = "dynamic-update-slice"


class ModuleCost:
    """The operations and bytes of a module's instructions.

    >>> module = CompiledModule('''ENTRY %main (x: bf16[8,4]) -> bf16[8,2] {
    ...   %x = bf16[8,4]{1,0} parameter(0)
    ...   %y = bf16[4,2]{1,0} parameter(1)
    ...   ROOT %z = bf16[8,2]{1,0} dot(%x, %y), lhs_contracting_dims={1}
    ... }''')
    >>> cost, product = ModuleCost(module), module["main"][-1]
    >>> cost.products(product), cost.bytes(product)
    (('bf16', 128), 112)
    """

    def __init__(self, module: CompiledModule) -> None:
        self._module = module

    def is_free(self, instruction: Instruction) -> bool:
        """Return whether an instruction runs nothing on the chip."""
        return instruction.opcode in _FREE

    def products(self, instruction: Instruction) -> tuple[str, int]:
        """Return the dtype and number of operations of an instruction's products; 0 without any."""
        if instruction.opcode == "fusion":
            inner = (each for name in instruction.called for each in self._module[name])
            return max(map(self.products, inner), key=lambda found: found[1], default=("", 0))
        operands = self._arrays(instruction)
        if len(operands) < 2:
            return "", 0
        target = instruction.target
        if instruction.opcode == "dot" or target.startswith(_CUBLAS):
            return operands[0].dtype, self._of_dot(instruction, operands[0])
        if instruction.opcode == "convolution":
            return operands[0].dtype, self._of_convolution(instruction, operands)
        if target.startswith(_CUDNN):
            return operands[0].dtype, self._of_call(instruction, operands)
        return "", 0

    def _of_dot(self, instruction: Instruction, left: ModuleArray) -> int:
        listed = re.findall(r"\d+", instruction.matched(_CONTRACTED))
        summed = prod(left.dimensions[int(dimension)] for dimension in listed)
        return 2 * prod(instruction.arrays[0].dimensions) * summed

    def _of_convolution(self, instruction: Instruction, operands: Sequence[ModuleArray]) -> int:
        """Return 2 operations for each product of a weight and an input, without those of padding.

        XLA writes products of batches of matrices as convolutions that mostly read padding.
        """
        labels = _LABELS.search(instruction.line)
        if labels is None:
            return 0
        read, kernel, output = operands[0], operands[1], instruction.arrays[0]
        count = kernel.dimensions[labels["kernel"].index("i")]
        for label, size in zip(labels["output"], output.dimensions, strict=True):
            if label in "bf":
                count *= size
            else:
                taps = kernel.dimensions[labels["kernel"].index(label)]
                inputs = read.dimensions[labels["input"].index(label)]
                count *= _pairs(instruction, int(label), size, taps, inputs)
        return 2 * count

    def _of_call(self, instruction: Instruction, operands: Sequence[ModuleArray]) -> int:
        """Return the operations of a cuDNN call. Calls of gradients have the forward labels."""
        output, kernel = instruction.arrays[0], operands[1]
        if "BackwardInput" in instruction.target:
            output = operands[0]
        elif "BackwardFilter" in instruction.target:
            output, kernel = operands[1], instruction.arrays[0]
        labels = _LABELS.search(instruction.line)
        if labels is None:
            return 0
        features = kernel.dimensions[labels["kernel"].index("o")]
        return 2 * prod(output.dimensions) * prod(kernel.dimensions) // features

    def bytes(self, instruction: Instruction) -> int:
        """Return the bytes that an instruction reads and writes."""
        if instruction.opcode == "fusion" and instruction.called:
            return self._of_fusion(instruction)
        if instruction.opcode in _SLICES:
            return 2 * _bytes(instruction.arrays)
        operands = self._arrays(instruction)
        if instruction.opcode == _UPDATE:
            return 2 * operands[1].bytes if len(operands) > 1 else 0
        return _bytes(operands) + _bytes(instruction.arrays)

    def _of_fusion(self, instruction: Instruction) -> int:
        body = self._module[instruction.called[0]]
        read = sum(self._read(each, body) for each in body if each.opcode == "parameter")
        return read + sum(self._written(root) for root in self._roots(body))

    def _read(self, parameter: Instruction, body: Sequence[Instruction]) -> int:
        """Return the bytes of an operand that a fusion reads."""
        full, total = _bytes(parameter.arrays), 0
        for user, name in _users(parameter.name, body) if full else ():
            part = self._part(user, name)
            if part is None:
                return full
            total += part
        return min(total, full)

    def _part(self, user: Instruction, name: str) -> int | None:
        """Return the bytes of a value that an instruction in a fusion reads; None for all."""
        if user.opcode in _SLICES and user.operands[0] == name:
            return _bytes(user.arrays)
        if user.opcode == _UPDATE and user.operands[0] == name:
            return 0
        if user.opcode == "tuple" or kind_of(user):
            return 0  # the value is passed on, or a collective sends it
        if user.opcode != "fusion" or not user.called:
            return None
        inner = self._module[user.called[0]]
        places = {f"parameter({place})" for place, each in enumerate(user.operands) if each == name}
        taken = [
            each
            for each in inner
            if each.opcode == "parameter" and any(place in each.line for place in places)
        ]
        return sum(self._read(each, inner) for each in taken)

    def _written(self, root: Instruction) -> int:
        if root.opcode == _UPDATE:
            return self._arrays(root)[1].bytes
        if root.opcode == "parameter" or kind_of(root):
            return 0
        if root.opcode == "fusion" and root.called:
            inner = self._roots(self._module[root.called[0]])
            if any(each.opcode == _UPDATE for each in inner):
                return sum(map(self._written, inner))
        return _bytes(root.arrays)

    def _roots(self, body: Sequence[Instruction]) -> list[Instruction]:
        if not body:
            return []
        last = body[-1]
        while last.opcode == "bitcast" and last.operands[0] in self._module.instructions:
            last = self._module.instructions[last.operands[0]]
        if last.opcode != "tuple":
            return [last]
        known = self._module.instructions
        return [known[name] for name in last.operands if name in known]

    def _arrays(self, instruction: Instruction) -> list[ModuleArray]:
        """Return an array of each operand. Of an operand with several arrays, it is the first."""
        known = self._module.instructions
        found = [known[name].arrays for name in instruction.operands if name in known]
        return [arrays[0] for arrays in found if arrays]


def _pairs(instruction: Instruction, place: int, outputs: int, taps: int, inputs: int) -> int:
    """Return the number of pairs of an output and a window tap that reads an input, not padding.

    The pairs are counted along one spatial dimension, whose index is `place`.
    """
    said = dict(each.split("=") for each in instruction.matched(_WINDOW).split())

    def given(name: str, default: str) -> str:
        return said[name].split("x")[place] if name in said else default

    stride, before = int(given("stride", "1")), int(given("pad", "0_0").split("_")[0])
    apart, spread = int(given("rhs_dilate", "1")), int(given("lhs_dilate", "1"))
    found = 0
    for tap in range(taps):
        # Output o reads index o * stride + tap * apart - before of the dilated, padded input.
        begin = tap * apart - before
        if spread == 1:
            first = max(-(begin // stride), 0)
            found += max(min((inputs - 1 - begin) // stride, outputs - 1) - first + 1, 0)
            continue
        at = (output * stride + begin for output in range(outputs))
        found += sum(0 <= each <= (inputs - 1) * spread and each % spread == 0 for each in at)
    return found


_ALIAS = "output_to_operand_aliasing={{}: (0, {})}"
"""The attribute of an instruction in a fusion that returns its operand in another layout."""


def _users(name: str, body: Sequence[Instruction]) -> list[tuple[Instruction, str]]:
    """Return the users of a value and of its views, each with the name that the user uses."""
    found = []
    for each in body:
        if name in each.operands:
            is_view = each.opcode == "bitcast" or _ALIAS in each.line
            found += _users(each.name, body) if is_view else [(each, name)]
    return found


def _bytes(arrays: Sequence[ModuleArray]) -> int:
    """Return the bytes of arrays in the memory of the chip, not in a core's own."""
    return sum(array.bytes for array in arrays if array.memory_space == 0)
