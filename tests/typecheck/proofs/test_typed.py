"""Functions without a file: given to `python -c`, or typed at a prompt."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import dataclasses
import equinox as eqx
from jaxtyping import Array, Float
from weft.typecheck import verify

def head(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x[:1] if x.shape[0] == 6 else x

class Linear(eqx.Module):
    weight: Float[Array, "k d"]

    def __call__(self, x: Float[Array, "d"]) -> Float[Array, "k"]:
        return (self.weight @ x)[:1]

@dataclasses.dataclass
class Scale:
    by: float

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.by * x

print(*(verify(thing).verdict.name for thing in (head, Linear, Scale)))
"""


@pytest.mark.parametrize("prompt", [False, True])
def test_a_function_without_a_file_is_judged_like_any_other(prompt: bool):
    typed = PROGRAM.replace("\n\n    def", "\n    def") + "\n" if prompt else None
    arguments = ["-i", "-q"] if prompt else ["-c", PROGRAM]
    result = subprocess.run(
        [sys.executable, *arguments], input=typed, capture_output=True, text=True, timeout=120, check=True
    )
    assert "FAILS FAILS PROVED" in result.stdout, result.stderr
