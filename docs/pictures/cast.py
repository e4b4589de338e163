"""Draws the terminal that the README begins with anew: `python docs/pictures/cast.py`.

`cast.svg` shows scene after scene: a model that is wrong, the error at its line, the proof of the mended model, and the
plan of its training step. Each scene is what real commands print, in a folder with the two files below. A viewer that
shows no animations has the first scene.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

PICTURE = Path(__file__).with_name("cast.svg")
WIDTH = 108
SECONDS = 3
FILES = {
    "model.py": """\
import jax
import weft
from jaxtyping import Array, Float


class Attention(weft.Module):
    query: Float[Array, "dim head"]
    key: Float[Array, "dim head"]
    value: Float[Array, "dim dim"]

    def __call__(self, x: Float[Array, "seq dim"]) -> Float[Array, "seq dim"]:
        return self.weights(x) @ (x @ self.value)

    def weights(self, x: Float[Array, "seq dim"]) -> Float[Array, "seq seq"]:
        q, k = x @ self.query, x @ self.key
        return jax.nn.softmax(q.T @ k)
""",
    "train.py": """\
import jax.numpy as jnp
import optax
import weft
from model import Attention

model = Attention(jnp.ones((64, 16)), jnp.ones((64, 16)), jnp.ones((64, 64)))
x = jnp.ones((1024, 128, 64))


def loss(model, x):
    return jnp.mean((weft.vmap(model)(x) - x) ** 2)


@weft.jit(donate_argnums=(0, 1))
def step(model, opt, x):
    return opt.minimize(loss, model, x)


def planned():
    return step, model, weft.Optimizer(model, optax.adam(1e-3)), x


if __name__ == "__main__":
    step(model, weft.Optimizer(model, optax.adam(1e-3)), x)
""",
}
SCENES = (
    ("cat model.py",),
    ("python train.py 2>&1 | tail -8",),
    ("weft check model.py", "sed -i.old 's/q.T @ k/q @ k.T/' model.py", "weft check model.py"),
    ("weft plan train.py:planned --mesh data=8 | head -15",),
)
STYLE = f"""
    .scene {{ visibility: hidden; animation: scene {SECONDS * len(SCENES)}s step-end infinite }}
    .scene:first-of-type {{ visibility: visible }}
    @keyframes scene {{ 0% {{ visibility: visible }} {100 / len(SCENES)}%, 100% {{ visibility: hidden }} }}
    @media (prefers-reduced-motion) {{ .scene {{ animation: none }} }}
"""


def played() -> list[list[tuple[str, str]]]:
    """Runs the commands of the scenes, and gives each with what it prints."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            (Path(folder) / name).write_text(text)
        environment = {**os.environ, "PATH": programs, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": f"{folder}/cache"}

        def printed(command: str) -> str:
            run = subprocess.run(command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
            # Python cites files by their whole paths, which are another folder each time.
            return run.stdout.replace(f"{Path(folder).resolve()}/", "").replace(f"{folder}/", "")

        return [[(command, printed(command)) for command in scene] for scene in SCENES]


def shown(command: str, output: str) -> list[Text]:
    """The lines of a command and its output, in colours."""
    text = Text(output.rstrip())
    if command.startswith("cat"):
        text = Syntax(output, "python", theme="monokai", background_color="default").highlight(output.rstrip())
        text.rstrip()
    text.highlight_regex(r"(?m)^weft\.\S*Error: .*|^\S+:\d+: .*|\b[1-9]\d* fail\b", "bold red")
    text.highlight_regex(r"\b[1-9]\d* proved\b|\bfits\b", "bold green")
    lines = list(text.split()) if output else []
    return [Text(f"$ {command}", style="bold"), *lines]


def drawn(scenes: list[list[tuple[str, str]]]) -> str:
    """The picture of scenes: each is a picture of rich's, and styles show one of them at a time."""
    screens = [[line for command in scene for line in [*shown(*command), Text()]] for scene in scenes]
    wrapped = [
        [part for line in screen for part in line.wrap(Console(width=WIDTH), WIDTH) or [Text()]] for screen in screens
    ]
    # All scenes are as high as the highest, so that the frame of the terminal stays where it is.
    columns = zip(*zip_longest(*wrapped, fillvalue=Text()), strict=True)
    parts = []
    for number, lines in enumerate(columns):
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        for line in lines:
            console.print(line)
        svg = console.export_svg(title="weft", unique_id=f"weft{number}")
        svg = re.sub(r"@font-face \{.*?\n    \}\n", "", svg, flags=re.DOTALL)  # fonts of another host
        parts.append(f'<g class="scene" style="animation-delay: {number * SECONDS}s">\n{svg}</g>\n')
    frame = re.search(r'viewBox="[^"]*"', parts[0])
    assert frame is not None
    return f'<svg {frame.group()} xmlns="http://www.w3.org/2000/svg">\n<style>{STYLE}</style>\n{"".join(parts)}</svg>\n'


if __name__ == "__main__":
    PICTURE.write_text("\n".join(line.rstrip() for line in drawn(played()).splitlines()) + "\n")
