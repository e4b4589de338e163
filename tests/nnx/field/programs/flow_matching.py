"""ott, as its users call it: velocity fields of two makes trained by flow matching, with an average, and evaluated."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from ott.neural.methods import flow_matching
from ott.neural.networks.velocity_field.ema import EMA
from ott.neural.networks.velocity_field.mlp import MLP
from ott.neural.networks.velocity_field.unet import UNet


def batch_of(key, shape):
    keys = jax.random.split(key, 3)
    start, end = (jax.random.normal(one, shape) for one in keys[:2])
    return flow_matching.interpolate_samples(keys[2], start, end)


def total(model):
    return f"{sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))):.4f}"


def trained(name, model, shape, cond=None):
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    average, rngs = EMA(model, decay=0.9), nnx.Rngs(dropout=1)
    step = nnx.jit(
        lambda model, average, optimizer, rngs, batch: flow_matching.flow_matching_step(
            model, optimizer, batch, model_callback_fn=average, rngs=rngs
        )
    )
    for i in range(3):
        batch = batch_of(jax.random.key(i), shape)
        if cond is not None:
            batch["cond"] = cond
        told = step(model, average, optimizer, rngs, batch)
        print(name, i, f"{float(told['loss']):.4f}", f"{float(told['grad_norm']):.4f}", total(model))
    print(name, "state", sorted({type(leaf).__name__ for _, leaf in nnx.to_flat_state(nnx.state(average))}))
    print(name, "average", total(average), int(optimizer.step.get_value()))


mlp = MLP(4, hidden_dims=[16, 16], cond_dim=2, dropout_rate=0.1, rngs=nnx.Rngs(0))
trained("mlp", mlp, (8, 4), jnp.ones((8, 2)))
mlp.eval()
point = jnp.arange(4.0) / 4
ended = flow_matching.evaluate_velocity_field(mlp, point, jnp.ones(2), t0=0.0, t1=1.0)
print("solved", [f"{value:.3f}" for value in jnp.ravel(ended.ys)])
unet = UNet(
    shape=(8, 8, 2),
    model_channels=32,
    num_res_blocks=1,
    attention_resolutions=(2,),
    channel_mult=(1, 2),
    rngs=nnx.Rngs(0),
)
trained("unet", unet, (2, 8, 8, 2))
print(nnx.tabulate(mlp, jnp.ones((2,)), jnp.ones((2, 4)), jnp.ones((2, 2))).count("Linear"))
