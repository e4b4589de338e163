"""A convolutional classifier with batch norm and dropout, trained on images made here, like the MNIST tutorial."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 4, kernel_size=(3, 3), rngs=rngs)
        self.batch_norm1 = nnx.BatchNorm(4, rngs=rngs)
        self.dropout1 = nnx.Dropout(rate=0.025)
        self.conv2 = nnx.Conv(4, 8, kernel_size=(3, 3), rngs=rngs)
        self.batch_norm2 = nnx.BatchNorm(8, rngs=rngs)
        self.linear1 = nnx.Linear(32, 16, rngs=rngs)
        self.dropout2 = nnx.Dropout(rate=0.025)
        self.linear2 = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x, rngs: nnx.Rngs | None = None):
        x = nnx.relu(self.batch_norm1(self.dropout1(self.conv1(x), rngs=rngs)))
        x = nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nnx.relu(self.batch_norm2(self.conv2(x)))
        x = nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        x = nnx.relu(self.dropout2(self.linear1(x), rngs=rngs))
        return self.linear2(x)


def loss_fn(model: CNN, rngs: nnx.Rngs, batch):
    logits = model(batch["image"], rngs)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits=logits, labels=batch["label"]).mean()
    return loss, logits


@nnx.jit
def train_step(model: CNN, optimizer: nnx.Optimizer, rngs: nnx.Rngs, batch):
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, rngs, batch)
    optimizer.update(model, grads)
    return loss, (logits.argmax(-1) == batch["label"]).mean()


@nnx.jit
def eval_step(model: CNN, batch):
    loss, _ = loss_fn(model, None, batch)
    return loss


def make_batch(key):
    labels = jax.random.randint(key, (8,), 0, 4)
    images = jnp.zeros((8, 8, 8, 1)) + 0.1 * jax.random.normal(key, (8, 8, 8, 1))
    rows = jnp.arange(8)[None, :, None, None]
    return {"image": images + (rows // 2 == labels[:, None, None, None]), "label": labels}


model = CNN(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adamw(0.01, 0.9), wrt=nnx.Param)
rngs = nnx.Rngs(dropout=1)

for step in range(6):
    loss, accuracy = train_step(model, optimizer, rngs, make_batch(jax.random.key(step)))
    print(f"step {step}: loss {loss:.4f}, accuracy {accuracy:.3f}")

model.eval()
print(f"eval: {eval_step(model, make_batch(jax.random.key(100))):.4f}")
model.train()
print("mean of batch_norm1:", model.batch_norm1.mean[...].round(4).tolist())
print("steps:", int(optimizer.step[...]), "dropout keys drawn:", int(rngs.dropout.count[...]))
for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param)):
    print(path, leaf[...].shape, f"{float(jnp.abs(leaf[...]).sum()):.3f}")
