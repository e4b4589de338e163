"""What flax 0.12.12 added to Modules: recording that is off outside of capture, keywords of Sequential, properties."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from weft import nnx
from weft.nnx.config import config

from ..agreement import followed


class Records(nnx.Module):
    def __call__(self, x, **options):
        x = self.perturb("planted", x, **options)
        self.sow(nnx.Intermediate, "seen", x, **options)
        return x


@pytest.mark.parametrize("by", ["argument", "switch"])
def test_recording_outside_of_capture_can_be_off(by, monkeypatch):
    options = {"capture_noop": True} if by == "argument" else {}
    monkeypatch.setattr(config, "nnx_sow_capture_noop", by == "switch")
    model = Records()
    assert model(jnp.ones(2), **options).tolist() == [1.0, 1.0]
    assert not hasattr(model, "seen")
    assert not hasattr(model, "planted")
    _, seen = nnx.capture(model, nnx.Intermediate)(jnp.ones(2), **options)
    assert [value.tolist() for value in jax.tree.leaves(seen)] == [[1.0, 1.0]]


def test_an_argument_goes_before_the_switch(monkeypatch):
    monkeypatch.setattr(config, "nnx_sow_capture_noop", True)
    model = Records()
    with pytest.warns(DeprecationWarning, match="outside of nnx.capture"):
        model(jnp.ones(2), capture_noop=False)
    assert hasattr(model, "seen")


def test_sequential_gives_each_layer_the_keywords_that_it_takes():
    norm, dropout = nnx.BatchNorm(4, rngs=nnx.Rngs(0)), nnx.Dropout(0.5)
    model = nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), norm, nnx.relu, dropout)
    before = norm.mean[...]
    assert model(jnp.ones((3, 4)), use_running_average=True, deterministic=True).shape == (3, 4)
    assert (norm.mean[...] == before).all()
    model(jnp.ones((3, 4)), use_running_average=False, deterministic=False, rngs=nnx.Rngs(dropout=1))
    assert not (norm.mean[...] == before).all()
    assert list(model) == list(model.layers)


def test_sequential_refuses_an_argument_that_comes_twice():
    model = nnx.Sequential(lambda x, scale=1: {"x": x, "scale": scale}, lambda x, scale: x * scale)
    assert model(2) == 2
    with pytest.raises(TypeError, match=r"Got multiple values for arguments \['scale'\] in Sequential\[1\]"):
        model(2, scale=3)


@followed
@pytest.mark.parametrize("kwargs", [{}, {"scale": 3}, {"other": 1}, {"x": 5}], ids=str)
def test_keywords_of_sequential_are_flaxs(agree, kwargs):
    def first(x, *, scale=1):
        return x * scale

    agree(
        lambda library: library.Sequential(first, lambda x, **extra: (x, len(extra)), lambda a, b: a + b)(2, **kwargs)
    )


class Stored:
    """A descriptor that stores for itself."""

    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, node, owner=None):
        return self if node is None else getattr(node, self.name)

    def __set__(self, node, value):
        setattr(node, self.name, value)


class Described(nnx.Module):
    kept = Stored()

    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))
        self.kept = jnp.ones(3)

    @property
    def doubled(self):
        return 2 * self.w

    @doubled.setter
    def doubled(self, value):
        self.w[...] = value / 2


def test_properties_and_descriptors_are_no_attributes():
    model = Described()
    model.doubled = jnp.array([4.0, 6.0])
    assert model.w[...].tolist() == [2.0, 3.0]
    assert sorted(vars(model)) == ["_kept", "w"]
    assert dict(model._pytree__nodes) == {"w": True, "_kept": True}

    @nnx.jit
    def change(model):
        model.doubled = model.doubled + 2
        model.kept = model.kept + 1

    change(model)
    assert (model.w[...].tolist(), model.kept.tolist()) == ([3.0, 4.0], [2.0] * 3)


@pytest.mark.parametrize("mode", [{}, {"graph_updates": False}, {"graph": False}], ids=str)
def test_the_shape_of_a_model_of_refs(mode):
    with nnx.var_defaults(ref=True):
        model = nnx.eval_shape(lambda: nnx.Linear(1, 2, rngs=nnx.Rngs(0)), **mode)
    assert model.kernel.get_value() == jax.ShapeDtypeStruct((1, 2), jnp.float32)
    assert model.kernel.ref


def test_a_ref_variable_is_written_from_any_trace_level():
    v = nnx.Param(jnp.zeros(2), ref=True)
    assert v._can_update

    @jax.jit
    def write():
        v.set_value(jnp.ones(2))

    write()
    assert v[...].tolist() == [1.0, 1.0]


def test_the_state_of_being_initialised_is_written_through():
    model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    model._pytree__state._initializing = True
    assert model._pytree__state.initializing
    model._pytree__state._initializing = False
    assert not model._pytree__state.initializing
    assert [name for name in vars(model) if name.startswith("_pytree")] == []


@followed
def test_functions_of_transforms_that_others_import_are_flaxs():
    for name in ("_get_cached_wrapper", "_get_simple_cond_fn", "_raise_bound_method_error", "_resolve_bound_callable"):
        assert hasattr(flax_nnx.transforms.transforms, name)
        assert hasattr(nnx.transforms.transforms, name)


def test_a_kept_branch_is_a_function_of_pytrees():
    branch = nnx.transforms.transforms._get_simple_cond_fn
    w = nnx.Param(jnp.array(1.0))

    def double(w):
        w[...] *= 2
        return w[...] + 1

    out, (after,) = jax.lax.cond(True, branch(double, False), branch(double, False), w)
    assert (float(out), float(after[...]), float(w[...])) == (3.0, 2.0, 1.0)
    assert branch(double, True) is branch(double, True)
