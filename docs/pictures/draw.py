"""Draws the pictures of the first page and of two guides anew: `python docs/pictures/draw.py`.

`contract.svg` shows what weft prints for a wrong program, `numbers.svg` what the program in `docs/guides/numbers.md`
plots, and `plan.png` the page that the program in `docs/guides/planning.md` saves, in the browser of the tests (the
extra `browser`).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import types
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib.figure import Figure
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

HERE = Path(__file__).parent
GUIDES = HERE.parent / "guides"
BROWSER = HERE.parents[1] / "tests" / "browser.py"

WRONG = """
    import jax
    import jax.numpy as jnp
    import weft
    from jaxtyping import Array, Float


    class Attention(weft.Module):
        query: Float[Array, "dim head"]
        key: Float[Array, "dim head"]

        def __call__(self, x: Float[Array, "seq dim"]) -> Float[Array, "seq seq"]:
            return jax.nn.softmax((x @ self.query) @ (x @ self.key).T, axis=-1)


    def pooled(attention: Attention, x: Float[Array, "seq dim"]) -> Float[Array, "dim"]:
        return (attention(x) @ x).mean(axis=1)
"""
CALL = """
    attention = Attention(jnp.ones((4, 4)), jnp.ones((4, 4)))
    weft.jit(weft.vmap(attention))(jnp.ones((2, 3, 5)))
"""


def save(figure: Figure, name: str) -> None:
    """Writes a picture without a date, so that drawing again changes nothing."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "weft", "font.family": "sans-serif"})
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
    (HERE / name).write_text("\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n")


def ran(guide: str) -> dict[str, Any]:
    """The variables of a guide's programs, which run as the file `train.py`."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (GUIDES / guide).read_text(), re.DOTALL | re.MULTILINE)
    module = sys.modules["guide"] = types.ModuleType("guide")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks:
            # The first program about numbers ends in the error that the guide shows.
            with contextlib.suppress(FloatingPointError):
                exec(compile(block, "train.py", "exec"), vars(module))
    return vars(module)


def draw_numbers() -> None:
    """What the guide's last program plots."""
    save(ran("numbers.md")["figure"], "numbers.svg")


def draw_plan() -> None:
    """The page of the guide's plan, as high as it is."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "plan.html"
        ran("planning.md")["plan"].save(page)
        visit = {"url": page.as_uri(), "script": "document.documentElement.scrollHeight", "until": "true"}
        height = photographed({**visit, "size": (840, 100), "picture": None})
        photographed({**visit, "size": (840, height), "picture": str(HERE / "plan.png")})


def photographed(visit: dict[str, Any]) -> Any:
    """What a visit's script gives; see `tests/browser.py`."""
    chromium = {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu"}
    environment = {**os.environ, **chromium}
    done = subprocess.run(
        [sys.executable, str(BROWSER)],
        input=json.dumps([visit]),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])[0]


def draw_contract() -> None:
    """What a run and `weft check` say of a program with two faults."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "attention.py"
        program.write_text(textwrap.dedent(WRONG).strip() + "\n")
        script = Path(folder) / "run.py"
        script.write_text("from attention import *\n" + textwrap.dedent(CALL))
        raised = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=folder)
        weft = Path(sys.executable).with_name("weft")
        checked = subprocess.run(
            [str(weft), "check", "--no-cache", "attention.py"], capture_output=True, text=True, cwd=folder
        )
    error = raised.stderr.partition("weft.typecheck.errors.ContractError: ")[2] or raised.stderr
    console = Console(record=True, width=104, file=io.StringIO())
    console.print(Syntax(textwrap.dedent(WRONG).strip().split("\n\n\n", 1)[1], "python", background_color="default"))
    for command, output in (
        ("weft.jit(weft.vmap(attention))(jnp.ones((2, 3, 5)))", error),
        ("weft check attention.py", checked.stdout),
    ):
        console.print(Text(f"\n$ {command}" if command.startswith("weft check") else f"\n>>> {command}", style="bold"))
        console.print(Text(output.strip(), style="red" if command.startswith("weft.") else ""))
    picture = re.sub(
        r"@font-face \{.*?\n    \}\n", "", console.export_svg(title="weft", unique_id="weft"), flags=re.DOTALL
    )
    (HERE / "contract.svg").write_text(picture)  # without fonts of another host


if __name__ == "__main__":
    draw_contract()
    draw_numbers()
    draw_plan()
