"""Traces over symbolic sizes share instances, and each of them asks what the constructor asked of its sizes."""

from __future__ import annotations

import jax.numpy as jnp
import weft
from jaxtyping import Array, Float
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict
from weft.typecheck.sizes.dim import Dim

# The numbers of the symbolic sizes that the constructor was called with, in the order of the calls.
MADE: list[tuple[int, int]] = []


class Gated(weft.Module):
    kernel: Float[Array, "width out"]
    is_square: bool

    def __init__(self, width: int, out: int):
        if type(width) is Dim and type(out) is Dim:
            MADE.append((width.number, out.number))
        self.kernel = jnp.zeros((width, out))
        self.is_square = width == out


class Right(Gated):
    def __call__(
        self, x: Float[Array, "b width"], scale: Float[Array, " out"] | None = None, *, double: bool = False
    ) -> Float[Array, "b out"]:
        y = x @ self.kernel if self.is_square else jnp.einsum("bw,wo->bo", x, self.kernel)
        y = y if scale is None else y * scale
        return 2 * y if double else y


class WrongWhereSquare(Gated):
    def __call__(
        self, x: Float[Array, "b width"], scale: Float[Array, " out"] | None = None, *, double: bool = False
    ) -> Float[Array, "b out"]:
        y = x @ self.kernel
        y = y if scale is None else y * scale
        # Only the variant with both options is wrong, in a trace that reuses what earlier ones have made.
        return y[:, :1] if self.is_square and double and scale is not None else y


def test_variants_of_a_call_share_the_instance():
    MADE.clear()
    assert verify(Right).verdict is Verdict.PROVED
    assert MADE.count((5, 7)) == MADE.count((5, 5)) == 1, MADE  # each of four variants is traced at both


def test_a_question_that_only_the_constructor_asked_is_asked_in_every_variant():
    report = verify(WrongWhereSquare)
    assert report.verdict is Verdict.FAILS, str(report)
    assert "(at width=5, out=5, b=" in str(report)
