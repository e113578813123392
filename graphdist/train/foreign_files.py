"""What a path leads to: a folder of orbax, files of safetensors, or what is told in words."""

from __future__ import annotations

import os
from pathlib import Path

from graphdist.errors import UnreadableCheckpointError
from graphdist.runtime.files.checkpoint_index import INDEX
from graphdist.runtime.files.foreign_arrays import ForeignArrays
from graphdist.runtime.files.orbax_folders import METADATA, open_orbax
from graphdist.runtime.files.safetensors_files import INDEX_SUFFIX, SUFFIX, open_safetensors
from graphdist.train.user_paths import StrPath, disk_path

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_OTHERS = {
    ".npz": "numpy.load reads it: gd.assign(objects, arrays)",
    ".npy": "numpy.load reads it: variable.assign(array)",
    ".h5": "Keras reads its own files: model.load_weights(path)",
    ".keras": "Keras reads its own files: keras.saving.load_model(path)",
    ".msgpack": "flax.serialization reads it: gd.assign(objects, arrays)",
    ".gguf": "convert it to safetensors first",
}


def open_arrays(path: StrPath) -> ForeignArrays:
    """Return the arrays of a folder of orbax, or of files of safetensors.

    Raises `UnreadableCheckpointError` for anything else, and says what it is.
    """
    called = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    place = disk_path(path, "the path to load")
    if place.is_dir():
        return _in_folder(place, called)
    if not place.exists():
        raise UnreadableCheckpointError(f"there is no {called}")
    if place.name.endswith((SUFFIX, INDEX_SUFFIX)):
        return open_safetensors(place, called)
    if place.name.endswith(_PICKLES):
        raise _refused_pickle(called)
    raise UnreadableCheckpointError(
        f"{called} cannot be loaded: its name ends in {place.suffix or 'no suffix'!r}, not in "
        f"{SUFFIX!r}",
        hint=_OTHERS.get(place.suffix, "give a .safetensors file, or a folder that orbax saved"),
    )


def _in_folder(place: Path, called: str) -> ForeignArrays:
    """Return the arrays in a folder."""
    if (place / METADATA).is_file():
        return open_orbax(place, called)
    if any(place.glob(f"*{SUFFIX}")) or any(place.glob(f"*{INDEX_SUFFIX}")):
        return open_safetensors(place, called)
    if (place / INDEX).is_file():
        raise UnreadableCheckpointError(
            f"{called} is a checkpoint of graphdist",
            hint=f"gd.train.Checkpoint(..).restore({called!r})",
        )
    items = sorted(each.parent for each in place.glob(f"*/{METADATA}"))
    if len(items) == 1:
        return open_orbax(items[0], called)
    if items:
        names = ", ".join(item.name for item in items)
        raise UnreadableCheckpointError(
            f"{called} has several items of orbax: {names}",
            hint=f"give one: {os.path.join(called, items[0].name)!r}",
        )
    raise _refused_folder(place, called)


def _refused_folder(place: Path, called: str) -> UnreadableCheckpointError:
    """Return the error for a folder without arrays, with what is in it."""
    found = {file.parts[-3] for file in place.glob(f"*/*/{METADATA}")}
    steps = {int(name) for name in found if name.isdigit()}
    if steps:
        return UnreadableCheckpointError(
            f"{called} has checkpoints of orbax, of the steps {sorted(steps)[-5:]}",
            hint=f"give one: {os.path.join(called, str(max(steps)))!r}",
        )
    if any(place.glob(f"*/{INDEX}")):
        return UnreadableCheckpointError(
            f"{called} has checkpoints of graphdist",
            hint=f"gd.train.Checkpoint(..).restore(gd.train.latest_checkpoint({called!r}))",
        )
    if pickles := [file for file in place.iterdir() if file.name.endswith(_PICKLES)]:
        return _refused_pickle(os.path.join(called, pickles[0].name))
    return UnreadableCheckpointError(
        f"{called} cannot be loaded: it has neither orbax's {METADATA} nor a file *{SUFFIX}",
        hint="a save of orbax that was stopped leaves such a folder, too",
    )


def _refused_pickle(called: str) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"{called} is not read: such files are pickles, which run code of whoever made them",
        hint="convert it where PyTorch is: safetensors.torch.save_file(torch.load(path, "
        'weights_only=True), "model.safetensors")',
    )
