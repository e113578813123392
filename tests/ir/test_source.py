"""The lines of the user's program that made a node, sent to another process."""

from __future__ import annotations

import pickle

import jax.numpy as jnp

import graphdist as gd


def test_the_source_of_a_node_can_be_pickled() -> None:
    graph = gd.function(lambda x: jnp.sin(x)).trace(jnp.ones(3)).graph
    source = graph.nodes[-1].source
    assert source.record is not None  # of JAX, which cannot be pickled
    copied = pickle.loads(pickle.dumps(source))
    assert (copied.frames, copied.scope) == (source.frames, source.scope)
    assert copied.frame.text.startswith("graph = gd.function")
