"""Trains a small ConvNet on scikit-learn's handwritten digits: 1,797 real images of 8 by 8 pixels, no download.

    python examples/digits.py --out out

The model is written for *one* image; `weft.vmap` makes the batch, and BatchNorm takes its statistics over the axis that
vmap names. Nothing is mutated: each call gives the successor of what it was called on, and the training state is one
record that goes into a compiled step and comes out again.

It ends with three files in `--out`: a checkpoint, which is loaded again and compared bit for bit, a picture of the loss
and of the confusion matrix, and nothing half written. `--resume CHECKPOINT` goes on from where another run ended.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import weft
from jaxtyping import Array, Float, Int, Key
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from weft.typecheck import Dims

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BATCH = 64
BATCH_AXIS = "batch"


# --- the model: immutable records ------------------------------------------------------------------------------------


class Block(weft.Module):
    """Convolution, normalisation over the batch, ReLU, and pooling by two."""

    conv: Annotated[weft.Conv2d, Dims("group_in=in out=out")]
    norm: Annotated[weft.BatchNorm, Dims("features=out")]

    def __init__(self, in_features: int, out_features: int, *, key: Key[Array, ""]):
        self.conv = weft.Conv2d(in_features, out_features, 3, use_bias=False, key=key)
        self.norm = weft.BatchNorm(out_features, momentum=0.9, axis_name=BATCH_AXIS)

    def __call__(self, x: Float[Array, "height width in"]) -> tuple[Float[Array, "height//2 width//2 out"], Self]:
        with weft.thread(self) as t:
            x = t.conv(x)  # pure: returns y
            x = t.norm(x)  # stateful: returns (y, successor), and t remembers the successor
            return t.done(weft.max_pool(weft.relu(x), (2, 2), strides=2))


class ConvNet(weft.Module):
    """Two blocks, dropout and a linear map, for one image."""

    blocks: tuple[Block, ...]
    dropout: weft.Dropout
    head: weft.Linear

    def __init__(self, *, key: Key[Array, ""], widths: tuple[int, int] = (16, 32)):
        first, second, head = jax.random.split(key, 3)
        self.blocks = (Block(1, widths[0], key=first), Block(widths[0], widths[1], key=second))
        self.dropout = weft.Dropout(0.25)
        self.head = weft.Linear(2 * 2 * widths[1], 10, key=head)

    def __call__(self, image: Float[Array, "8 8 1"], key: Key[Array, ""] | None) -> tuple[Float[Array, "10"], Self]:
        with weft.thread(self) as t:
            x = image
            for block in t.blocks:
                x = block(x)
            return t.done(t.head(t.dropout(x.ravel(), key=key)))


# --- training: one record in, its successor out ----------------------------------------------------------------------


class State(weft.Module):
    """Everything that training changes."""

    model: ConvNet
    optimizer: weft.Optimizer
    keys: weft.Keys

    def __init__(self, seed: int):
        key, self.keys = weft.Keys(seed).next("params")
        self.model = ConvNet(key=key)
        self.optimizer = weft.Optimizer(self.model, optax.adamw(3e-3, weight_decay=1e-3))


def loss_and_aux(
    model: ConvNet, images: Float[Array, "b 8 8 1"], labels: Int[Array, "b"], keys: Key[Array, "b"]
) -> tuple[Float[Array, ""], Float[Array, ""], ConvNet]:
    """The mean loss, the accuracy, and the model's successor."""
    # The successor comes out unmapped: BatchNorm averaged over the batch, so all examples agree on it.
    batched = weft.vmap(model, in_axes=0, out_axes=(0, None), axis_name=BATCH_AXIS)
    logits, model = batched(images, keys)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean(), (logits.argmax(-1) == labels).mean(), model


@weft.jit(donate_argnames="state")
def train_step(
    state: State, images: Float[Array, "b 8 8 1"], labels: Int[Array, "b"]
) -> tuple[tuple[Float[Array, ""], Float[Array, ""]], State]:
    dropout_keys, keys = state.keys.split(len(images), "dropout")
    metrics, model, optimizer = state.optimizer.minimize(loss_and_aux, state.model, images, labels, dropout_keys)
    return metrics, state.replace(model=model, optimizer=optimizer, keys=keys)


@weft.jit
def predict(model: ConvNet, images: Float[Array, "b 8 8 1"]) -> Int[Array, "b"]:
    logits, _ = weft.vmap(weft.inference_mode(model), in_axes=(0, None), out_axes=(0, None))(images, None)
    return logits.argmax(-1)


# --- the data --------------------------------------------------------------------------------------------------------


