"""Plain `jax.jit` over States and objects: hardly any Python in a compiled call, and nothing that a user could see."""

import copy
import gc
import pickle
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from weft import nnx
from weft.nnx.errors import TraceContextError
from weft.nnx.states import packed
from weft.nnx.variable.packed import all_leaves

BLOCKS = 25


class Block(nnx.Module):
    def __init__(self, i):
        self.kernel, self.bias = nnx.Param(jnp.full(2, i)), nnx.Param(jnp.full(2, -i), note="bias")


class Model(nnx.Module):
    def __init__(self, blocks=BLOCKS):
        self.blocks = nnx.List([Block(i) for i in range(blocks)])
        self.count = nnx.BatchStat(jnp.array(0))


class Pair(nnx.Module):
    def __init__(self):
        self.b = nnx.Dict(y=nnx.Param(jnp.array(1.0)), x=nnx.Cache(jnp.array(2.0)))


def example(nnx, value=1.0):
    return nnx.State({"b": {"y": nnx.Param(jnp.array(value)), "x": nnx.Cache(jnp.array(2.0), note="n")}, "a": {}})


def total(tree):
    return sum(x.sum() for x in jax.tree.leaves(tree))


def step(tree):
    return jax.tree.map(lambda x: x + 1, tree)


def python_calls(function, *args):
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return calls


def called(function, tree, times=4):
    for _ in range(times):
        out = function(tree)
    return out


@pytest.mark.parametrize("make", [Model, lambda: nnx.state(Model())], ids=["object", "state"])
def test_a_compiled_call_asks_python_about_no_variable(make):
    tree, f = make(), jax.jit(lambda tree: total(tree))
    called(f, tree)
    assert len(python_calls(f, tree)) < 12
    assert f._cache_size() == 1


def test_a_state_goes_from_step_to_step_without_being_rebuilt():
    f = jax.jit(lambda state: step(state))
    state = f(f(nnx.state(Model())))
    assert len(python_calls(f, state)) < 12
    assert f(state).blocks[3].kernel[...].tolist() == [6, 6]
    assert f._cache_size() == 1


def test_an_object_goes_into_the_call_after_that_which_returned_it_without_being_walked_over():
    f, g = jax.jit(lambda model: step(model)), jax.jit(lambda model: total(model))
    model = called(f, Model())
    called(g, model)
    returned = f(model)
    assert len(python_calls(g, returned)) < 12
    assert int(g(returned)) == int(total(returned))
    assert f._cache_size() == g._cache_size() == 1


def change_value(state):
    state["b"]["y"][...] = 7.0


def replace_variable(state):
    state["b"]["y"] = nnx.Param(jnp.array(7.0))


def rename(state):
    state["b"]["z"] = state["b"].pop("y")


def add(state):
    state.a.new = nnx.Param(jnp.array(5.0))


def delete(state):
    del state["b"]["y"]


def set_metadata(state):
    state["b"]["y"].set_metadata(note="new")


def set_a_container(state):
    state["b"]["y"].set_value({"p": jnp.array(3.0), "q": jnp.array(4.0)})


def through_the_mapping(state):
    state.raw_mapping["b"]["y"] = nnx.Cache(jnp.array(7.0))


CHANGES = (change_value, replace_variable, rename, add, delete, set_metadata, set_a_container, through_the_mapping)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("times", [1, 5])
def test_every_change_of_a_state_is_seen_by_the_next_call(change, times):
    seen = []
    f = jax.jit(lambda state: (seen.append(jax.tree.structure(state)), total(state))[1])
    for state in (example(nnx), jax.jit(step)(example(nnx)), jax.jit(step)(jax.jit(step)(example(nnx)))):
        called(f, state, times)
        repr(state)  # which is to look
        called(f, state)
        change(state)
        assert float(f(state)) == float(total(state))
        assert jax.tree.structure(state) in seen


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "without exact counts"])
def test_a_part_that_somebody_holds_may_change_at_any_time(counted, monkeypatch):
    if not counted:  # as in Python without a GIL
        monkeypatch.setattr(packed, "COUNTS_ARE_EXACT", False)
    state, f = example(nnx), jax.jit(total)
    part, inner = state["b"], state.raw_mapping["b"]
    called(f, state)
    part["y"] = nnx.Param(jnp.array(7.0))
    assert float(f(state)) == 9.0
    called(f, state)
    inner["y"] = nnx.Param(jnp.array(8.0))
    assert float(f(state)) == 10.0
    whole = state.raw_mapping
    called(f, state)
    whole["c"] = nnx.Param(jnp.array(1.0))
    assert float(f(state)) == 11.0


def test_a_change_by_another_thread_during_a_call_is_seen_by_the_next_call():
    # The other thread is played by a hook that changes the State before each call of a function of C's.
    compiled, calls = jax.jit(total), []

    def count(frame, event, _):
        if event == "c_call" and frame.f_code.co_filename == packed.__file__:
            calls.append(frame.f_lineno)
            if len(calls) == moment:
                sys.setprofile(None)
                state["b"]["y"] = nnx.Param(jnp.array(float(moment)))

    moment = 0
    while moment == len(calls):
        calls.clear()
        moment, state = moment + 1, nnx.state(Pair())
        called(compiled, state)
        repr(state)
        sys.setprofile(count)
        try:
            compiled(state)
        finally:
            sys.setprofile(None)
        assert float(compiled(state)) == float(total(state))
    assert moment > 8


def test_threads_that_read_a_returned_state_at_once_get_the_same_variables():
    f, barrier = jax.jit(step), threading.Barrier(4)
    state = f(f(nnx.state(Model())))

    def read(_):
        barrier.wait()
        return state["count"]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(50):
                assert len({*map(id, threads.map(read, range(4)))}) == 1
                state = f(state)
    finally:
        sys.setswitchinterval(interval)


