"""For every test: eight CPU devices, the same examples in each run, graphs that survive their text.

`tests/plugins/selected_tests.py` says which tests are run, `seconds_of_tests.py` how long they may
take. `--update-golden` rewrites what golden tests expect. `--platform gpu` runs `tests/platforms`
on this machine's accelerators.
"""

import os
from collections.abc import Sequence
from typing import Any

import jax
import pytest
from hypothesis import settings

# For the processes that tests start: where libtpu is installed JAX looks for a TPU, and says so.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Before anything starts a backend: afterwards JAX refuses both.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import graphdist.program.stages  # noqa: E402 - after the devices are set
from graphdist.ir.compare import first_difference  # noqa: E402
from graphdist.ir.graph import Graph  # noqa: E402
from graphdist.ir.parser import parse  # noqa: E402
from graphdist.ir.printer import opaques, print_graph  # noqa: E402
from graphdist.passes import manager  # noqa: E402
from graphdist.tracing.jax_ops import resolve  # noqa: E402

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("long", derandomize=False, deadline=None, max_examples=800)
settings.load_profile("ci")

BACKENDS = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}
"""JAX's names of the backends that tests for a platform start, in order of preference."""
LARGEST_ROUND_TRIP = 2_000  # nodes: beyond, the text takes longer than the test


pytest_plugins = ["selected_tests", "seconds_of_tests"]  # in tests/plugins


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expected text of golden tests from what the code gives now",
    )
    parser.addoption(
        "--platform",
        choices=tuple(BACKENDS),
        default="cpu",
        help="the devices for tests/platforms; all other tests run on CPU devices",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let JAX start the backends of the platform."""
    platform = config.getoption("--platform")
    if platform != "cpu":
        os.environ["JAX_PLATFORMS"] = BACKENDS[platform]
        # Several test processes share an accelerator.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        jax.config.update("jax_platforms", BACKENDS[platform])


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Rewrite golden files in one process: several tests show parts of one file."""
    if config.getoption("--update-golden"):
        config.option.numprocesses = 0


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Return whether golden tests rewrite what they expect."""
    return bool(request.config.getoption("--update-golden"))


def check_round_trip(graph: Graph) -> None:
    """Check that the graph's text parses back to the same graph."""
    if len(graph.nodes) <= LARGEST_ROUND_TRIP:
        back = parse(print_graph(graph), opaques(graph), resolve)
        assert first_difference(graph, back) is None


@pytest.fixture(autouse=True)
def graphs_survive_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the text of a test's programs, as traced and as compiled.

    The graphs between two passes are those of `tests/ir/test_text_of_programs.py`.
    """
    run_passes = manager.run_passes

    def checked(graph: Graph, pipeline: Sequence[Any], **options: Any) -> Any:
        history = run_passes(graph, pipeline, **options)
        for one in (graph, *(record.graph for record in history[-1:])):
            check_round_trip(one)
        return history

    monkeypatch.setattr(manager, "run_passes", checked)
    monkeypatch.setattr(graphdist.program.stages, "run_passes", checked)
