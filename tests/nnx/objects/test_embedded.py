"""What a framework does that puts its own layers and variables on NNX's: as Keras does, by names that flax keeps."""

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.nnx.errors import TraceContextError


class Layer(nnx.Module):
    """Keeps its state among its attributes, and may be written to where its flag says so."""

    open = False

    def __new__(cls, *args, **kwargs):
        layer = super().__new__(cls)
        vars(layer)["_pytree__state"] = nnx.pytreelib.PytreeState()
        return layer

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(pytree=False, **kwargs)

    def _check_valid_context(self, error_msg):
        if not type(self).open:
            super()._check_valid_context(error_msg)


class Operation:
    """A plain base that comes after NNX's, and notes what its subclasses are made with."""

    def __new__(cls, *args):
        operation = super().__new__(cls)
        operation.config = args
        return operation


class Embedded(nnx.Module, Operation):
    def __init__(self, size):
        self.w = nnx.Param(jnp.ones(size))


class Derived(Embedded):
    def __init__(self, size, more):
        super().__init__(size)
        self.more = more


class Mixed(Derived, Operation):
    pass


class MadeByHand(nnx.Module):
    def __new__(cls, *args):
        return object.__new__(cls)

    def __init__(self, size):
        self.w = nnx.Param(jnp.ones(size))


class Dense(Layer):
    def __init__(self, size):
        self.w = nnx.Param(jnp.ones(size))


class Opened(Dense):
    open = True


class Named(nnx.Variable):
    """Keeps every attribute in the metadata too, where it survives a transform."""

    def __init__(self, value, name):
        super().__init__(value)
        self._name = name

    def __setattr__(self, name, value):
        self._var_metadata[name] = value


@pytest.mark.parametrize(("cls", "args"), [(Embedded, (2,)), (Derived, (2, 3)), (Mixed, (2, 3)), (MadeByHand, (2,))])
def test_a_plain_base_makes_the_object_where_it_has_a_new_of_its_own(cls, args):
    made = cls(*args)
    names = sorted(vars(made))
    assert names == sorted({"w", *(["config"] if issubclass(cls, Operation) else []), *(["more"] if args[1:] else [])})
    assert nnx.jit(lambda m: m.w.sum())(made) == 2
    for twin in (nnx.clone(made), nnx.merge(*nnx.split(made)), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert sorted(vars(twin)) == names
        assert getattr(twin, "config", args) == args


def test_a_state_that_is_put_among_the_attributes_is_no_attribute():
    layer = Dense(2)
    assert list(vars(layer)) == ["w"]
    assert list(nnx.state(layer)) == ["w"]
    assert layer._pytree__state.trace_state.is_valid()
    assert list(vars(nnx.clone(layer))) == list(vars(pickle.loads(pickle.dumps(layer)))) == ["w"]


def test_a_check_that_is_overridden_is_given_the_words_of_the_error_and_may_let_it_pass():
    @nnx.jit
    def write(x):
        closed.mark = 1

    closed = Dense(2)
    with pytest.raises(TraceContextError, match="Cannot mutate"):
        write(jnp.ones(2))
    closed = Opened(2)
    write(jnp.ones(2))
    assert closed.mark == 1


def test_an_object_of_an_inner_level_that_is_stamped_with_the_outer_one_belongs_there():
    made = []

    def shape(x):
        layer = Dense(3)
        for stamped in (layer, layer.w):
            stamped._trace_state._jax_trace = outer
        made.append(layer)
        return x

    outer = nnx.tracers.TraceState().jax_trace
    jax.eval_shape(shape, jnp.ones(2))
    made[0].mark = 2
    assert made[0].mark == 2
    assert Dense(1).w[...].shape == (1,)  # the level outside is what it was


def test_metadata_may_be_written_in_place_under_its_private_name():
    variable = Named(jnp.ones(2), "kernel")
    assert variable._name == "kernel"
    assert variable.get_metadata("_name") == "kernel"
    changed = nnx.jit(lambda v: v)(variable)
    assert changed._name == "kernel"
    assert dict(changed._var_metadata) == dict(variable._var_metadata)
    graphdef = nnx.graphdef(variable)
    variable._var_metadata["note"] = 1
    assert nnx.graphdef(variable) != graphdef
    assert variable.note == 1
    del variable._var_metadata["note"]
    assert nnx.graphdef(variable) == graphdef
    with pytest.raises(KeyError):
        del variable._var_metadata["note"]


def test_a_compiled_function_sees_metadata_that_was_written_in_place():
    variable = nnx.Param(jnp.array(3.0), factor=2)
    scaled = nnx.jit(lambda v: v[...] * v.factor)
    assert scaled(variable) == 6
    variable._var_metadata["factor"] = 3
    assert scaled(variable) == 9


def test_a_variable_is_taken_apart_and_set_by_the_names_that_flax_has():
    variable = nnx.Param(1.0, note="a")
    state = nnx.Variable.__getstate__(variable)
    assert state.keys() == {"_raw_value", "_trace_state", "_var_metadata"}
    twin = nnx.Param.__new__(nnx.Param)
    for name, value in state.items():
        object.__setattr__(twin, name, value)
    assert twin.note == "a"
    assert twin.get_value() == 1.0
    assert copy.deepcopy(variable).note == pickle.loads(pickle.dumps(variable)).note == "a"
