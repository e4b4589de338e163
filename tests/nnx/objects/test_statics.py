"""Static attributes without a hash (configurations, dicts, lists) cross every transform, and their changes are seen."""

import argparse
import collections
import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.nnx.graphs.plan import plan_of
from weft.nnx.objects.stability import snapshot


@dataclasses.dataclass
class Config:
    width: int = 3
    layers: list = dataclasses.field(default_factory=lambda: [1])


class Model(nnx.Module):
    def __init__(self, config):
        self.config = config
        self.w = nnx.Param(jnp.ones(2))


class Slots:
    """Equal by a slot, and without a hash."""

    __slots__ = ("width",)

    def __init__(self, width):
        self.width = width

    def __eq__(self, other):
        return isinstance(other, Slots) and self.width == other.width

    def __repr__(self):
        return f"Slots({self.width})"


STATICS = {
    "dataclass": (Config, lambda c: setattr(c, "width", 5)),
    "inside of a dataclass": (Config, lambda c: c.layers.append(5)),
    "dict": (lambda: {"width": 3}, lambda c: c.update(width=5)),
    "nested dict": (lambda: {"a": {"b": [1]}}, lambda c: c["a"]["b"].append(5)),
    "list": (lambda: [3], lambda c: c.append(5)),
    "set": (lambda: {3}, lambda c: c.add(5)),
    "tuple of lists": (lambda: ([3],), lambda c: c[0].append(5)),
    "namespace": (lambda: types.SimpleNamespace(width=3), lambda c: setattr(c, "width", 5)),
    "dict of slices": (lambda: {"width": slice(3)}, lambda c: c.update(width=slice(5))),
    "list in a slice": (lambda: slice([3]), lambda c: c.stop.append(5)),
    "slots": (lambda: Slots(3), lambda c: setattr(c, "width", 5)),
    "arguments": (lambda: argparse.Namespace(width=3), lambda c: setattr(c, "width", 5)),
}


def total(m):
    return m.w.sum()


