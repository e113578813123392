"""Checks that a custom call of a module has the form that JAX gives it.

`module_reader.py` describes each call by texts of MLIR: the types of operands and results, every
attribute, and the settings of `mhlo.backend_config`. The expected texts follow from a signature of
the target (`custom_call_signatures.py`) and the call's operands. They are written here as MLIR
writes them, and compared. So unknown attributes are refused, and so are other spellings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any  # Any: JSON

from graphdist.runtime.files.custom_call_signatures import SIGNATURES, Signature

_TYPE = re.compile(r"tensor<((?:\d+x)*)(complex<\w+>|\w+)>")
_VALUE = re.compile(r"(\w+)(?:\[([^\]]*)\]|\(\))(?:@(\d+))?")
_REAL = {"complex<f32>": "f32", "complex<f64>": "f64"}
_COMPLEX = {real: element for element, real in _REAL.items()}
_COMPARED = re.compile(r"(\w)(<=?)(\w)")
_ALIAS = (
    "#stablehlo.output_operand_alias<output_tuple_indices = [{}], operand_index = {}, "
    "operand_tuple_indices = []>"
)
_SHARDED = {"backend_config": r'"unspecified_dims=\[[\d,]*\]"', "mhlo.sharding": ".*"}
COMPILERS: dict[str, dict[str, str]] = {
    "Eigh": {"backend_config": r'"[01],[01],100,1e-6"'},
    "LuDecomposition": {"api_version": "2 : i32"},
    "annotate_device_placement": {
        "has_side_effect": "true",
        "mhlo.frontend_attributes": r'\{_xla_buffer_placement = "(pinned_host|unpinned_host|'
        r'device)"\}',
    },
    **dict.fromkeys(("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"), _SHARDED),
    "ApproxTopK": {"called_computations": r"\[@[\w.]+\]"},
}
"""The attributes that calls of the compiler's own targets may have, as regular expressions."""
_TOP_K_SETTINGS = {
    *("aggregate_to_topk", "is_fallback", "recall_target", "reduction_dim", "top_k"),
    "reduction_input_size_override",
}
TARGETS = {*SIGNATURES, *COMPILERS}
"""The custom calls that a module may have: those of JAX's own operations on CPU, GPU and TPU."""

Array = tuple[tuple[int, ...], str]
"""The dimensions and the element type of a value."""


class Misfit(Exception):
    """A custom call does not have the form of its target."""


def misfit(call: Mapping[str, Any]) -> str:
    """Return what is wrong with a custom call of a known target; "" if JAX could have made it."""
    try:
        operands, results = [list(map(array, call[key])) for key in ("operands", "results")]
        if call["target"] == "ApproxTopK":
            _check_top_k(call, operands, results)
            _require_attributes(call, COMPILERS["ApproxTopK"])
        elif call["target"] in SIGNATURES:
            _check_signatures(call, operands, results)
        else:
            _check_shards(call, operands, results)
    except Misfit as misfit:
        return str(misfit)
    return ""


def array(type: str) -> Array:
    """Return dimensions and element type of an MLIR type; raises `Misfit` if it is no array type.

    >>> array("tensor<2x3xcomplex<f32>>")
    ((2, 3), 'complex<f32>')
    """
    match = _TYPE.fullmatch(type)
    if match is None:
        raise Misfit(f"has a value of type {type:.100}, which is no array of known size")
    return tuple(map(int, match[1].split("x")[:-1])), match[2]


def _check_signatures(call: Mapping[str, Any], operands: list[Array], results: list[Array]) -> None:
    """Raise the `Misfit` of the target's last signature unless one of its signatures fits."""
    *others, last = SIGNATURES[call["target"]]
    for form in others:
        with suppress(Misfit):
            _Fit(form).check(call, operands, results)
            return
    _Fit(last).check(call, operands, results)


