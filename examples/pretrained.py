"""Checkpoints of two families as weft's models: those shaped like GPT-2, and those shaped like Llama.

    python examples/pretrained.py gpt2 model.safetensors --layers 12 --heads 12
    python examples/pretrained.py llama model.safetensors --layers 16 --heads 32 --kv-heads 8

Each family is a model and a table: which layer each of the file's names belongs to, and how it is stored. Sizes that
the file does not tell are arguments. It prints how many parameters were imported, and which token comes next.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import weft
from jaxtyping import Array, Float, Int

Weights = Mapping[str, Any] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class GPT2(weft.Module):
    """Learned positions, LayerNorm, gelu; the logits are products with the embedding."""

    embed: weft.Embed
    positions: weft.LearnedPositions
    blocks: weft.Stack[weft.TransformerBlock]
    norm: weft.LayerNorm

    def __init__(self, vocab: int, length: int, features: int, heads: int, layers: int, *, key: Any):
        keys = jax.random.split(key, 3)
        norm = functools.partial(weft.LayerNorm, epsilon=1e-5)
        self.embed = weft.Embed(vocab, features, key=keys[0])
        self.positions = weft.LearnedPositions(length, features, key=keys[1])
        self.blocks = weft.Stack(
            lambda key: weft.TransformerBlock(features, heads, causal=True, norm=norm, key=key), layers, key=keys[2]
        )
        self.norm = norm(features)

    def __call__(self, ids: Int[Array, "*batch seq"]) -> Float[Array, "*batch seq vocab"]:
        return self.embed.attend(self.norm(self.blocks(self.positions(self.embed(ids)))))


GPT2_NAMES: dict[str, str | Sequence[str] | None] = {
    "wte": "embed",
    "wpe": "positions",
    "h.*.ln_1": "blocks[*].attention_norm",
    "h.*.attn.c_attn": [f"blocks[*].attention.{name}" for name in ("query", "key", "value")],
    "h.*.attn.c_proj": "blocks[*].attention.out",
    "h.*.ln_2": "blocks[*].mlp_norm",
    "h.*.mlp.c_fc": "blocks[*].mlp.layers[0]",
    "h.*.mlp.c_proj": "blocks[*].mlp.layers[2]",
    "ln_f": "norm",
}
# GPT-2 stores its kernels as `Linear` does here, (in, out).
GPT2_LAYOUT = {weft.Linear: {"weight": ("kernel", None)}}


def gpt2(model: GPT2, weights: Weights) -> GPT2:  # weft: skip(its sizes depend on each other)
    """A model with the weights of a GPT-2."""
    return weft.import_weights(model, weights, rename=GPT2_NAMES, layout=GPT2_LAYOUT)


class Gated(weft.Module):
    """`down(silu(gate(x)) * up(x))`, the MLP of a Llama."""

    gate: weft.Linear
    up: weft.Linear
    down: weft.Linear

    def __init__(self, features: int, hidden: int, *, key: Any):
        keys = jax.random.split(key, 3)
        self.gate = weft.Linear(features, hidden, use_bias=False, key=keys[0])
        self.up = weft.Linear(features, hidden, use_bias=False, key=keys[1])
        self.down = weft.Linear(hidden, features, use_bias=False, key=keys[2])

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        return self.down(weft.silu(self.gate(x)) * self.up(x))


class Llama(weft.Module):
    """Rotary positions, RMSNorm, grouped queries, a gated MLP, and no biases."""

    embed: weft.Embed
    blocks: weft.Stack[weft.TransformerBlock]
    norm: weft.RMSNorm
    head: weft.Linear

    def __init__(
        self,
        vocab: int,
        features: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        layers: int,
        *,
        key: Any,
        base: float = 10_000.0,
        epsilon: float = 1e-5,
    ):
        keys = jax.random.split(key, 3)
        norm = functools.partial(weft.RMSNorm, epsilon=epsilon)

        def block(key: Any) -> weft.TransformerBlock:
            return weft.TransformerBlock(
                features,
                heads,
                num_kv_heads=kv_heads,
                causal=True,
                # The checkpoints pair feature i of a head with i + half, which is weft's default too.
                rope=weft.RoPE(base),
                norm=norm,
                mlp=lambda key: Gated(features, hidden, key=key),
                use_bias=False,
                key=key,
            )

        self.embed = weft.Embed(vocab, features, key=keys[0])
        self.blocks = weft.Stack(block, layers, key=keys[1])
        self.norm = norm(features)
        self.head = weft.Linear(features, vocab, use_bias=False, key=keys[2])

    def __call__(self, ids: Int[Array, "*batch seq"]) -> Float[Array, "*batch seq vocab"]:
        return self.head(self.norm(self.blocks(self.embed(ids))))


LLAMA_NAMES: dict[str, str | Sequence[str] | None] = {
    "model.embed_tokens": "embed",
    "model.layers.*.input_layernorm": "blocks[*].attention_norm",
    "model.layers.*.self_attn.q_proj": "blocks[*].attention.query",
    "model.layers.*.self_attn.k_proj": "blocks[*].attention.key",
    "model.layers.*.self_attn.v_proj": "blocks[*].attention.value",
    "model.layers.*.self_attn.o_proj": "blocks[*].attention.out",
    "model.layers.*.post_attention_layernorm": "blocks[*].mlp_norm",
    "model.layers.*.mlp.gate_proj": "blocks[*].mlp.gate",
    "model.layers.*.mlp.up_proj": "blocks[*].mlp.up",
    "model.layers.*.mlp.down_proj": "blocks[*].mlp.down",
    "model.norm": "norm",
    "lm_head": "head",
}


def llama(model: Llama, weights: Weights) -> Llama:  # weft: skip(its sizes depend on each other)
    """A model with the weights of a Llama."""
    return weft.import_weights(model, weights, rename=LLAMA_NAMES)


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("family", choices=["gpt2", "llama"])
    parser.add_argument("file", nargs="+", help="safetensors")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--heads", type=int, required=True)
    parser.add_argument("--kv-heads", type=int, help="of a Llama; by default as many as heads")
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--hidden", type=int, default=2048, help="of a Llama's MLP")
    parser.add_argument("--length", type=int, default=1024, help="of a GPT-2's table of positions")
    parser.add_argument("--ids", type=int, nargs="+", default=[0], help="tokens to go on from")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = read_arguments(arguments)
    vocab, features, heads, layers = chosen.vocab, chosen.features, chosen.heads, chosen.layers
    try:
        # Abstract: there are never two sets of weights in memory.
        if chosen.family == "gpt2":
            model = gpt2(weft.init(GPT2, vocab, chosen.length, features, heads, layers, abstract=True), chosen.file)
        else:
            sizes = vocab, features, chosen.hidden, heads, chosen.kv_heads or heads, layers
            model = llama(weft.init(Llama, *sizes, abstract=True), chosen.file)
    except (weft.CheckpointError, weft.errors.ConfigError, OSError) as error:
        sys.exit(f"pretrained: {error}")
    print(f"{weft.tree.size(model):,} parameters")
    logits = weft.jit(model)(jnp.array(chosen.ids))
    print("next token", int(jnp.argmax(logits[-1])))


if __name__ == "__main__":
    main()
