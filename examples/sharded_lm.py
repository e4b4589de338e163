"""A small GPT over many devices: data-parallel, fully sharded, tensor-parallel and both are tables of rules.

    python examples/sharded_lm.py --rules fsdp
    python examples/sharded_lm.py --rules product --explicit
    python examples/sharded_lm.py --rules fsdp --checkpoints out/lm   # a second run goes on from the last step

The model and the step know nothing of devices: the names in their shape annotations, and those of weft's layers, say
where arrays lie, by the table of `weft.axis_rules`. What differs from one way to the next is the table. With fewer than
eight devices it asks JAX for eight on the CPU.

In several processes, each with some of the devices (one of these for each, with `--process 0`, `--process 1`):

    python examples/sharded_lm.py --rules fsdp --coordinator localhost:1234 --processes 2 --process 0
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
import weft
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Key

# What lies on the axis `model` of a mesh in tensor-parallel training.
TENSOR: dict[Any, Any] = {"mlp": "model", "heads": "model", "vocab": "model"}
# The shape of the mesh over `data` and `model`, and the axes of it for the names of axes of activations and parameters.
# An axis of the mesh divides an array once: features are whole where the batch is divided over `data`.
RULES: dict[str, tuple[tuple[int, int], dict[Any, Any]]] = {
    "single": ((1, 1), {...: None}),
    "data": ((8, 1), {"batch": "data", ...: None}),
    "fsdp": ((8, 1), {"batch": "data", "embed": "data", ...: None}),
    "tensor": ((1, 8), {"batch": "data", **TENSOR, ...: None}),
    "product": ((4, 2), {"batch": "data", "embed": "data", **TENSOR, ...: None}),
}
VOCAB, LENGTH, BATCH = 64, 16, 16
FEATURES, HEADS, LAYERS = 32, 8, 2
ADAM = optax.adamw(3e-3)


class Block(weft.Module):  # weft: skip(the features are those that its parts were made for)
    """A block of a transformer, whose annotation divides the batch and nothing else between blocks."""

    inner: weft.TransformerBlock[None]

    def __init__(self, *, key: Key[Array, ""]):
        self.inner = weft.TransformerBlock(FEATURES, HEADS, causal=True, key=key)

    def __call__(self, x: Float[Array, "batch time embed"]) -> Float[Array, "batch time embed"]:
        return self.inner(x)


class GPT(weft.Module):  # weft: skip(a sequence is no longer than its positions)
    """A causal transformer over tokens; the embedding is the output's map too."""

    embed: weft.Embed
    positions: weft.LearnedPositions
    blocks: weft.Stack[Any]
    norm: weft.LayerNorm

    def __init__(self, *, key: Key[Array, ""]):
        embed, positions, blocks = jax.random.split(key, 3)
        self.embed = weft.Embed(VOCAB, FEATURES, key=embed)
        self.positions = weft.LearnedPositions(LENGTH, FEATURES, key=positions)
        # Computed again on the way back: else parameters that were gathered would be kept for it, all layers of them.
        self.blocks = weft.Stack(lambda key: Block(key=key), LAYERS, key=blocks, remat=True)
        self.norm = weft.LayerNorm(FEATURES)

    def __call__(self, tokens: Int[Array, "batch time"]) -> Float[Array, "batch time vocab"]:
        return self.embed.attend(self.norm(self.blocks(self.start(tokens))))

    def start(self, tokens: Int[Array, "batch time"]) -> Float[Array, "batch time embed"]:
        """The features of each token at its position."""
        return self.positions(self.embed(tokens))


def loss(model: GPT, tokens: Int[Array, "batch time"]) -> Float[Array, ""]:
    """The mean cross-entropy of each next token."""
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def batches(steps: int) -> Iterator[np.ndarray[Any, Any]]:
    """Sequences that count upwards in strides, from anywhere."""
    generator = np.random.default_rng(0)
    for _ in range(steps):
        start, stride = generator.integers(VOCAB, size=(BATCH, 1)), generator.integers(1, 4, size=(BATCH, 1))
        yield ((start + stride * np.arange(LENGTH)) % VOCAB).astype(np.int32)


