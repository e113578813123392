"""Compare sharded training with graphdist, ahead of time, with forms written by hand.

    python -m graphdist.tools.bench.sharded_ahead_of_time v5e:16x16 --size llama2-7b
    python -m graphdist.tools.bench.sharded_ahead_of_time v5e:4x4 --forms "ours, mirrored"

The step is from examples/aot_transformer.py. Each line has the peak memory per chip, and the ratio
of graphdist's peak to it; the bytes that a chip sends per step, if collectives use a ring; the
collectives that run in a step; and for each loop how many collectives of its body overlap with no
computation. To compile a model of several billion parameters takes minutes and gigabytes.

The forms by hand are plain JAX:

* `fsdp in shard_map`: parameters and slots are stored in shards. The body of the loop over layers
  gathers its layer in the dtype that it computes in; JAX derives the reduce_scatter of gradients at
  the end of the body, and re-gathers in the backward pass.
* `fsdp in jit`: the same by constraints, where XLA's partitioner places the collectives.
* `zero-1 in jit`: parameters are mirrored, slots sharded; gradients are constrained to shards where
  they are updated.

A matrix is sharded along its first dimension that divides, which is never the dimension of the
layers. A matrix that does not divide, or is small, is mirrored.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any  # Any: the example's module and settings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from graphdist.errors import ArgumentError, DeviceMemoryError
from graphdist.report.amounts import size_text, table
from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.schedule import exposed_by_loop
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.tools.bench.measurement import Module, module_of
from graphdist.tools.compilation import StepOptions, chosen_for, lower_target, strategy_for
from graphdist.tools.console import CommandParser, console_tool
from graphdist.tools.steps import parse_settings
from graphdist.tools.targets import load_factory, prepare_command

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "aot_transformer.py"

OURS = {"ours, sharded": True, "ours, mirrored": False}
"""Our forms, and whether parameters are sharded."""


@dataclass(frozen=True)
class CompiledForm:
    """A form as compiled; `module` is None if the compiler refused the program."""

    name: str
    module: Module | None
    exposed: tuple[int, ...]
    seconds: float
    refusal: str = ""


def compiled_form(name: str, topology: Topology, settings: dict[str, Any]) -> CompiledForm:
    """Compile a form of the step."""
    start = time.perf_counter()
    compile = _ours if name in OURS else _by_hand
    try:
        compiled = compile(name, topology, settings)
    except (DeviceMemoryError, jax.errors.JaxRuntimeError) as error:
        refusal = str(error).splitlines()[0]
        return CompiledForm(name, None, (), time.perf_counter() - start, refusal)
    module = module_of(compiled, topology.num_devices, topology.chip.platform)
    exposed = tuple(exposed_by_loop(CompiledModule(str(compiled.as_text()))).values())
    return CompiledForm(name, module, exposed, time.perf_counter() - start)


def _ours(name: str, topology: Topology, settings: dict[str, Any]) -> jax.stages.Compiled:
    chosen = chosen_for(topology, OURS[name])
    lowered = lower_target(f"{EXAMPLE}:make_step", chosen, StepOptions(settings))
    return lowered.compile().executable.compiled


def _by_hand(name: str, topology: Topology, settings: dict[str, Any]) -> jax.stages.Compiled:
    example = sys.modules[load_factory(f"{EXAMPLE}:make_step").__module__]
    devices = tuple(strategy_for(topology).devices.devices)
    return FORMS[name](example, settings, devices).compile()


def table_of(forms: Sequence[CompiledForm]) -> str:
    """Return the forms as a table; ratios are of our first form to each."""
    ours = next((form for form in forms if form.name in OURS), None)
    header = ("", "peak per chip", "ours is", "sent", "ours is", "collectives", "exposed in loops")
    rows = [header, *(_row(form, ours) for form in forms)]
    refused = [f"{form.name}: {form.refusal}" for form in forms if form.refusal]
    return "\n".join([*table(rows), *refused])


def _row(form: CompiledForm, ours: CompiledForm | None) -> tuple[str, ...]:
    module = form.module
    if module is None:
        return (form.name, "refused", "", "", "", "", "")
    return (
        form.name,
        size_text(module.peak_bytes),
        _ratio(form, ours, lambda module: module.peak_bytes),
        size_text(module.moved_bytes),
        _ratio(form, ours, lambda module: module.moved_bytes),
        ", ".join(f"{count} {kind}" for kind, count in module.collectives.items()),
        ", ".join(map(str, form.exposed)),
    )


def _ratio(form: CompiledForm, ours: CompiledForm | None, of: Callable[[Module], int]) -> str:
    if ours is None or form is ours or ours.module is None or form.module is None:
        return ""
    return f"{of(ours.module) / of(form.module):.2f}x" if of(form.module) else ""


@console_tool("sharded_ahead_of_time")
def main(arguments: Sequence[str] | None = None) -> int:
    """Compile the forms one after the other and print the table; returns 2 for invalid input."""
    names = [*OURS, *FORMS]
    parser = CommandParser(__doc__)
    parser.add_argument("topology", help="such as v5e:16x16")
    parser.add_argument("--size", default="10m", help="of examples/aot_transformer.py")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--forms", action="append", help=f"of {'; '.join(names)}; all if none")
    options = parser.parse_args(arguments)
    prepare_command()
    topology = find_topology(options.topology)
    chosen = options.forms or names
    for name in chosen:
        if name not in names:
            raise ArgumentError(
                f"there is no form {name!r}",
                hint=f"choose from {'; '.join(names)}",
            )
    settings = parse_settings(options.set)
    if "size" in settings:
        raise ArgumentError("--set size and --size both give the size: leave --set size out")
    settings["size"] = options.size
    forms = [compiled_form(name, topology, settings) for name in chosen]
    print(f"{options.size} on {topology}\n{table_of(forms)}")
    return 0


AXIS = "data"
FEWEST_ELEMENTS = 2**17
"""Parameters of fewer elements in a layer are mirrored."""


@dataclass(frozen=True)
class ByHandForm:
    """The example's step by hand for some devices; `example` is its module."""

    example: Any
    settings: dict[str, Any]
    devices: tuple[Any, ...]

    @property
    def chosen(self) -> Any:
        """Return the example's settings."""
        return self.example.Settings(**self.settings)

    @property
    def model(self) -> Any:
        """Return the shape of the model."""
        return self.example.SIZES[self.chosen.size]

    @property
    def mesh(self) -> Mesh:
        """Return a mesh of one axis over the devices."""
        return Mesh(np.array(self.devices), (AXIS,), axis_types=(AxisType.Auto,))

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        """Return the sharding of a specification."""
        return NamedSharding(self.mesh, spec)

    def shapes(self) -> tuple[Any, ...]:
        """Return the shapes of parameters, slots, count and tokens."""
        chosen, shapes = self.chosen, self.example.parameter_shapes
        slots = shapes(self.model, chosen.state_dtype)
        rows = chosen.batch * len(self.devices)
        return (
            shapes(self.model, chosen.parameter_dtype),
            {"mean": slots, "square": slots},
            jax.ShapeDtypeStruct((), jnp.int32),
            jax.ShapeDtypeStruct((rows, chosen.length + 1), jnp.int32),
        )

    def sharded(self) -> Any:
        """Return for each parameter the specification of its shards."""
        params = self.shapes()[0]
        layers = jax.tree.map(partial(self._spec, dimension=1), params.pop("layers"))
        return {**jax.tree.map(partial(self._spec, dimension=0), params), "layers": layers}

    def _spec(self, shape: Any, dimension: int) -> PartitionSpec:
        if int(np.prod(shape.shape[dimension:])) >= FEWEST_ELEMENTS:
            for i in range(dimension, len(shape.shape)):
                if shape.shape[i] % len(self.devices) == 0:
                    return PartitionSpec(*[None] * i, AXIS)
        return PartitionSpec()

    def attention(self) -> Any:
        """Return the example's attention for these devices."""
        return self.example.attention_for(self.model, self.chosen, self.devices[0].platform)

    def loss(self, attention: Any, gather: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        """Return the loss; `gather(shard, spec)` returns the full matrix."""
        example, model, specs = self.example, self.model, self.sharded()
        of_layer = jax.tree.map(lambda spec: PartitionSpec(*spec[1:]), specs["layers"])

        def loss(params: Any, tokens: Any) -> Any:
            def embedding(name: str) -> Any:
                return gather(params[name], specs[name])

            @partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable)
            def step(x: Any, weights: Any) -> Any:
                full = jax.tree.map(gather, weights, of_layer)
                return example.layer(model, attention, x, full), None

            x, _ = jax.lax.scan(step, embedding("embedding")[tokens[:, :-1]], params["layers"])
            last = embedding("embedding" if model.is_tied else "unembedding")
            return example.cross_entropy(example.normalize(x, params["norm"]), last, tokens[:, 1:])

        return loss

    def update(self, params: Any, state: Any, count: Any, gradients: Any) -> Any:
        """Return parameters, slots and count after a step of Adam."""
        new, slots = self.example.adam(self.chosen, gradients, state, params, count)
        return new, slots, count + 1

    def jitted(self) -> Any:
        """Return the jitted step."""
        raise NotImplementedError

    def compile(self) -> jax.stages.Compiled:
        """Compile the step."""
        compiled: jax.stages.Compiled = self.jitted().lower(*self.shapes()).compile()
        return compiled

    def jit(self, step: Any, params: Any, slots: Any) -> Any:
        """Return a step jitted, with these specifications of parameters and slots."""

        def shardings(specs: Any) -> Any:
            is_spec = lambda x: isinstance(x, PartitionSpec)  # noqa: E731
            return jax.tree.map(self.sharding, specs, is_leaf=is_spec)

        everywhere = self.sharding(PartitionSpec())
        kept = shardings(params), {"mean": shardings(slots), "square": shardings(slots)}
        return jax.jit(
            step,
            in_shardings=(*kept, everywhere, self.sharding(PartitionSpec(AXIS))),
            out_shardings=(*kept, everywhere, everywhere),
            donate_argnums=(0, 1, 2),
        )


