"""Measure the memory of a host that loads and exports its part of 405 billion parameters.

    python -m graphdist.tools.bench.checkpoints_of_405b --workers 256

The files have the names, shapes and sizes of Llama 3.1 405B in bfloat16. One worker of `--workers`
loads its shards from files of Hugging Face, exports them to orbax's format, and loads them from
there. It prints the time and the peak of the process's memory over what it had before.

Simulated are the elements and the other workers. The files of Hugging Face are sparse: they are 812
GB long, take no room on the disk, and are read as zeros, except for one mark in each array, which
is checked. A shard is put on a CPU device and let go, as a host's memory is free once the shard is
on its accelerator. Only this worker's chunks are in the folder of orbax.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: numpy's arrays

import jax
import numpy as np

from graphdist.runtime.files.foreign_folders import FolderOnDisk
from graphdist.runtime.files.orbax_export import OrbaxExport
from graphdist.runtime.files.safetensors_export import SafetensorsExport
from graphdist.runtime.spans import Part, Span, with_bounds
from graphdist.tools.console import CommandParser, console_tool
from graphdist.train.foreign_files import open_arrays
from graphdist.train.leaves import ArrayEntry, Shards
from graphdist.train.loading import write_all
from graphdist.train.name_maps import Form, Transposed, shapes_in, view_of

_LAYERS, _WIDTH, _INNER, _KEYS, _TOKENS = 126, 16384, 53248, 1024, 128256
_DTYPE = jax.numpy.dtype("bfloat16")
_STAGES = ("files of Hugging Face", "export to orbax", "folder of orbax")
_KIB = 1024


@dataclass(frozen=True)
class Parameter:
    """A parameter of the program: its name, shape, form in the files, and sharded dimension."""

    name: str
    shape: tuple[int, ...]
    form: Form
    dimension: int


def parameters_of_405b(along: str) -> list[Parameter]:
    """Return the parameters: layers are stacked, weights are `[inputs, outputs]`.

    They are sharded along the inputs or the outputs; the files have weights `[outputs, inputs]`.
    """
    dimension = ("inputs", "outputs").index(along)
    one = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
    of_layer = {
        "self_attn.q_proj": (_WIDTH, _WIDTH),
        "self_attn.k_proj": (_WIDTH, _KEYS),
        "self_attn.v_proj": (_WIDTH, _KEYS),
        "self_attn.o_proj": (_WIDTH, _WIDTH),
        "mlp.gate_proj": (_WIDTH, _INNER),
        "mlp.up_proj": (_WIDTH, _INNER),
        "mlp.down_proj": (_INNER, _WIDTH),
    }
    found = [
        Parameter("embedding", (_TOKENS, _WIDTH), one[0], 0),
        Parameter("norm", (_WIDTH,), one[1], 0),
        Parameter("head", (_WIDTH, _TOKENS), Transposed(one[2]), dimension),
    ]
    for name, shape in of_layer.items():
        names = [Transposed(f"model.layers.{i}.{name}.weight") for i in range(_LAYERS)]
        found.append(Parameter(f"layers/{name}", (_LAYERS, *shape), names, 1 + dimension))
    for name in ("input_layernorm", "post_attention_layernorm"):
        norms = [f"model.layers.{i}.{name}.weight" for i in range(_LAYERS)]
        found.append(Parameter(f"layers/{name}", (_LAYERS, _WIDTH), norms, 1))
    return found


class _SpanOf:
    """Stands for the value of a variable of which this worker has a span."""

    def __init__(self, span: Span) -> None:
        self.own_span = span


def own_span(parameter: Parameter, worker: int, workers: int) -> Span:
    """Return the part of a parameter that a worker has."""
    size = parameter.shape[parameter.dimension] // workers
    return Span(parameter.dimension, worker * size, (worker + 1) * size)


def part_of(parameter: Parameter, span: Span) -> Part:
    """Return a span as an index."""
    full = [slice(None)] * len(parameter.shape)
    full[span.dimension] = slice(span.start, span.stop)
    return with_bounds(tuple(full), parameter.shape)


def make_sparse_files(folder: Path, along: str, worker: int, workers: int) -> None:
    """Make the files of Hugging Face, with a mark in the first element of each of the spans."""
    of_names = {
        name: (_DTYPE, shape)
        for p in parameters_of_405b(along)
        for name, shape in shapes_in(p.form, p.shape)
    }
    export = SafetensorsExport(FolderOnDisk(folder), "", of_names, max_shard_bytes=5 * 10**9)
    export.begin()
    for parameter in parameters_of_405b(along):
        form = parameter.form if isinstance(parameter.form, list) else [parameter.form]
        first = form[0]
        name = first.source if isinstance(first, Transposed) else first
        start = own_span(parameter, worker, workers).start
        _, shape = of_names[str(name)]
        dimension = parameter.dimension - (len(parameter.shape) - len(shape))
        if isinstance(first, Transposed):
            dimension = len(shape) - 1 - dimension
        mark = tuple(
            slice(start, start + 1) if d == dimension else slice(0, 1) for d in range(len(shape))
        )
        export.write(str(name), mark, np.ones((1,) * len(shape), _DTYPE))
    export.finish()
    export.close()


def load_part(path: Path, is_orbax: bool, along: str, worker: int, workers: int) -> int:
    """Load this worker's shards, one after the other; return how many bytes they have."""
    arrays, pairs, loaded = open_arrays(path), [], 0

    def entry_of(parameter: Parameter) -> ArrayEntry:
        span = own_span(parameter, worker, workers)
        inner = Span(span.dimension, 0, span.stop - span.start).index

        def write(values: Any) -> None:
            nonlocal loaded
            shard = jax.block_until_ready(jax.device_put(values[inner]))
            assert shard[(0,) * shard.ndim] == 1, f"the mark of {parameter.name} is not there"
            loaded += shard.nbytes

        return ArrayEntry(
            parameter.name,
            _DTYPE.name,
            parameter.shape,
            lambda: np.zeros(()),
            write,
            slices=_SpanOf(span),  # type: ignore[arg-type]  # only the span is asked for
            shards=Shards(span.shape_in(parameter.shape), lambda: iter(())),
        )

    for parameter in parameters_of_405b(along):
        form = parameter.name if is_orbax else parameter.form
        pairs.append((entry_of(parameter), form, view_of(form, arrays)))
    write_all(str(path), pairs)  # type: ignore[arg-type]  # entries of arrays alone
    return loaded


