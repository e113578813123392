"""Training in slices by hand in plain JAX: the step of examples/aot_transformer.py in three forms.

* `fsdp in shard_map`: parameters and slots are stored in slices. The body of the loop over layers
  gathers its layer in the dtype that it computes in; JAX derives the reduce_scatter of gradients at
  the body's end, and that the backward pass gathers again.
* `fsdp in jit`: the same by constraints, where XLA's partitioner places the collectives.
* `zero-1 in jit`: parameters are stored in full, slots in slices; gradients are constrained to
  slices where they are updated.

A matrix is sliced along its first dimension that divides, which is never the dimension of the
layers. What does not divide, or is small, is stored in full on each device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any  # Any: the example's module, pytrees and jitted functions

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "data"
FEWEST_ELEMENTS = 2**17
"""Parameters of fewer elements in a layer are stored in full."""


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

    def sliced(self) -> Any:
        """Return for each parameter the specification of its slices."""
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
        """Return the loss; `gather` makes a matrix of its slices, given their specification."""
        example, model, specs = self.example, self.model, self.sliced()
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
    """Parameters in slices, gathered in the loop's body, under `jax.shard_map`."""

    def jitted(self) -> Any:
        """Return the jitted step."""
        specs, everywhere = self.sliced(), PartitionSpec()
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
    """What the forms in `jax.jit` share: constraints, and a kernel that is mapped over the mesh."""

    def constrained(self, tree: Any, specs: Any) -> Any:
        """Return values that XLA is told to lay out so."""

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
    """Parameters in slices, gathered by constraints."""

    def jitted(self) -> Any:
        """Return the jitted step."""
        specs, dtype = self.sliced(), jnp.dtype(self.chosen.compute_dtype)

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
    """Parameters in full, slots in slices."""

    def jitted(self) -> Any:
        """Return the jitted step."""
        specs, dtype = self.sliced(), jnp.dtype(self.chosen.compute_dtype)
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
