"""Replace operations whose result is an operand, and chains that a single operation can replace.

Every rule is exact for all values of the dtypes it applies to, bit for bit, nan and -0.0 included.
So `x + 0.0` stays, because it turns -0.0 into 0.0. Subnormal numbers are the exception: on CPU, XLA
flushes them to zero when it computes with them, and keeps them if the operation is removed.

Before:  %a = jax.neg(%x)   %b = jax.neg(%a)   %c = jax.mul(%b, 1.0)   return %c
After:   %a = jax.neg(%x)   return %x          (`eliminate_dead_code` removes %a)

A replacement has the dtype and shape of the result that it replaces, and the same layout or
a more precise one. Left alone: arithmetic whose result must be computed (`fold_constants`),
collectives, state, and `to_replicas`, which `lower_cross_replica` needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign, frexp
from typing import TypeAlias, cast

from graphdist.ir.graph import Graph, Literal, Node, Operand, Operands, Value
from graphdist.ir.jax_parameters import is_plain, parameter
from graphdist.ir.op_parameters import Reshaping
from graphdist.ir.ops import CONSTANT, RESHAPE, SCALE, UNPACK
from graphdist.ir.rewrite import Answer, Rewriter, rewrite, substitute
from graphdist.ir.types import MIRRORED, PER_REPLICA, is_integer

NAME = "canonicalize"

Number: TypeAlias = bool | int | float | complex
Rule: TypeAlias = Callable[[Node, Operands, Rewriter], Answer]


def canonicalize(graph: Graph) -> Graph:
    """Return the graph without operations that change nothing."""
    return rewrite(graph, _simplified, NAME, _RULES)


def _simplified(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    """Return the operands that replace the node's results, or None to keep the node."""
    first = len(rewriter.nodes)
    answer = _RULES[node.op.name](node, operands, rewriter)
    if answer is not None and not all(map(_fits, answer, node.results)):
        rewriter.take_back(first)
        return None
    return answer


def _splat(operand: Operand, rewriter: Rewriter) -> Number | None:
    """Return the scalar that every element of the operand equals, if it is known."""
    if type(operand) is Literal:
        return operand.value
    node = rewriter.definition(operand, CONSTANT.name, "jax.broadcast_in_dim")
    if node is None:
        return None
    if node.op is not CONSTANT:
        return node.operands[0].value if isinstance(node.operands[0], Literal) else None
    array = CONSTANT.of(node).value
    if not 0 < array.size <= 64 or array.dtype.kind not in "biuf":
        return None
    # Bytes tell 0.0 from -0.0, which compare equal.
    is_splat = array.tobytes() == array.reshape(-1)[:1].tobytes() * array.size
    return array.item(0) if is_splat else None


def _fits(answer: Operand, result: Value) -> bool:
    """Return whether the answer may replace the result in all its uses."""
    given, wanted = answer.type, result.type
    return (
        given.dtype == wanted.dtype
        and given.shape == wanted.shape
        and (given.layout in (wanted.layout, MIRRORED) or wanted.layout in (PER_REPLICA, None))
    )


# Rules that return an operand. They need not check its type, since `_fits` does.


