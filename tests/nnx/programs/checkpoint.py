"""State as data: saved with orbax, restored into an abstract model, as pure dicts, and merged; a run is resumed."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx


class MLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)])
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x):
        return self.layers[1](self.dropout(nnx.relu(self.norm(self.layers[0](x)))))


@nnx.jit
def train_step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def make(seed):
    model = MLP(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def keys_as_data(state):
    def as_data(leaf):
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    return jax.tree.map(as_data, state)


x = jnp.arange(12.0).reshape(4, 3) / 12
model, optimizer = make(0)
for _ in range(3):
    loss = train_step(model, optimizer, x)
print(f"loss {loss:.5f}")

folder = Path(tempfile.mkdtemp()) / "state"
checkpointer = ocp.StandardCheckpointer()
_, keys, rest = nnx.split((model, optimizer), nnx.RngKey, ...)
checkpointer.save(folder, nnx.to_pure_dict(rest))
checkpointer.wait_until_finished()

again, again_optimizer = make(1)
graphdef, new_keys, abstract = nnx.split((again, again_optimizer), nnx.RngKey, ...)
restored = checkpointer.restore(folder, nnx.to_pure_dict(nnx.eval_shape(lambda: abstract)))
nnx.replace_by_pure_dict(abstract, restored)
again, again_optimizer = nnx.merge(graphdef, keys, abstract)
print(f"resumed {train_step(again, again_optimizer, x):.5f}, went on {train_step(model, optimizer, x):.5f}")
print("steps:", int(again_optimizer.step[...]), int(optimizer.step[...]))

abstract_model = nnx.eval_shape(lambda: MLP(nnx.Rngs(0)))
print("abstract:", abstract_model.layers[0].kernel.get_value())
graphdef, state = nnx.split(model)
pure = nnx.to_pure_dict(keys_as_data(state))
print(sorted(pure), [str(path) for path, _ in nnx.to_flat_state(state)][:3])
clone = nnx.clone(model)
clone.layers[0].kernel[...] *= 0
print("clone is apart:", float(jnp.abs(model.layers[0].kernel[...]).sum()) > 0)