TRANSFORMS = {
    "jit": nnx.jit,
    "jit without updates": lambda f: nnx.jit(f, graph_updates=False),
    "grad": nnx.grad,
    "vmap": lambda f: nnx.vmap(f, in_axes=None, axis_size=2),
    "remat": nnx.remat,
    "cond": lambda f: lambda m: nnx.cond(True, f, f, m),
    "scan": lambda f: (
        lambda m: nnx.scan(lambda c, m: (c, f(m)), in_axes=(nnx.Carry, None), out_axes=(nnx.Carry, 0), length=2)(0.0, m)
    ),
    "tree": lambda f: nnx.jit(f, graph=False),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("kind", STATICS)
def test_a_static_without_a_hash_crosses_every_transform(kind, transform):
    model = Model(STATICS[kind][0]())
    config = model.config
    TRANSFORMS[transform](total)(model)
    assert model.config is config


@pytest.mark.parametrize("updates", [True, False])
@pytest.mark.parametrize("kind", STATICS)
def test_a_function_is_traced_again_only_when_the_static_has_changed(kind, updates):
    make, mutate = STATICS[kind]
    traced = []
    run = nnx.jit(lambda m: traced.append(repr(m.config)), graph_updates=updates)
    model = Model(make())
    run(model)
    run(model)
    run(Model(make()))
    assert len(traced) == 1
    mutate(model.config)
    run(model)
    run(model)
    assert traced[1:] == [repr(model.config)]


def test_a_mutation_inside_of_a_function_reaches_the_callers_static():
    model = Model({"calls": 0})
    nnx.jit(lambda m: m.config.update(calls=1))(model)
    assert model.config == {"calls": 1}


def test_a_structure_with_such_a_static_is_a_static_argument_of_jax():
    graphdef, state = nnx.split(Model([3]))
    run = jax.jit(lambda graphdef, state: total(nnx.merge(graphdef, state)), static_argnums=0)
    assert run(graphdef, state) == run(*nnx.split(Model([3]))) == 2


class Log(collections.deque):
    """Mutable, without a hash, with a `__dict__` that does not tell."""


@pytest.mark.parametrize(
    ("static", "is_reused"),
    [
        ({"a": [1]}, True),
        (Config(), True),
        (types.SimpleNamespace(a=1), True),
        (Slots(1), True),
        (slice(1, 2), True),
        ((slice(None), 3), True),
        (slice([1]), True),
        (Log([1]), False),
        ([bytearray(1)], False),
    ],
)
def test_plans_are_kept_with_statics_that_can_be_watched(static, is_reused):
    model = Model(static)
    assert (plan_of((model,)) is plan_of((model,))) is is_reused


def test_what_cannot_be_watched_is_seen_all_the_same():
    model = Model(Log([1]))
    before = nnx.graphdef(model)
    model.config = Log([1])
    assert nnx.graphdef(model) == before
    model.config = Log([2])
    assert nnx.graphdef(model) != before


def test_an_equality_that_cannot_compare_arrays_is_not_asked_of_one_object():
    config = Own(jnp.ones(2))
    with pytest.raises(ValueError, match="truth value"):
        bool(config == Own(jnp.ones(2)))
    model = Model(config)
    run = nnx.jit(lambda m: m.w * m.config.width)
    assert run(model).tolist() == run(model).tolist() == [1.0, 1.0]
    assert nnx.graphdef(model) == nnx.graphdef(model)


def test_another_slice_is_another_function():
    model = Model(slice(1))
    run = nnx.jit(lambda m: m.w[m.config])
    assert run(model).shape == run(model).shape == (1,)
    model.config = slice(2)
    assert run(model).shape == (2,)


def test_snapshots_of_what_holds_itself_end():
    config: dict = {"a": [1]}
    config["me"] = config
    before = snapshot(config)
    assert before == snapshot(config)
    config["a"].append(2)
    assert before != snapshot(config)


class Own:
    """A configuration with an `==` of its own, and no hash."""

    def __init__(self, width=3):
        self.width, self.memo = width, {}

    def __eq__(self, other):
        return isinstance(other, Own) and self.width == other.width


@dataclasses.dataclass
class Remembers:
    width: int = 3
    memo: dict = dataclasses.field(default_factory=dict, compare=False)


@dataclasses.dataclass(eq=True, slots=True)
class Slotted:
    width: int = 3
    memo: dict = dataclasses.field(default_factory=dict, compare=False)


@pytest.mark.parametrize("config", [Own, Remembers, Slotted])
def test_a_static_value_is_what_its_own_equality_says(config):
    first, second = Model(config()), Model(config())
    traces = []

    @nnx.jit
    def run(m):
        traces.append(m.config.width)
        return m.w * m.config.width

    for i in range(3):
        first.config.memo[i] = jnp.ones(2) if config is not Own else i
        assert nnx.graphdef(first) == nnx.graphdef(second)
        run(first), run(second)
    assert traces == [3]
    first.config.width = 5
    assert nnx.graphdef(first) != nnx.graphdef(second)
    assert run(first).tolist() == [5.0, 5.0]
    assert traces == [3, 5]


def test_graphdefs_of_equal_linen_modules_are_equal():
    linen = pytest.importorskip("flax.linen")

    class Layer(linen.Module):
        sizes: list

        @linen.compact
        def __call__(self, x):
            return linen.Dense(self.sizes[0])(x)

    def model_of(size):
        model = nnx.bridge.ToNNX(Layer([size]), rngs=nnx.Rngs(0))
        nnx.bridge.lazy_init(model, jnp.ones((1, 2)))
        return nnx.graphdef(model)

    assert model_of(3) == model_of(3)
    assert model_of(3) != model_of(4)


class Asked:
    """A configuration that counts how often it is asked whether it is equal, or for its hash."""

    def __init__(self):
        self.width, self.act, self.eqs, self.hashes = 3, Activation(), 0, 0

    def __eq__(self, other):
        self.eqs += 1
        return isinstance(other, Asked) and (self.width, self.act) == (other.width, other.act)

    __hash__ = None


class AskedForHash(Asked):
    def __hash__(self):
        self.hashes += 1
        return hash(self.width)


class Activation:
    """Equal to itself alone, and so no copy of it is."""


def asked_at(call, config, warm=6):
    for _ in range(warm):
        call()
    before = config.eqs + config.hashes
    call()
    return config.eqs + config.hashes - before


CALLS = {
    **{name: (lambda transform: lambda m: lambda: transform(m))(make(total)) for name, make in TRANSFORMS.items()},
    "cached_partial": lambda m: nnx.cached_partial(nnx.jit(total), m),
    "split": lambda m: lambda: nnx.split(m),
    "jax.jit": lambda m: (lambda f: lambda: f(*nnx.split(m)))(jax.jit(lambda graphdef, state: state)),
}


@pytest.mark.parametrize("kind", [Asked, AskedForHash])
@pytest.mark.parametrize("name", CALLS)
def test_a_value_is_asked_once_a_call_however_many_attributes_it_is(name, kind):
    model = Model(kind())
    model.parts = nnx.List([Model(model.config), Model(model.config)])
    assert asked_at(CALLS[name](model), model.config) == 1


def test_a_value_is_asked_once_when_something_else_of_the_structure_has_changed():
    model = Model(Asked())
    f = nnx.jit(total)

    def call():
        model.flag = True
        f(model)

    assert asked_at(call, model.config) == 1


def test_a_value_that_holds_what_equals_itself_alone_is_traced_once():
    traced = []
    f = nnx.jit(lambda m: traced.append(m))
    model = Model(Asked())
    for _ in range(4):
        f(model)
    assert len(traced) == 1
    model.config.width = 4
    f(model)
    assert len(traced) == 2


@pytest.mark.parametrize("static", [float("nan"), [float("nan")], Config(float("nan"))], ids=repr)
def test_a_static_that_is_no_number_is_traced_once(static):
    traced = []
    f = nnx.jit(lambda m: traced.append(m))
    for _ in range(3):
        f(Model(static))
    assert len(traced) == 1


@pytest.mark.parametrize("kind", [Asked, AskedForHash])
def test_a_value_is_asked_once_a_call_when_models_of_one_make_take_turns(kind):
    models = [Model(kind()), Model(kind())]
    f = nnx.jit(total)

    def call():
        for model in models:
            f(model)

    assert [asked_at(call, model.config) for model in models] == [1, 1]
