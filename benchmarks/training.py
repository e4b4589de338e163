"""What a step of training costs: forward, backward, adam and a metric, and what is around them.

Two models: an MLP with BatchNorm, and a small transformer. Each library trains the same model in its own way, on the
same batch. The limit is written by hand over lists of arrays. The last table is one call over six Variables, where what
is around a call is nearly all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import transformer
import weft
from flax import nnx
from harness import Case, compare, read_arguments, time_cases

LIMIT = "written by hand (the limit)"
FLAT = "jax.jit, flat tuple (the limit)"
MOMENTUM, EPSILON = 0.9, 1e-5
ADAM = optax.adam(1e-3)
# Of a batch for the MLP, examples and width: what is around a step counts in the first, and hardly in the second.
SMALL, WIDE = (16, 32), (64, 128)
# A loss and its model. By hand and in equinox, the loss takes and gives state beside the model; that of a record gives
# the model after the call; that of a module is the number alone.
Program = tuple[Callable[..., Any], Any]


# One step in each library, of any model.


def by_hand(program: tuple[Callable[..., Any], Any, Any]) -> Case:
    loss, params, stats = program

    @jax.jit
    def step(carry: Any) -> Any:
        params, stats, adam, (total, count) = carry
        (value, stats), gradient = jax.value_and_grad(loss, has_aux=True)(params, stats)
        updates, adam = ADAM.update(gradient, adam)
        return optax.apply_updates(params, updates), stats, adam, (total + value, count + 1)

    return Case(LIMIT, step, (params, stats, ADAM.init(params), (jnp.zeros(()), jnp.zeros((), jnp.int32))), waits=True)


def records(program: Program) -> Case:
    loss, model = program

    @weft.jit
    def step(carry: Any) -> Any:
        model, optimizer, metric = carry
        (value, new), gradient = weft.value_and_grad(loss, has_aux=True)(model)
        model, optimizer = optimizer.update(model, gradient, state_of=new)
        return model, optimizer, metric.update(values=value)

    return Case(
        "weft records, weft.jit", step, (model, weft.Optimizer(model, ADAM), weft.metrics.Average()), waits=True
    )


def modules(name: str, lib: Any, program: Program, *, cached: bool = False, **mode: Any) -> Case:
    """In flax.nnx, or in what offers its interface."""
    loss, model = program

    @lib.jit(**mode)
    def step(model: Any, optimizer: Any, metric: Any) -> None:
        value, gradient = lib.value_and_grad(loss, **mode)(model)
        optimizer.update(model, gradient)
        metric.update(values=value)

    optimizer, metric = lib.Optimizer(model, ADAM, wrt=lib.Param), lib.metrics.Average()
    call = lib.cached_partial(step, model, optimizer, metric) if cached else lambda: step(model, optimizer, metric)

    def advance(_: Any) -> Any:
        call()
        # What to await when the clock has stopped: one Variable that the step writes.
        return metric.total

    return Case(name, advance, waits=True)


def equinox(program: tuple[Callable[..., Any], Any, Any]) -> Case:
    loss, model, state = program

    @eqx.filter_jit
    def step(carry: Any) -> Any:
        model, state, adam, (total, count) = carry
        (value, state), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(model, state)
        updates, adam = ADAM.update(gradient, adam)
        return eqx.apply_updates(model, updates), state, adam, (total + value, count + 1)

    adam, metric = ADAM.init(eqx.filter(model, eqx.is_inexact_array)), (jnp.zeros(()), jnp.zeros((), jnp.int32))
    return Case("equinox, filter_jit", step, (model, state, adam, metric), waits=True)


# The MLP: blocks of Linear, BatchNorm and relu.


def mlp_by_hand(blocks: int, batch: jax.Array) -> tuple[Callable[..., Any], Any, Any]:
    def normed(x: jax.Array, scale: jax.Array, bias: jax.Array, running: Any) -> tuple[jax.Array, Any]:
        mean, var = x.mean(0), x.var(0)
        old_mean, old_var = running
        after = MOMENTUM * old_mean + (1 - MOMENTUM) * mean, MOMENTUM * old_var + (1 - MOMENTUM) * var
        return (x - mean) * jax.lax.rsqrt(var + EPSILON) * scale + bias, after

    def loss(params: Any, stats: Any) -> tuple[jax.Array, Any]:
        x, after = batch, []
        for (kernel, bias, scale, offset), running in zip(params, stats, strict=True):
            x, new = normed(x @ kernel + bias, scale, offset, running)
            x = jax.nn.relu(x)
            after.append(new)
        return (x**2).mean(), after

    init, width = jax.nn.initializers.lecun_normal(), batch.shape[1]
    zeros, ones = jnp.zeros(width), jnp.ones(width)
    params = [(init(key, (width, width)), zeros, ones, zeros) for key in jax.random.split(jax.random.key(0), blocks)]
    return loss, params, [(zeros, ones)] * blocks


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


def mlp_of_records(blocks: int, batch: jax.Array) -> Program:
    def loss(model: Any) -> Any:
        y, model = model(batch)
        return (y**2).mean(), model

    keys, width = jax.random.split(jax.random.key(0), blocks), batch.shape[1]
    linears = tuple(weft.Linear(width, width, key=key) for key in keys)
    return loss, Record(linears, tuple(weft.BatchNorm(width, momentum=MOMENTUM) for _ in keys))


def mlp_of_modules(lib: Any, blocks: int, batch: jax.Array) -> Program:
    width = batch.shape[1]

    class Mlp(lib.Module):
        def __init__(self, rngs: Any):
            self.linears = lib.List([lib.Linear(width, width, rngs=rngs) for _ in range(blocks)])
            self.norms = lib.List([lib.BatchNorm(width, momentum=MOMENTUM, rngs=rngs) for _ in range(blocks)])

        def __call__(self, x: Any) -> Any:
            for linear, norm in zip(self.linears, self.norms, strict=True):
                x = jax.nn.relu(norm(linear(x)))
            return x

    return lambda model: (model(batch) ** 2).mean(), Mlp(lib.Rngs(0))


class EqxMlp(eqx.Module):
    linears: list[eqx.nn.Linear]
    norms: list[eqx.nn.BatchNorm]

    def __init__(self, blocks: int, width: int):
        keys = jax.random.split(jax.random.key(0), blocks)
        self.linears = [eqx.nn.Linear(width, width, key=key) for key in keys]
        self.norms = [eqx.nn.BatchNorm(width, "batch", momentum=MOMENTUM, mode="ema") for _ in keys]

    def __call__(self, x: Any, state: Any) -> Any:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x, state = norm(linear(x), state)
            x = jax.nn.relu(x)
        return x, state


def mlp_of_equinox(blocks: int, batch: jax.Array) -> tuple[Callable[..., Any], Any, Any]:
    def loss(model: Any, state: Any) -> Any:
        over = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        y, state = over(batch, state)
        return (y**2).mean(), state

    return loss, *eqx.nn.make_with_state(EqxMlp)(blocks, batch.shape[1])


def mlp(blocks: int, shape: tuple[int, int]) -> list[Case]:
    batch = jax.random.normal(jax.random.key(1), shape)
    return peers(
        mlp_by_hand(blocks, batch),
        mlp_of_records(blocks, batch),
        lambda lib: mlp_of_modules(lib, blocks, batch),
        mlp_of_equinox(blocks, batch),
    )


# The transformer, which has no state.


def small_transformer(size: transformer.Size) -> list[Case]:
    tokens = jax.random.randint(jax.random.key(2), (size.batch, size.length + 1), 0, size.vocab)

    def beside_state(program: transformer.Program) -> tuple[Callable[..., Any], Any, Any]:
        loss, model = program
        return lambda model, state: (loss(model, tokens), state), model, ()

    def record() -> Program:
        loss, model = transformer.weft_program(size)
        return lambda model: (loss(model, tokens), model), model

    def module(lib: Any) -> Program:
        loss, model = transformer.nnx_program(lib, size)
        return lambda model: loss(model, tokens), model

    return peers(
        beside_state(transformer.jnp_program(size)), record(), module, beside_state(transformer.eqx_program(size))
    )


def peers(hand: Any, record: Program, module: Callable[[Any], Program], of_equinox: Any) -> list[Case]:
    return [
        by_hand(hand),
        records(record),
        modules("weft.nnx", weft.nnx, module(weft.nnx)),
        modules("weft.nnx, tree mode", weft.nnx, module(weft.nnx), graph=False),
        modules("flax.nnx, default", nnx, module(nnx)),
        modules("flax.nnx, tree mode", nnx, module(nnx), graph=False),
        modules("flax.nnx, cached_partial", nnx, module(nnx), cached=True, graph=True),
        equinox(of_equinox),
    ]


# What is around a call.


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
    for shape in (SMALL,) if arguments.quick else (SMALL, WIDE):
        model = f"{blocks} blocks of Linear, BatchNorm, relu, {shape[0]} x {shape[1]}, with adam and a metric"
        print(f"\n### Training: a step of {model}\n")
        print(compare(time_cases(mlp(blocks, shape), rounds), LIMIT))
    size = transformer.Size(layers=1) if arguments.quick else transformer.Size(layers=6, batch=8, length=32)
    print(f"\n### Training: a step of a transformer of {size.layers} blocks, with adam and a metric\n")
    print(compare(time_cases(small_transformer(size), rounds), LIMIT))
    flat = Case(FLAT, jax.jit(lambda leaves: tuple(x + 1 for x in leaves)), tuple(jnp.zeros(4) for _ in range(6)))
    cases = [flat, Case("weft.nnx.jit", small(weft.nnx)), Case("flax.nnx.jit", small(nnx))]
    print("\n### One call over 6 Variables\n")
    print(compare(time_cases(cases, rounds), FLAT))


if __name__ == "__main__":
    main()
