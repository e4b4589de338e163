"""Everyday flax.nnx in one program: nothing in it knows of weft, and no line of it has to change.

    python examples/nnx_unmodified.py               # flax.nnx
    python -m weft.nnx examples/nnx_unmodified.py   # weft, through the import hook: the same numbers

A ConvNet with BatchNorm and Dropout on scikit-learn's digits, with metrics, a schedule and an average of the weights;
an Orbax checkpoint from which another process could go on; LoRA for digits that lie on their side; an ensemble trained
by vmap; an LSTM on sequences of several lengths; and a transformer whose layers are scanned and rematerialised, which
writes with a key-value cache. Each part prints what it reached, and the last line says how long it all took.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jaxtyping import Array, Float, Int
from sklearn.datasets import load_digits

CLASSES = 10


def accuracy(logits: Float[Array, "batch classes"], labels: Int[Array, "batch"]) -> Float[Array, ""]:
    return (logits.argmax(-1) == labels).mean()


def cross_entropy(logits: Float[Array, "*batch classes"], labels: Int[Array, "*batch"]) -> Float[Array, ""]:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def count(model, kind=nnx.Param):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, kind)))


# --- a ConvNet with BatchNorm and Dropout ----------------------------------------------------------------------------


class Block(nnx.Module):
    def __init__(self, din: int, dout: int, *, rngs: nnx.Rngs):
        self.conv = nnx.Conv(din, dout, kernel_size=(3, 3), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(dout, momentum=0.9, rngs=rngs)

    def __call__(self, x: Float[Array, "batch height width din"]) -> Float[Array, "batch height//2 width//2 dout"]:
        return nnx.max_pool(nnx.relu(self.norm(self.conv(x))), window_shape=(2, 2), strides=(2, 2))


class ConvNet(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.blocks = nnx.List([Block(1, 8, rngs=rngs), Block(8, 16, rngs=rngs)])
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(2 * 2 * 16, CLASSES, rngs=rngs)

    def features(self, x: Float[Array, "batch 8 8 1"]) -> Float[Array, "batch 64"]:
        for block in self.blocks:
            x = block(x)
        return self.dropout(x.reshape(x.shape[0], -1))

    def __call__(self, x: Float[Array, "batch 8 8 1"]) -> Float[Array, "batch 10"]:
        return self.head(self.features(x))


@nnx.jit
def train_step(model, optimizer, metrics, images, labels):
    def loss_fn(model):
        logits = model(images)
        return cross_entropy(logits, labels), logits

    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    metrics.update(loss=loss, logits=logits, labels=labels)


@nnx.jit
def eval_step(model, images, labels):
    return accuracy(model(images), labels)


def make_convnet(seed: int) -> tuple[ConvNet, nnx.Optimizer]:
    model = ConvNet(rngs=nnx.Rngs(seed))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=10, decay_steps=100)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def convnet(images, labels, folder):
    model, optimizer = make_convnet(0)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    ema = nnx.EMA(model, decay=0.9, only=(nnx.Param, nnx.BatchStat))
    move = nnx.jit(lambda ema, model: ema.update(model))
    print(f"ConvNet: {count(model)} parameters, {count(model, nnx.BatchStat)} statistics")

    held_out, train = slice(0, 256), slice(256, 1280)
    for epoch in range(3):
        model.train()
        for start in range(train.start, train.stop, 64):
            batch = slice(start, start + 64)
            train_step(model, optimizer, metrics, images[batch], labels[batch])
            move(ema, model)
        model.eval()
        values = {name: float(value) for name, value in metrics.compute().items()}
        metrics.reset()
        reached = eval_step(model, images[held_out], labels[held_out])
        print(f"  epoch {epoch}: loss {values['loss']:.3f}, held out {reached:.2f}")
    averaged = ema.apply_to(model)
    print(f"  averaged weights: held out {eval_step(averaged, images[held_out], labels[held_out]):.2f}")
    checkpoint(model, optimizer, images[train][:64], labels[train][:64], folder)
    return model


# --- a checkpoint ----------------------------------------------------------------------------------------------------


def checkpoint(model, optimizer, images, labels, folder):
    """Saves all that training needs, restores it into a model that was never initialised, and steps with both."""
    model.train()
    with ocp.CheckpointManager(folder / "checkpoints", options=ocp.CheckpointManagerOptions(max_to_keep=1)) as manager:
        state = nnx.state((model, optimizer))
        manager.save(int(optimizer.step[...]), args=ocp.args.StandardSave(state))
        manager.wait_until_finished()

        def make():
            model, optimizer = make_convnet(1)
            model.train()
            return model, optimizer

        abstract = nnx.eval_shape(make)
        graphdef, abstract_state = nnx.split(abstract)
        restored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(abstract_state))
    again, again_optimizer = nnx.merge(graphdef, restored)

    losses = []
    for trained, its_optimizer in ((model, optimizer), (again, again_optimizer)):
        metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
        train_step(trained, its_optimizer, metrics, images, labels)
        losses.append(float(metrics.compute()["loss"]))
    print(f"  restored at step {int(again_optimizer.step[...]) - 1}, and goes on alike: {losses[0] == losses[1]}")


# --- LoRA ------------------------------------------------------------------------------------------------------------


def lora(model, images, labels):
    """Adapts the ConvNet to digits that lie on their side: two low-rank updates learn, all else is frozen."""
    turned = jnp.rot90(images, axes=(1, 2))
    rngs = nnx.Rngs(7)
    model = nnx.clone(model)
    model.head = nnx.LoRA(64, 8, CLASSES, base_module=model.head, rngs=rngs)
    mixer = nnx.LoRALinear(64, 64, lora_rank=4, kernel_init=nnx.initializers.orthogonal(), rngs=rngs)
    model.head = nnx.Sequential(mixer, model.head)
    model.eval()
    before = [leaf.copy() for leaf in jax.tree.leaves(nnx.state(model, nnx.Not(nnx.LoRAParam)))]
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.LoRAParam)

    @nnx.jit
    def step(model, optimizer, x, y):
        wrt = nnx.DiffState(0, nnx.LoRAParam)
        loss, grads = nnx.value_and_grad(lambda model: cross_entropy(model(x), y), argnums=wrt)(model)
        optimizer.update(model, grads)
        return loss

    start = eval_step(model, turned[:256], labels[:256])
    for _ in range(30):
        loss = step(model, optimizer, turned[256:768], labels[256:768])
    after = jax.tree.leaves(nnx.state(model, nnx.Not(nnx.LoRAParam)))
    frozen = all(jnp.array_equal(old, other) for old, other in zip(before, after, strict=True))
    reached = eval_step(model, turned[:256], labels[:256])
    print(f"LoRA: {count(model, nnx.LoRAParam)} parameters learn, the others stay: {frozen}")
    print(f"  loss {loss:.3f}, held out {start:.2f} before, {reached:.2f} after")


# --- an ensemble by vmap ---------------------------------------------------------------------------------------------


class MLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.norm = nnx.LayerNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(32, CLASSES, rngs=rngs)

    def __call__(self, x: Float[Array, "batch 64"]) -> Float[Array, "batch 10"]:
        return self.out(self.dropout(nnx.gelu(self.norm(self.hidden(x)))))


def ensemble(images, labels, members=4):
    @nnx.split_rngs(splits=members)
    @nnx.vmap
    def create(rngs):
        model = MLP(rngs)
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    @nnx.vmap(in_axes=(0, 0, None, None))
    def step(model, optimizer, x, y):
        loss, grads = nnx.value_and_grad(lambda model: cross_entropy(model(x), y))(model)
        optimizer.update(model, grads)
        return loss

    @nnx.jit
    def predict(models, x):
        return nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(models, x)

    models, optimizers = create(nnx.Rngs(0))
    x = images.reshape(-1, 64)
    for _ in range(40):
        losses = step(models, optimizers, x[256:768], labels[256:768])
    models.eval()
    logits = predict(models, x[:256])
    each = [f"{accuracy(row, labels[:256]):.2f}" for row in logits]
    print(f"ensemble: kernels {models.hidden.kernel.shape}, losses {[f'{loss:.3f}' for loss in losses]}")
    print(f"  held out {each}, together {accuracy(nnx.softmax(logits).mean(0), labels[:256]):.2f}")


# --- an LSTM ---------------------------------------------------------------------------------------------------------


class Parity(nnx.Module):
    """Reads bits both ways, and says of each sequence whether more than half of it was ones."""

    def __init__(self, rngs: nnx.Rngs):
        forward = nnx.RNN(nnx.OptimizedLSTMCell(1, 8, rngs=rngs))
        backward = nnx.RNN(nnx.GRUCell(1, 8, rngs=rngs))
        self.rnn = nnx.Bidirectional(forward, backward)
        self.out = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, bits: Float[Array, "batch time 1"], lengths: Int[Array, "batch"]) -> Float[Array, "batch 2"]:
        hidden = self.rnn(bits, seq_lengths=lengths)
        seen = jnp.arange(bits.shape[1]) < lengths[:, None]
        return self.out((hidden * seen[..., None]).sum(1) / lengths[:, None])


def lstm():
    random = np.random.default_rng(0)
    lengths = jnp.asarray(random.integers(4, 12, 64))
    bits = jnp.asarray(random.integers(0, 2, (64, 12, 1)), jnp.float32)
    ones = (bits[..., 0] * (jnp.arange(12) < lengths[:, None])).sum(1)
    labels = (2 * ones > lengths).astype(jnp.int32)

    @nnx.jit
    def step(model, optimizer):
        loss, grads = nnx.value_and_grad(lambda model: cross_entropy(model(bits, lengths), labels))(model)
        optimizer.update(model, grads)
        return loss

    model = Parity(nnx.Rngs(params=1, carry=2))
    optimizer = nnx.Optimizer(model, optax.adam(2e-2), wrt=nnx.Param)
    losses = [step(model, optimizer) for _ in range(30)]
    reached = accuracy(model(bits, lengths), labels)
    print(f"LSTM: {count(model)} parameters, loss {losses[0]:.3f} to {losses[-1]:.3f}, accuracy {reached:.2f}")


# --- a transformer with scan over layers -----------------------------------------------------------------------------

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 4
LETTERS = sorted(set(TEXT))
LAYERS, FEATURES, HEADS, LENGTH = 3, 32, 4, 32


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.norm1 = nnx.LayerNorm(FEATURES, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, FEATURES, decode=False, rngs=rngs)
        self.norm2 = nnx.RMSNorm(FEATURES, rngs=rngs)
        self.up = nnx.Linear(FEATURES, 4 * FEATURES, rngs=rngs)
        self.down = nnx.Linear(4 * FEATURES, FEATURES, rngs=rngs)
        self.dropout = nnx.Dropout(0.05, rngs=rngs)

    def __call__(self, x: Float[Array, "batch time 32"], mask=None) -> Float[Array, "batch time 32"]:
        x = x + self.dropout(self.attention(self.norm1(x), mask=mask))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm2(x)))))


class Transformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(len(LETTERS), FEATURES, rngs=rngs)
        self.position = nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), (2 * LENGTH, FEATURES)))

        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: "layers"})
        def create(rngs):
            return Layer(rngs)

        self.layers = create(rngs)
        self.norm = nnx.LayerNorm(FEATURES, rngs=rngs)

    def __call__(self, tokens: Int[Array, "batch time"], start: Int[Array, ""] | int = 0, mask=None):
        x = self.embed(tokens) + self.position[start + jnp.arange(tokens.shape[1])]

        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        @nnx.remat
        def forward(layer, x):
            return layer(x, mask)

        return self.embed.attend(self.norm(forward(self.layers, x)))


def transformer():
    ids = jnp.array([LETTERS.index(letter) for letter in TEXT])
    model = Transformer(nnx.Rngs(0, dropout=1))
    optimizer = nnx.ModelAndOptimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
    batch = jnp.stack([ids[start : start + LENGTH + 1] for start in range(0, 128, 8)])

    @nnx.jit
    def step(optimizer, batch):
        def loss_fn(model):
            inputs = batch[:, :-1]
            return cross_entropy(model(inputs, mask=nnx.make_causal_mask(inputs)), batch[:, 1:])

        loss, grads = nnx.value_and_grad(loss_fn)(optimizer.model)
        optimizer.update(grads)
        return loss

    for steps in range(60):
        loss = step(optimizer, batch)
        if steps % 20 == 19:
            print(f"transformer: step {steps + 1}, loss {loss:.3f}")

    model.eval()
    model.layers.set_attributes(nnx.MultiHeadAttention, decode=True)
    nnx.vmap(lambda layer: layer.attention.init_cache((1, 2 * LENGTH, FEATURES)))(model.layers)
    write = nnx.jit(lambda model, token, start: model(token, start)[:, -1].argmax(-1))
    written = [LETTERS.index("t")]
    for position in range(40):
        written.append(int(write(model, jnp.array([[written[-1]]]), jnp.array(position))[0]))
    print(f"  kernels {model.layers.up.kernel.shape}, cache at {model.layers.attention.cache_index[...].tolist()}")
    print(f"  it writes: {''.join(LETTERS[letter] for letter in written)!r}")


def main():
    started = time.perf_counter()
    digits = load_digits()
    images = jnp.asarray(digits.images[..., None] / 16, jnp.float32)
    labels = jnp.asarray(digits.target)
    with tempfile.TemporaryDirectory() as folder:
        model = convnet(images, labels, Path(folder))
    lora(model, images, labels)
    ensemble(images, labels)
    lstm()
    transformer()
    print(f"{time.perf_counter() - started:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
