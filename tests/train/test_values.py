"""Values come back equal, of the same type and dtype, or their save refuses and writes nothing."""

from __future__ import annotations

import enum
import json
import math
import os
import tempfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorstore
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import graphdist as gd
from graphdist.runtime.files.checkpoint_index import INDEX, sealed
from graphdist.train import checkpoint as checkpoint_module

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
"""The dtypes that NumPy has by itself."""
OTHERS = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4]


class Color(enum.IntEnum):
    RED = 1


class Sub(np.ndarray[Any, Any]):
    """An array of a user's class."""


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in type, dtype and every bit."""
    if type(one) is not type(other) and not isinstance(one, np.memmap):
        return False
    if isinstance(one, dict):
        return {*one} == {*other} and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        native = one.astype(one.dtype.newbyteorder("="))
        alike = (other.dtype, other.shape) == (native.dtype, one.shape)
        return alike and native.tobytes() == other.tobytes()
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)


def came_back(folder: Path, value: Any) -> Any:
    """Return a value that was saved and restored."""
    checkpoint = gd.train.Checkpoint(value=value)
    checkpoint.write(folder / "saved")
    checkpoint.restore(folder / "saved").assert_consumed()
    return checkpoint.value


numbers = arrays_of.arrays(
    st.sampled_from(DTYPES).flatmap(
        lambda name: st.sampled_from([np.dtype(name), np.dtype(name).newbyteorder(">")])
    ),
    arrays_of.array_shapes(min_dims=0, min_side=0, max_side=3),
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers() | st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(st.characters(), max_size=4),  # with lone surrogates
)
trees = st.recursive(
    plain | numbers | numbers.map(lambda array: array.T) | numbers.map(lambda array: array[()]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3)
        | st.dictionaries(st.integers(0, 2) | st.text("012", max_size=1), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=25, deadline=None)
@given(trees)
def test_a_tree_comes_back_or_is_refused(tree: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        try:
            found = came_back(Path(name), tree)
        except gd.ArgumentError:
            assert os.listdir(name) == []
        else:
            assert same(tree, found)


@pytest.mark.parametrize("dtype", [*DTYPES, *OTHERS], ids=str)
def test_every_dtype(tmp_path: Path, dtype: Any) -> None:
    array = np.arange(-3, 3).reshape(2, 3).astype(dtype)
    forms = [array.T, array[:0], array[0, 0], np.array(array[1, 1])]
    assert same(forms, came_back(tmp_path, forms))


def test_every_layout(tmp_path: Path) -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    frozen = array.copy()
    frozen.flags.writeable = False
    layouts = [array, array.transpose(1, 0, 2), array[:, ::-2], array[..., 1], frozen]
    layouts += [np.asfortranarray(array), np.broadcast_to(array[0, 1], (2, 2, 4))]
    assert same(layouts, came_back(tmp_path, layouts))


@pytest.mark.parametrize("name", ["int16", "uint64", "float32", "float64", "complex128"])
def test_another_byte_order_is_saved_in_this_ones(tmp_path: Path, name: str) -> None:
    array = np.array([1, 2, 3], np.dtype(name).newbyteorder(">"))
    assert same(array, came_back(tmp_path, array))
    assert gd.train.load_variable(tmp_path / "saved", "value").dtype == name
    metadata = json.loads((tmp_path / "saved" / "part-0" / "0" / ".zarray").read_text())
    assert metadata["dtype"] == np.dtype(name).str


def test_arrays_are_read_by_other_programs(tmp_path: Path) -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.array([1, 2], ml_dtypes.bfloat16), np.array(True)]
    came_back(tmp_path, arrays)
    for number, array in enumerate(arrays):
        place = f"{tmp_path}/saved/part-0/{number}/"
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": place}}
        found = tensorstore.open(spec).result().read().result()
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**64), 10**4299, -(10**20_000), 2**1_000_000, "\ud800\udc00", "\0\n\u2028", -0.0],
    ids=lambda value: f"{value!a:.20}" if isinstance(value, str | float) else "integer",
)
def test_integers_of_any_size_and_any_text(tmp_path: Path, value: Any) -> None:
    assert same({"value": value, "true": True}, came_back(tmp_path, {"value": value, "true": True}))


def test_a_huge_integer_is_named_shortly(tmp_path: Path) -> None:
    came_back(tmp_path, 10**20_000)
    named = "saved was a number of type int"
    with pytest.raises(gd.CheckpointError, match=f"'value' is of type str, {named}"):
        gd.train.Checkpoint(value="").restore(tmp_path / "saved")
    with pytest.raises(gd.CheckpointError, match=named):
        gd.train.Checkpoint(value=0.0).restore(tmp_path / "saved")


@pytest.mark.parametrize(
    "said", [{"hex": "0x1g"}, {"hex": 3}, {"hex": "0x1", "b": 1}, {}, [1], None]
)
def test_what_is_no_integer_is_refused(tmp_path: Path, said: Any) -> None:
    came_back(tmp_path, 1)
    index = tmp_path / "saved" / INDEX
    index.write_bytes(sealed({**json.loads(index.read_text()), "values": {"value": said}}))
    with pytest.raises(gd.UnreadableCheckpointError, match=r"values\.value(\.hex)? is"):
        gd.train.Checkpoint(value=0).restore(tmp_path / "saved")


REFUSED: dict[str, Callable[[], Any]] = {
    "objects": lambda: np.array([1, None], object),
    "text": lambda: np.array(["a"]),
    "bytes in an array": lambda: np.array([b"a"]),
    "records": lambda: np.zeros(2, "f4,i4"),
    "times": lambda: np.array(["2020-01-01"], "M8[D]"),
    "a time": lambda: np.datetime64("2020-01-01"),
    "long doubles": lambda: np.zeros(2, np.longdouble),
    "a masked array": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    "another class of arrays": lambda: np.zeros(3).view(Sub),
    "an enum": lambda: Color.RED,
    "a class of numbers": lambda: type("Number", (float,), {})(1.0),
    "a class of text": lambda: type("Text", (str,), {})("a"),
    "complex": lambda: 1j,
    "bytes": lambda: b"a",
    "a set": lambda: {1},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_not_come_back_is_refused(tmp_path: Path, kind: str) -> None:
    checkpoint = gd.train.Checkpoint(value=1)
    with pytest.raises(gd.ArgumentTypeError, match=r"test_values\.py.*(.|\n)*hint: .*give"):
        checkpoint.value = [REFUSED[kind]()]
    assert checkpoint.value == 1
    with pytest.raises(gd.ArgumentTypeError, match="entry 'value/0' of a checkpoint"):
        gd.train.Checkpoint(value=[REFUSED[kind]()]).write(tmp_path / "saved")
    assert os.listdir(tmp_path) == []


def test_an_array_in_a_memory_map_comes_back_in_memory(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "mapped", np.int64, "w+", shape=(3,))
    array[:] = [1, 2, 3]
    found = came_back(tmp_path, array)
    assert type(found) is np.ndarray
    assert same(array, found)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
def test_arrays_of_64_bits_come_back_where_jax_has_32(tmp_path: Path, dtype: str) -> None:
    with jax.enable_x64(True):
        array, variable = jnp.full(3, 7, dtype), gd.Variable(np.full(3, 7, dtype))
    checkpoint = gd.train.Checkpoint(array=array, variable=variable)
    checkpoint.write(tmp_path / "saved")
    with jax.enable_x64(True):
        checkpoint.array = jnp.zeros(3, dtype)
        variable.assign(np.zeros(3, dtype))
    checkpoint.restore(tmp_path / "saved").assert_consumed()
    assert same(np.asarray(checkpoint.array), np.full(3, 7, dtype))
    assert same(gd.train.load_variable(tmp_path / "saved", "variable"), np.full(3, 7, dtype))
    with jax.enable_x64(True):
        assert same(np.asarray(variable.read_value()), np.full(3, 7, dtype))


# Depth, and what contains itself.


def test_any_depth(tmp_path: Path) -> None:
    """JAX's own functions leave Python's count of calls wrong where they give up at some depth."""
    tree: Any = np.ones(2)
    for _ in range(3000):
        tree = [{"a": tree}]
    inner = gd.train.Checkpoint(step=3)
    for _ in range(3000):
        outer = gd.train.Checkpoint()
        outer.objects["inner"] = inner  # an assignment looks at all that is in it
        inner = outer
    checkpoint = gd.train.Checkpoint(tree=tree, inner=inner)
    checkpoint.write(tmp_path / "saved")
    checkpoint.restore(tmp_path / "saved").assert_consumed()
    tree = checkpoint.tree
    while isinstance(tree, list):
        (tree,) = tree[0].values()
    assert same(tree, np.ones(2))


def test_what_contains_itself(tmp_path: Path) -> None:
    circle: list[Any] = [1]
    circle.append({"a": circle})
    with pytest.raises(
        gd.ArgumentError, match="entry 'circle/1/a' of a checkpoint contains itself"
    ):
        gd.train.Checkpoint(circle=circle)
    checkpoint = gd.train.Checkpoint(step=3)
    checkpoint.itself = checkpoint
    checkpoint.write(tmp_path / "saved")
    checkpoint.step = 0
    checkpoint.restore(tmp_path / "saved").assert_consumed()
    assert checkpoint.step == 3


def test_attributes_that_contain_themselves(tmp_path: Path) -> None:
    class Model:
        """A user's object."""

    model = Model()
    circle: list[Any] = [gd.Variable(3.0)]
    circle += [circle, {"model": model}]
    vars(model).update(circle=circle, itself=model, circles={"a": circle, "b": [circle]})
    checkpoint = gd.train.Checkpoint(model=model)
    path = checkpoint.write(tmp_path / "saved")
    assert gd.train.list_variables(path) == [("model/circle/0", [])]
    circle[0].assign(0.0)
    checkpoint.restore(path).assert_consumed()
    assert float(circle[0]) == 3.0


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({1: 1, "1": 2}, "whose keys cannot be put in order"),
        ({None: 1, "None": 2}, "whose keys cannot be put in order"),
        ({"a/b": 1, "a": {"b": 2}}, "two values of a checkpoint have the name 'tree/a/b'"),
        ({"a": [1], "a/0": 2}, "two values of a checkpoint have the name 'tree/a/0'"),
        ({"a/": 1, "a": {"": 2}}, "two values of a checkpoint have the name 'tree/a/'"),
    ],
)
def test_names_that_are_one(tree: Any, said: str) -> None:
    with pytest.raises(gd.ArgumentError, match=said):
        gd.train.Checkpoint(tree=tree)


