"""to_record, from_record and functional: a module and its record are the same thing in two forms."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import nnx
from weft.core.records.kinds import Buffer, field_roles


class Linear(nnx.Module):
    def __init__(self, features, rngs):
        self.w = nnx.Param(jax.random.normal(rngs.params(), (features, features)), note="weights")
        self.features = features

    def __call__(self, x):
        return x @ self.w


class Count(nnx.Variable):
    pass


class Model(nnx.Module):
    def __init__(self, rngs):
        self.first = Linear(2, rngs)
        self.second = self.first
        self.layers = nnx.List([Linear(2, rngs), Linear(2, rngs)])
        self.calls = Count(jnp.array(0))
        self.mean = nnx.BatchStat(jnp.zeros(2))
        self.table = jnp.arange(3.0)
        self.replace = nnx.Param(jnp.ones(()))
        self.more = nnx.data({"a b": nnx.Param(jnp.ones(2)), "class": nnx.Cache(jnp.zeros(1))})
        self.rngs = rngs
        self.itself = self

    def __call__(self, x):
        self.calls[...] += 1
        self.mean[...] = x.mean(0)
        for layer in self.layers:
            x = layer(x)
        return self.second(self.first(x)) + jax.random.normal(self.rngs.noise(), x.shape)


@pytest.fixture
def model():
    return Model(nnx.Rngs(0, noise=1))


X = jnp.arange(6.0).reshape(3, 2)


def test_a_record_is_a_weft_module_of_raw_arrays_that_mirrors_the_attributes(model):
    record = nnx.to_record(model)
    assert isinstance(record, weft.Module)
    assert type(record).__name__ == "Model"
    assert record.first.w is model.first.w.get_raw_value()
    assert record.layers[1].w is model.layers[1].w.get_raw_value()
    assert (len(record.layers), list(record.more)) == (2, ["a b", "class"])
    assert record.more["a b"].shape == (2,)
    assert record.replace_.shape == ()
    with pytest.raises(KeyError, match="no such"):
        record["no such"]


def test_kinds_are_the_variables_types(model):
    record = nnx.to_record(model)
    roles = field_roles(type(record))
    assert (roles["mean"].kind, roles["table"].kind, roles["calls"].kind.__name__) == (nnx.BatchStat, Buffer, "Count")
    params = weft.tree.select(record, weft.Param)
    assert (params.mean, params.table, params.calls) == (None, None, None)
    assert len(jax.tree.leaves(params)) == 5


def test_what_is_shared_is_in_the_record_once_and_shared_again_afterwards(model):
    record = nnx.to_record(model)
    assert not hasattr(record, "second")
    assert len(jax.tree.leaves(record)) == len(jax.tree.leaves(nnx.state(model)))
    back = nnx.from_record(record)
    assert back.second is back.first
    assert back.itself is back
    assert back is not model


def test_the_way_there_and_back_keeps_everything(model):
    back = nnx.from_record(nnx.to_record(model))
    assert nnx.graphdef(back) == nnx.graphdef(model)
    assert back.first.w.note == "weights"
    assert type(back.calls) is Count
    for ours, theirs in zip(jax.tree.leaves(nnx.state(back)), jax.tree.leaves(nnx.state(model)), strict=True):
        assert ours is theirs


def test_records_of_equal_modules_have_one_structure():
    first, second = (nnx.to_record(Model(nnx.Rngs(seed, noise=seed))) for seed in (0, 1))
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert hash(first.record_structure) == hash(second.record_structure)


def test_the_functional_form_gives_what_the_model_gives_and_what_it_changed(model):
    record = nnx.to_record(model)
    out, updates = weft.jit(nnx.functional(model))(record, X)
    assert (updates.first.w, int(updates.calls), int(updates.rngs.noise.count)) == (None, 1, 1)
    assert int(model.calls[...]) == 0
    np.testing.assert_allclose(out, model(X), rtol=1e-6)
    successor = nnx.from_record(weft.tree.update(record, updates))
    for ours, theirs in zip(jax.tree.leaves(nnx.state(successor)), jax.tree.leaves(nnx.state(model)), strict=True):
        if not jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_record_called_gives_its_successor(model):
    record = nnx.to_record(model)
    out, successor = record(X)
    np.testing.assert_allclose(out, model(X), rtol=1e-6)
    assert (int(successor.calls), int(record.calls)) == (1, 0)
    assert jax.tree.structure(successor) == jax.tree.structure(record)


def test_tied_weights_have_one_gradient(model):
    def loss(m):
        return m.second(m.first(X)).sum()

    theirs = nnx.grad(loss)(model)["first"]["w"][...]
    ours = weft.grad(lambda record: nnx.functional(loss)(record)[0])(nnx.to_record(model))
    np.testing.assert_allclose(ours.first.w, theirs, rtol=1e-6)


def test_records_go_through_transforms_of_weft():
    @weft.vmap
    def make(key):
        return nnx.to_record(Linear(2, nnx.Rngs(key)))

    stacked = make(jax.random.split(jax.random.key(0), 3))
    assert stacked.w.shape == (3, 2, 2)
    out, updates = weft.vmap(nnx.functional(Linear.__call__), in_axes=(0, None))(stacked, X)
    assert out.shape == (3, 3, 2)
    assert jax.tree.leaves(updates) == []


def test_a_method_and_a_function_have_functional_forms(model):
    out, _ = nnx.functional(model.first.__call__)(nnx.to_record(model.first), X)
    np.testing.assert_allclose(out, X @ model.first.w)
    record = nnx.to_record(model)
    out, _ = nnx.functional(lambda m: (m.first, m.calls, 3))(record)
    assert out[0].w is record.first.w
    assert (int(out[1]), out[2]) == (0, 3)


def test_numbers_in_variables_are_arrays():
    record = nnx.to_record(nnx.Dict(n=nnx.Variable(3)))
    assert record.n.dtype == jnp.int32


def test_records_are_pickled_with_their_sharing(model):
    record = nnx.to_record(nnx.Dict(a=nnx.Param(jnp.ones(2)), n=1))
    again = pickle.loads(pickle.dumps(record))
    assert jax.tree.structure(again) == jax.tree.structure(record)
    assert again.a.tolist() == [1, 1]


def sow(model):
    model.new = nnx.Param(jnp.ones(()))


def static(model):
    model.first.features = 7


def untie(model):
    model.second = None


@pytest.mark.parametrize(
    ("change", "where"), [(sow, "at: new: new"), (static, "static attributes"), (untie, "static attributes")]
)
def test_a_call_that_changes_structure_is_refused(model, change, where):
    record = nnx.to_record(model)
    with pytest.raises(ValueError, match="changed the structure of its module") as error:
        nnx.functional(change)(record)
    assert where in str(error.value)


def test_a_part_of_a_record_makes_no_module(model):
    with pytest.raises(ValueError, match="cannot make a module of a record that lacks leaves") as error:
        nnx.from_record(weft.tree.select(nnx.to_record(model), weft.Param))
    assert "at: Model.calls" in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: nnx.to_record([1]), "to_record takes a Module or another object, got list"),
        (lambda: nnx.to_record(nnx.Param(1)), "got Param"),
        (lambda: nnx.from_record({}), "from_record takes a result of to_record, got dict"),
        (lambda: nnx.functional(3), "functional takes a model or a function, got int"),
    ],
)
def test_other_things_are_refused(wrong, message):
    with pytest.raises(TypeError, match=message):
        wrong()


def test_refs_are_refused():
    with pytest.raises(ValueError, match="a JAX ref cannot be part of a record") as error:
        nnx.to_record(nnx.Dict(a=nnx.Dict(w=nnx.Param(jnp.ones(2), ref=True))))
    assert "at: a.w" in str(error.value)