@dataclass
class _Fit:
    """A signature, and what its letters stand for in a call."""

    form: Signature
    batch: tuple[int, ...] | None = None
    element: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    aliases: list[tuple[int, int]] = field(default_factory=list)

    def check(self, call: Mapping[str, Any], operands: list[Array], results: list[Array]) -> None:
        """Raise `Misfit` if the call differs from the signature."""
        values, _, settings = self.form.text.partition(";")
        taken, _, returned = values.partition("->")
        self._check_values(taken.split(), operands, "operand")
        self._check_values(returned.split(), results, "result")
        self._check_settings(settings.split(), call["settings"])
        if self.form.layout:
            self._check_attributes(call["attributes"], operands, results)
        else:
            _require_attributes(call, COMPILERS.get(call["target"], {}))

    def _check_values(self, wanted: list[str], actual: list[Array], what: str) -> None:
        if len(wanted) != len(actual):
            raise Misfit(f"has {len(actual)} {what}s, not {len(wanted)}")
        for number, (text, value) in enumerate(zip(wanted, actual, strict=True)):
            match = _VALUE.fullmatch(text)
            assert match is not None, text
            kind, sizes, alias = match.groups()
            expected = self._dimensions(sizes, value[0]), self._element(kind, value[1])
            if value != expected:
                raise Misfit(f"has the {what} {number} {_shown(value)}, not {_shown(expected)}")
            if alias is not None:
                self.aliases.append((number, int(alias)))

    def _dimensions(self, sizes: str | None, actual: tuple[int, ...]) -> tuple[int, ...]:
        """Return the dimensions that a value must have; a new letter gets its size in `actual`."""
        if sizes is None:
            return ()
        names = sizes.split(",") if sizes else []
        if self.batch is None:
            self.batch = actual[: max(0, len(actual) - len(names))]
        own = actual[len(self.batch) :]
        for name, size in zip(names, own, strict=False):
            if len(name) == 1:
                self.sizes.setdefault(name, size)
        return (*self.batch, *map(self._size, names))

    def _size(self, name: str) -> int:
        if name == "min":
            return min(self.sizes["m"], self.sizes["n"])
        return self.sizes.get(name[0], -1) - (name[1:] == "-1")

    def _element(self, kind: str, actual: str) -> str:
        """Return the element type of a kind; the first `T` or `X` gets the `actual` type."""
        if kind in "TX" and not self.element:
            if kind == "T" and actual not in self.form.elements:
                raise Misfit(
                    f"has elements of type {actual}, not {' or '.join(self.form.elements)}"
                )
            self.element = actual
        if kind in "TXRC":
            return {"R": _REAL, "C": _COMPLEX}.get(kind, {}).get(self.element, self.element)
        return kind

    def _check_settings(self, wanted: list[str], actual: Mapping[str, str]) -> None:
        """Raise `Misfit` unless a call has the wanted settings, and sizes in the wanted order."""
        choices: dict[str, list[str]] = {}
        for text in wanted:
            if compared := _COMPARED.fullmatch(text):
                one, sign, other = compared.groups()
                if self.sizes[one] + (sign == "<") > self.sizes[other]:
                    raise Misfit(
                        f"has sizes {one} = {self.sizes[one]} and {other} = {self.sizes[other]}, "
                        f"where {text}"
                    )
                continue
            name, _, values = text.partition("=")
            choices[name] = [self._setting(value) for value in values.split("|")]
        if set(actual) != set(choices):
            raise Misfit(f"has the settings {_listed(actual)}, not {_listed(choices)}")
        for name, allowed in choices.items():
            if actual[name] not in allowed:
                raise Misfit(
                    f"has the setting {name} = {actual[name]:.60}, not {' or '.join(allowed)}"
                )

    def _setting(self, value: str) -> str:
        """Return a setting as MLIR writes it."""
        if value.isupper():
            return f"{ord(value)} : ui8"
        size, _, type = value.partition(":")
        return f"{self.sizes.get(size, size)} : {type}" if type else value

    def _check_attributes(
        self, actual: Mapping[str, str], operands: list[Array], results: list[Array]
    ) -> None:
        assert self.batch is not None
        rank = len(self.batch) + 2 if self.form.layout == "columns" else -1
        single = len(results) == 1
        required = {
            "operand_layouts": _layouts(operands, rank),
            "result_layouts": _layouts(results, rank),
        }
        if self.aliases:
            texts = [_ALIAS.format("" if single else at, operand) for at, operand in self.aliases]
            required["output_operand_aliases"] = f"[{', '.join(texts)}]"
        allowed = {
            **required,
            "mhlo.frontend_attributes": f'{{num_batch_dims = "{len(self.batch)}"}}',
            "sdy.sharding_rule": _sharding_rule(len(self.batch), operands, results),
        }
        for name in {**required, **actual}:
            if actual.get(name) != allowed.get(name):
                raise Misfit(
                    f"has {name} = {actual.get(name, 'nothing'):.200}, "
                    f"not {allowed.get(name, 'nothing'):.200}"
                )


def _layouts(arrays: list[Array], matrix_rank: int) -> str:
    """Return the layouts of values as MLIR writes them.

    Values of the rank `matrix_rank` are column-major matrices, all other values are row-major.
    """
    written = []
    for dimensions, _ in arrays:
        order = list(reversed(range(len(dimensions))))
        if len(order) == matrix_rank:
            order[:2] = reversed(order[:2])
        text = str(order[0]) if len(order) == 1 else str(order) if order else ""
        written.append(f"dense<{text}> : tensor<{len(order)}xindex>")
    return f"[{', '.join(written)}]"


