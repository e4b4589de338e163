"""What it costs to decode 256 tokens one by one through a cache of keys and values, as one compiled scan.

The limit is written by hand in `jax.numpy`: the same transformer, its parameters and caches in dicts. Each takes the
most likely token, so all decode the same text. The blocks are laid out one after another, or are one scan over blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import weft
from harness import Case, compare, read_arguments, time_cases

LIMIT = "written by hand (the limit)"
VOCAB, WIDTH, HEADS, LAYERS, TOKENS = 256, 128, 4, 4, 256
DEPTH = WIDTH // HEADS


class Decoder(weft.Module):
    embed: weft.Embed
    blocks: Any
    norm: weft.LayerNorm

    def __call__(self, token: Any) -> Any:
        with weft.thread(self) as t:
            x = t.embed(token)
            if isinstance(self.blocks, tuple):
                for block in t.blocks:
                    x = block(x)
            else:
                x = t.blocks(x)
            return t.done(t.embed.attend(t.norm(x)))


def decoder(layers: int, *, stacked: bool) -> Decoder:
    embed_key, key = jax.random.split(jax.random.key(0))

    def block(key: Any) -> weft.TransformerBlock:
        return weft.TransformerBlock(WIDTH, HEADS, causal=True, key=key)

    stack = weft.Stack(block, layers, key=key)
    blocks = stack if stacked else tuple(stack)
    return Decoder(weft.Embed(VOCAB, WIDTH, key=embed_key), blocks, weft.LayerNorm(WIDTH))


@weft.jit(static_argnames=("batch", "tokens"))
def decoded(model: Decoder, batch: int, tokens: int) -> Any:
    attention = weft.filters.InstanceOf(weft.MultiHeadAttention)
    model = weft.at(model, attention).apply(lambda layer: layer.with_cache(tokens, batch=(batch,)))

    def step(carry: Any) -> Any:
        model, token = carry
        logits, model = model(token)
        after = jnp.argmax(logits, -1)
        return (model, after), after[:, 0]

    scan = weft.scan(step, in_axes=(weft.Carry,), length=tokens)
    return scan((model, jnp.zeros((batch, 1), jnp.int32)))[1]


def by_hand(model: Decoder) -> dict[str, Any]:
    """The same numbers in dicts, and one dict for each block or one for all of them."""

    def linear(layer: Any) -> Any:
        return {"kernel": layer.kernel, "bias": layer.bias}

    def norm(layer: Any) -> Any:
        return {"scale": layer.scale, "bias": layer.bias}

    def block(layer: Any) -> Any:
        maps = {name: linear(getattr(layer.attention, name)) for name in ("query", "key", "value", "out")}
        norms = {"before": norm(layer.attention_norm), "between": norm(layer.mlp_norm)}
        return {**maps, **norms, "up": linear(layer.mlp.layers[0]), "down": linear(layer.mlp.layers[2])}

    blocks = [block(each) for each in model.blocks] if isinstance(model.blocks, tuple) else block(model.blocks.layers)
    return {"table": model.embed.embedding, "blocks": blocks, "norm": norm(model.norm)}


def hand_norm(p: Any, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = (x**2).mean(-1, keepdims=True) - mean**2
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * p["scale"] + p["bias"]


def hand_linear(p: Any, x: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def hand_block(p: Any, cache: Any, x: Any, index: Any) -> Any:
    keys, values = cache
    normed = hand_norm(p["before"], x)
    query, key, value = (hand_linear(p[name], normed).reshape(*x.shape[:-1], HEADS, DEPTH) for name in MAPS)
    keys = jax.lax.dynamic_update_slice_in_dim(keys, key, index, 1)
    values = jax.lax.dynamic_update_slice_in_dim(values, value, index, 1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys) / jnp.sqrt(jnp.float32(DEPTH))
    scores = jnp.where(jnp.arange(keys.shape[1]) <= index, scores, -1e30)
    seen = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values).reshape(x.shape)
    x = x + hand_linear(p["out"], seen)
    return x + hand_linear(p["down"], jax.nn.gelu(hand_linear(p["up"], hand_norm(p["between"], x)))), (keys, values)


MAPS = ("query", "key", "value")


def decoded_by_hand(p: Any, batch: int, tokens: int) -> Any:
    blocks, stacked = p["blocks"], isinstance(p["blocks"], dict)
    layers = blocks["query"]["bias"].shape[0] if stacked else len(blocks)
    empty = jnp.zeros((batch, tokens, HEADS, DEPTH))
    caches = [(empty, empty)] * layers
    caches = jax.tree.map(lambda *leaves: jnp.stack(leaves), *caches) if stacked else caches

    def step(carry: Any, index: Any) -> Any:
        caches, token = carry
        x = p["table"][token]
        if stacked:

            def layer(x: Any, block_and_cache: Any) -> Any:
                return hand_block(block_and_cache[0], block_and_cache[1], x, index)

            x, caches = jax.lax.scan(layer, x, (blocks, caches))
        else:
            after = []
            for block, cache in zip(blocks, caches, strict=True):
                x, cache = hand_block(block, cache, x, index)
                after.append(cache)
            caches = after
        token = jnp.argmax(hand_norm(p["norm"], x) @ p["table"].T, -1)
        return (caches, token), token[:, 0]

    return jax.lax.scan(step, (caches, jnp.zeros((batch, 1), jnp.int32)), jnp.arange(tokens))[1]


def case(name: str, run: Callable[[], Any]) -> Case:
    # Awaited: what is timed is the decoding, not the sending off of it.
    return Case(name, lambda _: jax.block_until_ready(run()), calls=1)


def main() -> None:
    arguments = read_arguments(__doc__)
    rounds = arguments.rounds or (2 if arguments.quick else 10)
    tokens = 8 if arguments.quick else TOKENS
    hand = jax.jit(decoded_by_hand, static_argnums=(1, 2))
    for stacked in (False, True):
        model = decoder(LAYERS, stacked=stacked)
        parameters = by_hand(model)
        for batch in (1,) if arguments.quick else (1, 8):
            texts = hand(parameters, batch, tokens), decoded(model, batch, tokens)
            assert np.array_equal(*map(np.asarray, texts)), "the two decode different texts"
            cases = [
                case(LIMIT, lambda p=parameters, b=batch: hand(p, b, tokens)),
                case("weft records", lambda m=model, b=batch: decoded(m, b, tokens)),
            ]
            layout = "one scan over blocks" if stacked else "blocks laid out"
            print(f"\n### {tokens} tokens through the cache, {layout}, batch of {batch}\n")
            print(compare(time_cases(cases, rounds), LIMIT))


if __name__ == "__main__":
    main()
