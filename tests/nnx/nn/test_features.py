"""Layers given inputs of other sizes, or no Rngs, say which layer it was, where it is, and what it takes."""

import jax
import jax.numpy as jnp
import pytest
from weft import nnx


def rngs():
    return nnx.Rngs(0)


WRONG = {
    "Linear": (lambda: nnx.Linear(2, 3, rngs=rngs()), (1, 5), "takes 2 features on the last axis, not 5"),
    "LinearGeneral": (
        lambda: nnx.LinearGeneral((2, 3), 4, axis=(-2, -1), rngs=rngs()),
        (1, 5, 3),
        "takes 2 features on axis -2, not 5",
    ),
    "Conv": (lambda: nnx.Conv(3, 2, (3, 3), rngs=rngs()), (1, 4, 4, 2), "takes 3 features on the last axis, not 2"),
    "ConvTranspose": (
        lambda: nnx.ConvTranspose(3, 2, (3,), rngs=rngs()), (1, 4, 2), "takes 3 features on the last axis, not 2",
    ),
    "BatchNorm": (lambda: nnx.BatchNorm(3, rngs=rngs()), (2, 4), "takes 3 features on the last axis, not 4"),
    "LayerNorm": (lambda: nnx.LayerNorm(3, rngs=rngs()), (2, 4), "takes 3 features on the last axis, not 4"),
    "RMSNorm": (lambda: nnx.RMSNorm(3, rngs=rngs()), (2, 4), "takes 3 features on the last axis, not 4"),
    "GroupNorm": (lambda: nnx.GroupNorm(4, 2, rngs=rngs()), (2, 5), "takes 4 features on the last axis, not 5"),
    "InstanceNorm": (lambda: nnx.InstanceNorm(3, rngs=rngs()), (2, 5, 4), "takes 3 features on the last axis, not 4"),
}  # fmt: skip


@pytest.mark.parametrize("wrap", [lambda f: f, nnx.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", WRONG)
def test_another_size_of_features_is_named(name, wrap):
    make, shape, message = WRONG[name]
    layer = make()
    with pytest.raises(TypeError, match=f"{name} {message}") as caught:
        wrap(lambda m, x: m(x))(layer, jnp.ones(shape))
    assert isinstance(caught.value, ValueError)
    assert "input: float32[" in str(caught.value)


def test_a_scale_that_does_not_fit_is_found_while_tracing():
    layer = nnx.BatchNorm(3, use_running_average=True, rngs=rngs())
    with pytest.raises(TypeError, match="BatchNorm takes 3 features"):
        nnx.eval_shape(lambda m, x: m(x), layer, jnp.ones((2, 4)))


def test_a_norm_without_parameters_fails_as_its_op_does():
    layer = nnx.RMSNorm(4, use_scale=False, rngs=rngs())
    with pytest.raises(ValueError, match="does not broadcast"):
        layer(jnp.ones((2, 4)), mask=jnp.ones((3, 3), bool))


class Block(nnx.Module):
    def __init__(self):
        self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs()), nnx.Linear(3, 2, rngs=rngs())])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_the_path_of_the_layer_is_named():
    with pytest.raises(TypeError, match=r"at: model\.layers\[1\], called in __call__ \(test_features.py:\d+\)"):
        nnx.jit(lambda model, x: model(x))(Block(), jnp.ones((1, 2)))


def test_queries_of_an_embedding():
    with pytest.raises(TypeError, match="Embed takes 2 features on the last axis, not 5"):
        nnx.Embed(3, 2, rngs=rngs()).attend(jnp.ones((1, 5)))


def test_a_layer_whose_product_is_the_users_may_take_other_features():
    layer = nnx.Linear(4, 2, rngs=rngs(), dot_general=lambda x, kernel, *_, **__: x[..., :2])
    assert layer(jnp.ones((1, 8))).shape == (1, 2)


def test_an_error_of_another_cause_stays_as_it_is():
    def fail(*_, **__):
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        nnx.Linear(2, 2, rngs=rngs(), dot_general=fail)(jnp.ones((1, 2)))


@pytest.mark.parametrize(("not_rngs", "named"), [(0, "int"), (None, "NoneType"), (jax.random.key(0), "PRNGKeyArray")])
def test_a_layer_wants_rngs(not_rngs, named):
    with pytest.raises(AttributeError, match=rf"draws its parameters from nnx\.Rngs, not from {named}"):
        nnx.Linear(2, 3, rngs=not_rngs)


def test_rngs_without_the_stream_say_so_themselves():
    with pytest.raises(AttributeError, match="params"):
        nnx.Linear(2, 3, rngs=nnx.Rngs(dropout=0))
