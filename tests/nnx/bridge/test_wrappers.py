"""ToNNX and ToLinen, beside flax's own: the same variables and outputs of the same keys."""

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from flax import nnx as flax_nnx
from weft import nnx

X = jnp.arange(6.0).reshape(2, 3)
KEY = jax.random.key


class Counting(linen.Module):
    @linen.compact
    def __call__(self, x):
        count = self.variable("counter", "count", lambda: jnp.zeros((), jnp.int32))
        x = linen.BatchNorm(use_running_average=False)(linen.Dense(3)(x))
        if not self.is_initializing():
            count.value += 1
        self.sow("intermediates", "sum", x.sum())
        return linen.Dropout(0.5, deterministic=False)(x)

    def double(self, x):
        return 2 * x


def pure(lib, model):
    return lib.to_pure_dict(lib.state(model, lib.Not(lib.RngState)))


def counting(lib):
    return lib.bridge.ToNNX(Counting(), rngs=lib.Rngs(0, dropout=1)).lazy_init(X)


def test_a_linen_module_has_flaxs_variables_and_outputs():
    def run(lib):
        model = counting(lib)
        before = pure(lib, model)
        outputs = [model(X, mutable=True) for _ in range(2)]
        return before, outputs, pure(lib, model)

    ours, theirs = run(nnx), run(flax_nnx)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_what_is_mutable_is_written_into_the_variables_that_are_there():
    model = counting(nnx)
    count, kernel = model.count, model.Dense_0["kernel"]
    with pytest.raises(flax.errors.ModifyScopeVariableError):
        model(X)
    model(X, mutable=["counter", "batch_stats"])
    assert model.count is count
    assert model.Dense_0["kernel"] is kernel
    assert int(count[...]) == 1
    assert not hasattr(model, "sum")


def test_methods_of_the_linen_module_are_methods():
    model = counting(nnx)
    assert jnp.array_equal(model.double(X), 2 * X)
    assert jnp.array_equal(model(X, method="double"), 2 * X)
    with pytest.raises(AttributeError, match="'ToNNX' object has no attribute 'nothing'"):
        model.nothing  # noqa: B018


def test_an_attribute_that_linen_cannot_have_is_an_error():
    model = counting(nnx)
    model.extra = 3
    with pytest.raises(ValueError, match="Cannot infer collection name from value: 3"):
        model(X)


def test_lazy_init_reaches_through_transforms_and_leaves_no_mark():
    class Outer(nnx.Module):
        def __init__(self, rngs):
            self.inner = nnx.bridge.ToNNX(linen.Dense(3), rngs=rngs)

        def __call__(self, x):
            @nnx.split_rngs(splits=5)
            @nnx.vmap(in_axes=(0, None), axis_size=5)
            def each(inner, x):
                return inner(x)

            return each(self.inner, x)

    model = Outer(nnx.Rngs(0))
    assert nnx.bridge.lazy_init(model, X) is model
    assert model.inner.kernel.shape == (5, 3, 3)
    assert set(vars(model.inner)) == {"to_nnx__module", "to_nnx__rngs", "kernel", "bias"}
    assert model(X).shape == (5, 2, 3)


def test_a_copy_of_what_is_being_initialised_is_so_too():
    seen = []

    class Foo(nnx.Module):
        def __call__(self):
            copied = nnx.merge(*nnx.split(self))
            seen.extend(one._pytree__state.initializing for one in (self, copied))

    module = Foo()
    nnx.bridge.lazy_init(module)
    module()
    assert seen == [True, True, False, False]
    assert not vars(module)


def test_an_error_in_lazy_init_leaves_the_module_as_it_was():
    model = nnx.bridge.ToNNX(linen.Dense(3), rngs=nnx.Rngs(0))
    with pytest.raises(TypeError):
        model.lazy_init()
    assert set(vars(model)) == {"to_nnx__module", "to_nnx__rngs"}


@pytest.mark.parametrize("not_a_method", [3, lambda x: x, linen.Dense(3).__call__])
def test_lazy_init_of_anything_else_is_an_error(not_a_method):
    with pytest.raises(ValueError, match="needs to be a method of an NNX Module"):
        nnx.bridge.lazy_init(not_a_method, X)


