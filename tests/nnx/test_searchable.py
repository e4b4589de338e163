"""The first line of an error has the words that flax's users search for."""

import jax.numpy as jnp
import pytest
from weft import nnx


class Model(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))


class NoTree(nnx.Pytree, pytree=False):
    pass


def shared():
    model = Model()
    model.v = model.w
    return model


def with_data(value):
    model = nnx.Dict(a="static")
    model.a = value


class Late(nnx.Module):
    def __init__(self):
        self.layers = []
        self.layers.append(nnx.Param(1))


def scanned(f, *args, **options):
    return nnx.scan(f, in_axes=nnx.Carry, out_axes=nnx.Carry, length=3, **options)(*args)


ERRORS = {
    "shared in a tree": (lambda: nnx.split(shared(), graph=False), "Duplicate Param.* found at paths"),
    "shared in what is given at first": (
        lambda: nnx.jit_partial(lambda a, b: a, Model(), shared(), graph=False),
        "Duplicate Param.* found at paths",
    ),
    "no tree": (lambda: nnx.split([NoTree()], graph=False), r"pytree=False. Found at path: \[0\]"),
    "returned": (lambda: nnx.jit(lambda m: m, graph_updates=False)(Model()), "Duplicate Param.* Variable aliasing"),
    "data declared static": (lambda: with_data(nnx.static(jnp.ones(2))), "Found data in value of type 'ArrayImpl'"),
    "data assigned": (lambda: with_data(["a", jnp.ones(2)]), "Found data on value of type 'list'"),
    "data that came later": (Late, "Found unexpected data on value of type 'list'"),
    "states of two structures": (
        lambda: nnx.merge(nnx.unpack(Model()), nnx.unpack(nnx.Dict(a=nnx.Param(1)))),
        "GraphDef must be the same",
    ),
    "a state among graph states": (
        lambda: nnx.merge(nnx.unpack(Model()), nnx.state(Model())),
        "Expected GraphState object",
    ),
    "two carries": (lambda: nnx.scan(in_axes=(nnx.Carry, nnx.Carry)), "Found multiple Carry definitions"),
    "a carry that does not come out": (
        lambda: nnx.scan(in_axes=(nnx.Carry, 0), out_axes=0),
        "If one of in_axes or out_axes has Carry, the other must also have Carry",
    ),
    "a carry beside the carry": (
        lambda: scanned(lambda m, x: m, Model(), 0),
        "When in_axes=Carry, the function must take exactly one argument",
    ),
    "another object carried out": (lambda: scanned(nnx.clone, Model()), "Carry references must be the same"),
    "another Variable carried out": (
        lambda: scanned(nnx.clone, Model(), graph_updates=False),
        "scan Variable identity must be preserved",
    ),
    "an object as a prefix": (lambda: nnx.vmap(in_axes=(Model(),)), "Graph nodes are not allowed as prefixes"),
    "a Variable as a prefix": (
        lambda: nnx.vmap(in_axes=(nnx.Param(0),), graph=False),
        "Variables prefixes are not supported",
    ),
    "a bound method": (lambda: nnx.eval_shape(nnx.Linear(2, 2, rngs=nnx.Rngs(0)).__call__, 1), "bound methods"),
    "filters that leave something": (lambda: nnx.split(Model(), nnx.BatchStat), "Non-exhaustive filters, got a"),
    "no streams": (lambda: nnx.Dropout(0.5)(jnp.ones(2)), "`deterministic` is False, but no `rngs` argument was"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_begins_with_the_words_that_flax_has_for_it(name):
    call, words = ERRORS[name]
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert caught.match(rf"\A[^\n]*{words}")


def test_what_a_trace_counts_does_not_make_its_loop_trace_again():
    count = 0

    @nnx.scan
    def step(carry, x):
        nonlocal count
        count += 1
        return carry + x, carry

    for _ in range(3):
        step(jnp.array(0), jnp.arange(3))
    assert count == 1


def test_prefixes_made_together_tell_that_a_variable_is_under_two():
    model, other = Model(), Model()
    other.w = model.w
    axes = nnx.prefix((model, other), lambda path, leaf: path[0], graph=True)
    f = nnx.vmap(lambda model, other: model.w + other.w, in_axes=axes, graph=True, graph_updates=False)
    with pytest.raises(ValueError, match=r"Inconsistent aliasing(.|\n)*at: model.w: 0\n  at: other.w: 1"):
        f(model, other)
