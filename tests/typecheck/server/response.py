"""How long an editor waits after an edit of one function: from the change to its diagnostics.

    python tests/typecheck/server/response.py      # the median and the 95th percentile, by what was edited and of all

Every edit is another text, so that nothing is known of it yet; half of them break a contract. The first edits of each
function, for which its file is imported, are not counted. It says seconds of this machine, so nothing holds it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from client import Client

FUNCTIONS = {
    "a function": (
        'def pooled(x: Float[Array, "b s d"]) -> Float[Array, "b d"]:\n    return x.mean(1) * {n}.0\n\n',
        "x.mean(1)",
        "x.mean(2)",
    ),
    "a loop": (
        'def run(x: Float[Array, "t d"], w: Float[Array, "d d"]) -> Float[Array, "t d"]:\n'
        "    return jax.lax.scan(lambda h, row: (jnp.tanh(h @ w + row), h * {n}.0), jnp.zeros_like(x[0]), x)[1]\n\n",
        "x)[1]",
        "x)[0]",
    ),
    "attention": (
        "class Attention(weft.Module):\n"
        '    query: Float[Array, "dim head"]\n    key: Float[Array, "dim head"]\n'
        '    value: Float[Array, "dim head"]\n\n'
        '    def __call__(self, x: Float[Array, "*batch seq dim"]) -> Float[Array, "*batch seq head"]:\n'
        "        scores = jnp.einsum('...sh,...th->...st', x @ self.query, x @ self.key) / {n}.0\n"
        "        return jax.nn.softmax(scores, axis=-1) @ (x @ self.value)\n\n",
        "@ (x @ self.value)",
        "@ (x @ self.value).mT",
    ),
}
HEAD = "import jax\nimport jax.numpy as jnp\nimport weft\nfrom jaxtyping import Array, Float\n\n"
EDITS = 24


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        client = Client(Path(folder))

        def text(edited: str, n: int) -> str:
            parts = {name: source.replace("{n}", "1") for name, (source, _, _) in FUNCTIONS.items()}
            source, right, wrong = FUNCTIONS[edited]
            parts[edited] = source.replace("{n}", str(n)).replace(right, wrong if n % 2 else right)
            return HEAD + "".join(parts.values())

        client.open("model.py", text("a function", 0))
        everything: list[float] = []
        for edited in FUNCTIONS:
            waits: dict[bool, list[float]] = {False: [], True: []}
            for n in range(2, EDITS + 2):
                began = time.perf_counter()
                found = client.change("model.py", text(edited, n))
                waits[bool(n % 2)].append(time.perf_counter() - began)
                assert bool(found) == bool(n % 2), (edited, n, found)
                client.shapes()  # who types waits for verdicts, and shapes come after them
            for wrong, times in waits.items():
                say(f"{edited}, {'fails' if wrong else 'holds'}", times[2:])
                everything += times[2:]
        say("all", everything)
        client.close()


def say(what: str, times: list[float]) -> None:
    times = sorted(times)
    last = times[round(0.95 * (len(times) - 1))]
    print(f"{what:18} median {statistics.median(times):.2f} s, 95th percentile {last:.2f} s")


if __name__ == "__main__":
    main()
