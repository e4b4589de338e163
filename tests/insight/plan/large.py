"""Plans large models for 512 devices, as a program whose time and memory are the plan's own.

    python large.py 70B

writes as JSON what was planned, with the seconds of processor time and the peak of memory of this process and of its
child that compiles.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
import weft
from jax.sharding import AbstractMesh, AxisType

SIZES = {"data": 64, "model": 8}


def llama(width: int, layers: int, heads: int) -> Any:
    """The plan of a step of a transformer of Llama's size: scanned, with remat, fully sharded and tensor-parallel."""

    class Llama(weft.Module):
        embed: weft.Embed
        blocks: weft.Stack[Any]
        norm: weft.RMSNorm

        def __init__(self, *, key: Any):
            options: Any = {"causal": True, "rope": weft.RoPE(), "norm": weft.RMSNorm, "use_bias": False}
            block = lambda key: weft.TransformerBlock(width, heads, key=key, **options)  # noqa: E731
            self.embed = weft.Embed(32_000, width, key=key)
            self.blocks = weft.Stack(block, layers, remat=True, key=key)
            self.norm = weft.RMSNorm(width)

        def __call__(self, tokens: Any) -> Any:
            return self.embed.attend(self.norm(self.blocks(self.embed(tokens))))

    def loss(model: Any, tokens: Any) -> Any:
        logits = model(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def train(model: Any, opt: Any, tokens: Any) -> Any:
        return opt.minimize(loss, model, tokens)

    model = weft.init(Llama, abstract=True)
    opt = jax.eval_shape(lambda model: weft.Optimizer(model, optax.adamw(1e-4)), model)
    tokens = jax.ShapeDtypeStruct((512, 2049), jnp.int32)
    step, rules = weft.jit(train, donate_argnums=(0, 1)), weft.plan.TABLES["fsdp_tensor"]
    return model, weft.plan(step, model, opt, tokens, mesh=SIZES, rules=rules)


def gpt() -> Any:
    """The plan of the GPT of `examples/sharded_lm.py`, with the example's own step, at a size for 512 devices."""
    from cases import sharded_lm

    example = sharded_lm()
    sizes = {"VOCAB": 32_768, "LENGTH": 1025, "BATCH": 512, "FEATURES": 2048, "HEADS": 16, "LAYERS": 24}
    for name, size in sizes.items():
        setattr(example, name, size)
    mesh = AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * len(SIZES))
    state = weft.init(example.State, abstract=True)
    tokens = jax.ShapeDtypeStruct((example.BATCH, example.LENGTH), jnp.int32)
    step, rules = example.make_step(mesh), example.RULES["product"][1]
    return state.model, weft.plan(step, state, tokens, mesh=mesh, rules=rules)


MODELS = {"gpt": gpt, "7B": lambda: llama(4096, 32, 32), "70B": lambda: llama(8192, 80, 64)}


def main(name: str) -> None:
    model, plan = MODELS[name]()
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    result = {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(model)),
        "plan": plan.as_dict(),
        "seconds": sum(usage.ru_utime + usage.ru_stime for usage in usages),
        "bytes": 1024 * max(usage.ru_maxrss for usage in usages),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
