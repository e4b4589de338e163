"""Message passing with an adjacency matrix, steps by `nnx.scan` over stacked layers."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Layer(nnx.Module):
    def __init__(self, d: int, rngs: nnx.Rngs):
        self.message = nnx.Linear(d, d, rngs=rngs)
        self.update = nnx.Linear(2 * d, d, rngs=rngs)

    def __call__(self, nodes: Float[Array, "n d"], adjacency: Float[Array, "n n"]) -> Float[Array, "n d"]:
        received = adjacency @ self.message(nodes)  # bug: received = (self.message(nodes).T @ adjacency)
        return nodes + self.update(jnp.concatenate([nodes, received], axis=-1))


class Net(nnx.Module):
    def __init__(self, depth: int, d: int, rngs: nnx.Rngs):
        make = nnx.vmap(lambda rngs: Layer(d, rngs), in_axes=0)
        self.layers = make(rngs.split(depth))

    def __call__(self, nodes: Float[Array, "n d"], adjacency: Float[Array, "n n"]) -> Float[Array, "n d"]:
        run = nnx.scan(lambda layer, x: layer(x, adjacency), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        return run(self.layers, nodes)


entry = Net


def sample():
    return Net(2, 4, nnx.Rngs(0))(jnp.ones((4, 4)), jnp.ones((4, 4)))
