"""Random programs over jax.numpy and jax.lax, as Python functions.

A program computes with small integers (`exact.py`). Its steps are closures over what was drawn;
their text shows, when an example fails, what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any  # Any: what is drawn, and functions of JAX

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.properties.exact import (
    ALL,
    BINARY,
    COMPARE,
    DTYPES,
    MOVE,
    NUMBERS,
    REDUCE,
    SIZE,
    UNARY,
    Array,
    Kind,
    bounded,
    convert,
    random_array,
    whole,
)
from tests.properties.steps import Body, Results, Step

VECTORS = (1, 2)
SMALL = (0, 1)


class Maker:
    """A program in the making: draws steps on the values there are.

    `in_reverse` says that gradients will be taken, which a loop of unknown length does not allow.
    """

    def __init__(
        self, draw: st.DrawFn, takes: Sequence[Kind], depth: int, in_reverse: bool = False
    ) -> None:
        self.draw = draw
        self.takes = tuple(takes)
        self.kinds = list(takes)
        self.steps: list[Step] = []
        self.depth = depth
        self.in_reverse = in_reverse

    def choose(self, *options: Any) -> Any:
        # Not sampled_from, which takes options that are equal, such as 1 and True, for the same.
        return options[self.draw(st.integers(0, len(options) - 1))]

    def any(self, dtypes: Sequence[str] = ALL, ranks: Sequence[int] = (0, 1, 2)) -> int:
        """Return a value of one of these dtypes and ranks, one made for it if there is none."""
        fitting = [
            place
            for place, (dtype, rank) in enumerate(self.kinds)
            if dtype in dtypes and rank in ranks
        ]
        if not fitting:
            return self.of((self.choose(*dtypes), self.choose(*ranks)))
        mode = self.choose("new", "same", "any")
        if mode == "new":  # so that steps build on each other
            return fitting[-1]
        # What the last step took as well: two operations on the same are what passes compare.
        last = self.steps[-1].operands if self.steps and mode == "same" else ()
        return self.choose(*([place for place in last if place in fitting] or fitting))

    def of(self, kind: Kind) -> int:
        """Return a value of this kind, another one converted if there is none."""
        fitting = [place for place, other in enumerate(self.kinds) if other == kind]
        if fitting:
            return self.choose(*fitting)
        if not self.kinds:
            return self.constant(kind)
        return self.add(f"to {kind}", lambda x: [convert(x, kind)], [self.any()], kind)

    def add(
        self, text: str, call: Callable[..., Results], operands: Sequence[int], *gives: Kind
    ) -> int:
        """Add a step and return the place of its first result."""
        self.steps.append(Step(text, call, tuple(operands), gives))
        self.kinds += gives
        return len(self.kinds) - len(gives)

    def some_or_all(self) -> list[int]:
        """Return all that was computed, so that no mistake stays unseen; or some of it."""
        if self.choose(True, False):
            return list(range(len(self.takes), len(self.kinds)))
        return [self.any() for _ in range(3)]

    def finished(self, outputs: Sequence[int]) -> Body:
        gives = tuple(self.kinds_of(outputs))
        return Body(self.takes, tuple(self.steps), tuple(outputs), gives)

    def inside(self, within: str, takes: Sequence[Kind], in_reverse: bool) -> Maker:
        """Return a maker of a program inside this one, `within` a loop, a branch or a transform."""
        return Maker(self.draw, takes, self.depth - 1, in_reverse)

    def body(
        self,
        within: str,
        takes: Sequence[Kind],
        gives: Sequence[Kind] = (),
        ranks: Sequence[int] = (),
        *,
        in_reverse: bool = False,
    ) -> Body:
        """Draw a program inside this one that gives these kinds, then any value of these ranks."""
        inner = self.inside(within, takes, in_reverse or self.in_reverse)
        inner.grow(1, 4)
        outputs = [inner.of(kind) for kind in gives]
        return inner.finished([*outputs, inner.any(ranks=ranks)] if ranks else outputs)

    def kept(self) -> list[int]:
        """Return values that a program inside this one closes over."""
        return [self.any() for _ in range(self.choose(0, 1, 2))]

    def kinds_of(self, places: Sequence[int]) -> list[Kind]:
        return [self.kinds[place] for place in places]

    def grow(self, least: int, most: int) -> None:
        """Add steps."""
        for _ in range(self.draw(st.integers(least, most))):
            self.choose(*self.menu())()

    def menu(self) -> list[Callable[[], object]]:
        """Return what may be added, likelier things more than once."""
        plain: list[Callable[[], object]] = [
            self.unary, self.binary, self.binary, self.literal, self.compare, self.select, self.dot,
            self.reduce, self.move, self.move, self.accumulate, self.gather, self.scatter,
            self.cast, self.constant, self.again,
        ]  # fmt: skip
        if not self.depth:
            return plain
        nested = [self.scan, self.repeat, self.branch, self.switch, self.wrapped, self.mapped]
        if not self.in_reverse:
            nested.append(self.loop)
        return [*plain, *nested, self.gradient, self.tangent]

    def unary(self) -> None:
        x = self.any()
        kind = self.kinds[x]
        name = self.choose(*UNARY[kind[0]])
        self.add(name, lambda x: [UNARY[kind[0]][name](x)], [x], kind)

    def binary(self) -> None:
        x = self.any()
        dtype, rank = self.kinds[x]
        y = self.any([dtype])
        name = self.choose(*BINARY[dtype])
        kind = dtype, max(rank, self.kinds[y][1])
        self.add(name, lambda x, y: [bounded(BINARY[dtype][name](x, y))], [x, y], kind)

    def literal(self) -> None:
        """Add an operation with a Python number, which has no dtype of its own."""
        x = self.any(NUMBERS)
        name, number = self.choose("add", "sub", "mul", "max"), self.choose(-2, 0, 1, 3)
        function = BINARY["i32"][name]
        is_left = self.choose(True, False)

        def call(x: Array) -> Results:
            return [bounded(function(number, x) if is_left else function(x, number))]

        self.add(f"{name} {number}", call, [x], self.kinds[x])

    def compare(self) -> None:
        x = self.any(NUMBERS)
        y = self.any([self.kinds[x][0]])
        name = self.choose(*COMPARE)
        kind = "bool", max(self.kinds[x][1], self.kinds[y][1])
        self.add(name, lambda x, y: [COMPARE[name](x, y)], [x, y], kind)

    def select(self) -> None:
        x = self.any()
        y, flag = self.any([self.kinds[x][0]]), self.any(["bool"])
        kind = self.kinds[x][0], max(self.kinds[place][1] for place in (x, y, flag))
        self.add("where", lambda flag, x, y: [jnp.where(flag, x, y)], [flag, x, y], kind)

    def dot(self) -> None:
        x = self.any(NUMBERS, VECTORS)
        dtype, rank = self.kinds[x]
        y = self.any([dtype], VECTORS)
        kind = dtype, rank + self.kinds[y][1] - 2
        self.add("dot", lambda x, y: [bounded(x @ y)], [x, y], kind)

    def reduce(self) -> None:
        x = self.any(NUMBERS, VECTORS)
        dtype, rank = self.kinds[x]
        name, axis = self.choose(*REDUCE), self.choose(*range(rank), None)
        kind = dtype, 0 if axis is None else rank - 1
        self.add(f"{name} {axis}", lambda x: [bounded(REDUCE[name](x, axis))], [x], kind)

    def move(self) -> None:
        x = self.any(ranks=VECTORS)
        name = self.choose(*MOVE)
        self.add(name, lambda x: [MOVE[name](x)], [x], self.kinds[x])

    def accumulate(self) -> None:
        x = self.any(NUMBERS, VECTORS)
        dtype, rank = self.kinds[x]
        name = self.choose("cumsum", "cummax", "argmax", "top_k")
        if name == "argmax":
            self.add(name, lambda x: [jnp.argmax(x, -1)], [x], ("i32", rank - 1))
        elif name == "top_k":
            self.add(name, lambda x: lax.top_k(x, SIZE), [x], (dtype, rank), ("i32", rank))
        else:
            function: Any = getattr(lax, name)
            reverse = self.choose(True, False)
            self.add(name, lambda x: [bounded(function(x, reverse=reverse))], [x], (dtype, rank))

    def gather(self) -> None:
        """Add an access by index, which may be out of range."""
        x, i = self.any(ranks=VECTORS), self.any(["i32"], SMALL)
        kind = self.kinds[x][0], self.kinds[x][1] - 1 + self.kinds[i][1]
        if self.kinds[i][1] == 0 and self.choose(True, False):
            self.add("slice", lambda x, i: [lax.dynamic_index_in_dim(x, i, 0, False)], [x, i], kind)
        else:
            self.add("gather", lambda x, i: [x[i]], [x, i], kind)

    def scatter(self) -> None:
        x, i = self.any(NUMBERS, VECTORS), self.any(["i32"], SMALL)
        y = self.any([self.kinds[x][0]], (0,))
        # Which of several values would be set at one index is not defined.
        names = ("add", "max", "min") if self.kinds[i][1] else ("add", "max", "set")
        name = self.choose(*names)

        def call(x: Array, i: Array, y: Array) -> Results:
            return [bounded(getattr(x.at[i], name)(y))]

        self.add(f"scatter {name}", call, [x, i, y], self.kinds[x])

    def cast(self) -> None:
        x, dtype = self.any(), self.choose(*ALL)
        kind = dtype, self.kinds[x][1]
        self.add(f"cast {dtype}", lambda x: [x.astype(DTYPES[dtype])], [x], kind)

    def constant(self, kind: Kind | None = None) -> int:
        """Add an array that the program closes over."""
        kind = kind or (self.choose(*ALL), self.choose(0, 1, 2))
        seed = self.choose(*range(5))
        array = random_array(kind, np.random.default_rng(seed))
        return self.add(f"constant {kind} {seed}", lambda: [jnp.asarray(array)], [], kind)

    def again(self) -> None:
        """Compute once more what was computed before."""
        if self.steps:
            step = self.choose(*self.steps)
            self.add(step.text, step.call, step.operands, *step.gives)

    def scan(self) -> None:
        carry, xs, kept = self.any(), self.any(ranks=VECTORS), self.kept()
        of_carry, (dtype, rank) = self.kinds[carry], self.kinds[xs]
        takes = [of_carry, (dtype, rank - 1), *self.kinds_of(kept)]
        body = self.body("scan", takes, [of_carry], SMALL)
        options = {"reverse": self.choose(False, True), "unroll": self.choose(1, 2, True)}

        def call(carry: Array, xs: Array, *kept: Array) -> Results:
            def step(carry: Array, x: Array) -> Any:
                return body(carry, x, *kept)

            return lax.scan(step, carry, xs, **options)

        of_ys = body.gives[1][0], body.gives[1][1] + 1
        self.add(f"scan {options} {body}", call, [carry, xs, *kept], of_carry, of_ys)

    def repeat(self) -> None:
        """Add a loop of known length."""
        carry, kept, length = self.any(), self.kept(), self.choose(0, 1, 3)
        kind = self.kinds[carry]
        body = self.body("scan", [("i32", 0), kind, *self.kinds_of(kept)], [kind])

        def call(carry: Array, *kept: Array) -> Results:
            return [lax.fori_loop(0, length, lambda i, c: body(i, c, *kept)[0], carry)]

        self.add(f"fori_loop {length} {body}", call, [carry, *kept], kind)

    def loop(self) -> None:
        """Add a loop that goes on for at most three steps, while a predicate holds."""
        carry, count, kept = self.any(), self.any(["i32"], (0,)), self.kept()
        kind, of_kept = self.kinds[carry], self.kinds_of(kept)
        test = self.body("test", [kind, *of_kept], [("bool", 0)])
        body = self.body("while", [("i32", 0), kind, *of_kept], [kind])

        def call(count: Array, carry: Array, *kept: Array) -> Results:
            start: Any = (0, carry)
            return lax.while_loop(
                lambda c: (c[0] < count % 4) & test(c[1], *kept)[0],
                lambda c: (c[0] + 1, body(c[0], c[1], *kept)[0]),
                start,
            )

        self.add(f"while {test} {body}", call, [count, carry, *kept], ("i32", 0), kind)

    def branch(self) -> None:
        flag, kept = self.any(["bool"], (0,)), self.kept()
        self.one_of("cond", flag, kept, 2)

    def switch(self) -> None:
        index, kept = self.any(["i32"], (0,)), self.kept()
        self.one_of("switch", index, kept, self.choose(1, 2, 3))

    def one_of(self, name: str, index: int, kept: Sequence[int], count: int) -> None:
        """Add branches that give one kind; the first is that of the greater number, or of true."""
        kind = self.choose(*ALL), self.choose(0, 1, 2)
        bodies = [self.body("branch", self.kinds_of(kept), [kind]) for _ in range(count)]

        def call(index: Array, *kept: Array) -> Results:
            if name == "cond":
                return lax.cond(index, *bodies, *kept)
            return lax.switch(index, bodies, *kept)

        self.add(f"{name} {bodies}", call, [index, *kept], kind)

    def wrapped(self) -> None:
        """Add a program that is compiled, or computed again in the backward pass."""
        x, kept = self.any(), self.kept()
        name = self.choose("jit", "jit", "checkpoint")
        body = self.body(name, self.kinds_of([x, *kept]), (), (0, 1, 2))
        wrap: Any = getattr(jax, name)
        self.add(f"{name} {body}", lambda *inputs: wrap(body)(*inputs), [x, *kept], *body.gives)

    def mapped(self) -> None:
        x, y = self.any(ranks=VECTORS), self.any()
        dtype, rank = self.kinds[x]
        body = self.body("vmap", [(dtype, rank - 1), self.kinds[y]], (), SMALL)
        kind = body.gives[0][0], body.gives[0][1] + 1
        self.add(f"vmap {body}", lambda x, y: jax.vmap(body, (0, None))(x, y), [x, y], kind)

    def gradient(self) -> None:
        """Add the gradient of a program, in the backward pass of a checkpoint if it is drawn."""
        x, kept = self.any(["f32"]), self.kept()
        replays = self.choose(None, "all", "dots", "no barrier")
        within = "checkpoint" if replays else "grad"
        body = self.body(within, self.kinds_of([x, *kept]), [("f32", 0)], in_reverse=True)

        def call(x: Array, *kept: Array) -> Results:
            def f(x: Array) -> Array:
                return body(x, *kept)[0]

            policy: Any = jax.checkpoint_policies.dots_saveable if replays == "dots" else None
            if replays is not None:
                f = jax.checkpoint(f, policy=policy, prevent_cse=replays != "no barrier")
            value, gradient = jax.value_and_grad(f)(x)
            return value, whole(2 * gradient)

        name = f"grad {replays} {body}"
        self.add(name, call, [x, *kept], ("f32", 0), self.kinds[x])

    def tangent(self) -> None:
        """Add the derivative of a program in one direction."""
        x, kept = self.any(["f32"]), self.kept()
        of_y = "f32", self.choose(0, 1, 2)
        body = self.body("grad", self.kinds_of([x, *kept]), [of_y])

        def call(x: Array, *kept: Array) -> Results:
            (y,), (dy,) = jax.jvp(lambda x: body(x, *kept), (x,), (jnp.ones_like(x),))
            return y, whole(2 * dy)

        self.add(f"jvp {body}", call, [x, *kept], of_y, of_y)


TAKES: tuple[Kind, ...] = (("f32", 1), ("f32", 2), ("i32", 0), ("bool", 1), ("bf16", 1))
"""What programs take."""


@st.composite
def programs(draw: st.DrawFn) -> Body:
    """Draw programs; some compute what nobody uses."""
    maker = Maker(draw, TAKES, 2)
    maker.grow(4, 12)
    return maker.finished(maker.some_or_all())
