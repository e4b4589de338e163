import flax, jax, optax  # noqa: E401, I001
import flax.nnx
import jax.numpy as jnp


@flax.struct.dataclass
class Settings:
    depth: int = 3
    width: int = 4


class Layer(flax.nnx.Module):
    def __init__(self, width: int, rngs: "flax.nnx.Rngs"):
        self.linear = flax.nnx.Linear(width, width, rngs=rngs)
        self.norm = flax.nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, x):
        return x + jnp.tanh(self.linear(self.norm(x)))


class Stack(flax.nnx.Module):
    def __init__(self, settings: Settings, rngs: flax.nnx.Rngs):
        @flax.nnx.split_rngs(splits=settings.depth)
        @flax.nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs):
            return Layer(settings.width, rngs)

        self.layers = make(rngs)

    def __call__(self, x):
        @flax.nnx.scan(in_axes=(flax.nnx.Carry, 0), out_axes=flax.nnx.Carry)
        def forward(x, layer):
            return layer(x)

        return forward(x, self.layers)


def main():
    nnx = flax.nnx
    model = Stack(Settings(), nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    x = jax.random.normal(jax.random.key(0), (5, 4))
    for _ in range(4):
        value, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, grads)
        print(value)
    print(jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(model)))["layers"]["linear"]["kernel"])


main()