def block(lib):
    class Block(lib.Module):
        def __init__(self, width, *, rngs):
            self.linear = lib.Linear(width, width, rngs=rngs)
            self.norm = lib.BatchNorm(width, rngs=rngs)
            self.dropout = lib.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.norm(self.linear(x)))

        def half(self, x):
            return x / 2

    return Block


def test_an_nnx_class_has_flaxs_variables_and_outputs():
    keys = {"params": KEY(0), "dropout": KEY(1)}

    def run(lib):
        model = lib.bridge.to_linen(block(lib), 3)
        made, variables = model.init_with_output(keys, X)
        out, changed = model.apply(variables, X, rngs={"dropout": KEY(2)}, mutable=["batch_stats"])
        return made, variables, out, changed, model.apply(variables, X, nnx_method="half")

    ours, theirs = run(nnx), run(flax_nnx)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_an_nnx_class_is_a_submodule_of_a_linen_module():
    class Outer(linen.Module):
        def setup(self):
            self.embed = nnx.bridge.to_linen(nnx.Embed, 2, 3)

        def __call__(self, tokens):
            return self.embed.attend(self.embed(tokens))

    tokens = jnp.zeros((1,), jnp.int32)
    out, variables = Outer().init_with_output(KEY(0), tokens)
    assert out.shape == (1, 2)
    assert variables["params"]["embed"]["embedding"].shape == (2, 3)
    assert jnp.array_equal(Outer().apply(variables, tokens), out)


def test_a_shared_nnx_submodule_is_made_once():
    class Twice(linen.Module):
        @linen.compact
        def __call__(self, x):
            linear = nnx.bridge.to_linen(nnx.Linear, 3, 3)
            return linear(linear(x))

    out, variables = Twice().init_with_output(KEY(0), X)
    np.testing.assert_array_equal(Twice().apply(variables, X), out)


def test_initial_statistics_are_those_before_any_call():
    class Twice(linen.Module):
        @linen.compact
        def __call__(self, x):
            norm = nnx.bridge.to_linen(nnx.BatchNorm, 3, use_running_average=False)
            return norm(5 + 3 * norm(x))

    variables = Twice().init(KEY(0), X)
    np.testing.assert_array_equal(variables["batch_stats"]["ToLinen_0"]["mean"], jnp.zeros(3))
    _, updates = Twice().apply(variables, X, mutable=["batch_stats"])
    assert float(updates["batch_stats"]["ToLinen_0"]["mean"][0]) != 0


def test_a_class_of_linen_takes_the_constructors_arguments():
    dense = nnx.bridge.to_linen_class(nnx.Linear, use_bias=False)

    class Named(dense):
        pass

    class Outer(linen.Module):
        @linen.compact
        def __call__(self, x):
            return Named(in_features=3, out_features=2, name="last")(dense(in_features=3, out_features=3)(x))

    params = Outer().init(KEY(0), X)["params"]
    assert jax.tree.map(jnp.shape, params) == {"ToLinenPartial_0": {"kernel": (3, 3)}, "last": {"kernel": (3, 2)}}


def test_arrays_without_a_variable_are_variables_of_linen_too():
    class Scaled(nnx.Module):
        def __init__(self):
            self.scale = jnp.ones(3)

        def __call__(self, x):
            return x * self.scale

    model = nnx.bridge.ToLinen(Scaled, skip_rng=True)
    variables = jax.jit(model.init)({}, X)
    assert jax.tree.map(jnp.shape, variables) == {"ArrayImpl": {"scale": (3,)}}
    assert jnp.array_equal(model.apply(jax.tree.map(lambda x: 2 * x, variables), X), 2 * X)


def test_a_linen_module_is_summarized():
    model = nnx.bridge.ToNNX(linen.Dense(2), rngs=nnx.Rngs(0)).lazy_init(X)
    assert "kernel: float32[3,2]" in nnx.tabulate(model, X, console_kwargs={"force_terminal": False, "width": 120})


def test_functional_is_two_pure_functions():
    linear = nnx.bridge.functional(nnx.Linear)(3, 4)
    with pytest.raises(ValueError, match="no structure yet"):
        linear.apply({})
    state = linear.init(rngs=nnx.Rngs(0))
    out, (_, after) = linear.apply(state)(X)
    assert out.shape == (2, 4)
    assert jax.tree.structure(after) == jax.tree.structure(state)
