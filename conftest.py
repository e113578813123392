"""For every test: eight CPU devices, the same examples in each run, graphs that survive their text.

`pytest` leaves out what takes long: the tests of some places. They are run when they are named, as
in `pytest tests/properties`, and by `pytest --long`. `--update-golden` rewrites what golden tests
expect.
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

LARGEST_ROUND_TRIP = 2_000  # nodes: beyond, the text takes longer than the test


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`."""
    parser.addoption("--long", action="store_true", help="run what takes long, too")
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expected text of golden tests from what the code gives now",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Rewrite golden files in one process: several tests show parts of one file."""
    if config.getoption("--update-golden"):
        config.option.numprocesses = 0


LONG = (
    *("conformance", "examples", "keras", "multi_worker", "mutations", "properties"),
    *("tools/test_bench.py", "tools/test_bench_keras.py", "tools/test_bench_workers.py"),
    "tools/test_compile.py",
    "tools/test_bench_sharded_ahead_of_time.py",
    "tools/test_run.py",
    *(
        "numerics/test_metric_totals.py",
        "numerics/test_metrics.py",
        "numerics/test_pass_through.py",
    ),
    *("numerics/test_per_replica_operators.py", "numerics/test_random.py"),
    *("numerics/test_variable_kinds.py", "numerics/test_variable_shares.py"),
    *("numerics/test_variables.py", "numerics/test_what_passes_keep.py"),
    *("data/test_epochs_of_programs.py", "data/test_rows.py", "viz/test_page.py"),
    *("project/test_documents.py", "project/test_packaging.py"),
    *("runtime/processes/test_cluster_workers.py", "runtime/processes/test_handshake.py"),
    *("runtime/processes/test_worker_steps.py", "runtime/test_compilation_cache.py"),
    *("runtime/test_kept_programs.py", "runtime/test_node_by_node.py"),
    *("runtime/test_sharded_guards.py", "runtime/test_sharded_state.py"),
    *("runtime/test_variable_packs.py", "tracing/test_merge_call_gradients.py"),
    *("state/test_shard_parameters.py", "train/test_processes.py"),
    *("train/test_readers.py", "train/test_writers.py"),
)
"""Folders and files of tests whose tests take long."""


def leaves_long_out(config: pytest.Config) -> bool:
    """Return whether the tests that take long are left out: none is named, nor are they all."""
    told: dict[str, bool] = getattr(config, "workerinput", {})
    names_tests = config.args_source is pytest.Config.ArgsSource.ARGS
    return told.get(_LEFT_OUT, not (names_tests or config.option.long))


_LEFT_OUT = "graphdist_leaves_long_out"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process that runs tests: its own command line names all of them."""
    node.workerinput[_LEFT_OUT] = leaves_long_out(node.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what takes long, and leave it out unless it is asked for."""
    places = [config.rootpath / "tests" / name for name in LONG]
    for item in items:
        if any(place in (item.path, *item.path.parents) for place in places):
            item.add_marker(pytest.mark.long)
    if leaves_long_out(config):
        long = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if item not in set(long)]
        config.hook.pytest_deselected(items=long)


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
    """Check the text of every graph that a test sends through the pass manager."""
    run_passes = manager.run_passes

    def checked(graph: Graph, pipeline: Sequence[Any], **options: Any) -> Any:
        history = run_passes(graph, pipeline, **options)
        seen = {id(one): one for one in (graph, *(record.graph for record in history))}
        for one in seen.values():
            check_round_trip(one)
        return history

    monkeypatch.setattr(manager, "run_passes", checked)
    monkeypatch.setattr(graphdist.program.stages, "run_passes", checked)
