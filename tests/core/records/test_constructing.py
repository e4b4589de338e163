"""Fields that a constructor computes: derived anew in a copy, kept, or refused, and never stale."""

from __future__ import annotations

from dataclasses import InitVar, field
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.core.errors import StructureError

# Equinox warns of such fields because of their gradients, which are not what this is about.
pytestmark = pytest.mark.filterwarnings("ignore:Using `field")


def scaled() -> type[Any]:
    class Scaled(weft.Module):
        w: jax.Array
        name: str = "scaled"
        norm: jax.Array = field(init=False)
        size: int = eqx.field(init=False, static=True)

        def __post_init__(self):
            self.norm, self.size = jnp.linalg.norm(self.w), self.w.shape[0]

    return Scaled


def trained() -> type[Any]:
    class Trained(weft.Module):
        features: int
        rate: float = 0.1
        inference: bool = False
        scale: jax.Array = field(init=False)
        count: Annotated[jax.Array, weft.Buffer] = field(init=False)

        def __post_init__(self):
            self.scale, self.count = jnp.ones(self.features), jnp.zeros((), int)

    return Trained


@pytest.mark.parametrize("how", ["replace", "at", "thread"])
def test_a_derived_field_is_computed_again(how: str):
    record, w = scaled()(jnp.array([3.0, 4.0])), jnp.array([6.0, 8.0])
    if how == "replace":
        new = record.replace(w=w)
    elif how == "at":
        new = weft.at(record).w.set(w)
    else:
        with weft.thread(record) as t:
            t.w = w
            _, new = t.done(None)
    assert new.norm == 10
    assert new.size == 2
    assert new.name == "scaled"


def test_a_derived_number_is_computed_again():
    assert scaled()(jnp.array([3.0, 4.0])).replace(w=jnp.ones(3)).size == 3


def test_a_derived_field_that_cannot_be_compared_is_refused():
    record = scaled()(jnp.array([3.0, 4.0]))
    with pytest.raises(StructureError, match=r"(?s)computes norm.*fix: name .* too, replace\(w=\.\.\., norm="):
        weft.jit(lambda d: d.replace(w=d.w * 2).norm)(record)
    again = weft.jit(lambda d: d.replace(w=d.w * 2, norm=jnp.linalg.norm(d.w * 2), size=d.size).norm)(record)
    assert again == 10


def test_what_was_trained_is_not_made_anew():
    record = trained()(3)
    record = record.replace(scale=record.scale * 5, count=record.count + 1)
    for new in (record.replace(rate=0.2), weft.at(record).rate.set(0.2), weft.inference_mode(record)):
        np.testing.assert_array_equal(new.scale, 5 * np.ones(3))
        assert new.count == 1
    with pytest.raises(StructureError, match="computes scale, and it is unknown whether its value depends on features"):
        record.replace(features=4)
    assert record.replace(features=4, scale=jnp.ones(4)).scale.shape == (4,)


def test_a_field_that_needs_what_is_no_field_is_refused():
    class Drawn(weft.Module):
        features: int
        key: InitVar[Any]
        weight: jax.Array = field(init=False)

        def __post_init__(self, key: Any):
            self.weight = jax.random.normal(key, (self.features,))

    record = Drawn(3, jax.random.key(0))
    with pytest.raises(ValueError, match=r"computes weight.*\n  at: .*Drawn.weight: field\(init=False\)"):
        record.replace(features=4)
    assert record.replace(weight=jnp.ones(3)).weight.sum() == 3


def test_a_successor_in_a_block_keeps_what_the_constructor_drew():
    class Net(weft.Module):
        norm: weft.BatchNorm
        key: InitVar[Any]
        weight: jax.Array = field(init=False)

        def __post_init__(self, key: Any):
            self.weight = jax.random.normal(key, (2,))

        def __call__(self, x: Any) -> Any:
            with weft.thread(self) as t:
                return t.done(t.norm(x) * t.weight)

    net = Net(weft.BatchNorm(2), jax.random.key(0))
    _, successor = net(jnp.arange(8.0).reshape(4, 2))
    np.testing.assert_array_equal(successor.weight, net.weight)
    assert (successor.norm.mean != net.norm.mean).any()
