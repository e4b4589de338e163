"""Where arrays lie on a mesh of 8 simulated devices, by annotations alone and by constraints by hand.

Each program is written once, with the dims of its arrays in annotations. Where these place one, a call of `by_hand`
constrains it in the rows that say so, and is nothing in the others. Counted is what the compiled training step does:
collectives and their bytes, temporaries and operations a device. Flax's rows are the same GPT with a logical constraint
in each place.

The losses of 20 steps are compared with those of one device.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import weft
from flax import nnx
from harness import table
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Key

RULES: dict[Any, Any] = {
    "batch": "data",
    "embed": "data",
    "heads": "model",
    "experts": "model",
    "mlp": "model",
    "vocab": "model",
    "channels": "model",
    ...: None,
}
ADAM = optax.adam(1e-3)
VOCAB, LENGTH, BATCH, MICRO = 128, 32, 32, 2
FEATURES, HEADS, HIDDEN, LAYERS, EXPERTS = 64, 8, 256, 2, 8
STEPS = 20

# The mesh on which `by_hand` constrains; None where annotations do, or nothing.
_mesh: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


def by_hand(x: Any, *names: str) -> Any:
    """An array with the constraint that one writes by hand for the names of its axes."""
    mesh = _mesh.get()
    if mesh is None:
        return x
    order, free, spec = list(RULES), {"data", "model"}, [None] * len(names)
    for i in sorted(range(len(names)), key=lambda i: order.index(names[i]) if names[i] in order else len(order)):
        axis = RULES.get(names[i])
        if axis in free:
            free.discard(axis)
            spec[i] = axis
    # In `auto_axes`, where the compiler chooses, the mesh of the trace has other kinds of axes.
    running = jax.sharding.get_abstract_mesh()
    here = mesh if running.empty else running
    where = NamedSharding(here, PartitionSpec(*spec))
    if AxisType.Explicit in here.axis_types:
        return jax.sharding.reshard(x, where)
    return jax.lax.with_sharding_constraint(x, where)


# ---- the programs ----------------------------------------------------------------------------------------------------


class Block(weft.Module):
    attention_norm: weft.RMSNorm
    attention: weft.MultiHeadAttention
    mlp_norm: weft.RMSNorm
    mlp: weft.Module

    def __init__(self, make_mlp: Callable[..., Any], *, key: Key[Array, ""]):
        attention, mlp = jax.random.split(key)
        self.attention_norm, self.mlp_norm = weft.RMSNorm(FEATURES), weft.RMSNorm(FEATURES)
        self.attention = weft.MultiHeadAttention(FEATURES, HEADS, causal=True, use_bias=False, key=attention)
        self.mlp = make_mlp(key=mlp)

    def __call__(self, x: Float[Array, "batch seq embed"]) -> Float[Array, "batch seq embed"]:
        x = by_hand(x, "batch", "seq", "embed")
        x = x + self.attention(self.attention_norm(x))
        return by_hand(x + self.mlp(self.mlp_norm(x)), "batch", "seq", "embed")


def gated_mlp(*, key: Key[Array, ""]) -> weft.GatedMLP:
    return weft.GatedMLP(FEATURES, HIDDEN, use_bias=False, key=key)


class Experts(weft.Module):
    """A mixture of experts that are all given each token; which of them answers is up to the router."""

    router: Float[Array, "embed experts"]
    up: Float[Array, "experts embed mlp"]
    down: Float[Array, "experts mlp embed"]

    def __init__(self, *, key: Key[Array, ""]):
        router, up, down = jax.random.split(key, 3)
        self.router = jax.random.normal(router, (FEATURES, EXPERTS)) * FEATURES**-0.5
        self.up = jax.random.normal(up, (EXPERTS, FEATURES, FEATURES)) * FEATURES**-0.5
        self.down = jax.random.normal(down, (EXPERTS, FEATURES, FEATURES)) * FEATURES**-0.5

    def __call__(self, x: Float[Array, "batch seq embed"]) -> Float[Array, "batch seq embed"]:
        x = by_hand(x, "batch", "seq", "embed")
        weights = self.weights(x)
        return by_hand(jnp.einsum("bse,bsef->bsf", weights, self.answers(x)), "batch", "seq", "embed")

    def weights(self, x: Float[Array, "batch seq embed"]) -> Float[Array, "batch seq experts"]:
        x = by_hand(x, "batch", "seq", "embed")
        return by_hand(jax.nn.softmax(x @ self.router), "batch", "seq", "experts")

    def answers(self, x: Float[Array, "batch seq embed"]) -> Float[Array, "batch seq experts embed"]:
        x = by_hand(x, "batch", "seq", "embed")
        hidden = jax.nn.gelu(jnp.einsum("bsf,efh->bseh", x, self.up))
        return by_hand(jnp.einsum("bseh,ehf->bsef", hidden, self.down), "batch", "seq", "experts", "embed")


class GPT(weft.Module):
    """A transformer whose embedding is the map of its output, too, with blocks that are computed again backward."""

    embed: weft.Embed
    blocks: weft.Stack[Any]
    norm: weft.RMSNorm

    def __init__(self, make_mlp: Callable[..., Any], *, key: Key[Array, ""]):
        embed, blocks = jax.random.split(key)
        self.embed, self.norm = weft.Embed(VOCAB, FEATURES, key=embed), weft.RMSNorm(FEATURES)
        self.blocks = weft.Stack(lambda key: Block(make_mlp, key=key), LAYERS, key=blocks, remat=True)

    def __call__(self, tokens: Int[Array, "batch seq"]) -> Float[Array, "batch seq vocab"]:
        tokens = by_hand(tokens, "batch", "seq")
        x = self.norm(self.blocks(self.features(tokens)))
        return by_hand(self.embed.attend(x), "batch", "seq", "vocab")

    def features(self, tokens: Int[Array, "batch seq"]) -> Float[Array, "batch seq embed"]:
        tokens = by_hand(tokens, "batch", "seq")
        return by_hand(self.embed(tokens), "batch", "seq", "embed")


def next_token_loss(model: GPT, tokens: Int[Array, "batch seq"]) -> Float[Array, ""]:
    tokens = by_hand(tokens, "batch", "seq")
    logits = jax.nn.log_softmax(model(tokens)[:, :-1])
    return -(logits * jax.nn.one_hot(tokens[:, 1:], VOCAB)).sum(-1).mean()


class ConvNet(weft.Module):
    inward: weft.Conv2d
    outward: weft.Conv2d
    head: Float[Array, "channels classes"]

    def __init__(self, *, key: Key[Array, ""]):
        inward, outward, head = jax.random.split(key, 3)
        self.inward = weft.Conv2d(3, 32, 3, key=inward)
        self.outward = weft.Conv2d(32, 64, 3, key=outward)
        self.head = jax.random.normal(head, (64, 16)) / 8

    def __call__(self, x: Float[Array, "batch height width colors"]) -> Float[Array, "batch classes"]:
        x = by_hand(x, "batch", "height", "width", "colors")
        return by_hand(self.features(x).mean((1, 2)) @ self.head, "batch", "classes")

    def features(self, x: Float[Array, "batch height width colors"]) -> Float[Array, "batch height2 width2 channels"]:
        x = by_hand(x, "batch", "height", "width", "colors")
        x = jax.nn.relu(self.outward(jax.nn.relu(self.inward(x))))
        return by_hand(x, "batch", "height2", "width2", "channels")


def class_loss(model: ConvNet, images: Float[Array, "batch height width colors"]) -> Float[Array, ""]:
    images = by_hand(images, "batch", "height", "width", "colors")
    return ((model(images) - images.mean((1, 2, 3))[:, None]) ** 2).mean()


def make_step(loss: Callable[..., Any]) -> Any:
    """A step that adds up the gradients of micro-batches."""

    @weft.jit
    def step(model: Any, optimizer: weft.Optimizer, batches: Any) -> Any:
        def micro(total: Any, batch: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, weft.value_and_grad(loss)(model, batch)), None

        first = weft.value_and_grad(loss)(model, batches[0])
        value, gradient = jax.tree.map(lambda x: x / MICRO, weft.scan(micro)(first, batches[1:])[0])
        return value, *optimizer.update(model, gradient)

    return step


def tokens(step: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(step).integers(VOCAB, size=(MICRO, BATCH // MICRO, LENGTH)).astype(np.int32)


def images(step: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(step).normal(size=(MICRO, BATCH // MICRO, 16, 16, 3)).astype(np.float32)


@dataclass(frozen=True)
class Program:
    """A model, its loss and its batches; `ambiguous` if JAX cannot tell on an explicit mesh where its products lie."""

    name: str
    make: Callable[..., Any]
    loss: Callable[..., Any]
    batch: Callable[[int], Any]
    ambiguous: bool = False


PROGRAMS = (
    Program("GPT", lambda key: GPT(gated_mlp, key=key), next_token_loss, tokens),
    Program("MoE", lambda key: GPT(Experts, key=key), next_token_loss, tokens, ambiguous=True),
    Program("ConvNet", lambda key: ConvNet(key=key), class_loss, images, ambiguous=True),
)


# ---- the same GPT in flax --------------------------------------------------------------------------------------------


def flax_gpt(mesh: Mesh, batch: Any) -> Any:
    """The compiled step of the GPT in flax's NNX, with `with_logical_constraint` in the place of each annotation."""
    import flax.linen as nn

    rules = [(name, axis) for name, axis in RULES.items() if name is not ...]

    def constrained(x: Any, *names: str) -> Any:
        # By the order of the rules, each axis of the mesh once, as annotations are.
        return nn.with_logical_constraint(x, names, rules=rules, mesh=mesh)

    def linear(inward: int, outward: int, names: tuple[str, str], rngs: Any) -> Any:
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), names)
        return nnx.Linear(inward, outward, use_bias=False, kernel_init=init, rngs=rngs)

    class FlaxBlock(nnx.Module):
        def __init__(self, rngs: Any):
            self.first, self.second = nnx.RMSNorm(FEATURES, rngs=rngs), nnx.RMSNorm(FEATURES, rngs=rngs)
            self.query, self.key, self.value = (linear(FEATURES, FEATURES, ("embed", "heads"), rngs) for _ in range(3))
            self.out = linear(FEATURES, FEATURES, ("heads", "embed"), rngs)
            self.gate, self.up = (linear(FEATURES, HIDDEN, ("embed", "mlp"), rngs) for _ in range(2))
            self.down = linear(HIDDEN, FEATURES, ("mlp", "embed"), rngs)

        def __call__(self, x: Any) -> Any:
            x = constrained(x, "batch", "seq", "embed")
            y = self.first(x)
            heads = [each(y).reshape(*y.shape[:-1], HEADS, -1) for each in (self.query, self.key, self.value)]
            x = x + self.out(jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape))
            y = self.second(x)
            return constrained(x + self.down(jax.nn.silu(self.gate(y)) * self.up(y)), "batch", "seq", "embed")

    class FlaxGPT(nnx.Module):
        def __init__(self, rngs: Any):
            init = nnx.with_partitioning(nnx.initializers.normal(), ("vocab", "embed"))
            self.embed = nnx.Embed(VOCAB, FEATURES, embedding_init=init, rngs=rngs)
            self.norm = nnx.RMSNorm(FEATURES, rngs=rngs)

            @nnx.split_rngs(splits=LAYERS)
            @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: None})
            def blocks(rngs: Any) -> Any:
                return FlaxBlock(rngs)

            self.blocks = blocks(rngs)

        def __call__(self, tokens: Any) -> Any:
            x = constrained(self.embed(constrained(tokens, "batch", "seq")), "batch", "seq", "embed")
            block = nnx.remat(lambda x, block: block(x))
            x = nnx.scan(block, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)
            return constrained(self.embed.attend(self.norm(x)), "batch", "seq", "vocab")

    def loss(model: Any, tokens: Any) -> Any:
        logits = jax.nn.log_softmax(model(tokens)[:, :-1])
        return -(logits * jax.nn.one_hot(tokens[:, 1:], VOCAB)).sum(-1).mean()

    @nnx.jit
    def step(model: Any, optimizer: Any, batches: Any) -> Any:
        values, gradients = zip(*(nnx.value_and_grad(loss)(model, batch) for batch in batches), strict=True)
        optimizer.update(model, jax.tree.map(lambda *each: sum(each) / MICRO, *gradients))
        return sum(values) / MICRO

    with jax.set_mesh(mesh), nnx.logical_axis_rules(rules):
        model = FlaxGPT(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)
        return step.lower(model, optimizer, batch).compile()