def _operand(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    """Return the first operand. The operation changes nothing if the shape stays (`_fits`)."""
    return operands[:1]


def _single(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    return operands if len(operands) == len(node.results) == 1 else None


def _neutral(right: Callable[[Number, str], bool], *, commutes: bool) -> Rule:
    """Return the rule for a binary operation with a neutral operand."""

    def rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
        left, other = operands
        for kept, neutral in ((left, other), (other, left)) if commutes else ((left, other),):
            number = _splat(neutral, rewriter)
            if number is not None and right(number, left.type.dtype):
                return (kept,)
        return None

    return rule


def _is_real(dtype: str) -> bool:
    return not dtype.startswith(("c", "key"))


def _is_one(number: Number, dtype: str) -> bool:
    # (a + bi) * (1 + 0i) is nan where a or b is infinite.
    return number == 1 and _is_real(dtype)


def _is_zero(sign: int) -> Callable[[Number, str], bool]:
    """Return the test for a zero of this sign; integers have only one zero."""

    def test(number: Number, dtype: str) -> bool:
        if isinstance(number, complex) or number != 0 or dtype == "bool":
            return False
        return is_integer(dtype) or (_is_real(dtype) and copysign(1, number) == sign)

    return test


def _is_no_bits(number: Number, dtype: str) -> bool:
    return number == 0 and (dtype == "bool" or is_integer(dtype))


def _is_all_bits(number: Number, dtype: str) -> bool:
    if dtype == "bool":
        return bool(number)
    return is_integer(dtype) and number == (-1 if dtype[0] == "i" else 2 ** int(dtype[1:]) - 1)


def _times_zero(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    if is_integer(operands[0].type.dtype):
        for operand in operands:
            if _splat(operand, rewriter) == 0 and operand.type.shape == node.results[0].type.shape:
                return (operand,)
    return None


def _same(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    """Return x for (x, x)."""
    return operands[:1] if operands[0] is operands[1] else None


def _either(first: Rule, second: Rule) -> Rule:
    """Return the rule that applies `first`, or `second` where `first` keeps the node."""

    def rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
        answer = first(node, operands, rewriter)
        return second(node, operands, rewriter) if answer is None else answer

    return rule


def _own_inverse(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    inner = rewriter.definition(operands[0], node.op.name)
    return inner.operands if inner else None


def _select(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    predicate, *cases = operands
    if all(case is cases[0] for case in cases):
        return cases[:1]
    chosen = _splat(predicate, rewriter)
    if chosen is None or not 0 <= (index := int(cast(int, chosen))) < len(cases):
        return None
    return (cases[index],)


def _update_all(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    """Return the update. It is the result if it is as large: its start is then clamped to 0."""
    return operands[1:2]


# Rules that replace two nodes by one.


def _transpose(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    outer = parameter(node, "permutation")
    if outer == tuple(range(len(outer))):
        return operands
    inner = rewriter.definition(operands[0], node.op.name)
    if inner is None:
        return None
    first = parameter(inner, "permutation")
    composed = tuple(first[axis] for axis in outer)
    if composed == tuple(range(len(composed))):
        return inner.operands
    return rewriter.again(node, inner.operands, permutation=composed)


def _reshape(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    wanted = node.results[0].type.shape
    if operands[0].type.shape == wanted and _is_plain_of_one(node):
        return operands
    inner = _plain_before(node, operands, rewriter)
    if inner is None:
        return None
    is_undone = inner.operands[0].type.shape == wanted
    return inner.operands if is_undone else rewriter.again(node, inner.operands)


def _is_plain_of_one(node: Node) -> bool:
    """Return whether the node has one operand and asks for no memory order and no sharding."""
    return len(node.operands) == 1 and is_plain(node)


def _plain_before(node: Node, operands: Operands, rewriter: Rewriter) -> Node | None:
    """Return the node that makes the operand, if both nodes are plain and of one operation."""
    inner = rewriter.definition(operands[0], node.op.name)
    are_plain = inner is not None and _is_plain_of_one(inner) and _is_plain_of_one(node)
    return inner if are_plain else None


_WIDENS = {
    "bool": "i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64",
    "i8": "i16 i32 i64 f16 bf16 f32 f64",
    "i16": "i32 i64 f32 f64",
    "i32": "i64 f64",
    "u8": "u16 u32 u64 i16 i32 i64 f16 bf16 f32 f64",
    "u16": "u32 u64 i32 i64 f32 f64",
    "u32": "u64 i64 f64",
    "f16": "f32 f64",
    "bf16": "f32 f64",
    "f32": "f64",
}
"""The dtypes that represent every value of a dtype."""


def _convert(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    wanted = node.results[0].type.dtype
    if operands[0].type.dtype == wanted and _is_plain_of_one(node):
        return operands
    inner = _plain_before(node, operands, rewriter)
    if inner is None:
        return None
    original = inner.operands[0].type.dtype
    if operands[0].type.dtype not in _WIDENS.get(original, "").split():
        return None
    # A float beyond the range of an integer dtype is clamped, an integer beyond it wraps around.
    is_by_float = is_integer(original) and not is_integer(operands[0].type.dtype)
    if is_by_float and is_integer(wanted) and wanted not in (original, *_WIDENS[original].split()):
        return None
    return inner.operands if original == wanted else rewriter.again(node, inner.operands)


def _scale(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    factor = SCALE.of(node).factor
    dtype = operands[0].type.dtype
    if factor == 1 and _is_real(dtype):
        return operands
    inner = rewriter.definition(operands[0], node.op.name)
    if inner is None:
        return None
    before = SCALE.of(inner).factor
    product = before * factor
    if abs(product) >= 2**15:  # some dtypes cannot represent it
        return None
    if is_integer(dtype):
        is_exact = isinstance(product, int)
    else:  # powers of two of at least 1, by which scaling is exact
        is_exact = dtype in ("f16", "bf16", "f32", "f64") and all(
            each >= 1 and frexp(each)[0] == 0.5 for each in (before, factor)
        )
    return rewriter.again(node, inner.operands, factor=product) if is_exact else None


def _pack(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    if len(operands) == 1:
        return operands
    inner = rewriter.definition(operands[0], UNPACK.name)
    return inner.operands if inner and inner.results == operands else None


def _unpack(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    inner = rewriter.definition(operands[0], "pack")
    if inner and len(inner.operands) == len(node.results):
        return inner.operands
    if len(node.results) != 1:
        return None
    shape = node.results[0].type.shape
    if shape == operands[0].type.shape:
        return operands
    return rewriter.add(RESHAPE, operands, Reshaping(shape), at=node.source)


def _cond(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    """Replace a `cond` by the branch that is known to be taken."""
    index, *rest = operands
    number = _splat(index, rewriter)
    if number is None:
        return None
    branch = node.graphs[min(max(int(cast(int, number)), 0), len(node.graphs) - 1)]
    environment: dict[Operand, Operand] = dict(zip(branch.inputs, rest, strict=True))
    for inner in branch.nodes:
        # New nodes, since another `cond` of this graph may have the same branch.
        results: Sequence[Operand] = rewriter.again(inner, substitute(environment, inner.operands))
        if inner.op.name in _RULES:  # the operands of `cond` may be known, the branch's inputs not
            (made,) = rewriter.take_back(len(rewriter.nodes) - 1)
            answer = _simplified(made, made.operands, rewriter)
            results = answer or rewriter.keep(made, made.operands, made.graphs)
        environment.update(zip(inner.results, results, strict=True))
    return substitute(environment, branch.outputs)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("jax.add", "jax.add_any"), _neutral(_is_zero(-1), commutes=True)),
    "jax.and": _either(_same, _neutral(_is_all_bits, commutes=True)),
    **dict.fromkeys(("jax.broadcast_in_dim", "jax.copy", "jax.dynamic_slice"), _operand),
    "jax.convert_element_type": _convert,
    "jax.div": _neutral(_is_one, commutes=False),
    "jax.dynamic_update_slice": _update_all,
    **dict.fromkeys(("jax.max", "jax.min"), _same),
    "jax.mul": _either(_times_zero, _neutral(_is_one, commutes=True)),
    **dict.fromkeys(("jax.neg", "jax.not"), _own_inverse),
    "jax.or": _either(_same, _neutral(_is_no_bits, commutes=True)),
    "jax.select_n": _select,
    **dict.fromkeys(
        ("jax.shift_left", "jax.shift_right_arithmetic", "jax.shift_right_logical"),
        _neutral(_is_no_bits, commutes=False),
    ),
    **dict.fromkeys(("jax.slice", "jax.squeeze"), _operand),
    "jax.sub": _neutral(_is_zero(1), commutes=False),
    "jax.transpose": _transpose,
    "jax.xor": _neutral(_is_no_bits, commutes=True),
    **dict.fromkeys(("concatenate", "jax.concatenate", "jax.split"), _single),
    "cond": _cond,
    "pack": _pack,
    **dict.fromkeys(("reshape", "jax.reshape"), _reshape),
    "scale": _scale,
    "unpack": _unpack,
}
