"""Dtypes that drift from one call to the next: found in the dtypes that models are cast to, where shapes are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Float32, Shaped
from weft import nnx
from weft.core import Module
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict


class Mean(Module):
    mean: Float[Array, "d"]
    count: Float[Array, ""]

    def promoted(self, x: Float[Array, "d"]) -> tuple[Float[Array, "d"], Self]:
        mean = self.mean + np.array(0.1, np.float32) * (x - self.mean)
        return x - mean, self.replace(mean=mean)

    def unchanged(self, x: Float[Array, "d"]) -> tuple[Float[Array, "d"], Self]:
        mean = (self.mean + np.array(0.1, np.float32) * (x - self.mean)).astype(self.mean.dtype)
        return x - mean, self.replace(mean=mean, count=self.count + 1)

    def replaced(self, x: Float[Array, "d"]) -> Self:
        return self.replace(mean=x)


class Exact(Module):
    mean: Float32[Array, "d"]

    def __call__(self, x: Float32[Array, "d"]) -> Self:
        return self.replace(mean=self.mean + np.array(0.1, np.float32) * x)


def summed(xs: Float[Array, "n d"]) -> Float[Array, "d"]:
    return jax.lax.scan(lambda carry, x: (carry + x, None), jnp.zeros(xs.shape[1]), xs)[0].astype(xs.dtype)


def scaled(xs: Float[Array, "n d"]) -> Float[Array, "d"]:
    weight = np.array(0.5, np.float32)
    return jax.lax.scan(lambda carry, x: (weight * carry + x, None), jnp.zeros(xs.shape[1], xs.dtype), xs)[0]


class Statistic(nnx.Module):
    mean: nnx.BatchStat[Float[Array, "d"]]

    def __init__(self, d: int):
        self.mean = nnx.BatchStat(jnp.zeros(d))
        self.norm = nnx.BatchNorm(d, rngs=nnx.Rngs(0))

    def promoted(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        self.mean.set_value(self.mean[...] + np.array(0.1, np.float32) * (x.mean(0) - self.mean[...]))
        return x - self.mean[...]

    def unchanged(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        self.mean.set_value((0.9 * self.mean[...] + 0.1 * x.mean(0)).astype(self.mean.dtype))
        return self.norm(x) - self.mean[...]


class Half(Module):
    mean: Float[Array, "d"]

    def low(self, x: Float[Array, "d"]) -> Self:
        return self.replace(mean=self.mean + (x * np.array(2, np.float32)).astype(jnp.bfloat16))


def doubled(x: Float[Array, "d"]) -> Float[Array, "d"]:
    weight = np.array(2, np.float32)
    return jax.lax.while_loop(lambda carry: carry.sum() < 9, lambda carry: weight * carry, x)


def warned(thing: Any) -> list[str]:
    report = verify(thing)
    assert report.ok, str(report)
    assert not verify(thing, strict=True).ok or not report.warnings
    return [f"{one.rule}: {one.message}" for one in report.warnings]


def test_a_successor_that_comes_out_wider_is_warned_of():
    assert warned(Mean.promoted) == [
        "dtype-drift: Mean mean goes in as bfloat16 and comes out as float32: the next call compiles anew"
    ]


def test_a_state_that_takes_over_the_dtype_of_the_inputs_is_warned_of():
    assert warned(Mean.replaced) == [
        "dtype-drift: Mean mean goes in as float32 and comes out as bfloat16: the next call compiles anew"
    ]


def test_what_an_object_keeps_comes_out_wider():
    assert warned(Statistic.promoted) == [
        "dtype-drift: BatchStat mean goes in as bfloat16 and comes out as float32: the next call compiles anew"
    ]


def test_what_speaks_of_bfloat16_is_looked_at_in_float16():
    assert warned(Half.low) == [
        "dtype-drift: Half mean goes in as float16 and comes out as float32: the next call compiles anew"
    ]


@pytest.mark.parametrize(
    "thing",
    [Mean.unchanged, Exact, summed, scaled, doubled, Statistic.unchanged],
    ids=["unchanged", "float32", "carried", "refused by JAX", "a while loop", "an object's"],
)
def test_what_keeps_its_dtypes_is_not_warned_of(thing: Callable[..., Any]):
    assert warned(thing) == []


class Points(Module):
    values: Shaped[Array, "n"]


class Chosen(Module):
    of: Points
    numbers: Points


def chosen(points: Points) -> Chosen:
    """The points as they were, beside others of their class."""
    return Chosen(points, Points(jnp.argsort(points.values)))


def test_another_record_of_the_same_class_is_no_successor():
    assert verify(chosen).proved
    assert warned(chosen) == []


def doubled(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jax.lax.mul_p.bind(x, x)  # without `out_dtype`, which JAX reads to print it


def test_what_cannot_be_printed_is_judged():
    assert verify(doubled).verdict is Verdict.PROVED
