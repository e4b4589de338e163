"""What code that was written for flax's layers does to them: calls their methods on others, replaces what they call."""

from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from jax import lax
from weft import nnx
from weft.nnx.nn import dtypes

X = jnp.ones((2, 3))


def test_a_layers_method_takes_any_object_with_its_attributes():
    layer = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    names = ("kernel", "bias", "dtype", "precision", "dot_general", "promote_dtype", "preferred_element_type")
    duck = SimpleNamespace(**{name: getattr(layer, name) for name in names})
    assert (nnx.Linear.__call__(duck, X) == layer(X)).all()  # pyright: ignore[reportArgumentType]
    norm = nnx.LayerNorm(3, rngs=nnx.Rngs(0))
    duck = SimpleNamespace(**{name: getattr(norm, name) for name in vars(norm)})
    assert (nnx.LayerNorm.__call__(duck, X) == norm(X)).all()  # pyright: ignore[reportArgumentType]


def test_an_object_that_lacks_an_attribute_is_told_which():
    with pytest.raises(AttributeError, match="kernel"):
        nnx.Linear.__call__(SimpleNamespace(), X)  # pyright: ignore[reportArgumentType]


def test_a_subclass_may_use_names_that_begin_with_an_underscore():
    class Mine(nnx.MultiHeadAttention):
        _cache = _dropout = _from_cache = _head_size = _learned = _options = _norm = None

    attention = Mine(num_heads=1, in_features=3, decode=False, rngs=nnx.Rngs(0))
    assert attention(X[None]).shape == (1, 2, 3)


def test_a_promotion_that_is_given_or_replaced_in_place_is_the_one_that_is_called(monkeypatch):
    calls = []

    def promote(args, /, *, dtype=None, inexact=True):
        calls.append(len(args))
        return args

    nnx.Linear(3, 4, promote_dtype=promote, rngs=nnx.Rngs(0))(X)
    assert calls == [3]
    layer = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    layer(X)

    def refuse(args, /, *, dtype=None, inexact=True):
        raise ZeroDivisionError

    monkeypatch.setattr(dtypes.promote_dtype, "__code__", refuse.__code__)
    with pytest.raises(ZeroDivisionError):
        layer(X)


def test_dropout_broadcasts_its_mask_by_the_function_that_is_there(monkeypatch):
    calls, real = [], jnp.broadcast_to

    def counting(array, shape):
        calls.append(shape)
        return real(array, shape)

    monkeypatch.setattr(jnp, "broadcast_to", counting)
    layer = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    layer(X)
    nnx.jit(lambda layer: layer(X))(layer)
    assert calls == [X.shape, X.shape]


def test_a_product_that_is_replaced_while_a_model_runs_may_write_into_it(monkeypatch):
    class Counted(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
            self.calls = nnx.Intermediate(jnp.array(0))

        def __call__(self, x):
            real = lax.add

            def counting(*args):
                self.calls[...] += 1
                return real(*args)

            monkeypatch.setattr(lax, "add", counting)
            try:
                return self.linear(x)
            finally:
                monkeypatch.undo()

    model = Counted()
    nnx.jit(lambda model, x: model(x))(model, X)
    assert model.calls[...] == 1
