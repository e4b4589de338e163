"""Errors about objects of another trace level say which, by the name that the user's code knows it by, and where."""

import inspect
import types

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.core.errors import TraceLevelError

X = jnp.ones((2, 2))


class Counter(nnx.Module):
    def __init__(self):
        self.count = nnx.Variable(jnp.array(0))
        self.layers = nnx.List([nnx.BatchNorm(2, rngs=nnx.Rngs(0))])

    def __call__(self, x):
        self.count[...] += 1
        return self.layers[0](x)


class Trainer:
    """Not a Module; it holds one."""

    def __init__(self, model):
        self.model = model

    def step(self, x):
        return nnx.jit(lambda x: self.model(x))(x)


GLOBAL = Counter()


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def by_closure(model):
    nnx.jit(lambda x: model(x))(X)


def by_attribute(model):
    Trainer(model).step(X)


def by_global(model):
    nnx.jit(lambda x: GLOBAL(x))(X)


SETTINGS = types.ModuleType("settings")


def by_module(model):
    SETTINGS.model = model
    nnx.jit(lambda x: SETTINGS.model(x))(X)


def in_plain_jax(model):
    jax.jit(lambda x: model(x))(X)


def nested(model):
    nnx.jit(lambda given, x: nnx.grad(lambda x: given(x).sum())(x))(model, X)


@pytest.mark.parametrize(
    ("program", "path"),
    [
        (by_closure, "model.count"),
        (by_attribute, "self.model.count"),
        (by_global, "GLOBAL.count"),
        (by_module, "SETTINGS.model.count"),
        (in_plain_jax, "model.count"),
        (nested, "given.count"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_variable_is_named_by_what_closes_over_it(program, path):
    model = Counter()
    with pytest.raises(TraceLevelError) as caught:
        program(model)
    line = line_of(Counter.__call__, "self.count[...] += 1")
    assert caught.value.at == (f"{path}, mutated in __call__ (test_trace_levels.py:{line})",)
    assert int(model.count[...]) == 0


def test_a_layers_own_statistics_are_named_too():
    model = Counter()
    with pytest.raises(TraceLevelError, match=r"at: model\.layers\[0\]\.mean, mutated in <lambda>"):
        nnx.jit(lambda x: model.layers[0](x))(X)


def test_an_object_is_named():
    model = Counter()

    def rename(x):
        model.name = "another"
        return x

    with pytest.raises(TraceLevelError, match=r"at: model, mutated in rename \(test_trace_levels\.py:\d+\)"):
        nnx.vmap(rename)(X)
    assert not hasattr(model, "name")


def test_an_object_given_to_another_transform_is_named():
    model = Counter()

    def step(x):
        return nnx.vmap(lambda m, x: x, in_axes=(None, 0))(model, x)

    with pytest.raises(ValueError, match=r"at: model, given to a transform in step \(test_trace_levels\.py:\d+\)"):
        nnx.jit(step)(X)


class Foreign:
    """Its attributes cannot be had."""

    @property
    def __dict__(self):
        raise RuntimeError("not now")


class Everything:
    """As `sys.modules` is: whoever looks into it looks at the whole process."""

    looks = 0


def look(everything):
    Everything.looks += 1
    return (), None


jax.tree_util.register_pytree_node(Everything, look, lambda _, children: Everything())


SETTINGS.everything = Everything()


def test_what_a_module_holds_beside_is_not_looked_through():
    def body(x):
        SETTINGS.last = 1
        GLOBAL.count[...] += 1

    with pytest.raises(TraceLevelError, match=r"at: GLOBAL\.count, mutated in body"):
        jax.jit(body)(X)
    assert Everything.looks == 0


NO_GRAPHS = {"unsorted": {int: 1, str: 2}, "foreign": Foreign()}


@pytest.mark.parametrize("name", NO_GRAPHS)
def test_values_that_are_no_graphs_do_not_hide_the_error(name):
    no_graph = NO_GRAPHS[name]
    counter = Counter()

    def body(x):
        counter.count[...] += 1
        return x

    assert no_graph is not counter

    with pytest.raises(TraceLevelError, match=r"at: counter\.count, mutated in body"):
        jax.jit(body)(X)


def test_a_layer_with_the_wrong_features_says_so_beside_values_that_are_no_graphs():
    table = NO_GRAPHS["unsorted"]
    with pytest.raises(ValueError, match="Conv takes 2 features on the last axis, not 5"):
        nnx.Conv(2, len(table), (3, 3), rngs=nnx.Rngs(0))(jnp.ones((3, 5)))


def test_a_call_that_only_reads_may_be_made_from_another_level_however_often_it_was_made_before():
    model = nnx.Dict(w=nnx.Param(jnp.ones(2)))
    total = nnx.jit(lambda model: model.w[...].sum())
    for _ in range(4):
        total(model)
    assert float(jax.jit(lambda x: total(model) + x)(1.0)) == 3.0
