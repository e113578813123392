"""Tracebacks show the user's lines, unless `jax_traceback_filtering` says otherwise."""

from __future__ import annotations

import builtins
import pickle
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.tracebacks import NOTE

HERE = Path(__file__).name


@contextmanager
def filtering(mode: str) -> Iterator[None]:
    settings: Any = jax.config
    before = settings.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", mode)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


def raised(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def frames(error: BaseException) -> list[tuple[str, str]]:
    """Return file and function of the lines that the error's traceback shows, but for `raised`.

    Those of `conftest.py` are there in tests alone.
    """
    return [place for place in traceback_of(error)[1:] if place[0] != "conftest.py"]


def traceback_of(error: BaseException | None) -> list[tuple[str, str]]:
    assert error is not None
    shown = traceback.extract_tb(error.__traceback__)
    return [(Path(frame.filename).name, frame.name) for frame in shown]


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def mistake(x: jax.Array) -> jax.Array:
    return x @ jnp.ones((7, 2))


def in_function(strategy: gd.Strategy) -> None:
    def replica_fn(x: jax.Array) -> jax.Array:
        return jax.jit(mistake)(x)

    @gd.function
    def step(x: Any) -> Any:
        return strategy.run(replica_fn, args=(x,))

    step(np.ones((4, 3), np.float32))


IN_FUNCTION = ["in_function", "step", "replica_fn", "mistake"]


@pytest.mark.parametrize("mode", ["auto", "quiet_remove_frames", "remove_frames"])
def test_a_mistake_of_the_users(strategy: gd.Strategy, mode: str) -> None:
    with filtering(mode):
        error = raised(lambda: in_function(strategy))
    assert isinstance(error, TypeError)
    assert frames(error)[1:] == [(HERE, name) for name in IN_FUNCTION]
    whole = error.__cause__
    assert (whole is not None) == (mode == "remove_frames")  # JAX's way to show all
    assert whole is None or ("trace_in_progress.py", "run") in frames(whole)


def test_outside_of_functions(strategy: gd.Strategy) -> None:
    error = raised(lambda: strategy.run(mistake, args=(np.ones((4, 3), np.float32),)))
    assert [name for _, name in frames(error)] == ["<lambda>", "mistake"]


def test_methods_and_traces_too(strategy: gd.Strategy) -> None:
    class Model:
        @gd.function
        def step(self, x: Any) -> jax.Array:
            return mistake(x)

    x = np.ones((4, 3), np.float32)
    for call in (Model().step, Model().step.trace):
        shown = frames(raised(partial(call, x)))
        assert [name for _, name in shown] == ["step", "mistake"]


def test_off_shows_all(strategy: gd.Strategy) -> None:
    with filtering("off"):
        error = raised(lambda: in_function(strategy))
    shown = frames(error)
    assert ("function.py", "__call__") in shown
    assert ("trace_in_progress.py", "run") in shown
    assert not getattr(error, "__notes__", [])


def test_tracebackhide_marks(strategy: gd.Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    with filtering("tracebackhide"):
        error = raised(lambda: in_function(strategy))
    entries = list(traceback.walk_tb(error.__traceback__))[2:]
    seen = [f.f_code.co_name for f, _ in entries if not f.f_locals.get("__tracebackhide__")]
    assert seen == IN_FUNCTION
    assert len(entries) > len(seen)
    monkeypatch.setattr(builtins, "get_ipython", lambda: None, raising=False)
    with filtering("auto"):  # in IPython
        error = raised(lambda: in_function(strategy))
    assert ("function.py", "__call__") in frames(error)


def test_it_says_once_how_to_see_all() -> None:
    @gd.function
    def fails(x: float) -> None:
        raise KeyError("a mistake of the user's")

    notes = raised(lambda: fails(1.0)).__notes__
    assert len([note for note in notes if "JAX_TRACEBACK_FILTERING" in note]) == 1
    assert "JAX_TRACEBACK_FILTERING=off" in NOTE


def test_errors_of_ours_end_at_the_users_line(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(jnp.ones(3))

    def own() -> Any:
        return w.assign(jnp.ones(3) * gd.get_replica_context().replica_id_in_sync_group)

    for call in (
        lambda: strategy.run(own),
        lambda: strategy.reduce("PRODUCT", 1.0, axis=None),
        lambda: w.assign("abc"),
        lambda: w.assign_add(jnp.ones(4)),
        lambda: strategy.gather(1.0, axis="first"),  # type: ignore[call-overload]
        lambda: gd.function(lambda x: x)([object(), {}.keys()]),
    ):
        error = raised(call)
        assert isinstance(error, gd.GraphdistError)
        assert frames(error) == [(HERE, "<lambda>")]
        assert NOTE not in getattr(error, "__notes__", [])
        cause = error.__cause__
        assert cause is None or not frames(cause)


def test_causes_are_shown_in_the_same_way(strategy: gd.Strategy) -> None:
    def fails(x: Any) -> None:
        raise KeyError("first")

    def replica_fn(x: jax.Array) -> None:
        try:
            jax.jit(fails)(x)
        except KeyError as error:
            raise ValueError("second") from error

    error = raised(lambda: strategy.run(replica_fn, args=(1.0,)))
    assert [name for _, name in frames(error)] == ["<lambda>", "replica_fn"]
    assert error.__cause__ is error.__context__
    assert [name for _, name in traceback_of(error.__cause__)] == ["replica_fn", "fails"]


def test_frames_of_libraries_stay(strategy: gd.Strategy) -> None:
    def replica_fn() -> Any:
        return optax.sgd(0.1).update({"a": jnp.ones(2)}, (1, 2, 3))

    shown = frames(raised(lambda: strategy.run(replica_fn)))
    assert [name for _, name in shown[:2]] == ["<lambda>", "replica_fn"]
    assert len(shown) > 2


def test_mistakes_of_ours_are_left_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphdist.program.program.step_of", None)
    error = raised(lambda: gd.function(lambda x: x * 2)(1.0))
    assert isinstance(error, TypeError)
    assert frames(error)[-1] == ("program.py", "binding")
    assert NOTE not in getattr(error, "__notes__", [])


def test_ctrl_c_is_left_alone(strategy: gd.Strategy) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        strategy.run(interrupted)
    assert ("function.py", "__call__") in traceback_of(caught.value)


def test_errors_are_pickled_and_cross_threads(strategy: gd.Strategy) -> None:
    with ThreadPoolExecutor() as threads:
        error = threads.submit(raised, lambda: in_function(strategy)).result()
    assert frames(error)[1:] == [(HERE, name) for name in IN_FUNCTION]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
