"""Files of steps, changed at random, and the use a program makes of them.

Whoever changes a file can write its hashes anew, so most of the changed files have hashes that are
right.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any  # Any: JSON

import jax
import numpy as np

import graphdist as gd
from graphdist.runtime.files.artifact import read_artifact, write_artifact
from tests.aot.steps import make_step
from tests.mutations.bits import flipped

HOSTILE: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: 1, lambda: 2**31, lambda: 2**63,
    lambda: 10**400, lambda: 0.5, lambda: float("nan"), lambda: float("inf"), lambda: "",
    lambda: "x", lambda: "../../outside", lambda: "x" * 10**6, lambda: "\x1b[31m\ud800",
    lambda: [], lambda: {}, lambda: [[]], lambda: [2**40, 2**40], lambda: [-4, 8], lambda: ["4"],
    lambda: [None] * 1000, lambda: nested(500), lambda: "f92", lambda: "O", lambda: "key<nobody>",
)  # fmt: skip
"""Values that no manifest has, or has elsewhere."""


def nested(depth: int) -> list[Any]:
    """Return lists inside each other."""
    return [nested(depth - 1)] if depth else []


class Trials:
    """A step, its file, and changed ones."""

    def __init__(self, folder: Path) -> None:
        """Save the step in a folder."""
        self.path = folder / "changed.gdx"
        self.strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        step, _, batch = make_step(self.strategy)
        with self.strategy.scope():
            gd.aot.save(self.path, step.trace(batch, 0.1).lower().compile())
        self.whole = self.path.read_bytes()
        self.manifest, self.members = read_artifact(self.path)
        for key in ("members", "hash", "format"):
            del self.manifest[key]
        (self.batch,) = self.strategy.experimental_distribute_dataset([np.ones((8, 8), "f")])

    def change(self, random: Random) -> None:
        """Write a changed file."""
        if random.random() < 0.1:
            self.path.write_bytes(_damaged(self.whole, random))
            return
        manifest, members = json.loads(json.dumps(self.manifest)), dict(self.members)
        kind = random.choices(("module", "manifest", "member", "members"), (4, 3, 2, 1))[0]
        if kind == "module":
            members["module.mlir"] = _damaged(members["module.mlir"], random, cut=0.05)
        elif kind == "manifest":
            for _ in range(random.choice((1, 1, 2))):
                _change_json(manifest, random)
        elif kind == "member":
            name = random.choice(["graph.txt", "report.json", "module.mlir"])
            members[name] = _damaged(members[name], random)
        else:
            one, other = random.sample(sorted(members), 2)
            if random.random() < 0.5:
                del members[one]
            else:
                members[one], members[other] = members[other], members[one]
        write_artifact(self.path, manifest, members)

    def use(self) -> None:
        """Load the file and call the step, as a program does."""
        _, params, _ = make_step(self.strategy, by_shape=False)
        loaded = gd.aot.load(self.path, strategy=self.strategy, variables=params)
        result = loaded(self.batch, 0.1)
        jax.block_until_ready(jax.tree.leaves(result))


def _damaged(data: bytes, random: Random, cut: float = 0.3) -> bytes:
    if random.random() < cut:
        return data[: random.randrange(len(data))]
    return flipped(data, random)


def _change_json(found: Any, random: Random) -> None:
    """Drop a value somewhere in JSON, or put another in its place."""
    while True:
        places = list(found) if isinstance(found, dict) else list(range(len(found)))
        place = random.choice(places)
        inside = found[place]
        if not isinstance(inside, dict | list) or not inside or random.random() < 0.15:
            break
        found = inside
    if random.random() < 0.3:
        del found[place]
    else:
        found[place] = random.choice(HOSTILE)()