def export_part(path: Path, along: str, worker: int, workers: int) -> int:
    """Export this worker's shards, one after the other; return how many bytes they have."""
    shapes = {p.name: (_DTYPE, p.shape) for p in parameters_of_405b(along)}
    paths = {name: [(key, False) for key in name.split("/")] for name in shapes}
    spans = {p.name: own_span(p, worker, workers) for p in parameters_of_405b(along)}
    shards = {p.name: spans[p.name].shape_in(p.shape) for p in parameters_of_405b(along)}
    folder = OrbaxExport(FolderOnDisk(path.parent), path.name, shapes, paths, shards)
    folder.begin()
    written = 0
    for parameter in parameters_of_405b(along):
        values = np.full(shards[parameter.name], 0.5, _DTYPE)
        values[(0,) * values.ndim] = 1
        folder.write(parameter.name, part_of(parameter, spans[parameter.name]), values)
        written += values.nbytes
        del values
    folder.finish()
    folder.close()
    return written


def run_stage(stage: str, folder: Path, along: str, worker: int, workers: int) -> None:
    """Run one stage in this process, and print its figures."""
    calls: dict[str, Callable[[], int]] = {
        _STAGES[0]: lambda: load_part(folder / "hf", False, along, worker, workers),
        _STAGES[1]: lambda: export_part(folder / "orbax", along, worker, workers),
        _STAGES[2]: lambda: load_part(folder / "orbax", True, along, worker, workers),
    }
    jax.block_until_ready(jax.device_put(np.zeros(1)))  # starts JAX
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    moved = calls[stage]()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{stage:22} {moved / 2**30:6.2f} GiB in {seconds:6.1f} s; peak of memory "
        f"{(peak - before) * _KIB / 2**30:5.2f} GiB over {before * _KIB / 2**30:.2f}",
        flush=True,
    )


def largest_shards(along: str, workers: int) -> Iterator[tuple[str, float]]:
    """Yield the name and GiB of each parameter's shard."""
    for parameter in parameters_of_405b(along):
        yield parameter.name, np.prod(parameter.shape) * _DTYPE.itemsize / workers / 2**30


@console_tool("checkpoints_of_405b")
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each stage in a process of its own, and print."""
    parser = CommandParser(__doc__)
    parser.add_argument("--workers", type=int, default=256, help="a divisor of 256 or 512")
    parser.add_argument("--worker", type=int, default=37)
    parser.add_argument("--along", choices=("inputs", "outputs"), default="outputs")
    parser.add_argument("--directory", help="where to write; by default the system's for such")
    parser.add_argument("--stage", choices=_STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.stage:
        run_stage(
            options.stage, Path(options.directory), options.along, options.worker, options.workers
        )
        return 0
    name, size = max(largest_shards(options.along, options.workers), key=lambda each: each[1])
    total = sum(np.prod(each.shape, dtype=np.int64) for each in parameters_of_405b(options.along))
    print(f"{total / 1e9:.1f} billion parameters, {total * 2 / 1e9:.0f} GB; largest shard of")
    print(f"worker {options.worker} of {options.workers}: {name}, {size:.2f} GiB", flush=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        make_sparse_files(Path(folder) / "hf", options.along, options.worker, options.workers)
        on_disk = sum(os.stat(file).st_size for file in (Path(folder) / "hf").iterdir())
        print(f"{len(os.listdir(Path(folder) / 'hf'))} files, {on_disk / 1e9:.0f} GB long")
        for stage in _STAGES:
            command = [sys.executable, "-m", "graphdist.tools.bench.checkpoints_of_405b"]
            command += ["--along", options.along]
            command += ["--stage", stage, "--directory", folder, "--worker", str(options.worker)]
            subprocess.run([*command, "--workers", str(options.workers)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
