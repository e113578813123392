"""The package without Ray, and with a cluster of the program's own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import ray

import graphdist as gd
import graphdist.compat.v1 as gd1


def test_graphdist_is_imported_without_ray() -> None:
    program = "import sys, graphdist; assert 'ray' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(gd.errors.MissingExtraError, match=r"graphdist\[ps\]"):
        gd.ParameterServerStrategy()


@pytest.mark.long
def test_strategies_share_a_cluster_and_the_last_ends_it() -> None:
    first = gd.ParameterServerStrategy(num_workers=1)
    second = gd1.ParameterServerStrategy(num_workers=1)
    with second.scope():
        v = gd.Variable(2.0)
    first.shutdown()
    assert float(v) == 2
    assert ray.is_initialized()
    second.shutdown()
    second.shutdown()
    assert not ray.is_initialized()
