"""Layers and an optimizer on a mesh of eight devices, with automatic and with explicit shardings."""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

init = nnx.initializers.lecun_normal()


class Block(nnx.Module):
    def __init__(self, width: int, hidden: int, spec, rngs: nnx.Rngs):
        self.spec = spec
        columns = nnx.with_metadata(init, out_sharding=(None, "model"))
        rows = nnx.with_metadata(init, out_sharding=("model", None))
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, hidden, kernel_init=columns, rngs=rngs)
        self.down = nnx.Linear(hidden, width, kernel_init=rows, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.shared_dropout = nnx.Dropout(0.1, broadcast_dims=(1,), rngs=rngs)

    def __call__(self, x):
        x = self.shared_dropout(x)
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm(x))), out_sharding=self.spec))


def spec_of(array):
    """Its axes without trailing ones that are not sharded, which JAX may or may not write down."""
    names = list(array.sharding.spec)
    while names and names[-1] is None:
        names.pop()
    return names


def describe(tree):
    for path, variable in nnx.to_flat_state(nnx.state(tree)):
        print(*path, spec_of(variable.get_value()), variable.get_metadata().get("out_sharding"))


@nnx.jit
def step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
    optimizer.update(model, grads)
    return loss


for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind, kind))
    with jax.set_mesh(mesh):
        model = Block(8, 16, PartitionSpec("data", None) if kind is AxisType.Explicit else None, nnx.Rngs(0))
        describe(model)
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        x = jax.device_put(jnp.arange(32.0).reshape(4, 8) / 16, NamedSharding(mesh, PartitionSpec("data", None)))
        print(kind, *(f"{step(model, optimizer, x):.5f}" for _ in range(3)))
        describe(optimizer)
        print(spec_of(model(x)))
        for layer in (
            nnx.RMSNorm(
                8, scale_init=nnx.with_metadata(nnx.initializers.ones, out_sharding=("model",)), rngs=nnx.Rngs(1)
            ),
            nnx.BatchNorm(8, rngs=nnx.Rngs(1)),
            nnx.LinearGeneral(
                8, (4, 4), kernel_init=nnx.with_metadata(init, out_sharding=(None, "model")), rngs=nnx.Rngs(1)
            ),
            nnx.Einsum("bi,io->bo", (8, 16), (16,), rngs=nnx.Rngs(1)),
        ):
            once, compiled = layer(x), nnx.jit(lambda layer, x: layer(x))(layer, x)
            print(type(layer).__name__, spec_of(once), spec_of(compiled), f"{float(abs(once).sum()):.4f}")
