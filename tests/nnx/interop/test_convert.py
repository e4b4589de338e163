"""Objects of the real flax.nnx are refused by weft.nnx, and `convert` moves them over with their state."""

import flax.nnx as flax_nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from weft import nnx
from weft.nnx.foreign import ForeignObjectError

# User code below is written for the real library, under the name it usually has.
theirs = flax_nnx


class Count(theirs.Variable):
    pass


def activation(x):
    return theirs.relu(x)


class Base(theirs.Module):
    def __init__(self, rngs):
        self.linear = theirs.Linear(2, 2, rngs=rngs)

    def first(self, x):
        return self.linear(x)


class Model(Base):
    scale = 2.0

    def __init__(self, rngs):
        super().__init__(rngs)
        self.tied = self.linear
        self.calls = Count(jnp.array(0), note="calls")
        self.norm = theirs.BatchNorm(2, rngs=rngs)
        self.dropout = theirs.Dropout(0.5, rngs=rngs)
        self.layers = theirs.List([theirs.Linear(2, 2, rngs=rngs), theirs.LayerNorm(2, rngs=rngs)])
        self.heads = theirs.data({"a": [theirs.Param(jnp.ones(2))]})
        self.wrt = theirs.Param
        self.itself = self

    def first(self, x):
        return super().first(x)

    @property
    def is_param(self):
        return isinstance(self.linear.kernel, theirs.Param)

    @staticmethod
    def activation(x):
        return activation(x)

    @classmethod
    def make(cls, seed):
        return cls(theirs.Rngs(seed))

    def __call__(self, x):
        self.calls[...] += 1
        x = self.activation(self.first(x)) * self.scale
        for layer in self.layers:
            x = layer(x)
        self.seen = theirs.Intermediate(x)
        return self.dropout(self.norm(x)) * self.heads["a"][0]


X = jnp.arange(6.0).reshape(3, 2)


@pytest.fixture
def pair():
    model = Model.make(0)
    return model, nnx.convert(model)


def arrays(lib, model):
    return {
        ".".join(map(str, path)): np.asarray(
            jax.random.key_data(value) if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else value
        )
        for path, leaf in lib.to_flat_state(lib.state(model))
        for value in [leaf.get_value()]
    }


def test_state_and_classes_come_over(pair):
    model, ours = pair
    assert isinstance(ours, nnx.Module)
    assert [cls.__name__ for cls in type(ours).__mro__[:3]] == ["Model", "Base", "Module"]
    assert type(ours.linear) is nnx.Linear
    assert (type(ours.calls).__name__, type(ours.calls).__mro__[1], ours.calls.note) == ("Count", nnx.Variable, "calls")
    assert ours.wrt is nnx.Param
    assert ours.linear.kernel.get_raw_value() is model.linear.kernel.get_raw_value()
    assert arrays(nnx, ours).keys() == arrays(theirs, model).keys()


def test_sharing_and_cycles_come_over(pair):
    _, ours = pair
    assert ours.tied is ours.linear
    assert ours.itself is ours


@pytest.mark.slow
def test_methods_run_over_weft_and_agree(pair):
    model, ours = pair
    for _ in range(2):
        np.testing.assert_allclose(ours(X), model(X), rtol=1e-6)
    assert ours.is_param
    assert type(ours.seen) is nnx.Intermediate
    assert isinstance(type(ours).make(0), nnx.Module)
    expected = arrays(theirs, model)
    for path, value in arrays(nnx, ours).items():
        np.testing.assert_allclose(value, expected[path], rtol=1e-6, atol=1e-8, err_msg=path)


@pytest.mark.slow
def test_a_converted_model_trains_as_it_did(pair):
    def train(lib, model):
        optimizer = lib.Optimizer(model, optax.adam(0.1), wrt=lib.Param)

        @lib.jit
        def step(model, optimizer):
            grads = lib.grad(lambda model: (model(X) ** 2).sum())(model)
            optimizer.update(model, grads)

        step(model, optimizer)
        return model

    expected = arrays(theirs, train(theirs, pair[0]))
    for path, value in arrays(nnx, train(nnx, pair[1])).items():
        np.testing.assert_allclose(value, expected[path], rtol=1e-5, atol=1e-6, err_msg=path)


