"""The programs of the benchmark on torch, one process per replica: over gloo, on GPUs over NCCL.

`graphdist.tools.bench` runs it if torch is installed (`process.py` has the protocol). It is
written as torch's users write it: a module in `DistributedDataParallel`, torch's own optimizers,
`no_sync` for all microbatches but the last. A program with sharded parameters is a module; first
each layer, then the module is passed to `fully_shard`. Batch normalization is by hand, since torch
synchronizes its own only on GPUs. Rank 0 serves, and tells the others how many steps to run.

Where programs are compiled, `torch.compile` compiles the module. On GPUs, products of float32
are computed in TF32, as JAX computes them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any  # Any: torch is an extra, and may not be there to give types

import jax
import numpy as np

from graphdist.tools.bench.models import (
    EPSILON,
    MOMENTUM,
    Classifier,
    Convnet,
    Mlp,
    Recommender,
    Transformer,
)
from graphdist.tools.bench.process import Served, from_command_line, serve
from graphdist.tools.bench.programs import (
    ADAM_EPSILON,
    ADAM_RATE,
    BETA1,
    BETA2,
    RATE,
)

RESULTS, END = 0, -1


class TorchProgram:
    """A program on one replica of a group of processes, which has been joined."""

    def __init__(self, served: Served, rank: int, device: Any) -> None:
        """Make the module, the optimizer and this replica's batch, on a device of torch."""
        import torch
        import torch.distributed.nn

        program, replicas = served.program, served.replicas
        self.torch, self.program, self.replicas, self.device = torch, program, replicas, device
        state = program.state()
        if program.shards_parameters:
            module = self.parallel = _sharded_module(torch, state["params"], device)
        else:
            module = _module(torch, jax.tree.map(self._tensor, state["params"]), self._loss)
            if served.is_compiled:
                module.compile()
            self.parallel = torch.nn.parallel.DistributedDataParallel(module)
        self.statistics = [self._tensor(leaf) for leaf in jax.tree.leaves(state.get("statistics"))]
        self.totals = torch.zeros(3, device=device)
        self.optimizer = self._optimizer(module.parameters())
        batch = program.batch(replicas)
        self.batch = {
            name: self._tensor(np.split(value, replicas)[rank]) for name, value in batch.items()
        }

    def _optimizer(self, parameters: Any) -> Any:
        optimizers = self.torch.optim
        if self.program.kind == "adam":
            betas = (BETA1, BETA2)
            return optimizers.Adam(parameters, ADAM_RATE, betas=betas, eps=ADAM_EPSILON)
        return optimizers.SGD(parameters, RATE)

    def _tensor(self, array: Any) -> Any:
        tensor = self.torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        return tensor if tensor.is_floating_point() else tensor.long()

    def step(self) -> float:
        """Run a step to its end and return the mean loss of the replicas."""
        if self.program.kind in ("evaluate", "forward"):
            with self.torch.no_grad():
                return self._mean_loss(self.parallel(self.batch))
        self.optimizer.zero_grad()
        parts = self.program.microbatches
        total = 0.0
        for i, part in enumerate(self._microbatches(parts)):
            is_last = i == parts - 1
            with contextlib.nullcontext() if is_last else self.parallel.no_sync():
                loss = self.parallel(part) / parts
                loss.backward()
            total = total + loss.detach()
        self.optimizer.step()
        return self._mean_loss(total)

    def _microbatches(self, parts: int) -> list[Any]:
        if parts == 1:
            return [self.batch]
        chunks = {name: value.chunk(parts) for name, value in self.batch.items()}
        return [{name: value[i] for name, value in chunks.items()} for i in range(parts)]

    def _mean_loss(self, loss: Any) -> float:
        self.torch.distributed.all_reduce(loss)
        return float(loss) / self.replicas

    def results(self) -> dict[str, float]:
        """Return the metrics of all steps so far."""
        if self.program.kind != "evaluate":
            return {}
        totals = self.totals.clone()
        self.torch.distributed.all_reduce(totals)
        loss, correct, count = totals.tolist()
        return {"loss": loss / count, "accuracy": correct / count}

    def _loss(self, params: Any, batch: Any) -> Any:
        torch, model = self.torch, self.program.model
        if isinstance(model, Mlp):
            x = batch["x"]
            for layer in params:
                x = torch.tanh(x @ layer["weight"] + layer["bias"])
            return (x**2).mean()
        cross_entropy = torch.nn.functional.cross_entropy
        if isinstance(model, Transformer):
            scores = self._transformer(model, params, batch["tokens"][:, :-1])
            scores = scores.float().flatten(0, 1)
            return cross_entropy(scores, batch["tokens"][:, 1:].flatten())
        labels = batch["labels"]
        if isinstance(model, Recommender):
            return self._recommender(params, batch["numbers"], labels)
        if isinstance(model, Classifier):
            scores = torch.nn.functional.relu(batch["x"] @ params["hidden"]) @ params["head"]
            return cross_entropy(scores, labels)
        assert isinstance(model, Convnet)  # other models run on JAX alone
        scores = self._convnet(model, params, batch["x"])
        if self.program.kind == "evaluate":
            losses = cross_entropy(scores, labels, reduction="none")
            right = (scores.argmax(-1) == labels).sum()
            self.totals += torch.stack([losses.sum(), right, torch.ones_like(labels).sum()])
            return losses.mean()
        return cross_entropy(scores, labels)

    def _convnet(self, model: Convnet, params: Any, x: Any) -> Any:
        functional = self.torch.nn.functional
        x = x.permute(0, 3, 1, 2)  # channels stay last in memory, where torch is fastest on CPU
        statistics = []
        for layer in params["layers"]:
            x = functional.conv2d(x, layer["kernel"].permute(3, 2, 0, 1), padding=1)
            if model.normalized:
                mean, square = self._means(x.mean((0, 2, 3)), (x * x).mean((0, 2, 3)))
                variance = square - mean**2
                statistics += [mean.detach(), variance.detach()]
                scale = (variance + EPSILON).rsqrt() * layer["scale"]
                x = (x - mean[:, None, None]) * scale[:, None, None]
            pool = functional.max_pool2d if model.takes_largest else functional.avg_pool2d
            x = pool(functional.relu(x + layer["bias"][:, None, None]), 2)
        for old, new in zip(self.statistics, statistics, strict=True):
            old.mul_(MOMENTUM).add_(new, alpha=1 - MOMENTUM)
        return x.mean((2, 3)) @ params["head"]

    def _means(self, *values: Any) -> Any:
        """Return the means over the replicas, of values of one shape, differentiably."""
        together = self.torch.stack(values)
        return self.torch.distributed.nn.functional.all_reduce(together) / self.replicas

    def _recommender(self, params: Any, numbers: Any, labels: Any) -> Any:
        functional = self.torch.nn.functional
        read = [
            functional.embedding(numbers[:, i], table) for i, table in enumerate(params["tables"])
        ]
        hidden = functional.relu(self.torch.cat(read, 1) @ params["hidden"])
        scores = (hidden @ params["head"])[:, 0]
        return functional.binary_cross_entropy_with_logits(scores, labels)

    def _transformer(self, model: Transformer, params: Any, tokens: Any) -> Any:
        functional, layers = self.torch.nn.functional, model.separate(params["layers"])
        dtype = getattr(self.torch, model.dtype)
        params, layers = _converted({**params, "layers": []}, dtype), _converted(layers, dtype)
        x = functional.embedding(tokens, params["embedding"]) + params["positions"]
        for layer in layers:
            x = x + self._attention(model, layer, self._layer_norm(x, layer["attention_norm"]))
            hidden = self._layer_norm(x, layer["mlp_norm"]) @ layer["up"]
            x = x + functional.gelu(hidden, approximate="tanh") @ layer["down"]
        return self._layer_norm(x, params["norm"]) @ params["embedding"].T

    def _attention(self, model: Transformer, layer: Any, x: Any) -> Any:
        rows, length, width = x.shape
        query, key, value = (
            part.view(rows, length, model.heads, -1).transpose(1, 2)
            for part in (x @ layer["qkv"]).chunk(3, dim=-1)
        )
        attention = self.torch.nn.functional.scaled_dot_product_attention
        mixed = attention(query, key, value, is_causal=True).transpose(1, 2)
        return mixed.reshape(rows, length, width) @ layer["output"]

    def _layer_norm(self, x: Any, scale: Any) -> Any:
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], scale, eps=EPSILON)


