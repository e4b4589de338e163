"""A jitted function that is called again and again, with mutations in between, does what a fresh one does each time.

The second call of a make and those after it take the quick way in and out; it must never be stale.
"""

import copy

import hypothesis
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st
from weft import nnx

from .. import agreement

ARRAY = jnp.array([1.0, 2.0])
# Each example compiles several functions, so that a few must do.
EXAMPLES = hypothesis.settings().max_examples * 2 // 5


class Node(nnx.Module):
    def __init__(self, value):
        self.w = nnx.Param(ARRAY * value)
        self.b = nnx.BatchStat(ARRAY)
        self.size = 1
        self.c = nnx.List()


# What happens to the model between two calls, outside of any transform.
MUTATIONS = {
    "nothing": lambda m, i: None,
    "value": lambda m, i: m.w.set_value(ARRAY * i),
    "another shape": lambda m, i: m.b.set_value(jnp.full((i % 2 + 1, 2), 1.0)),
    "another dtype": lambda m, i: m.b.set_value((ARRAY * i).astype("bfloat16")),
    "static": lambda m, i: setattr(m, "size", i % 3),
    "new Variable": lambda m, i: setattr(m, f"new{i % 2}", nnx.Cache(ARRAY * i)),
    "new array": lambda m, i: setattr(m, "raw", ARRAY * i),
    "swap": lambda m, i: (lambda w, b: (setattr(m, "w", b), setattr(m, "b", w)))(m.w, m.b),
    "replace": lambda m, i: setattr(m, "w", nnx.Param(ARRAY * i)),
    "delete": lambda m, i: delattr(m, "new0") if hasattr(m, "new0") else None,
    "append": lambda m, i: m.c.append(Node(i)) if len(m.c) < 2 else None,
    "drop": lambda m, i: m.c.pop() if len(m.c) else None,
    "tie": lambda m, i: setattr(m, "tied", m.w),
    "tie below": lambda m, i: setattr(m.c[0], "w", m.w) if len(m.c) else None,
    "cycle": lambda m, i: setattr(m.c[0], "parent", m) if len(m.c) else None,
    "metadata": lambda m, i: m.w.set_metadata(note=i % 2),
    "vars": lambda m, i: vars(m).__setitem__("size", i),
    "update": lambda m, i: nnx.update(m, {"w": nnx.Param(ARRAY * i)}),
}


def step(m, x):
    """Its branches depend on the structure, and some change it."""
    m.b[...] = m.b[...] + (m.w[...] * x).sum().astype(m.b.dtype)
    if len(m.c):
        m.c[0].w[...] = m.c[0].w[...] + (m.w[...].sum() * m.size).astype(m.c[0].w.dtype)
    if hasattr(m, "new1") and m.size == 2:
        m.new1 = nnx.BatchStat(m.w[...] * 2)
    if hasattr(m, "raw"):
        m.raw = m.raw + 1
    return {"out": m.w[...] * x, "size": m.size * x.sum()}


def returning(m, x):
    step(m, x)
    return m, m.w


MODES = {"updates": {}, "graph": {"graph_updates": False}}
sequences = st.lists(st.tuples(st.sampled_from(sorted(MUTATIONS)), st.integers(1, 6)), min_size=1, max_size=7)


def after(function, model, x):
    """What one call did: the output and the model afterwards, with the objects that the model was made of before."""
    before = agreement.members(nnx, model)
    return agreement.observe((function(model, x), model, before), nnx)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", [step, returning])
@hypothesis.given(sequences)
@hypothesis.settings(max_examples=EXAMPLES)
def test_calls_between_mutations_are_those_of_a_fresh_jit(function, mode, mutations):
    if function is returning and mode != "updates":
        return  # an argument cannot be returned there
    jitted = nnx.jit(function, **MODES[mode])
    model = Node(1.0)
    for name, number in mutations:
        MUTATIONS[name](model, number)
        twin = copy.deepcopy(model)
        fresh = after(nnx.jit(lambda m, x: function(m, x), **MODES[mode]), twin, ARRAY)
        assert agreement.difference(fresh, after(jitted, model, ARRAY)) is None, name


@pytest.mark.slow
@hypothesis.given(sequences)
@hypothesis.settings(max_examples=max(1, EXAMPLES * 2 // 3))
def test_without_jit_it_is_the_same(mutations):
    jitted = nnx.jit(step)
    model, plain = Node(1.0), Node(1.0)
    for name, number in mutations:
        for m in (model, plain):
            MUTATIONS[name](m, number)
        assert agreement.difference(after(step, plain, ARRAY), after(jitted, model, ARRAY)) is None, name


@hypothesis.given(sequences)
@hypothesis.example([("another dtype", 1)] * 6 + [("swap", 1)])
@hypothesis.example([("nothing", 1), ("another shape", 1), ("nothing", 1), ("swap", 1)])
@hypothesis.settings(max_examples=max(1, EXAMPLES * 2 // 3))
def test_two_models_in_one_call(mutations):
    def both(m, n):
        # As a whole: a swap may have given it another shape than the other has.
        m.w.set_value(m.w[...] + n.w[...])
        n.b[...] = n.b[...] + 1

    jitted = nnx.jit(both)
    (m, n), (a, b) = (Node(1.0), Node(2.0)), (Node(1.0), Node(2.0))
    for i, (name, number) in enumerate(mutations):
        for first, second in ((m, n), (a, b)):
            MUTATIONS[name]((first, second)[i % 2], number)
            if number == 6:
                second.w = first.w
        both(a, b)
        jitted(m, n)
        assert agreement.difference(agreement.observe((a, b), nnx), agreement.observe((m, n), nnx)) is None, name
