"""Draws the README's picture and the one of a guide anew: `python docs/pictures/draw.py`.

`contract.svg` shows what weft prints for a wrong program, `numbers.svg` what the program in `docs/guides/numbers.md`
plots.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import tempfile
import textwrap
import types
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib.figure import Figure
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

HERE = Path(__file__).parent
GUIDE = HERE.parent / "guides" / "numbers.md"

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


def draw_numbers() -> None:
    """What the guide's last program plots; the error that its first program ends in is not for this picture."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    module = types.ModuleType("numbers_guide")
    sys.modules[module.__name__] = module
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks:
            with contextlib.suppress(FloatingPointError):
                exec(block, vars(module))
    save(vars(module)["figure"], "numbers.svg")


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