def _converted(tree: Any, dtype: Any) -> Any:
    """Return dicts and lists of tensors in a dtype; torch compiles no function of JAX."""
    if isinstance(tree, dict):
        return {name: _converted(leaf, dtype) for name, leaf in tree.items()}
    if isinstance(tree, list):
        return [_converted(leaf, dtype) for leaf in tree]
    return tree.to(dtype)


def _module(torch: Any, tensors: Any, loss: Any) -> Any:
    """Return a module whose parameters are a pytree, and whose forward is the loss."""

    class Module(torch.nn.Module):  # type: ignore[misc]  # torch may not be installed
        def __init__(self) -> None:
            super().__init__()
            self.tree = jax.tree.map(torch.nn.Parameter, tensors)
            self.leaves = torch.nn.ParameterList(jax.tree.leaves(self.tree))

        def forward(self, batch: Any) -> Any:
            return loss(self.tree, batch)

    return Module()


def _sharded_module(torch: Any, layers: list[Any], device: Any) -> Any:
    """Return an Mlp whose parameters are stored in shards and gathered layer by layer."""
    from torch.distributed.fsdp import fully_shard

    class Layer(torch.nn.Module):  # type: ignore[misc]  # torch may not be installed
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.from_numpy(layer["weight"]).to(device))
            self.bias = torch.nn.Parameter(torch.from_numpy(layer["bias"]).to(device))

        def forward(self, x: Any) -> Any:
            return torch.tanh(x @ self.weight + self.bias)

    class Module(torch.nn.Module):  # type: ignore[misc]  # torch may not be installed
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(Layer(layer) for layer in layers))

        def forward(self, batch: Any) -> Any:
            return (self.layers(batch["x"]) ** 2).mean()

    module = Module()
    mesh = torch.distributed.device_mesh.init_device_mesh(
        device.type, (torch.distributed.get_world_size(),)
    )
    for layer in module.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def run_rank(rank: int, store: str, served: Served) -> None:
    """Run the program as one rank of a process group, whose ranks meet in the file `store`.

    Rank 0 reads the benchmark's commands (`serve`) and broadcasts them; the other ranks run them.
    """
    import torch

    replicas = served.replicas
    torch.set_num_threads(max((os.cpu_count() or 1) // replicas, 1))
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda", rank) if served.platform == "gpu" else torch.device("cpu")
    if served.platform == "gpu":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        "nccl" if served.platform == "gpu" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=replicas,
    )
    running = TorchProgram(served, rank, device)

    def broadcast(command: int) -> int:
        """Return the command of rank 0: a count of steps, `RESULTS` or `END`."""
        tensor = torch.tensor(command, device=device)
        torch.distributed.broadcast(tensor, 0)
        return int(tensor)

    if rank == 0:

        def results() -> dict[str, float]:
            broadcast(RESULTS)
            return running.results()

        compiles = served.is_compiled
        serve(running.step, results, served.first_steps, announce=broadcast, compiles=compiles)
        broadcast(END)
    else:
        while (command := broadcast(END)) != END:
            if command == RESULTS:
                running.results()
            for _ in range(command):
                running.step()
    torch.distributed.destroy_process_group()


def main() -> None:
    """Serve the program that the command line names."""
    import torch.multiprocessing

    served = from_command_line()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        context = torch.multiprocessing.get_context("spawn")
        others = [
            context.Process(target=run_rank, args=(rank, store, served))
            for rank in range(1, served.replicas)
        ]
        for process in others:
            process.start()
        run_rank(0, store, served)
        for process in others:
            process.join()


if __name__ == "__main__":
    main()
