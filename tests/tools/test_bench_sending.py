"""The bench of values sends the same by sockets and as Ray's objects."""

from __future__ import annotations

import numpy as np
import pytest

from graphdist.parameter_server.messages import Read
from graphdist.parameter_server.ray_cluster import ask, ray, value_of
from graphdist.tools.bench.sending_values import VARIABLE, WAYS, one_node, start, turns


@pytest.mark.long
def test_both_ways_change_the_variable_alike() -> None:
    with one_node() as options:
        server, worker = start(options, is_local=True)
        values = []
        for way in WAYS:
            value_of(ask(worker.prepare, 0.01))
            assert value_of(ask(worker.seconds, way, True, 3)) > 0
            values.append(value_of(ask(server.read, [Read(VARIABLE)]))[0])
        first, second = values
        assert first.shape == (50, 50)
        assert first.max() < 1
        np.testing.assert_array_equal(first, second)
        found = turns(worker, 0.01, False, rounds=2)
        assert [len(found[way]) for way in WAYS] == [2, 2]
    assert not ray().is_initialized()
