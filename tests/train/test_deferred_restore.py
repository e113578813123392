"""Objects given to a checkpoint after the restore get what was saved of them."""

from __future__ import annotations

import gc
import weakref

import pytest

import graphdist as gd


def test_an_object_given_after_the_restore(prefix: str) -> None:
    path = gd.train.Checkpoint(v=gd.Variable(7.0), step=4).save(prefix)
    checkpoint = gd.train.Checkpoint()
    status = checkpoint.restore(path)
    checkpoint.v = gd.Variable(0.0)
    assert float(checkpoint.v) == 7.0
    with pytest.raises(AssertionError, match="step"):
        status.assert_consumed()
    checkpoint.step = 0
    assert checkpoint.step == 4
    status.assert_consumed()
    checkpoint.step += 1
    assert checkpoint.step == 5


@pytest.mark.parametrize("before", ["model", "ema"])
def test_one_of_two_names_is_given_after_the_restore(prefix: str, before: str) -> None:
    w = gd.Variable([1.0, 2.0])
    path = gd.train.Checkpoint(model={"w": w}, ema={"w": w}).save(prefix)
    first, second = gd.Variable([0.0, 0.0]), gd.Variable([0.0, 0.0])
    checkpoint = gd.train.Checkpoint(**{before: {"w": first}})
    status = checkpoint.restore(path).assert_consumed()
    setattr(checkpoint, "ema" if before == "model" else "model", {"w": second})
    assert first.read_value().tolist() == second.read_value().tolist() == [1.0, 2.0]
    status.assert_consumed()


def test_a_restored_variable_given_under_another_name_keeps_what_became_of_it(prefix: str) -> None:
    w = gd.Variable(1.0)
    path = gd.train.Checkpoint(model=w, ema=w).save(prefix)
    checkpoint = gd.train.Checkpoint(model=w)
    status = checkpoint.restore(path)
    w.assign_add(1.0)
    checkpoint.ema = w
    checkpoint.model = w
    assert float(w) == 2.0
    status.assert_consumed()


def test_a_variable_for_two_that_were_saved(prefix: str) -> None:
    path = gd.train.Checkpoint(a=gd.Variable(1.0), b=gd.Variable(2.0)).save(prefix)
    both = gd.Variable(0.0)
    checkpoint = gd.train.Checkpoint(unknown=both)
    status = checkpoint.restore(path).expect_partial()
    checkpoint.b = both
    assert float(both) == 2.0
    checkpoint.a = both
    assert float(both) == 2.0
    with pytest.raises(AssertionError, match="1 not restored") as caught:
        status.assert_consumed()
    assert "not restored: a" in str(caught.value)


def test_another_object_in_the_place_of_a_restored_one(prefix: str) -> None:
    path = gd.train.Checkpoint(v=gd.Variable(7.0)).save(prefix)
    checkpoint = gd.train.Checkpoint(v=gd.Variable(0.0))
    status = checkpoint.restore(path).assert_consumed()
    checkpoint.v = gd.Variable(3.0)
    assert float(checkpoint.v) == 3.0
    for check in (status.assert_consumed, status.assert_existing_objects_matched):
        with pytest.raises(AssertionError, match="1 not restored"):
            check()


def test_an_object_given_to_a_checkpoint_inside_another(prefix: str) -> None:
    def make() -> gd.train.Checkpoint:
        return gd.train.Checkpoint(a=gd.Variable(1.0))

    saved = make()
    saved.b, saved.step = gd.Variable(2.0), 3
    path = gd.train.Checkpoint(inner=saved).save(prefix)
    inner = make()
    outer = gd.train.Checkpoint(inner=inner)
    status = outer.restore(path)
    inner.a.assign(5.0)
    inner.b = gd.Variable(0.0)
    inner.step = 0
    assert (float(inner.a), float(inner.b), inner.step) == (5.0, 2.0, 3)
    inner.step += 1
    assert inner.step == 4
    status.assert_consumed()
    inner.c = 1
    latest = outer.save(prefix + "-latest")
    del inner.c, inner.step
    newer = outer.restore(latest)
    inner.step, inner.c = 0, 0
    assert (inner.step, inner.c) == (4, 1)
    newer.assert_consumed()


@pytest.mark.long
def test_a_status_keeps_no_variable_alive(prefix: str) -> None:
    checkpoint = gd.train.Checkpoint(v=gd.Variable(7.0))
    checkpoint.restore(checkpoint.save(prefix))
    alive = weakref.ref(checkpoint.v)
    del checkpoint.v
    gc.collect()
    assert alive() is None
