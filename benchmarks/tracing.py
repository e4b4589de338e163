"""What it costs to trace and lower `value_and_grad` of a transformer, before XLA compiles it.

The limit is plain jnp with its parameters in dicts. JAX keeps the traces of its own jitted functions (`jnp.einsum`,
`jax.nn.gelu`) from one program to the next; they are dropped before each timing, as in a process that has just started.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import transformer
import weft
from flax import nnx
from harness import Case, compare, read_arguments, time_cases

LIMIT = "plain jnp, jax.jit (the limit)"


def lowering(jit: Callable[..., Any], value_and_grad: Callable[..., Any], program: transformer.Program, tokens: Any):
    """Traces and lowers the program anew: a fresh function each time, which no cache has seen."""
    loss, model = program

    def advance(_: Any) -> None:
        def fresh(model: Any, tokens: Any) -> Any:
            return loss(model, tokens)

        jit(value_and_grad(fresh)).lower(model, tokens)

    return advance


def without_contracts(advance: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same with shape annotations taken as comments; they are checked while tracing otherwise."""

    def unchecked(state: Any) -> None:
        with weft.typecheck.mode("off"):
            advance(state)

    return unchecked


def build_cases(size: transformer.Size) -> list[Case]:
    programs = {
        LIMIT: (jax.jit, jax.value_and_grad, transformer.jnp_program(size)),
        "weft": (weft.jit, weft.value_and_grad, transformer.weft_program(size)),
        "equinox": (eqx.filter_jit, eqx.filter_value_and_grad, transformer.eqx_program(size)),
        "flax.nnx": (nnx.jit, nnx.value_and_grad, transformer.flax_program(size)),
    }
    if all(hasattr(weft.nnx, name) for name in ("jit", "value_and_grad", "Linear", "LayerNorm", "Embed")):
        programs["weft.nnx"] = (weft.nnx.jit, weft.nnx.value_and_grad, transformer.nnx_program(weft.nnx, size))
    tokens = transformer.tokens(size)
    lowerings = {name: lowering(*program, tokens) for name, program in programs.items()}
    lowerings["weft, contracts off"] = without_contracts(lowerings["weft"])
    return [Case(name, advance, calls=1, prepare=jax.clear_caches) for name, advance in lowerings.items()]


ONE, BY_HAND = "one TransformerBlock (the limit)", "48 of them by `lax.scan`"


class Scanned(weft.Module):
    layers: weft.TransformerBlock

    def __call__(self, x: Any) -> Any:
        return jax.lax.scan(lambda x, layer: (layer(x), None), x, self.layers)[0]


def of_stack(differentiated: bool) -> list[Case]:
    """A block, and a `Stack` of many: a loop is traced once, however many layers run in it.

    With gradients, JAX linearises and transposes a loop's body as programs of their own. What that costs is shown by
    `lax.scan` over the layers of a stack, which is what a `Stack` is compared with there.
    """
    key, x = jax.random.key(0), jax.ShapeDtypeStruct((4, 16, 64), "float32")
    makes: dict[str, Callable[[], Any]] = {
        ONE: lambda: weft.TransformerBlock(64, 4, key=key),
        "a Stack of 1": lambda: weft.Stack(lambda key: weft.TransformerBlock(64, 4, key=key), 1, key=key),
        "a Stack of 48": lambda: weft.Stack(lambda key: weft.TransformerBlock(64, 4, key=key), 48, key=key),
    }

    def advance(model: Any) -> Callable[[Any], None]:
        def lower(_: Any) -> None:
            def fresh(model: Any, x: Any) -> Any:
                return (model(x) ** 2).sum()

            weft.jit(weft.value_and_grad(fresh) if differentiated else fresh).lower(model, x)

        return lower

    makes[BY_HAND] = lambda: Scanned(makes["a Stack of 48"]().layers)
    return [Case(name, advance(make()), calls=1, prepare=jax.clear_caches) for name, make in makes.items()]


def main() -> None:
    arguments = read_arguments(__doc__)
    size = transformer.Size(layers=1) if arguments.quick else transformer.Size()
    print(f"\n### Tracing: trace and lower of `value_and_grad`, {size.layers}-layer transformer\n")
    timings = time_cases(build_cases(size), arguments.rounds or (1 if arguments.quick else 15))
    print(compare(timings, LIMIT, unit="ms", scale=1e3))
    for result, differentiated in (("the output", False), ("`value_and_grad`", True)):
        print(f"\n### Tracing: trace and lower of {result}, layers in a `Stack`\n")
        timings = time_cases(of_stack(differentiated), arguments.rounds or (1 if arguments.quick else 15))
        print(compare(timings, ONE, unit="ms", scale=1e3))


if __name__ == "__main__":
    main()