def digits() -> list[Array]:
    """Training images, held-out images (a fifth, always the same ones), and their labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    parts = train_test_split(images, labels.astype(np.int32), test_size=0.2, random_state=0, stratify=labels)
    return [jnp.asarray(part) for part in parts]


def batches(
    images: Float[Array, "n 8 8 1"], labels: Int[Array, "n"], order: np.random.Generator
) -> Iterator[tuple[Float[Array, "b 8 8 1"], Int[Array, "b"]]]:
    shuffled = order.permutation(len(images))
    for start in range(0, len(images) - BATCH + 1, BATCH):
        rows = shuffled[start : start + BATCH]
        yield images[rows], labels[rows]


# --- the run ---------------------------------------------------------------------------------------------------------


# What follows works with numbers and files, so `weft check` has no shapes to prove there.


def train(  # weft: skip(it reads numbers and writes files)
    state: State, data: list[Array], epochs: int, seed: int, checkpoint: Path
) -> tuple[State, list[float]]:
    """Trains, showing progress, and keeps a checkpoint of the last whole epoch."""
    train_images, test_images, train_labels, test_labels = data
    order, losses = np.random.default_rng(seed), []
    names = "{task.description}", "loss {task.fields[loss]:.3f}", "accuracy {task.fields[accuracy]:.1%}"
    description, loss_text, accuracy_text = map(TextColumn, names)
    held_out_text = TextColumn("held out {task.fields[held_out]:.1%}")
    with Progress(description, BarColumn(), MofNCompleteColumn(), loss_text, accuracy_text, held_out_text) as bar:
        steps = epochs * (len(train_images) // BATCH)
        task = bar.add_task("training", total=steps, loss=np.nan, accuracy=np.nan, held_out=np.nan)
        for epoch in range(epochs):
            bar.update(task, description=f"epoch {epoch + 1}/{epochs}")
            for images, labels in batches(train_images, train_labels, order):
                (loss, accuracy), state = train_step(state, images, labels)
                losses.append(float(loss))
                bar.update(task, advance=1, loss=losses[-1], accuracy=float(accuracy))
            bar.update(task, held_out=float((predict(state.model, test_images) == test_labels).mean()))
            weft.save_checkpoint(checkpoint, state)
    return state, losses


def bits(leaf: Array) -> bytes:  # weft: skip(it reads numbers)
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes()


def load_and_compare(state: State, checkpoint: Path, seed: int) -> State:  # weft: skip(it reads a file)
    """Loads the checkpoint into a fresh state and compares every array, bit for bit, with the one in memory."""
    loaded = weft.load_checkpoint(checkpoint, State(seed))
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(loaded), strict=True)
    if any(bits(saved) != bits(read) for saved, read in pairs):
        raise weft.CheckpointError(f"{checkpoint} does not hold what was saved")
    return loaded


def draw(  # weft: skip(it writes a picture)
    path: Path, losses: list[float], labels: np.ndarray, predicted: np.ndarray, accuracy: float
) -> None:
    """A picture of the loss curve and the confusion matrix."""
    confusion = np.zeros((10, 10), int)
    np.add.at(confusion, (labels, predicted), 1)
    figure, (curve, matrix) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    smooth = np.convolve(losses, np.ones(10) / 10, "valid") if len(losses) >= 10 else np.asarray(losses)
    curve.semilogy(losses, color="0.8", label="each step")
    curve.semilogy(np.arange(len(smooth)) + len(losses) - len(smooth), smooth, label="mean of 10")
    curve.set(title="Training loss", xlabel="step", ylabel="cross-entropy (nats)")
    curve.legend()
    matrix.imshow(np.log1p(confusion), cmap="Blues")
    for row, column in np.argwhere(confusion):
        count = confusion[row, column]
        matrix.text(column, row, count, ha="center", va="center", color="white" if count > 9 else "black", fontsize=8)
    matrix.set(title=f"Held out: {accuracy:.1%} correct", xlabel="predicted", ylabel="true")
    matrix.set(xticks=range(10), yticks=range(10))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a ConvNet on scikit-learn's digits with weft.")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training images (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for results (default: %(default)s)")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="go on from this checkpoint")
    chosen = parser.parse_args()
    if chosen.epochs < 1:
        parser.error("--epochs must be at least 1")
    return chosen


def main() -> None:
    chosen, console, start = arguments(), Console(), time.perf_counter()
    checkpoint, picture = chosen.out / "digits.safetensors", chosen.out / "digits.png"
    state = State(chosen.seed)
    if chosen.resume is not None:
        state = weft.load_checkpoint(chosen.resume, state)
    chosen.out.mkdir(parents=True, exist_ok=True)
    data = digits()
    state, losses = train(state, data, chosen.epochs, chosen.seed, checkpoint)
    loaded = load_and_compare(state, checkpoint, chosen.seed)
    labels, predicted = np.asarray(data[3]), np.asarray(predict(loaded.model, data[1]))
    accuracy = float(np.mean(predicted == labels))
    draw(picture, losses, labels, predicted, accuracy)
    console.print(f"held-out accuracy {accuracy:.2%} on {len(predicted)} images, {time.perf_counter() - start:.0f} s")
    console.print(f"checkpoint {checkpoint} (loaded again, equal bit for bit), picture {picture}", soft_wrap=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, weft.CheckpointError) as error:
        sys.exit(f"digits: {str(error).splitlines()[0]}")
