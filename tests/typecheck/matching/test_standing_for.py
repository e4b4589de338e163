"""What is put around a layer, or in its place, passes for the layer; its dims are linked as the layer's are."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import ContractError
from weft.typecheck import Dims

KEYS = jax.random.split(jax.random.key(0), 3)
WRAPPERS = {
    "frozen": weft.Frozen,
    "adapted": lambda layer: weft.lora(layer, 2, key=KEYS[2]),
    "quantised": weft.QuantizedLinear,
    "adapted and quantised": lambda layer: weft.lora(weft.quantize(layer), 2, key=KEYS[2]),
    "adapted and frozen": lambda layer: weft.Frozen(weft.lora(layer, 2, key=KEYS[2])),
    "normed": weft.WeightNorm,
    "in half precision": weft.Policy(compute=jnp.bfloat16),
}


class Linked(weft.Module):
    first: Annotated[weft.Linear, Dims("in=width out=hidden")]
    rest: list[weft.Linear]
    last: Annotated[weft.Linear, Dims("in=hidden out=width")] | None = None

    def __call__(self, x):
        return self.rest[0](self.first(x))


def linear(inputs: int, outputs: int) -> weft.Linear:
    return weft.Linear(inputs, outputs, key=KEYS[0])


MODEL = Linked(linear(3, 4), [linear(4, 4)], linear(4, 3))


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_layer_passes_where_the_layer_is_annotated(name: str):
    wrap = WRAPPERS[name]
    model = weft.at(MODEL).first.apply(wrap)
    model = weft.at(model).rest[0].apply(wrap)
    np.testing.assert_allclose(weft.jit(model)(jnp.ones((2, 3))), MODEL(jnp.ones((2, 3))), atol=0.05)
    with pytest.raises(ContractError, match="first"):
        model.replace(first=wrap(linear(3, 5)))


def test_another_record_does_not_pass():
    with pytest.raises(ContractError, match=r"first should be Linear.*, and is Residual"):
        MODEL.replace(first=weft.Residual(linear(3, 4)))
    with pytest.raises(ContractError, match=r"first should be Linear.*, and is Frozen"):
        MODEL.replace(first=weft.Frozen(weft.LayerNorm(3)))


def test_a_users_wrapper_says_what_it_stands_for():
    class Scaled(weft.Module):
        __stands_for__ = "inner"
        inner: Any
        scale: float

        def __call__(self, x):
            return self.scale * self.inner(x)

    model = MODEL.replace(first=Scaled(weft.Frozen(linear(3, 4)), 2.0))
    np.testing.assert_allclose(model.first(jnp.ones(3)), 2 * MODEL.first(jnp.ones(3)), rtol=1e-6)
    with pytest.raises(ContractError):
        MODEL.replace(first=Scaled(weft.LayerNorm(3), 2.0))
