"""Trains a small GPT on the sources of Python's standard library, character by character: real text, no download.

    python examples/char_lm.py --out out --prompt "def main("

The model is a stack of transformer blocks, traced once and run as a scan, whose backward pass computes the blocks again
instead of keeping them. It computes in bfloat16, and is trained in float32. Text is sampled from the moving average of
its parameters, one character at a time, through a cache of keys and values that the model's successor carries.

Batches come from Grain, which reads and shuffles windows of the text in a thread of its own. It writes a checkpoint
every `--every` steps, the losses as `char_lm.csv` and a picture of them. A checkpoint holds the one record that
training changes, and where the batches are: `--resume CHECKPOINT` goes on with the very next batch, as if nothing had
happened, to the last bit.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import time
from pathlib import Path
from typing import Annotated, Any, Self

import grain
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import weft
from jaxtyping import Array, Float, Int, Key
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from weft.typecheck import Dims

matplotlib.use("Agg")
import matplotlib.pyplot as plt

VOCAB = 128  # ASCII; any other character is a "?"
POLICY = weft.Policy(param=jnp.float32, compute=jnp.bfloat16, output=jnp.float32)
EMA_DECAY = 0.99


# --- the model -------------------------------------------------------------------------------------------------------


class GPT(weft.Module):
    """Blocks between a table of characters and the same table again, as the weights of the logits."""

    embed: Annotated[weft.Embed, Dims("features=features vocab=vocab")]
    blocks: weft.Stack
    norm: Annotated[weft.RMSNorm, Dims("features=features")]

    def __init__(self, width: int, layers: int, heads: int, window: int, *, key: Key[Array, ""]):
        embed_key, blocks_key = jax.random.split(key)
        # A window as long as what is trained on: generated text may be longer.
        options: Any = {"causal": True, "window": window - 1, "rope": weft.RoPE(), "norm": weft.RMSNorm}

        def block(key: Key[Array, ""]) -> weft.TransformerBlock:
            return weft.TransformerBlock(width, heads, use_bias=False, key=key, **options)

        self.embed = weft.Embed(VOCAB, width, key=embed_key)
        self.blocks = weft.Stack(block, layers, remat=True, key=blocks_key)
        self.norm = weft.RMSNorm(width)

    def __call__(self, characters: Int[Array, "*batch seq"]) -> tuple[Float[Array, "*batch seq vocab"], Self]:
        """Logits of the next character at each position; with caches in attention, `characters` are the new ones."""
        with weft.thread(self) as t:
            return t.done(t.embed.attend(t.norm(t.blocks(t.embed(characters)))))


# --- training: one record in, its successor out ----------------------------------------------------------------------


class State(weft.Module):
    """Everything that training changes."""

    model: GPT
    average: GPT
    optimizer: weft.Optimizer

    def __init__(self, chosen: argparse.Namespace):
        key = jax.random.key(chosen.seed)
        self.model = weft.init(GPT, chosen.width, chosen.layers, chosen.heads, chosen.context, key=key)
        self.average = weft.tree.copy(self.model)
        rate = optax.warmup_cosine_decay_schedule(0.0, chosen.rate, chosen.steps // 20 + 1, chosen.steps + 1)
        self.optimizer = weft.Optimizer(self.model, optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate)))


@POLICY
def loss(model: GPT, characters: Int[Array, "batch seq+1"]) -> Float[Array, ""]:
    """The mean cross-entropy of each next character, in nats."""
    logits, _ = model(characters[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), characters[:, 1:]).mean()


@weft.jit(donate_argnames="state")
def train_step(state: State, windows: Int[Array, "batch seq+1"]) -> tuple[Float[Array, ""], State]:
    mean_loss, gradient = weft.value_and_grad(loss)(state.model, windows)
    model, optimizer = state.optimizer.update(state.model, gradient)
    average = weft.tree.ema(state.average, model, EMA_DECAY)
    return mean_loss, state.replace(model=model, average=average, optimizer=optimizer)


@weft.jit
def held_out_loss(model: GPT, windows: Int[Array, "batch seq+1"]) -> Float[Array, ""]:
    return loss(model, windows)


# --- sampling --------------------------------------------------------------------------------------------------------


@weft.jit(static_argnames=("length", "temperature", "top_p"))
def sample(
    model: GPT, prompt: Int[Array, "seq"], key: Key[Array, ""], *, length: int, temperature: float, top_p: float
) -> Int[Array, "length"]:
    """Characters that continue a prompt; a temperature of zero takes the most likely one each time."""
    room = len(prompt) + length
    attention = weft.filters.InstanceOf(weft.MultiHeadAttention)
    decoding = weft.at(model, attention).apply(lambda layer: layer.with_cache(room))

    def choose(logits: Float[Array, "vocab"], key: Key[Array, ""]) -> Int[Array, ""]:
        if temperature == 0:
            return jnp.argmax(logits)
        return jax.random.categorical(key, weft.ops.keep_top_p(logits / temperature, p=top_p))

    def step(carry: Any, key: Key[Array, ""]) -> Any:
        decoding, character = carry
        logits, decoding = decoding(character[None])
        return (decoding, choose(logits[-1], key)), character

    first, *_ = keys = jax.random.split(key, length)
    logits, decoding = decoding(prompt)
    _, text = weft.scan(step)((decoding, choose(logits[-1], first)), jnp.roll(keys, -1))
    return text


# --- the text --------------------------------------------------------------------------------------------------------


def encoded(text: str) -> Int[Array, "length"]:
    return jnp.asarray(np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32))


def sources(folder: Path, most: int) -> tuple[Int[Array, "train"], Int[Array, "held_out"]]:
    """The Python files of a folder, the tests left out, as characters; a twentieth is held out."""
    files = [file for file in sorted(folder.glob("**/*.py")) if not {"test", "tests", "site-packages"} & {*file.parts}]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    training, held_out = "".join(t for i, t in enumerate(texts) if i % 20), "".join(texts[::20])
    if min(len(training), len(held_out)) < 2000:
        raise OSError(f"{folder} has too little Python to learn from: {len(training) + len(held_out)} characters")
    return encoded(training[:most]), encoded(held_out[:most])


class Windows:
    """Every window of a text, by the character that it starts with."""

    def __init__(self, text: Int[Array, "length"], size: int):
        self.text, self.size = np.asarray(text), size

    def __len__(self) -> int:
        return len(self.text) - self.size + 1

    def __getitem__(self, start: int) -> np.ndarray:
        return self.text[start : start + self.size]


def batches(text: Array, chosen: argparse.Namespace) -> grain.DatasetIterator:  # weft: skip(it reads in threads)
    """Windows in an order that the seed says, without end; `get_state` says where it is, as numbers."""
    windows = Windows(text, chosen.context + 1)
    shuffled = grain.MapDataset.source(windows).seed(chosen.seed).shuffle().repeat().batch(chosen.batch)
    return iter(shuffled.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)))


# --- the run ---------------------------------------------------------------------------------------------------------


def losses_before(table: Path, step: int) -> list[str]:
    """The lines of the table of losses up to a step; less where it is not there."""
    lines = table.read_text().splitlines()[1:] if table.exists() else []
    return lines[:step]


def train(  # weft: skip(it reads numbers and writes files)
    state: State,
    data: grain.DatasetIterator,
    held_out: Array,
    chosen: argparse.Namespace,
    checkpoint: Path,
    table: Path,
) -> State:
    """Trains, showing progress, and keeps checkpoint and losses every so many steps."""
    begun = int(state.optimizer.step)
    lines = losses_before(table, begun)
    starts = np.linspace(0, len(held_out) - chosen.context - 2, 32).astype(int)
    windows = held_out[starts[:, None] + np.arange(chosen.context + 1)]
    fields = [TextColumn(f"{name} {{task.fields[{key}]}}") for name, key in (("loss", "loss"), ("held out", "held"))]
    speed = TextColumn("{task.fields[speed]} tokens/s")
    with Progress(BarColumn(), MofNCompleteColumn(), *fields, speed, TimeRemainingColumn()) as bar:
        shown = {"loss": "-", "held": "-", "speed": "-"}
        task = bar.add_task("training", total=chosen.steps, completed=begun, **shown)
        waiting, since = [], time.perf_counter()
        for step in range(begun + 1, chosen.steps + 1):
            windows_now = jnp.asarray(next(data))
            if step == chosen.poison:
                # A fault on request, to see how it is told: weights that overflow in the next forward pass.
                state = state.replace(model=jax.tree.map(lambda leaf: leaf * 1e25, state.model))
                mean_loss, state = weft.debug.nonfinite(train_step, keep_donated=True)(state, windows_now)
            else:
                mean_loss, state = train_step(state, windows_now)
            waiting.append(mean_loss)
            if step % chosen.every and step < chosen.steps:
                continue
            # Losses are read here only: until then, steps are sent off without waiting for one another.
            lines += [repr(float(loss)) for loss in waiting]
            held_out_mean = float(held_out_loss(state.average, windows))
            speed_now = len(waiting) * chosen.batch * chosen.context / (time.perf_counter() - since)
            shown = {"loss": f"{float(mean_loss):.3f}", "held": f"{held_out_mean:.3f}", "speed": f"{speed_now:,.0f}"}
            bar.update(task, completed=step, **shown)
            table.write_text("\n".join(["loss", *lines, ""]))
            weft.save_checkpoint(checkpoint, {"state": state, "data": data.get_state()})
            waiting, since = [], time.perf_counter()
    return state


def draw(path: Path, table: Path) -> None:  # weft: skip(it writes a picture)
    """A picture of the loss curve."""
    losses = np.array([float(line) for line in losses_before(table, sys.maxsize)])
    smooth = np.convolve(losses, np.ones(20) / 20, "valid") if len(losses) >= 20 else losses
    figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
    axes.plot(losses, color="0.8", label="each step")
    axes.plot(np.arange(len(smooth)) + len(losses) - len(smooth), smooth, label="mean of 20")
    axes.set(title="Training loss", xlabel="step", ylabel="cross-entropy (nats a character)")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plan(chosen: argparse.Namespace) -> Any:  # weft: skip(of sizes that are chosen)
    """What a step would cost on eight accelerators, four of them along the batch; nothing is computed."""
    state = jax.eval_shape(lambda: State(chosen))
    windows = jax.ShapeDtypeStruct((chosen.batch, chosen.context + 1), jnp.int32)
    mesh = {"data": 4, "model": 2}
    return weft.plan(train_step, state, windows, mesh=mesh, rules=weft.plan.TABLES["fsdp_tensor"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library with weft.")
    shown = {"help": "(default: %(default)s)"}

    def size(name: str, default: int, about: str) -> None:
        parser.add_argument(name, type=int, default=default, help=f"{about} (default: %(default)s)")

    size("--steps", 600, "training steps")
    size("--every", 50, "steps between two checkpoints")
    size("--batch", 16, "windows of text in a step")
    size("--context", 128, "characters in a window")
    size("--width", 96, "size of the vector of a character")
    size("--layers", 3, "transformer blocks")
    size("--heads", 3, "heads of attention")
    size("--length", 400, "characters to sample")
    size("--characters", 8_000_000, "characters of text to read at most")
    size("--seed", 0, "seed of everything random")
    parser.add_argument("--rate", type=float, default=5e-3, **shown)
    parser.add_argument("--temperature", type=float, default=0.7, **shown)
    parser.add_argument("--top-p", type=float, default=0.9, **shown)
    parser.add_argument("--prompt", default="def ", help="what the sample begins with (default: %(default)r)")
    library = Path(sysconfig.get_paths()["stdlib"])
    parser.add_argument("--text", type=Path, default=library, help="folder of Python files (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for results (default: %(default)s)")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="go on from this checkpoint")
    parser.add_argument("--plan", action="store_true", help="show at the end what a step costs on eight devices")
    parser.add_argument("--poison", type=int, metavar="STEP", help="make weights overflow at this step, and say where")
    chosen = parser.parse_args()
    for name in ("steps", "every", "batch", "context", "width", "layers", "heads", "length"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if chosen.width % (2 * chosen.heads):
        parser.error("--width must be a multiple of twice --heads")
    if not 0 < chosen.top_p <= 1 or chosen.temperature < 0 or not chosen.prompt:
        parser.error("--top-p is in (0, 1], --temperature is not negative, and --prompt is not empty")
    return chosen


def main() -> None:
    chosen, console, start = arguments(), Console(), time.perf_counter()
    checkpoint, table, picture = (chosen.out / f"char_lm.{end}" for end in ("safetensors", "csv", "png"))
    state = State(chosen)
    text, held_out = sources(chosen.text, chosen.characters)
    data = batches(text, chosen)
    if chosen.resume is not None:
        restored = weft.load_checkpoint(chosen.resume, {"state": state, "data": data.get_state()})
        state = restored["state"]
        data.set_state(restored["data"])
    chosen.out.mkdir(parents=True, exist_ok=True)
    state = train(state, data, held_out, chosen, checkpoint, table)
    draw(picture, table)
    prompt, how = encoded(chosen.prompt), {"temperature": chosen.temperature, "top_p": chosen.top_p}
    text = sample(state.average, prompt, jax.random.key(chosen.seed), length=chosen.length, **how)
    console.print(chosen.prompt + bytes(np.asarray(text, np.uint8)).decode("ascii"), markup=False, highlight=False)
    console.rule()
    console.print(f"{int(state.optimizer.step)} steps, {time.perf_counter() - start:.0f} s")
    console.print(f"checkpoint {checkpoint}, losses {table}, picture {picture}", soft_wrap=True)
    if chosen.plan:
        console.rule()
        console.print(str(plan(chosen)), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    try:
        main()
    except weft.errors.NonFiniteError as error:
        sys.exit(f"char_lm: {error}")
    except (OSError, weft.CheckpointError) as error:
        sys.exit(f"char_lm: {str(error).splitlines()[0]}")