def _sharding_rule(num_batch: int, operands: list[Array], results: list[Array]) -> str:
    """Return Shardy's rule as JAX writes it: values share only the factors of batch dimensions."""
    factors: dict[str, int] = {}

    def named(size: int) -> str:
        number = len(factors)
        name = chr(ord("i") + number) if number < 18 else f"z_{number - 17}"
        factors[name] = size
        return name

    batch = [named(size) for size in operands[0][0][:num_batch]]

    def sides(arrays: list[Array]) -> str:
        texts = []
        for dimensions, _ in arrays:
            own = [named(size) for size in dimensions[num_batch:]] if dimensions else []
            texts.append(f"[{', '.join([*(batch if dimensions else []), *own])}]")
        return f"({', '.join(texts)})"

    arrow = f"{sides(operands)}->{sides(results)}"
    sizes = ", ".join(f"{name}={size}" for name, size in factors.items())
    return f"#sdy.op_sharding_rule<{arrow} {{{sizes}}}, custom>"


def _check_top_k(call: Mapping[str, Any], operands: list[Array], results: list[Array]) -> None:
    """Raise `Misfit` unless an `ApproxTopK` has the form that JAX's `approx_max_k` gives it."""
    if len(operands) != 4 or len(results) != 2:
        raise Misfit(f"has {len(operands)} operands and {len(results)} results, not 4 and 2")
    dimensions, element = operands[0]
    settings = call["settings"]
    along = _number(settings, "reduction_dim", "i64", 0, len(dimensions) - 1)
    count = _number(settings, "top_k", "i64", 1, dimensions[along])
    override = _number(settings, "reduction_input_size_override", "i64", -1, 2**48)
    if -1 != override < dimensions[along]:
        raise Misfit(f"has an input of {dimensions[along]} elements, overridden by {override}")
    recall = re.fullmatch(r"(\d\.\d+(?:[eE]-?\d+)?) : f32", settings.get("recall_target", ""))
    aggregates = settings.get("aggregate_to_topk")
    is_known = aggregates in ("true", "false") and settings.get("is_fallback", "true") == "true"
    is_known = is_known and set(settings) <= _TOP_K_SETTINGS
    if recall is None or not 0 < float(recall[1]) <= 1 or not is_known:
        raise Misfit(f"has the settings {_listed(settings)} with other values than JAX gives")
    size = results[0][0][along] if len(results[0][0]) == len(dimensions) else 0
    if aggregates == "true" or not count <= size <= dimensions[along]:
        size = count
    shape = (*dimensions[:along], size, *dimensions[along + 1 :])
    wanted = [operands[0], (dimensions, "i32"), ((), element), ((), "i32")]
    wanted += [(shape, element), (shape, "i32")]
    for value, expected in zip([*operands, *results], wanted, strict=True):
        if value != expected:
            raise Misfit(f"has the value {_shown(value)}, not {_shown(expected)}")
    scalars = f"(tensor<{element}>, tensor<{element}>, tensor<i32>, tensor<i32>) -> tensor<i1>"
    if call["called"] != [scalars]:
        raise Misfit(f"calls {call['called']!s:.200}, not a function {scalars}")


def _check_shards(call: Mapping[str, Any], operands: list[Array], results: list[Array]) -> None:
    """Raise `Misfit` unless the call turns an array into a device's shard, or the reverse."""
    _require_attributes(call, COMPILERS[call["target"]])
    if len(operands) != 1 or len(results) != 1 or call["settings"]:
        raise Misfit(f"has {len(operands)} operands, {len(results)} results and settings, not 1, 1")
    (one, element), (other, of_other) = operands[0], results[0]
    full, shard = (one, other) if "FullTo" in call["target"] else (other, one)
    divides = len(full) == len(shard) and all(
        size == of_shard or (of_shard and not size % of_shard)
        for size, of_shard in zip(full, shard, strict=True)
    )
    if element != of_other or not divides:
        raise Misfit(f"makes {_shown(results[0])} of {_shown(operands[0])}")


def _require_attributes(call: Mapping[str, Any], allowed: Mapping[str, str]) -> None:
    """Raise `Misfit` for an attribute that is not `allowed`, or has another text than allowed."""
    for name, text in call["attributes"].items():
        if not re.fullmatch(allowed.get(name, r"(?!)"), text):
            raise Misfit(f"has the attribute {name} = {text:.100}, which JAX does not give it")


def _number(settings: Mapping[str, str], name: str, type: str, least: int, most: int) -> int:
    """Return an integer setting; raise `Misfit` unless it is from `least` to `most`."""
    match = re.fullmatch(rf"(-?\d+) : {type}", settings.get(name, ""))
    if match is None or not least <= int(match[1]) <= most:
        raise Misfit(f"has {name} = {settings.get(name)!s:.60}, not from {least} to {most}")
    return int(match[1])


def _listed(names: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _shown(value: Array) -> str:
    return f"{value[1]}[{','.join(map(str, value[0]))}]"
