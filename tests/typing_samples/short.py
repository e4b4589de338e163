"""What static checkers see of surgery, trees and optimizers: each comment is the type that they must reveal."""

from typing import Any, reveal_type

import optax
import weft
from jax import Array


class Net(weft.Module):
    weight: Array
    blocks: list[weft.Linear]

    def __call__(self, x: Array) -> Array:
        return x * self.weight


def loss(net: Net, x: Array) -> Array:
    return net(x).sum()


def train(net: Net, x: Array, gradient: Any) -> None:
    opt = weft.Optimizer(net, {weft.filters.Inside("blocks"): optax.sgd(0.1), ...: optax.adam(1e-3)}, wrt=weft.Param)
    reveal_type(opt.update(net, gradient, state_of=net, value=x))  # tuple[Net, Optimizer]
    reveal_type(opt.minimize(loss, net, x))  # tuple[Any, Net, Optimizer]
    reveal_type(weft.at(net).blocks[1:].kernel.set(x))  # Net
    reveal_type(weft.at(net, weft.filters.InstanceOf(weft.Linear)).apply(lambda linear: linear))  # Net
    reveal_type(weft.at(net, [weft.Param, weft.filters.Maybe("frozen")]).apply(lambda leaf: leaf))  # Net
    reveal_type(weft.tree.cast(net, "bfloat16"))  # Net
    reveal_type(weft.tree.ema(net, net, 0.9))  # Net
    reveal_type(weft.tree.unstack(weft.tree.stack([net, net])))  # list[Net]
    reveal_type(weft.Shared(net, {"blocks[1]": "blocks[0]"}).value)  # Net
    reveal_type(weft.Policy()(loss))  # (net: Net, x: Array) -> Array
    reveal_type(weft.Policy()(net).layer)  # Net
