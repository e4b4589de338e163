"""Errors speak in the words of the layer whose transform was called: of `weft` for records, of `nnx` for objects."""

import io
import re

import jax.numpy as jnp
import pytest
import weft
from weft import nnx

X = jnp.ones(2)
LAYERS = {"weft": weft, "nnx": nnx}


class Box:
    def __init__(self, value):
        self.value = value


class Counter(nnx.Module):
    def __init__(self):
        self.w, self.count = nnx.Param(X), nnx.Param(jnp.arange(2))


def donated(layer):
    step = layer.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.ones(2)
    step(x), step(x)


# what is done wrong: how the fix names what helps, of each layer
ERRORS = {
    "a branch on a traced value": (lambda layer: layer.jit(lambda x: 1 if x[0] > 0 else 2)(X), "{}.cond"),
    "a class that is no pytree": (lambda layer: layer.jit(lambda x: Box(x * 2))(X), "{}.Module"),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("call", "advice"), ERRORS.values(), ids=ERRORS)
def test_advice_names_what_the_callers_layer_has(call, advice, name):
    with pytest.raises(weft.WeftError) as error:
        call(LAYERS[name])
    said = str(error.value)
    assert advice.format(name) in said
    assert not re.search(rf"\b{next(iter(LAYERS.keys() - {name}))}\.", said)


def test_who_donates_in_nnx_is_not_told_of_successors():
    for name, word in (("weft", "use the successor"), ("nnx", "use the array")):
        with pytest.raises(weft.WeftError, match=word):
            donated(LAYERS[name])


def test_what_chooses_the_leaves_of_a_derivative_is_named_as_users_write_it():
    with pytest.raises(TypeError, match=re.escape("leave it out (nnx.DiffState), or pass allow_int=True")):
        nnx.grad(lambda m: m.w[...].sum())(Counter())
    with pytest.raises(TypeError, match=re.escape("choose the leaves with wrt=")):
        weft.grad(lambda x: x.sum())(jnp.arange(2))


@pytest.mark.parametrize("name", LAYERS)
def test_a_retrace_is_told_of_the_jit_that_was_called(name):
    f = LAYERS[name].jit(lambda x: x)
    with weft.debug.explain_retraces(file=io.StringIO()) as told:
        f(X)
    assert told[0].startswith(f"{name}.jit(<lambda>), trace 1")
    assert weft.debug.explain_retraces(f, file=io.StringIO()) == told
    assert repr(f) == f"{name}.jit({f.__qualname__})"
