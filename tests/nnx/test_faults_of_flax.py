"""Where flax is silently wrong, weft.nnx is right, and the switch `nnx_flax_faults` gives flax's number back."""

import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from weft import nnx
from weft.nnx.config import config


def masked_average(library):
    metric = library.metrics.Average()
    metric.update(values=jnp.ones((2, 4)), mask=jnp.array([[1, 1, 1, 0]]))
    return float(metric.compute())


def masked_accuracy(library):
    metric = library.metrics.Accuracy()
    logits = jnp.tile(jnp.array([0.0, 1.0]), (4, 3, 1))
    metric.update(logits=logits, labels=jnp.ones((4, 3), jnp.int32), mask=jnp.array([[1, 1, 0]]))
    return float(metric.compute())


def dtype_of_an_adapted_layer(library):
    layer = library.LoRALinear(4, 3, lora_rank=2, dtype=jnp.bfloat16, rngs=library.Rngs(0))
    return str(layer(jnp.ones((2, 4))).dtype)


def largest_weight_after_a_call(norm):
    def program(library):
        inner = library.Linear(2, 2, kernel_init=lambda *_: jnp.diag(jnp.array([4.0, 8.0])), rngs=library.Rngs(0))
        layer = getattr(library, norm)(inner, rngs=library.Rngs(0))
        layer.eval()
        library.jit(lambda layer: layer(jnp.ones(2)[None]))(layer)
        return round(float(inner.kernel[...].max()), 3)

    return program


# program: what is right
FAULTS = {
    masked_average: 1.0,
    masked_accuracy: 1.0,
    dtype_of_an_adapted_layer: "bfloat16",
    largest_weight_after_a_call("WeightNorm"): 8.0,
    largest_weight_after_a_call("SpectralNorm"): 8.0,
}


@pytest.mark.parametrize(("program", "right"), FAULTS.items(), ids=lambda one: getattr(one, "__name__", str(one)))
def test_what_flax_gets_wrong_is_right_and_flaxs_with_the_switch(program, right, monkeypatch):
    assert program(nnx) == right
    monkeypatch.setattr(config, "nnx_flax_faults", True)
    assert program(nnx) == program(flax_nnx) != right


def test_an_adapter_may_have_a_dtype_of_its_own():
    layer = nnx.LoRALinear(4, 3, lora_rank=2, dtype=jnp.bfloat16, lora_dtype=jnp.float32, rngs=nnx.Rngs(0))
    assert layer(jnp.ones((2, 4))).dtype == jnp.float32


def test_a_mask_of_the_values_shape_counts_each_once():
    metric = nnx.metrics.Average()
    metric.update(values=jnp.array([1.0, 2.0, 9.0]), mask=jnp.array([1, 1, 0]))
    assert float(metric.compute()) == 1.5