class FsdpInShardMap(ByHandForm):
    """Sharded parameters, gathered in the loop's body, under `jax.shard_map`."""

    def jitted(self) -> Any:
        """Return the jitted step."""
        specs, everywhere = self.sharded(), PartitionSpec()
        dtype, replicas = jnp.dtype(self.chosen.compute_dtype), len(self.devices)

        def gather(piece: Any, spec: PartitionSpec) -> Any:
            narrow = piece.astype(dtype)
            if AXIS not in spec:
                return narrow
            return jax.lax.all_gather(narrow, AXIS, axis=spec.index(AXIS), tiled=True)

        def mean(gradient: Any, spec: PartitionSpec) -> Any:
            # The transpose of a gather has added the replicas' gradients up.
            if AXIS in spec:
                return gradient / replicas
            return jax.lax.pmean(gradient, AXIS)

        loss_fn = self.loss(self.attention(), gather)

        def step(params: Any, state: Any, count: Any, tokens: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_fn)(params, tokens)
            gradients = jax.tree.map(mean, gradients, specs)
            return (
                *self.update(params, state, count, gradients),
                jax.lax.pmean(loss, AXIS),
            )

        kept = specs, {"mean": specs, "square": specs}, everywhere
        mapped = jax.shard_map(
            step,
            mesh=self.mesh,
            in_specs=(*kept, PartitionSpec(AXIS)),
            out_specs=(*kept, everywhere),
            check_vma=False,
        )
        return self.jit(mapped, specs, specs)