def test_classes_of_arrays_are_let_go_of():
    classes = [type(f"Array{n}", (np.ndarray,), {}) for n in range(100)]
    assert all(all_leaves([np.zeros(1).view(kind)]) for kind in classes)
    alive = weakref.WeakSet(classes)
    classes.clear()
    gc.collect()
    assert len(alive) < 50


def change_attribute(model):
    model.blocks[0].kernel = nnx.Param(jnp.array([100, 100]))


def change_static(model):
    model.size = 3


def change_list(model):
    model.blocks.append(Block(9))


def behind_its_back(model):
    vars(model.blocks[0])["kernel"] = nnx.Param(jnp.array([100, 100]))


def change_variable(model):
    model.blocks[1].bias.set_metadata(note="new")


def change_plain_list(model):
    model.plain[0] = nnx.Cache(jnp.array([100, 100]))


CHANGES_OF_OBJECTS = (
    change_attribute,
    change_static,
    change_list,
    behind_its_back,
    change_variable,
    change_plain_list,
)


@pytest.mark.parametrize("change", CHANGES_OF_OBJECTS, ids=lambda change: change.__name__)
@pytest.mark.parametrize("returned", [False, True])
def test_every_change_of_an_object_is_seen_by_the_next_call(change, returned):
    seen = []
    f = jax.jit(lambda model: (seen.append(jax.tree.structure(model)), total(model))[1])
    model = Model(2)
    if change is change_plain_list:
        model.plain = nnx.data([nnx.Param(jnp.array([1, 1]))])
    called(f, model)
    if returned:
        advance = jax.jit(lambda model: jax.tree.map(lambda x: x, model))
        model = advance(advance(advance(model)))
    change(model)
    assert int(f(model)) == int(total(model))
    assert jax.tree.structure(model) in seen
    model.count[...] += 5
    assert int(called(f, model)) == int(total(model))


class Options(dict):
    """Options that may change in place, with a hash that tells."""

    def __hash__(self):
        return hash(tuple(self.items()))


@pytest.mark.parametrize("returned", [False, True])
def test_a_static_value_that_changes_in_place_is_seen_by_the_next_call(returned):
    model, f = Model(2), jax.jit(lambda model: total(model) * model.options["rate"])
    model.options = nnx.static(Options(rate=1))
    if returned:
        model = called(jax.jit(lambda model: jax.tree.map(lambda x: x, model)), model)
    called(f, model)
    model.options["rate"] = 2
    assert int(f(model)) == int(total(model)) * 2


def test_what_is_shared_in_an_object_is_there_as_often_as_jax_sees_it():
    model, f = Model(1), jax.jit(total)
    model.again = model.blocks[0].kernel
    model.blocks[0].kernel[...] += 1
    called(f, model)
    assert int(f(model)) == int(total(model)) == 4


def test_a_state_shows_what_flaxs_does_before_and_after_calls():
    def looks(lib):
        state, f, double = example(lib), jax.jit(step), jax.jit(total)
        called(double, state)
        descriptions = []
        for each in (state, f(state), f(f(state))):
            paths = jax.tree_util.tree_leaves_with_path(each)
            boxes = jax.tree.leaves(each, is_leaf=lambda x: isinstance(x, lib.Variable))
            descriptions.append(
                (
                    [(path, float(leaf)) for path, leaf in paths],
                    [type(box).__name__ for box in boxes],
                    [box.get_metadata() for box in boxes],
                    list(each), list(each["b"]), repr(each), len(each), "b" in each,
                )
            )  # fmt: skip
            assert jax.tree.structure(each) == jax.tree.structure(state)
        return descriptions

    assert looks(nnx) == looks(flax.nnx)


def test_a_state_out_of_a_compiled_call_can_be_copied_pickled_and_changed():
    f = jax.jit(step)
    for make in (copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))):
        state = f(f(example(nnx)))
        twin = make(state)
        assert float(twin.b.y[...]) == 3.0
        twin["c"] = nnx.Param(jnp.array(1.0))
        assert "c" not in state
    model = Model(1)
    nnx.update(model, f(f(nnx.state(model))))
    assert model.blocks[0].kernel[...].tolist() == [2, 2]


def test_variables_belong_to_the_level_at_which_the_call_returned_them():
    f = jax.jit(step)
    state = f(f(example(nnx)))

    @jax.jit
    def write(x):
        state.b.y[...] = x
        return x

    with pytest.raises(TraceContextError):
        write(jnp.array(1.0))
    state.b.y[...] = jnp.array(1.0)


def test_keys_and_states_beside_other_things_go_through():
    rngs = nnx.state(nnx.Rngs(0))
    f = jax.jit(lambda pair, scale: (pair[0], {"s": step(pair[1])}, scale))
    for _ in range(4):
        new_rngs, inner, scale = f((rngs, example(nnx)), 2.0)
        rngs = new_rngs
    assert float(inner["s"].b.y[...]) == 2.0
    assert float(scale) == 2.0
    assert jnp.issubdtype(rngs.default.key[...].dtype, jax.dtypes.prng_key)
    assert f._cache_size() == 1


def test_a_subclass_made_in_its_own_way_is_always_whole():
    class Counted(nnx.State):
        def __init__(self, mapping, *, _copy=True):
            super().__init__(mapping, _copy=_copy)
            object.__setattr__(self, "made", True)

    f = jax.jit(step)
    state = f(f(Counted(dict(example(nnx).raw_mapping))))
    assert type(state) is Counted
    assert state.made
    assert float(state["b"]["y"][...]) == 3.0
