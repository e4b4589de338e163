"""Proofs of models whose layers are stacked: what is right is not called wrong, and what is wrong is found."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float
from weft import BatchStat, Module
from weft.typecheck import Batched, verify
from weft.typecheck.command.linter import check
from weft.typecheck.proofs.report import Verdict

pytestmark = pytest.mark.slow

GPT = '''
"""A small GPT: its blocks are stacked by vmap and scanned."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import weft
from jaxtyping import Array, Float, Int, PRNGKeyArray
from weft import Module

DEPTH = 3


class Attention(Module):
    qkv: weft.Linear
    out: weft.Linear

    def __init__(self, width: int, *, key: PRNGKeyArray):
        first, second = jax.random.split(key)
        self.qkv, self.out = weft.Linear(width, 3 * width, key=first), weft.Linear(width, width, key=second)

    def __call__(self, x: Float[Array, "time width"]) -> Float[Array, "time width"]:
        q, k, v = jnp.split(self.qkv(x), 3, axis=-1)
        mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
        return self.out(jax.nn.softmax(jnp.where(mask, q @ k.T, -1e9)) @ v)


class Block(Module):
    norm: weft.LayerNorm
    attention: Attention
    up: weft.Linear
    down: weft.Linear
    scale: Float[Array, "width"]

    def __init__(self, width: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.norm, self.scale = weft.LayerNorm(width), jnp.ones(width)
        self.attention = Attention(width, key=keys[0])
        self.up, self.down = weft.Linear(width, 4 * width, key=keys[1]), weft.Linear(4 * width, width, key=keys[2])

    def __call__(self, x: Float[Array, "time width"]) -> Float[Array, "time width"]:
        x = x + self.attention(self.norm(x)) * self.scale
        return x + self.down(jax.nn.gelu(self.up(x)))


def stack(width: int, key: PRNGKeyArray) -> Block:
    return weft.vmap(lambda key: Block(width, key=key))(jax.random.split(key, DEPTH))


class GPT(Module):
    embed: Float[Array, "vocab width"]
    blocks: Block
    norm: weft.LayerNorm
    head: weft.Linear

    def __init__(self, vocab: int, width: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.embed = jax.random.normal(keys[0], (vocab, width))
        self.blocks, self.norm = stack(width, keys[1]), weft.LayerNorm(width)
        self.head = weft.Linear(width, vocab, key=keys[2])

    def __call__(self, tokens: Int[Array, "time"]) -> Float[Array, "time vocab"]:
        x, _ = weft.scan(lambda x, block: (block(x), None))(self.embed[tokens], self.blocks)
        return self.head(self.norm(x))


def loss(model: GPT, tokens: Int[Array, "batch time"]) -> Float[Array, ""]:
    return -jnp.mean(jax.nn.log_softmax(weft.vmap(model)(tokens)))


def gradient(model: GPT, tokens: Int[Array, "batch time"]) -> tuple[Float[Array, ""], GPT]:
    return weft.jit(weft.value_and_grad(loss))(model, tokens)
'''

UNET = '''
"""A small diffusion model, with stacked residual blocks and stacked convolutions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import weft
from jaxtyping import Array, Float, PRNGKeyArray
from weft import Module

DEPTH = 2


class ResBlock(Module):
    conv: weft.Conv
    norm: weft.LayerNorm
    time: weft.Linear

    def __init__(self, channels: int, features: int, *, key: PRNGKeyArray):
        first, second = jax.random.split(key)
        self.conv, self.norm = weft.Conv(channels, channels, (3, 3), key=first), weft.LayerNorm(channels)
        self.time = weft.Linear(features, channels, key=second)

    def __call__(self, x: Float[Array, "h w channels"], t: Float[Array, "features"]) -> Float[Array, "h w channels"]:
        return x + jax.nn.silu(self.conv(self.norm(x))) + self.time(t)


class UNet(Module):
    inp: weft.Conv
    down: ResBlock
    up: ResBlock
    mixes: weft.Conv
    out: weft.Conv
    frequencies: Float[Array, "features"]

    def __init__(self, colours: int, channels: int, features: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 5)

        def blocks(key: PRNGKeyArray) -> ResBlock:
            return weft.vmap(lambda key: ResBlock(channels, features, key=key))(jax.random.split(key, DEPTH))

        def mix(key: PRNGKeyArray) -> weft.Conv:
            return weft.Conv(2 * channels, channels, (1, 1), key=key)

        self.inp = weft.Conv(colours, channels, (3, 3), key=keys[0])
        self.down, self.up = blocks(keys[1]), blocks(keys[2])
        self.mixes = weft.vmap(mix)(jax.random.split(keys[3], DEPTH))
        self.out = weft.Conv(channels, colours, (3, 3), key=keys[4])
        self.frequencies = jnp.arange(features) / features

    def __call__(self, x: Float[Array, "h w colours"], t: Float[Array, ""]) -> Float[Array, "h w colours"]:
        e = jnp.sin(t * self.frequencies)

        def down(x, block):
            return (y := block(x, e)), y

        def up(x, given):
            block, mix, skip = given
            return block(mix(jnp.concatenate([x, skip], -1)), e), None

        x, skips = weft.scan(down)(self.inp(x), self.down)
        x, _ = weft.scan(up, reverse=True)(x, (self.up, self.mixes, skips))
        return self.out(x)


def loss(model: UNet, x: Float[Array, "b h w colours"], t: Float[Array, "b"]) -> Float[Array, ""]:
    return jnp.mean((weft.vmap(model)(x * t[:, None, None, None], t) - x) ** 2)


def average(model: UNet, other: UNet, decay: float) -> UNet:
    return jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, model, other)
'''


@pytest.mark.parametrize(("program", "contracts"), [(GPT, 6), (UNET, 4)], ids=["gpt", "unet"])
def test_weft_check_proves_models_with_stacked_layers(tmp_path: Path, program: str, contracts: int):
    file = tmp_path / "model.py"
    file.write_text(program)
    checked = check([str(file)])
    assert [str(line) for line in checked.lines] == []
    assert checked.verdicts == (Verdict.PROVED.value,) * contracts


# ---- what is wrong in a stack is found ------------------------------------------------------------------------------


class Affine(Module):
    weight: Float[Array, "width width"]
    bias: Float[Array, "width"]

    def __call__(self, x: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
        return x @ self.weight + self.bias


class Deep(Module):
    layers: Affine

    def __init__(self, width: int):
        self.layers = Affine(jnp.ones((3, width, width)), jnp.ones((3, width)))

    def __call__(self, x: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
        return weft.scan(lambda x, layer: (layer(x), None))(x, self.layers)[0]


class UsedAsOne(Deep):
    def __call__(self, x: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
        return self.layers(x)


class Ragged(Deep):
    def __init__(self, width: int):
        self.layers = Affine(jnp.ones((3, width, width)), jnp.ones((2, width)))


class WrongSize(Deep):
    def __init__(self, width: int):
        self.layers = Affine(jnp.ones((3, width, width)), jnp.ones((3, 2 * width)))


class Lost(Deep):
    def __init__(self, width: int):
        self.layers = Affine(jnp.ones((3, width, width)), jnp.ones(width))


class Written(Module):
    weight: Float[Array, "width width"]

    def __init__(self, width: int):
        self.weight = jnp.ones((3, width, width))

    def __call__(self, x: Float[Array, "batch width"]) -> Float[Array, "3 batch width"]:
        return x @ self.weight


def given_one(layer: Affine, x: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
    return layer(x)


def gives_a_stack(deep: Deep, x: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
    return given_one(deep.layers, x)


def test_a_stack_made_by_hand_holds_for_floats_of_its_own_width():
    (contract,) = verify(Deep).contracts
    assert contract.verdict is Verdict.HOLDS
    assert contract.assumptions == ("Float arrays are not of bfloat16",)


@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        (UsedAsOne, "Affine.__call__, argument self: expected Affine, found Affine (a stack"),
        (Ragged, "field weight: expected"),
        (WrongSize, "field bias: expected"),
        (Lost, "field weight: expected"),
        (Written, "expected Written, found Written (a stack, with the leading axes (3))"),
        (gives_a_stack, "given_one, argument layer: expected Affine, found Affine (a stack, with the leading"),
    ],
)
def test_what_is_wrong_with_a_stack_is_found(wrong, finding):
    report = verify(wrong)
    assert not report.ok
    assert finding in str(report)


def test_stacks_that_share_statistics_are_proved():
    class Norms(Module):
        norms: weft.BatchNorm

        def __init__(self, width: int):
            shared = weft.axes({BatchStat: None, ...: 0})
            self.norms = weft.vmap(lambda _: weft.BatchNorm(width), out_axes=shared)(jnp.arange(3))

        def __call__(self, x: Float[Array, "batch width"]) -> Float[Array, "3 batch width"]:
            axes = weft.axes({BatchStat: None, ...: 0})
            return weft.vmap(lambda norm, x: norm(x)[0], in_axes=(axes, None))(self.norms, x)

    assert verify(Norms).ok


def test_what_batched_declares_is_proved_with_variadic_dims():
    def deep(convs: Batched[weft.Conv, "depth"], x: Float[Array, "depth b h w c"]) -> Float[Array, "depth b h w c"]:
        return x

    assert verify(deep).ok
