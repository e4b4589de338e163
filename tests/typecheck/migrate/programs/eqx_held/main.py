import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array


class Net(eqx.Module):
    norm: eqx.nn.BatchNorm
    rate: float

    def __call__(self, x: Array, state: eqx.nn.State):
        x, state = self.norm(x, state)
        return x * self.rate, state


@eqx.filter_jit
def step(net: Net, state: eqx.nn.State, xs: Array, n: int) -> tuple[Array, eqx.nn.State]:
    return jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(xs * n, state)


@eqx.filter_jit
def scaled(x, by):
    return x * by if by > 1 else x


net, state = eqx.nn.make_with_state(lambda: Net(eqx.nn.BatchNorm(2, "batch", mode="batch"), 0.5))()
ys, state = step(net, state, jax.random.normal(jax.random.key(0), (4, 2)), 2)
print(ys.ravel(), scaled(jnp.ones(2), 3))