def make_mesh(name: str, *, explicit: bool = False) -> Mesh:
    """The mesh of one of the tables, with automatic axes or explicit ones."""
    shape = RULES[name][0]
    kind = AxisType.Explicit if explicit else AxisType.Auto
    devices = jax.devices()[: shape[0] * shape[1]]
    return jax.make_mesh(shape, ("data", "model"), axis_types=(kind, kind), devices=devices)


class State(weft.Module):
    """All that a step changes."""

    model: GPT
    optimizer: weft.Optimizer

    def __init__(self, *, key: Key[Array, ""]):
        self.model = GPT(key=key)
        self.optimizer = weft.Optimizer(self.model, ADAM)


def make_step(mesh: Mesh) -> Any:
    """One compiled step: `value, state = step(state, tokens)`. The state is given away, and stays where it is."""
    # On an explicit mesh each value's type says where it is. That is what the parameters, gradients and moments are
    # held to; inside of the loss the compiler chooses between what is annotated, as on an automatic one.
    evaluate = jax.sharding.auto_axes(loss, out_sharding=PartitionSpec()) if is_explicit(mesh) else loss

    @weft.jit(donate_argnums=0)
    def step(state: State, tokens: Int[Array, "batch time"]) -> tuple[Float[Array, ""], State]:
        value, model, optimizer = state.optimizer.minimize(evaluate, state.model, tokens)
        return value, state.replace(model=model, optimizer=optimizer)

    return step


def is_explicit(mesh: Mesh) -> bool:
    return AxisType.Explicit in mesh.axis_types


def place(tokens: np.ndarray[Any, Any], mesh: Mesh) -> Any:
    """A batch, divided over `data`; each process puts its part on its devices."""
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return jax.make_array_from_callback(tokens.shape, sharding, lambda index: tokens[index])


def train(name: str, steps: int, *, explicit: bool = False, checkpoints: str | None = None) -> list[float]:
    """The loss of each step; with a folder of checkpoints, of each step behind the newest one."""
    mesh = make_mesh(name, explicit=explicit)
    with contextlib.ExitStack() as stack:
        stack.enter_context(weft.axis_rules(mesh, RULES[name][1]))
        saved = stack.enter_context(weft.Checkpoints(checkpoints, keep=2)) if checkpoints else None
        done = saved.latest if saved else None
        # Made or restored in place: no device ever holds what it is not to keep.
        state = weft.init(State, key=jax.random.key(0), abstract=saved is not None and done is not None)
        if saved is not None and done is not None:
            state = saved.restore(state)
        step, losses, first = make_step(mesh), list[Any](), 0 if done is None else done + 1
        for number, tokens in enumerate(batches(steps)):
            if number < first:
                continue
            batch = place(tokens, mesh)
            # What a step needs is where it needs it: a transfer between devices or from the host would be an error.
            with jax.transfer_guard("disallow"):
                value, state = step(state, batch)
            losses.append(value)
            if saved is not None:
                saved.save(number, state)
                saved.wait()
        return [float(value) for value in losses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", choices=RULES, default="product")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--explicit", action="store_true", help="a mesh whose axes are part of types")
    parser.add_argument("--checkpoints", help="a folder: saves each step there, and goes on from the newest one")
    parser.add_argument("--coordinator", help="address of process 0, for several processes")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    options = parser.parse_args()
    if jax.config.jax_platforms in (None, "cpu"):
        jax.config.update("jax_num_cpu_devices", 8 // options.processes)
    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    losses = train(options.rules, options.steps, explicit=options.explicit, checkpoints=options.checkpoints)
    if options.process == 0:
        print(" ".join(f"{value:.6f}" for value in losses))


if __name__ == "__main__":
    main()
