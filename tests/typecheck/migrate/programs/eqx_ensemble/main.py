import equinox
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


class Member(equinox.Module):
    weight: Float[Array, "3"]
    first: equinox.nn.Linear
    second: equinox.nn.Linear

    def __call__(self, x: Float[Array, "3"]) -> Float[Array, ""]:
        return self.second(jnp.tanh(self.first(x * self.weight)))


@equinox.filter_vmap
def make(key: Key[Array, ""]) -> Member:
    key1, key2 = jax.random.split(key)
    return Member(jnp.ones(3), equinox.nn.Linear(3, 4, key=key1), equinox.nn.Linear(4, "scalar", key=key2))


@equinox.filter_vmap(in_axes=(0, None))
def predict(member: Member, xs: Float[Array, "b 3"]):
    return jax.vmap(member)(xs)


def loss(members: Member, xs: Float[Array, "b 3"]) -> Float[Array, ""]:
    return jnp.sum(predict(members, xs) ** 2)


def each(member: Member, xs: Float[Array, "b 3"]):
    ys = equinox.filter_vmap(member)(xs)
    return ys.mean()


members = make(jax.random.split(jax.random.key(0), 5))
xs = jax.random.normal(jax.random.key(1), (4, 3))
for _ in range(3):
    grads = equinox.filter_jit(equinox.filter_grad(loss))(members, xs)
    members = equinox.apply_updates(members, jax.tree.map(lambda g: -0.1 * g, grads))
    print(equinox.filter_jit(loss)(members, xs))
one = jax.tree.map(lambda leaf: leaf[0] if equinox.is_array(leaf) else leaf, members)
print(each(one, xs), equinox.filter_grad(lambda x: x**2)(jnp.ones(())))
