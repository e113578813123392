"""Files of steps, changed at random, and the use a program makes of them: it loads and runs them.

Whoever changes a file can write its hashes anew, so most of the changed files have hashes that are
right. The files are of two steps. One trains on two replicas; its bytes and its manifest are
changed. Another doubles four numbers; its module is replaced by texts that `modules.py` draws, and
its options by others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any  # Any: JSON

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

import graphdist as gd
from graphdist.aot.file_options import FILE_OPTIONS
from graphdist.runtime.files.artifact import read_artifact, write_artifact
from tests.aot.steps import make_step
from tests.mutations.bits import flipped
from tests.mutations.modules import Modules

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


VALUES: tuple[Callable[[], Any], ...] = (
    *HOSTILE,
    *(lambda: 10**7, lambda: False, lambda: "true"),
)
"""Values of options."""
OPTIONS = (
    *FILE_OPTIONS,
    *("xla_cpu_parallel_codegen_split_count", "xla_backend_optimization_level", "xla_dump_to"),
    *("xla_cpu_prefer_vector_width", "xla_no_such_option"),
)


@dataclass
class SavedStep:
    """The file of a step."""

    whole: bytes
    manifest: dict[str, Any]
    members: dict[str, bytes]

    @classmethod
    def of(cls, path: Path) -> SavedStep:
        """Read the file."""
        manifest, members = read_artifact(path)
        for key in ("members", "hash", "format"):
            del manifest[key]
        return cls(path.read_bytes(), manifest, members)


class Trials:
    """Two steps, their files, and changed ones."""

    def __init__(self, folder: Path) -> None:
        """Save the steps in a folder."""
        self.path = folder / "changed.gdx"
        self.strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        step, _, batch = make_step(self.strategy)
        with self.strategy.scope():
            gd.aot.save(self.path, step.trace(batch, 0.1).lower().compile())
        self.training = SavedStep.of(self.path)
        doubling = gd.function(lambda x: x * 2)
        gd.aot.save(self.path, doubling.trace(jnp.ones(4)).lower().compile())
        self.doubling = SavedStep.of(self.path)
        (self.batch,) = self.strategy.experimental_distribute_dataset([np.ones((8, 8), "f")])
        self.modules = Modules()
        self.trains = True

    def change(self, random: Random) -> None:
        """Write a changed file."""
        self.trains = random.random() < 0.5
        if self.trains:
            self._change_training(random)
        else:
            self._change_doubling(random)

    def _change_doubling(self, random: Random) -> None:
        manifest, members = dict(self.doubling.manifest), dict(self.doubling.members)
        if random.random() < 0.2:
            value = random.choice(VALUES)()
            manifest["compiler_options"] = {random.choice(OPTIONS): value}
        else:
            members["module.mlir"] = self._drawn(random)
        write_artifact(self.path, manifest, members)

    def _drawn(self, random: Random) -> bytes:
        """Return a portable module of a text; MLIR itself does not write all of them."""
        while True:
            try:
                return with_text(self.doubling.members["module.mlir"], self.modules.draw(random))
            except (mlir.ir.MLIRError, ValueError):
                continue

    def _change_training(self, random: Random) -> None:
        saved = self.training
        if random.random() < 0.1:
            self.path.write_bytes(_damaged(saved.whole, random))
            return
        manifest, members = json.loads(json.dumps(saved.manifest)), dict(saved.members)
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
        if self.trains:
            _, params, _ = make_step(self.strategy, by_shape=False)
            loaded = gd.aot.load(self.path, strategy=self.strategy, variables=params)
            result = loaded(self.batch, 0.1)
        else:
            result = gd.aot.load(self.path)(jnp.ones(4))
        jax.block_until_ready(jax.tree.leaves(result))


def with_text(module: bytes, text: str) -> bytes:
    """Return a portable module with the operations of a text in place of its own."""
    exported = export.deserialize(bytearray(module))
    with mlir.make_ir_context(), mlir.ir.Location.unknown():
        parsed = mlir.ir.Module.parse(text)
        version = stablehlo.get_current_version()
        written = stablehlo.serialize_portable_artifact(parsed, version, True)
    return bytes(replace(exported, mlir_module_serialized=written).serialize())


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