def test_objects_that_are_named_like_what_a_checkpoint_has() -> None:
    for name in ("objects", "save", "_status"):
        with pytest.raises(gd.ArgumentError, match="reserved name"):
            gd.train.Checkpoint(**{name: 1})


def test_an_array_is_committed_as_the_one_before_it(tmp_path: Path) -> None:
    first, second = jax.devices()[:2]
    with jax.default_device(second):
        free_there = jnp.arange(3.0)
    free, key = jnp.arange(3.0), jax.random.key(3)
    bound = jax.device_put(free, second)
    values = {"free": free, "there": free_there, "bound": bound, "key": key}
    back = came_back(tmp_path, values)
    for name, value in values.items():
        assert back[name].committed == value.committed == (name == "bound")
        assert back[name].devices() == value.devices()
    assert (back["free"] + bound).devices() == {second}
    assert free.devices() == {first}


@pytest.mark.parametrize(
    "number", [2.5, 7, 1j, math.inf, math.nan, -0.0], ids=lambda number: f"{number}"
)
@pytest.mark.parametrize("has_64_bits", [False, True])
def test_a_weakly_typed_scalar_stays_so(tmp_path: Path, number: Any, has_64_bits: bool) -> None:
    with jax.enable_x64(has_64_bits):
        before = jnp.asarray(number)
    back = came_back(tmp_path, before)
    assert before.weak_type
    assert back.weak_type
    assert same(np.asarray(before), np.asarray(back))
    strong = jnp.asarray(1, jnp.float16)
    if not isinstance(number, complex):
        assert (strong + back).dtype == jnp.float16
    assert not came_back(tmp_path, strong).weak_type


