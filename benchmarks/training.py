"""What a step of training costs: an MLP with BatchNorm, forward, backward and adam, and what is around it.

Each library trains the same model in its own way, on the same batch. The limit is written by hand over lists of arrays.
The second table is one call over six Variables, where what is around a call is nearly all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import weft
from flax import nnx
from harness import Case, compare, read_arguments, time_cases

LIMIT = "written by hand (the limit)"
FLAT = "jax.jit, flat tuple (the limit)"
WIDTH, BATCH, MOMENTUM, EPSILON = 32, 16, 0.9, 1e-5
ADAM = optax.adam(1e-3)
X = jax.random.normal(jax.random.key(1), (BATCH, WIDTH))


def by_hand(blocks: int) -> Case:
    def normed(x: jax.Array, scale: jax.Array, bias: jax.Array, running: Any) -> tuple[jax.Array, Any]:
        mean, var = x.mean(0), x.var(0)
        old_mean, old_var = running
        after = MOMENTUM * old_mean + (1 - MOMENTUM) * mean, MOMENTUM * old_var + (1 - MOMENTUM) * var
        return (x - mean) * jax.lax.rsqrt(var + EPSILON) * scale + bias, after

    def loss(params: Any, stats: Any) -> tuple[jax.Array, Any]:
        x, after = X, []
        for (kernel, bias, scale, offset), running in zip(params, stats, strict=True):
            x, new = normed(x @ kernel + bias, scale, offset, running)
            x = jax.nn.relu(x)
            after.append(new)
        return (x**2).mean(), after

    @jax.jit
    def step(state: Any) -> Any:
        params, stats, adam = state
        gradient, stats = jax.grad(loss, has_aux=True)(params, stats)
        updates, adam = ADAM.update(gradient, adam)
        return optax.apply_updates(params, updates), stats, adam

    init = jax.nn.initializers.lecun_normal()
    zeros, ones = jnp.zeros(WIDTH), jnp.ones(WIDTH)
    params = [(init(key, (WIDTH, WIDTH)), zeros, ones, zeros) for key in jax.random.split(jax.random.key(0), blocks)]
    return Case(LIMIT, step, (params, [(zeros, ones)] * blocks, ADAM.init(params)))


class Record(weft.Module):
    linears: tuple[weft.Linear, ...]
    norms: tuple[weft.BatchNorm, ...]

    def __call__(self, x: Any) -> Any:
        after = []
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x, norm = norm(linear(x))
            x = jax.nn.relu(x)
            after.append(norm)
        return x, self.replace(norms=tuple(after))


def records(blocks: int) -> Case:
    def loss(model: Any) -> Any:
        y, model = model(X)
        return (y**2).mean(), model

    @weft.jit
    def step(state: Any) -> Any:
        model, optimizer = state
        gradient, model = weft.grad(loss, has_aux=True)(model)
        return optimizer.update(model, gradient)

    keys = jax.random.split(jax.random.key(0), blocks)
    linears = tuple(weft.Linear(WIDTH, WIDTH, key=key) for key in keys)
    norms = tuple(weft.BatchNorm(WIDTH, momentum=MOMENTUM) for _ in keys)
    model = Record(linears, norms)
    return Case("weft records, weft.jit", step, (model, weft.Optimizer(model, ADAM)))


def nnx_case(name: str, lib: Any, blocks: int, *, cached: bool = False, **mode: Any) -> Case:
    """The model in flax.nnx, or in what offers its interface."""

    class Mlp(lib.Module):
        def __init__(self, rngs: Any):
            self.linears = lib.List([lib.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(blocks)])
            self.norms = lib.List([lib.BatchNorm(WIDTH, momentum=MOMENTUM, rngs=rngs) for _ in range(blocks)])

        def __call__(self, x: Any) -> Any:
            for linear, norm in zip(self.linears, self.norms, strict=True):
                x = jax.nn.relu(norm(linear(x)))
            return x

    def loss(model: Any) -> Any:
        return (model(X) ** 2).mean()

    @lib.jit(**mode)
    def step(model: Any, optimizer: Any) -> None:
        optimizer.update(model, lib.grad(loss, **mode)(model))

    model = Mlp(lib.Rngs(0))
    optimizer = lib.Optimizer(model, ADAM, wrt=lib.Param)
    call = lib.cached_partial(step, model, optimizer) if cached else lambda: step(model, optimizer)
    # What to await when the clock has stopped: one Variable that the step writes.
    written = model.linears[0].kernel

    def advance(_: Any) -> Any:
        call()
        return written

    return Case(name, advance)


class EqxMlp(eqx.Module):
    linears: list[eqx.nn.Linear]
    norms: list[eqx.nn.BatchNorm]

    def __init__(self, blocks: int):
        keys = jax.random.split(jax.random.key(0), blocks)
        self.linears = [eqx.nn.Linear(WIDTH, WIDTH, key=key) for key in keys]
        self.norms = [eqx.nn.BatchNorm(WIDTH, "batch", momentum=MOMENTUM, mode="ema") for _ in keys]

    def __call__(self, x: Any, state: Any) -> Any:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x, state = norm(linear(x), state)
            x = jax.nn.relu(x)
        return x, state


def equinox(blocks: int) -> Case:
    def loss(model: Any, state: Any) -> Any:
        batched = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        y, state = batched(X, state)
        return (y**2).mean(), state

    @eqx.filter_jit
    def step(carry: Any) -> Any:
        model, state, adam = carry
        gradient, state = eqx.filter_grad(loss, has_aux=True)(model, state)
        updates, adam = ADAM.update(gradient, adam)
        return eqx.apply_updates(model, updates), state, adam

    model, state = eqx.nn.make_with_state(EqxMlp)(blocks)
    return Case("equinox, filter_jit", step, (model, state, ADAM.init(eqx.filter(model, eqx.is_inexact_array))))


def training(blocks: int) -> list[Case]:
    return [
        by_hand(blocks),
        records(blocks),
        nnx_case("weft.nnx", weft.nnx, blocks),
        nnx_case("weft.nnx, tree mode", weft.nnx, blocks, graph=False),
        nnx_case("flax.nnx", nnx, blocks),
        nnx_case("flax.nnx, tree mode", nnx, blocks, graph=False),
        nnx_case("flax.nnx, cached_partial", nnx, blocks, cached=True, graph=True),
        equinox(blocks),
    ]


def small(lib: Any) -> Callable[[Any], Any]:
    class Part(lib.Module):
        def __init__(self):
            self.scale, self.bias = lib.Param(jnp.zeros(4)), lib.Param(jnp.zeros(4))

    class Small(lib.Module):
        def __init__(self):
            self.parts = lib.List([Part() for _ in range(3)])

    model = Small()
    written = model.parts[0].scale

    @lib.jit
    def step(model: Any) -> None:
        for part in model.parts:
            part.scale[...] += 1
            part.bias[...] += 1

    def advance(_: Any) -> Any:
        step(model)
        return written

    return advance


def main() -> None:
    arguments = read_arguments(__doc__)
    rounds = arguments.rounds or (3 if arguments.quick else 20)
    blocks = 2 if arguments.quick else 24
    print(f"\n### Training: a step of {blocks} blocks of Linear, BatchNorm, relu, with adam\n")
    print(compare(time_cases(training(blocks), rounds), LIMIT))
    flat = Case(FLAT, jax.jit(lambda leaves: tuple(x + 1 for x in leaves)), tuple(jnp.zeros(4) for _ in range(6)))
    cases = [flat, Case("weft.nnx.jit", small(weft.nnx)), Case("flax.nnx.jit", small(nnx))]
    print("\n### One call over 6 Variables\n")
    print(compare(time_cases(cases, rounds), FLAT))


if __name__ == "__main__":
    main()
