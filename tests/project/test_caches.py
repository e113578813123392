"""Nothing grows for ever: a cache without a limit has a key of which there are few."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # pytest alone imports a conftest
    from tests.project.conftest import Module

# A cached function, and why it needs no limit.
FEW = {
    "_bytes_of_memory": "nothing",
    "_end_before_ray": "nothing",
    "_fields": "the classes of parameters",
    "_gpu_devices": "topologies that the program names",
    "_identity": "shardings of arrays",
    "_is_accepted": "the options that graphdist chooses",
    "_keep_freed_memory": "nothing",
    "_kernel": "nothing",
    "_over_cores": "layouts, and dimensions of arrays",
    "_pickler_class": "nothing",
    "_public_primitives": "nothing",
    "_sum_of_words": "strategies of several workers, and the sizes of parts",
    "_tpu_devices": "topologies that the program names",
    "default_strategy": "nothing",
    "has_bfloat16_instructions": "nothing",
    "jax_op": "JAX's primitives",
    "name_of_seeds": "nothing",
    "partial": "sum and mean",
    "optimization_barrier": "nothing",
    "schedule": "the computations of a module, while it is read",
    "_sharded": "dimensions of arrays",
}
# In graphdist.viz: a process of its own, or a cell of a notebook, reads a program once.
SHOWN_ONCE = "graphdist.viz"


def unlimited(module: Module) -> Iterator[str]:
    """Yield the functions of a module whose cache has no limit."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef):
            names = {ast.unparse(decorator) for decorator in node.decorator_list}
            if names & {"cache", "functools.cache", "lru_cache(maxsize=None)", "lru_cache(None)"}:
                yield node.name


@pytest.mark.long
def test_caches_without_a_limit_are_known(modules: list[Module]) -> None:
    ours = [
        module for module in modules if module.is_ours and not module.name.startswith(SHOWN_ONCE)
    ]
    assert sorted(name for module in ours for name in unlimited(module)) == sorted(FEW)
