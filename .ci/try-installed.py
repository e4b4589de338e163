"""Tries the installed weft as its new user does: `try-installed.py README.md`, in an empty folder.

Runs the README's programs, a layer, `weft check` on a right file and on a wrong one, a program for `weft.nnx`, and
`weft plan`, each in a process of its own. flax is not installed: `weft.nnx` has to do without.
"""

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

WEFT = str(Path(sys.executable).with_name("weft"))
SCORES = """
from jaxtyping import Array, Float


def scores(q: Float[Array, "seq head"], k: Float[Array, "seq head"]) -> Float[Array, "seq seq"]:
    return {product}
"""
FILES = {
    "layer.py": """
import jax, jax.numpy as jnp, weft

layer = weft.Linear(3, 2, key=jax.random.key(0))
assert weft.jit(weft.vmap(layer))(jnp.ones((5, 3))).shape == (5, 2)
""",
    "counter.py": """
from weft import nnx


class Counter(nnx.Module):
    def __init__(self):
        self.count = nnx.Variable(0)


@nnx.jit
def increase(counter):
    counter.count[...] += 1


counter = Counter()
increase(counter)
assert counter.count[...] == 1
""",
    "right.py": SCORES.format(product="q @ k.T"),
    "wrong.py": SCORES.format(product="q.T @ k"),
    "train.py": """
import jax, jax.numpy as jnp, optax, weft


@weft.jit
def step(model, opt, x, y):
    return opt.minimize(lambda model: jnp.mean((model(x) - y) ** 2), model)


def planned():
    model = weft.MLP(8, 16, 8, key=jax.random.key(0))
    return step, model, weft.Optimizer(model, optax.adam(1e-3)), jnp.ones((32, 8)), jnp.ones((32, 8))
""",
}


def expect(code: int, *command: str, says: str = "") -> None:
    """Runs a command, which has to end with a code, and to print a text."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != code or says not in done.stdout:
        sys.exit(f"{done.stdout}\n{' '.join(command)} ended with {done.returncode}, not {code} and {says!r}")


def main(readme: str) -> None:
    spec = importlib.util.find_spec("weft")
    origin = Path(spec.origin or "") if spec else None
    assert origin is not None, "weft is not installed"
    assert origin.is_relative_to(sys.prefix), f"{origin} is not the installed weft"
    assert importlib.util.find_spec("flax") is None, "flax is installed, so weft.nnx could be leaning on it"
    blocks = re.findall(r"^```python\n(.*?)^```$", Path(readme).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks, f"{readme} has no programs"
    programs = {f"readme_{number}.py": block for number, block in enumerate(blocks)}
    for name, text in (FILES | programs).items():
        Path(name).write_text(text)
    for name in [*programs, "layer.py", "counter.py"]:
        expect(0, sys.executable, name)
    expect(0, WEFT, "check", "right.py", says="1 proved")
    expect(1, WEFT, "check", "wrong.py", says='expected Float[Array, "seq seq"]')
    expect(0, WEFT, "plan", "train.py:planned", "--mesh", "data=4")
    python = ".".join(map(str, sys.version_info[:2]))
    print(f"weft-jax {version('weft-jax')} works in Python {python} with JAX {version('jax')}")


if __name__ == "__main__":
    main(sys.argv[1])
