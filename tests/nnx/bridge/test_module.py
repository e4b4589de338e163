"""bridge.Module and what may be inside of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from flax import nnx as flax_nnx
from weft import nnx
from weft.nnx import bridge

X = jnp.arange(6.0).reshape(2, 3)


def dense(lib):
    class Own(lib.bridge.Module):
        features: int

        @lib.bridge.compact
        def __call__(self, x):
            return x @ self.param("kernel", linen.initializers.normal(), (x.shape[-1], self.features))

    return Own


Dense = dense(nnx)


def model(lib):
    dense_of_lib = dense(lib)

    class Block(lib.bridge.Module):
        def setup(self):
            self.first = dense_of_lib(4)

        @lib.bridge.compact
        def __call__(self, x):
            count = self.variable("counts", "count", jnp.zeros, ())
            count[...] += 1
            x = dense_of_lib(3, name="named")(dense_of_lib(4)(self.first(x)))
            x = lib.bridge.nnx_in_bridge_mdl(lambda rngs: lib.Linear(3, 3, rngs=rngs))(x)
            x = lib.bridge.nnx_in_bridge_mdl(lambda rngs: lib.Dropout(0.5, rngs=rngs), name="dropout")(x)
            return lib.bridge.linen_in_bridge_mdl(linen.Dense(2))(x)

    return Block()


@pytest.mark.slow
def test_it_has_flaxs_variables_and_outputs():
    def run(lib):
        block = model(lib)
        made, variables = block.init_with_output({"params": 0, "dropout": 1}, X)
        return made, variables, block.apply(variables, X, rngs={"params": 0, "dropout": 2}, mutable=["counts"])

    ours, theirs = run(nnx), run(flax_nnx)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_init_and_apply_leave_the_module_as_it_was():
    block = model(nnx)
    block.init({"params": 0, "dropout": 1}, X)
    assert vars(block) == {"scope": None, "attr_priorities": {}}
    assert isinstance(block, nnx.Module)
    assert bridge.current_module() is None


def test_a_module_that_is_called_twice_has_one_set_of_variables():
    class Two(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            return Dense(3)(Dense(3)(x))

    class Twice(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            two = Two()
            return two(two(x))

    out, variables = Twice().init_with_output(0, X)
    assert jax.tree.map(jnp.shape, variables["params"]) == {
        "Two_0": {"Own_0": {"kernel": (3, 3)}, "Own_1": {"kernel": (3, 3)}}
    }
    np.testing.assert_array_equal(Twice().apply(variables, X), out)


def test_arguments_may_have_any_name():
    class Adding(bridge.Module):
        @bridge.compact
        def __call__(self, module, *, function, in_compact):
            return module + function + in_compact

    assert Adding().apply({}, module=1, function=2, in_compact=3) == 6


def test_what_is_shared_is_found_under_the_name_of_the_highest_priority():
    class Top(bridge.Module):
        def setup(self):
            self.last = Dense(3)
            self.first = self.last
            self.set_attr_priority("last", bridge.AttrPriority.HIGH)

        def __call__(self, x):
            return self.first(x)

    assert list(Top().init(0, X)["params"]) == ["last"]


def test_modules_in_fields_and_lists_are_submodules():
    class Outer(bridge.Module):
        field: Dense

        def setup(self):
            self.layers = [Dense(3, name=f"layer_{i}") for i in range(2)]

        def __call__(self, x):
            for layer in (self.field, *self.layers):
                x = layer(x)
            return x

    outer = Outer(Dense(3))
    out, variables = outer.init_with_output(0, X)
    assert sorted(variables["params"]) == ["field", "layer_0", "layer_1"]
    np.testing.assert_array_equal(outer.apply(variables, X), out)


def test_update_takes_variables_of_submodules_that_are_yet_to_be_made():
    module = Dense(2)
    nnx.update(module, {"later": {"kernel": nnx.Param(X)}})
    assert isinstance(module.later, bridge.module.ModuleState)


class ClashOfParams(bridge.Module):
    @bridge.compact
    def __call__(self):
        self.a = 3
        return self.param("a", lambda key: jnp.zeros(()))


class ClashOfModules(bridge.Module):
    @bridge.compact
    def __call__(self):
        Dense(3, name="a")
        Dense(3, name="a")


class NoKeys(bridge.Module):
    def __call__(self):
        return self.make_rng()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Dense(3).param("a", jnp.zeros), "must be initialized in `setup\\(\\)` or in a method wrapped"),
        (lambda: NoKeys()(), "Can't use RNGs on unbound modules"),
        (lambda: ClashOfParams().init(0), "the variable 'a' of the collection 'params' cannot be a int"),
        (lambda: ClashOfModules().init(0), "two submodules of one call are named 'a'"),
        (lambda: bridge.nnx_in_bridge_mdl(lambda rngs: None), "only needed inside bridge Module"),
        (lambda: bridge.linen_in_bridge_mdl(linen.Dense(2)), "only needed inside bridge Module"),
    ],
)
def test_misuse_is_an_error(call, says):
    with pytest.raises(ValueError, match=says):
        call()
    assert bridge.current_module() is None
