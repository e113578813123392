"""What a path leads to: a folder of orbax, files of safetensors, or what is told in words."""

from __future__ import annotations

import os

from graphdist.errors import UnreadableCheckpointError
from graphdist.runtime.files.checkpoint import CheckpointPath
from graphdist.runtime.files.checkpoint_index import INDEX
from graphdist.runtime.files.foreign_arrays import ForeignArrays
from graphdist.runtime.files.foreign_folders import ForeignFolder, foreign
from graphdist.runtime.files.orbax_folders import METADATA, open_orbax
from graphdist.runtime.files.safetensors_files import INDEX_SUFFIX, SUFFIX, open_safetensors
from graphdist.train.user_paths import StrPath, checkpoint_path

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
    of_parent, name = checkpoint_path(path, "the path to load")
    called, parent = os.fspath(path), foreign(of_parent)
    folder = parent.within(name)
    if folder.has(METADATA):
        if found := folder.names(f"*{SUFFIX}"):
            raise UnreadableCheckpointError(
                f"{called} has both a save of orbax and safetensors: {METADATA} and {found[0]}",
                hint=f"give the file, {os.path.join(called, found[0])!r}, or move one of both",
            )
        return open_orbax(folder, called)
    if folder.exists():
        return _in_folder(folder, called)
    if not parent.has(name):
        raise UnreadableCheckpointError(f"there is no {called}")
    if name.endswith((SUFFIX, INDEX_SUFFIX)):
        return open_safetensors(parent, name, called)
    if name.endswith(_PICKLES):
        raise _refused_pickle(called)
    suffix = os.path.splitext(name)[1]
    raise UnreadableCheckpointError(
        f"{called} cannot be loaded: its name ends in {suffix or 'no suffix'!r}, not in {SUFFIX!r}",
        hint=_OTHERS.get(suffix, "give a .safetensors file, or a folder that orbax saved"),
    )


def is_foreign(path: CheckpointPath) -> bool:
    """Return whether a path leads to files that `open_arrays` may read."""
    folder = foreign(path.folder).within(path.name)
    patterns = METADATA, f"*/{METADATA}", f"*{SUFFIX}", f"*{INDEX_SUFFIX}"
    return path.name.endswith(SUFFIX) or any(folder.names(pattern) for pattern in patterns)


def _in_folder(folder: ForeignFolder, called: str) -> ForeignArrays:
    """Return the arrays in a folder whose own files are not of orbax."""
    if folder.names(f"*{SUFFIX}") or folder.names(f"*{INDEX_SUFFIX}"):
        return open_safetensors(folder, "", called)
    items = [os.path.dirname(file) for file in folder.names(f"*/{METADATA}")]
    if len(items) == 1:
        return open_orbax(folder.within(items[0]), called)
    raise _refused_folder(folder, items, called)


def _refused_folder(
    folder: ForeignFolder, items: list[str], called: str
) -> UnreadableCheckpointError:
    """Return the error for a folder without arrays, or with several `items` of orbax."""
    steps = {file.split("/")[0] for file in folder.names(f"*/*/{METADATA}")}
    numbers = sorted(int(step) for step in steps if step.isdigit())
    pickles = [file for file in folder.names("*") if file.endswith(_PICKLES)]
    if folder.has(INDEX):
        what, hint = "is a checkpoint of graphdist", f"gd.train.Checkpoint(..).restore({called!r})"
    elif items:
        what = f"has several items of orbax: {', '.join(items)}"
        hint = f"give one: {os.path.join(called, items[0])!r}"
    elif numbers:
        what = f"has checkpoints of orbax, of the steps {numbers[-5:]}"
        hint = f"give one: {os.path.join(called, str(numbers[-1]))!r}"
    elif folder.names(f"*/{INDEX}"):
        what = "has checkpoints of graphdist"
        hint = f"gd.train.Checkpoint(..).restore(gd.train.latest_checkpoint({called!r}))"
    elif pickles:
        return _refused_pickle(os.path.join(called, pickles[0]))
    else:
        what = f"cannot be loaded: it has neither orbax's {METADATA} nor a file *{SUFFIX}"
        hint = "a save of orbax that was stopped leaves such a folder, too"
    return UnreadableCheckpointError(f"{called} {what}", hint=hint)


def _refused_pickle(called: str) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"{called} is not read: such files are pickles, which run code of whoever made them",
        hint="convert it where PyTorch is: safetensors.torch.save_file(torch.load(path, "
        'weights_only=True), "model.safetensors")',
    )
