import jax
import jax.numpy as jnp
from flax.nnx import Linear as Dense
from flax.nnx import Module, Param, Rngs, graphlib, state, statelib
from flax.nnx import vmap as over_members
from flax.nnx.nn.linear import Embed


class Member(Module):
    def __init__(self, rngs: Rngs):
        self.embed = Embed(7, 4, rngs=rngs)
        self.out = Dense(4, 1, rngs=rngs)
        self.shift = Param(jnp.zeros(1))

    def __call__(self, tokens):
        return self.out(self.embed(tokens).mean(0)) + self.shift


def main():
    from flax import nnx

    make = nnx.split_rngs(splits=3)(over_members(lambda rngs: Member(rngs)))
    members = make(Rngs(0))
    tokens = jnp.array([1, 2, 5])
    predict = over_members(lambda member, tokens: member(tokens), in_axes=(0, None))

    def loss(members):
        return (predict(members, tokens) ** 2).sum()

    for _ in range(3):
        value, grads = nnx.value_and_grad(loss)(members)
        nnx.update(members, jax.tree.map(lambda p, g: p - 0.1 * g, state(members, Param), grads))
        print(value)
    graphdef, values = graphlib.split(members)
    assert isinstance(values, statelib.State)
    print(graphlib.merge(graphdef, values)(tokens).shape if False else len(jax.tree.leaves(values)))


main()
