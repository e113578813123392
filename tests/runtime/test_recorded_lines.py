"""What profiles name of a step: the user's lines, functions and scopes, as of plain JAX."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any  # Any: a text of XLA's

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

OPERATION = re.compile(r"^ *(?:ROOT )?%?[\w.-]+ = .*op_name=\"([^\"]*)\"", re.MULTILINE)
FILE = re.compile(r'^\d+ "(.*\.py)"$', re.MULTILINE)


@pytest.fixture(scope="module")
def module() -> str:
    """Return the text of the compiled module of a step."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = gd.variables([jnp.ones((32, 32)), jnp.ones((32, 32))])

    def layer(x: Any, w: Any) -> Any:
        with jax.named_scope("layer"):
            return jnp.sin(x @ w)

    @gd.function
    def train_step(x: Any) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            def loss_fn(w: Any) -> jax.Array:
                with jax.named_scope("model"):
                    x_, _ = jax.lax.scan(lambda x, _: (layer(x, w[1]), None), x, None, length=3)
                    return jnp.mean(layer(x_, w[0]) ** 2)

            loss, gradients = jax.value_and_grad(loss_fn)(gd.read(w))
            gradients = gd.get_replica_context().all_reduce("MEAN", gradients)
            gd.assign(w, jax.tree.map(lambda w, g: w - g, gd.read(w), gradients))
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    (x,) = strategy.experimental_distribute_dataset([np.ones((8, 32), np.float32)])
    compiled = train_step.trace(x).lower().compile()
    return str(compiled.executable.compiled.as_text())


def test_files_and_functions_are_the_users(module: str) -> None:
    files = {Path(file).name for file in FILE.findall(module)}
    assert Path(__file__).name in files
    assert not files & {"emit.py", "executable.py", "bind_primitive.py", "replicas.py"}
    for function in ("loss_fn", "layer", "replica_fn"):
        assert re.search(rf'"[\w.<>]*\b{function}"', module), function


def test_named_scopes_and_their_transformations_are_there(module: str) -> None:
    names = OPERATION.findall(module)
    of_products = [name for name in names if name.endswith("dot_general")]
    assert any("jvp(model)/layer/" in name for name in of_products)
    assert any("transpose(jvp(model))/layer/" in name for name in of_products)
    assert any(re.search(r"jvp\(model\).*while/body.*layer/", name) for name in of_products)


def test_collectives_name_their_kind_and_line(module: str) -> None:
    reduced = [name for name in OPERATION.findall(module) if name.endswith("/psum")]
    line = re.compile(rf"all_reduce\({re.escape(Path(__file__).name)}:\d+\)/psum$")
    assert reduced
    assert all(map(line.search, reduced))
