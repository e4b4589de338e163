"""dantinox, as its users call it: one backbone trained to predict and to fill in tokens, and to generate them."""

import dantinox as dx
import jax
import jax.numpy as jnp
import optax
from flax import nnx

TOKENS = jax.random.randint(jax.random.key(0), (4, 17), 0, 49)
SIZES = {"dim": 32, "n_heads": 4, "num_blocks": 2, "vocab_size": 50, "max_context": 32}


def train(paradigm):
    model = paradigm.build_model(nnx.Rngs(0, params=1, dropout=2))
    print(len(jax.tree.leaves(nnx.state(model, nnx.Param))), sorted(nnx.to_pure_dict(nnx.state(model))))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, batch, key):
        loss = nnx.value_and_grad(lambda model: paradigm.loss_fn(model, batch, key), has_aux=True)
        (value, metrics), grads = loss(model)
        optimizer.update(model, grads)
        return value, metrics

    for i in range(4):
        value, metrics = step(model, optimizer, TOKENS, jax.random.key(i))
        print(f"{float(value):.4f}", {name: f"{float(one):.4f}" for name, one in sorted(metrics.items())})
    return model


for kind, options in (("ar", {}), ("discrete", {"mask_token_id": 49, "noise_schedule": "cosine"})):
    paradigm = dx.Paradigm(dx.ModelConfig(paradigm=kind, **SIZES, **options))
    model = train(paradigm)
    out = paradigm.generate(model, TOKENS[:1, :4], jax.random.key(9), max_new_tokens=8)
    print(kind, jnp.asarray(out).shape, sum(map(jnp.size, jax.tree.leaves(nnx.state(model, nnx.Param)))))