def test_optimizers_and_states_come_over():
    model = theirs.Linear(2, 2, rngs=theirs.Rngs(0))
    optimizer = theirs.Optimizer(model, optax.adam(1e-3), wrt=theirs.Param)
    ours = nnx.convert({"model": model, "optimizer": optimizer})
    assert ours["optimizer"].wrt is nnx.Param
    assert type(ours["optimizer"].opt_state[0]) is type(optimizer.opt_state[0])
    assert type(ours["optimizer"].opt_state[0].mu) is nnx.State
    state = nnx.convert(theirs.state(model))
    assert type(state["kernel"]) is nnx.Param
    nnx.update(ours["model"], state)


def test_a_class_is_rebased_once_and_may_be_given():
    assert type(nnx.convert(Model.make(0))) is type(nnx.convert(Model.make(1)))

    class Mine(nnx.Module):
        def first(self, x):
            return "mine"

    assert nnx.convert(Model.make(0), classes={Model: Mine}).first(0) == "mine"


def test_other_things_are_given_back():
    value = {"a": [1, jnp.ones(2)], "b": nnx.Param(1)}
    assert nnx.convert(value) is value


def test_what_is_wefts_beside_an_object_of_flax_is_the_same_object():
    own, of_flax = nnx.Linear(2, 3, rngs=nnx.Rngs(0)), theirs.Linear(2, 3, rngs=theirs.Rngs(0))
    converted = nnx.convert({"a": own, "b": of_flax, "c": [own, own.kernel]})
    assert converted["a"] is converted["c"][0] is own
    assert converted["c"][1] is own.kernel
    assert type(converted["b"]) is nnx.Linear
    assert type(nnx.convert([nnx.List([nnx.data(of_flax)])])[0][0]) is nnx.Linear


class Decorated(theirs.Module):
    def __init__(self):
        self.w = theirs.Param(jnp.ones(2))

    @theirs.jit
    def __call__(self, x):
        return x * self.w


def test_what_the_real_library_made_in_a_class_is_refused():
    with pytest.raises(TypeError, match=r"Decorated\.__call__ is an object of the real flax\.nnx") as error:
        nnx.convert({"a": Decorated()})
    assert "python -m weft.nnx" in str(error.value)


def test_a_graphdef_is_refused():
    with pytest.raises(TypeError, match=r"a GraphDef of flax\.nnx cannot be converted"):
        nnx.convert(theirs.graphdef(Model.make(0)))


def linear():
    return theirs.Linear(2, 2, rngs=theirs.Rngs(0))


MEETINGS = {
    "split": lambda: nnx.split(linear()),
    "split in tree mode": lambda: nnx.split(linear(), graph=False),
    "state of a list": lambda: nnx.state([linear()]),
    "a Variable": lambda: nnx.split(linear().kernel),
    "clone": lambda: nnx.clone(linear()),
    "update": lambda: nnx.update(nnx.Dict(), theirs.state(linear())),
    "merge": lambda: nnx.merge(*theirs.split(linear())),
    "jit": lambda: nnx.jit(lambda m: m)(linear()),
    "jit of a Variable": lambda: nnx.jit(lambda v: v)(linear().kernel),
    "jit in tree mode": lambda: nnx.jit(lambda m: m, graph=False)(linear()),
    "vmap": lambda: nnx.vmap(lambda m: m)({"a": linear()}),
    "grad": lambda: nnx.grad(lambda m: 1.0)(linear()),
    "an attribute": lambda: nnx.Dict(a=linear()),
    "an optimizer": lambda: nnx.Optimizer(linear(), optax.sgd(0.1), wrt=nnx.Param),
    "to_record": lambda: nnx.to_record(linear()),
}


@pytest.mark.parametrize("meet", MEETINGS.values(), ids=MEETINGS)
def test_an_object_of_the_real_library_is_refused(meet):
    with pytest.raises(ForeignObjectError, match=r"is an object of the real flax\.nnx, not of weft\.nnx") as error:
        meet()
    assert "nnx.convert(obj)" in str(error.value)