# ---- what is counted -------------------------------------------------------------------------------------------------

_COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
_ARRAY = re.compile(r"([a-z]+)(\d*)\[([\d,]*)\]")


def cells(compiled: Any) -> list[str]:
    """Collectives by kind, their bytes, temporaries and operations of a compiled step."""
    counts, moved = collections.Counter[str](), 0
    for shapes, kind in _COLLECTIVE.findall(compiled.as_text()):
        counts[kind] += 1
        for _, bits, sizes in _ARRAY.findall(shapes):
            moved += int(np.prod([int(n) for n in sizes.split(",") if n])) * (int(bits or 8) // 8)
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"
    memory, operations = compiled.memory_analysis().temp_size_in_bytes, compiled.cost_analysis()["flops"]
    return [listed, f"{moved / 1e6:.3f} MB", f"{memory / 1e6:.3f} MB", f"{operations / 1e6:.2f} MFLOP"]


def losses(step: Any, model: Any, optimizer: Any, batches: Iterator[Any]) -> np.ndarray[Any, Any]:
    values = []
    for batch in batches:
        value, model, optimizer = step(model, optimizer, batch)
        values.append(float(value))
    return np.array(values)


def rows_of(program: Program, kind: AxisType, shape: tuple[int, int], alone: Any, steps: int) -> Iterator[list[str]]:
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(kind, kind))
    where = NamedSharding(mesh, PartitionSpec(None, "data"))
    parameters = {name: axis for name, axis in RULES.items() if name not in ("batch", "experts", "channels")}
    if program.name != "GPT":
        parameters = {weft.filters.Maybe(name) if name is not ... else name: RULES[name] for name in RULES}
    for how in ("parameters placed", "annotations", "by hand"):
        with contextlib.ExitStack() as stack:
            if how == "annotations":
                stack.enter_context(weft.axis_rules(mesh, RULES))
            elif kind is AxisType.Explicit:
                stack.enter_context(jax.set_mesh(mesh))
            model = program.make(key=jax.random.key(0))
            model, optimizer = weft.shard((model, weft.Optimizer(model, ADAM)), mesh, parameters)
            loss: Any = program.loss
            if program.ambiguous and kind is AxisType.Explicit:
                loss = jax.sharding.auto_axes(loss, out_sharding=PartitionSpec())
            step, first = make_step(loss), jax.device_put(program.batch(0), where)
            token = _mesh.set(mesh if how == "by hand" else None)
            try:
                compiled = step.lower(model, optimizer, first).compile()
                batches = (jax.device_put(program.batch(i), where) for i in range(steps))
                off_by = np.abs(losses(step, model, optimizer, batches) - alone).max()
            finally:
                _mesh.reset(token)
        name = "automatic" if kind is AxisType.Auto else "explicit"
        yield [program.name, name, f"{shape[0]} by {shape[1]}", how, *cells(compiled), f"{off_by:.0e}"]
    if program.name == "GPT" and kind is AxisType.Auto:
        yield ["GPT", "automatic", f"{shape[0]} by {shape[1]}", "flax", *cells(flax_gpt(mesh, first)), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one program and mesh, and few steps")
    parser.add_argument("--rounds", type=int, help="for other benchmarks")
    arguments = parser.parse_args()
    shapes, steps = ([(4, 2)], 2) if arguments.quick else ([(8, 1), (4, 2), (2, 4), (1, 8)], STEPS)
    heads = ["program", "mesh", "shape", "placed by", "collectives", "their bytes", "temporaries", "a device", "loss"]
    rows = []
    for program in PROGRAMS[:1] if arguments.quick else PROGRAMS:
        model = program.make(key=jax.random.key(0))
        alone = losses(make_step(program.loss), model, weft.Optimizer(model, ADAM), map(program.batch, range(steps)))
        for kind in (AxisType.Auto, AxisType.Explicit):
            for shape in shapes:
                rows += rows_of(program, kind, shape, alone, steps)
    print("\n### Placed: what a training step does on 8 devices, by annotations and by hand\n")
    print(table(heads, rows))


if __name__ == "__main__":
    main()
