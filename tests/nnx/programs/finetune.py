"""Fine-tuning with filters: a frozen backbone, a new head, custom Variable types, and what is sown on the way."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Frozen(nnx.Variable):
    """A parameter that is not trained."""


class Usage(nnx.Variable):
    """How often a unit was active."""


class Backbone(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.encoder = nnx.Linear(4, 8, rngs=rngs)
        self.mixer = nnx.Einsum("bf,fg->bg", (8, 8), rngs=rngs)
        self.usage = Usage(jnp.zeros(8))

    def __call__(self, x):
        x = nnx.relu(self.encoder(x))
        self.usage[...] += (x > 0).mean(0)
        self.sow(nnx.Intermediate, "features", x)
        return self.mixer(x)


class Classifier(nnx.Module):
    def __init__(self, backbone: Backbone, rngs: nnx.Rngs):
        self.backbone = backbone
        self.head = nnx.Linear(8, 3, kernel_init=nnx.initializers.lecun_normal(), rngs=rngs)
        self.temperature = nnx.Param(jnp.array(1.0), trainable=False)

    def __call__(self, x):
        return self.head(self.backbone(x)) / self.temperature


backbone = Backbone(nnx.Rngs(0))
model = Classifier(backbone, nnx.Rngs(1))
is_head = nnx.All(nnx.Param, nnx.PathContains("head"))
optimizer = nnx.Optimizer(model, optax.sgd(0.2), wrt=is_head)


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss_fn(model):
        logits = model(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    loss, grads = nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, is_head))(model)
    optimizer.update(model, grads)
    intermediates = nnx.pop(model, nnx.Intermediate)
    return loss, intermediates


x = jax.random.normal(jax.random.key(2), (6, 4))
y = jnp.array([0, 1, 2, 0, 1, 2])
before = nnx.clone(model)
for step in range(5):
    loss, intermediates = train_step(model, optimizer, x, y)
    print(f"step {step}: {loss:.4f}")

features = intermediates["backbone"]["features"].get_value()
print("sown:", len(features), features[0].shape, f"{float(features[0].sum()):.3f}")
print("usage:", model.backbone.usage[...].round(3).tolist())
states = [nnx.to_flat_state(nnx.state(either)) for either in (before, model)]
changed = [
    ".".join(map(str, path))
    for (path, old), (_, new) in zip(*states, strict=True)
    if not jnp.array_equal(old[...], new[...])
]
print("changed:", changed)
print("the backbone is the same object:", model.backbone is backbone)

backbone.encoder.kernel = Frozen(backbone.encoder.kernel[...])
params, frozen, rest = nnx.state(model, nnx.Param, Frozen, ...)
for name, state in (("params", params), ("frozen", frozen), ("rest", rest)):
    print(name, [".".join(map(str, path)) for path, _ in nnx.to_flat_state(state)])
not_trainable = nnx.state(model, lambda path, value: getattr(value, "trainable", True) is False)
print("not trainable:", [path for path, _ in nnx.to_flat_state(not_trainable)])
nnx.set_metadata(model, only=is_head, note="tuned")
print("note:", model.head.kernel.note, [path for path, value in nnx.iter_graph(model) if isinstance(value, Usage)])
