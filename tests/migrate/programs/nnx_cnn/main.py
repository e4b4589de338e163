import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import jax
import jax.numpy as jnp
import net
import optax
from net import CNN, nnx

model = CNN(net.nnx.Rngs(params=0, dropout=1))
optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)


def loss(model, x, y):
    logits = model(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits


@nnx.jit
def step(model, optimizer, x, y):
    (value, _), grads = nnx.value_and_grad(loss, has_aux=True)(model, x, y)
    optimizer.update(model, grads)
    return value


x = jax.random.normal(jax.random.key(0), (8, 8, 8, 1))
y = jnp.arange(8) % 3
model.train()
for _ in range(5):
    print(step(model, optimizer, x, y))
model.eval()
print(model(x[:2]).ravel())
for path, stat in sorted(nnx.to_flat_state(nnx.state(model, nnx.BatchStat)), key=lambda item: str(item[0])):
    print(jnp.sum(stat[...]))