# States.


class Keeper:
    """An object with a state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


def levels(depth: int) -> Any:
    state: Any = 1
    for _ in range(depth):
        state = [state]
    return state


@pytest.mark.parametrize(
    "state",
    [
        np.int64(3),
        np.float64(1.5),
        b"a\0b",
        {"a": [(1, 2)]},
        OrderedDict(a=1),
        {"a": {2: "b", None: (), True: {3, 4}}},
        {"graphdist": "bytes", "content": 3},
        [float("inf"), 1e-300, -0.0, 10**30, "\udc80"],
        levels(200),
    ],
    ids=["numpy", "float", "bytes", "tuple", "ordered", "keys", "key", "numbers", "depth"],
)
def test_a_state_comes_back_with_its_types(tmp_path: Path, state: Any) -> None:
    path = gd.train.Checkpoint(keeper=Keeper(state)).write(tmp_path / "saved")
    keeper = Keeper(None)
    gd.train.Checkpoint(keeper=keeper).read(path).assert_consumed()
    assert repr(keeper.state) == repr(state)


def test_arrays_in_a_state(tmp_path: Path) -> None:
    state: dict[str, Any] = dict(np.random.default_rng(3).bit_generator.state)
    state["cache"] = np.arange(6, dtype=np.uint8).reshape(2, 3)
    path = gd.train.Checkpoint(keeper=Keeper(state)).write(tmp_path / "saved")
    keeper = Keeper(None)
    gd.train.Checkpoint(keeper=keeper).read(path).assert_consumed()
    array = keeper.state.pop("cache")
    assert (array.dtype, array.tolist()) == (np.uint8, [[0, 1, 2], [3, 4, 5]])
    array[0] = 7  # it can be written to, as it could be
    del state["cache"]
    assert keeper.state == state


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (object(), "it has a value of type object"),
        ({"a": jnp.arange(3)}, "it has a value of type jax.Array"),
        (np.array(["a"]), "it has a ndarray of dtype <U1"),
        (defaultdict(int), "it has a value of type defaultdict"),
        ({(object(),): 1}, "it has a value of type object"),
        (levels(201), "more than 200 levels"),
        (10**5000, "Exceeds the limit"),
    ],
    ids=["object", "jax", "text", "subclass", "key", "depth", "integer"],
)
def test_a_state_that_would_change_is_refused_in_the_save(
    tmp_path: Path, state: Any, said: str
) -> None:
    checkpoint = gd.train.Checkpoint(keeper=Keeper(state))
    with pytest.raises(gd.ArgumentTypeError, match=f"'keeper' .* cannot be saved: .*{said}"):
        checkpoint.write(tmp_path / "saved")
    assert os.listdir(tmp_path) == []


def test_a_state_that_contains_itself_is_refused(tmp_path: Path) -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(gd.ArgumentTypeError, match="more than 200 levels"):
        gd.train.Checkpoint(keeper=Keeper(state)).write(tmp_path / "saved")


def test_a_state_is_saved_as_it_was_in_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper([1])

    def change_and_write(job: Callable[[], None], name: str) -> None:
        keeper.state.append(2)
        job()

    monkeypatch.setattr(checkpoint_module, "start_writing", change_and_write)
    checkpoint = gd.train.Checkpoint(keeper=keeper)
    checkpoint.write(tmp_path / "saved")
    checkpoint.restore(tmp_path / "saved").assert_consumed()
    assert keeper.state == [1]


@pytest.mark.parametrize("state", [levels(200), {"a": [None, 2**128, "\ud800\udc00", math.inf]}])
def test_a_state_comes_back(tmp_path: Path, state: Any) -> None:
    keeper = Keeper(state)
    checkpoint = gd.train.Checkpoint(keeper=keeper)
    checkpoint.write(tmp_path / "saved")
    keeper.state = None
    checkpoint.restore(tmp_path / "saved").assert_consumed()
    assert keeper.state == state