class InJit(ByHandForm):
    """The base of the forms in `jax.jit`: constraints, and a kernel mapped over the mesh."""

    def constrained(self, tree: Any, specs: Any) -> Any:
        """Return values with constraints on their shardings."""

        def constrain(x: Any, spec: PartitionSpec) -> Any:
            return jax.lax.with_sharding_constraint(x, self.sharding(spec))

        return jax.tree.map(constrain, tree, specs)

    def attention(self) -> Any:
        """Return the attention, replica by replica: the partitioner cannot split a kernel."""
        rows = PartitionSpec(AXIS)
        return jax.shard_map(
            super().attention(), mesh=self.mesh, in_specs=rows, out_specs=rows, check_vma=False
        )


class FsdpInJit(InJit):
    """Sharded parameters, gathered by constraints."""

    def jitted(self) -> Any:
        """Return the jitted step."""
        specs, dtype = self.sharded(), jnp.dtype(self.chosen.compute_dtype)

        def gather(piece: Any, spec: PartitionSpec) -> Any:
            # The transpose of a constraint is the same constraint: the gradient has its own.
            @jax.custom_vjp
            def full(piece: Any) -> Any:
                return self.constrained(piece.astype(dtype), PartitionSpec())

            def backward(_: None, gradient: Any) -> Any:
                return (self.constrained(gradient, spec).astype(piece.dtype),)

            full.defvjp(lambda piece: (full(piece), None), backward)
            return full(self.constrained(piece, spec))

        loss_fn = self.loss(self.attention(), gather)

        def step(params: Any, state: Any, count: Any, tokens: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_fn)(params, tokens)
            gradients = self.constrained(gradients, specs)
            return *self.update(params, state, count, gradients), loss

        return self.jit(step, specs, specs)


class ZeroOneInJit(InJit):
    """Mirrored parameters, sharded slots."""

    def jitted(self) -> Any:
        """Return the jitted step."""
        specs, dtype = self.sharded(), jnp.dtype(self.chosen.compute_dtype)
        loss_fn = self.loss(self.attention(), lambda full, _: full.astype(dtype))

        def step(params: Any, state: Any, count: Any, tokens: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_fn)(params, tokens)
            gradients = self.constrained(gradients, specs)
            pieces = self.constrained(params, specs)
            return *self.update(pieces, state, count, gradients), loss

        full = jax.tree.map(lambda _: PartitionSpec(), specs)
        return self.jit(step, full, specs)


FORMS: dict[str, type[ByHandForm]] = {
    "fsdp in shard_map": FsdpInShardMap,
    "fsdp in jit": FsdpInJit,
    "zero-1 in jit": ZeroOneInJit,
}
"""The forms by name."""


if __name__ == "__main__":
    sys.exit(main())
