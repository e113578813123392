"""Eight CPU devices, the same examples in every run, and `--update-golden`."""

import jax
import pytest
from hypothesis import settings

# Before anything starts a backend: afterwards JAX refuses both.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expected text of golden tests from what the code gives now",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Return whether golden tests rewrite what they expect."""
    return bool(request.config.getoption("--update-golden"))
