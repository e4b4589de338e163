"""Random programs give the same outputs, state, sharing and exceptions under flax.nnx and under weft.nnx."""

import collections
import itertools

import pytest

from . import fuzz

pytestmark = pytest.mark.wide

SEEDS = range(300)


# `make fuzz N=5000` runs as many as one likes.
@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", SEEDS[:150])
def test_both_libraries_agree(seed):
    text = fuzz.source(seed)
    _, difference = fuzz.compare(text)
    assert difference is None, f"{difference}\n{text}"


# What the programs must contain, and in how many of them.
CONTENTS = {
    **dict.fromkeys(("nnx.jit(", "nnx.scan(", "nnx.cond(", "nnx.vmap(", "nnx.shard_map(", "nnx.checkify("), 30),
    **dict.fromkeys(("nnx.switch(", "nnx.value_and_grad(", "nnx.remat(", "nnx.grad("), 30),
    **dict.fromkeys(("nnx.while_loop(", "nnx.fori_loop(", "nnx.pmap(", "nnx.split_rngs(", "nnx.StateAxes("), 20),
    **dict.fromkeys(("nnx.cached_partial(", "nnx.jit_partial(", "takes_updates=", "nondiff_argnums="), 3),
    **dict.fromkeys((" custom_vjp(", " custom_jvp(", "differentiate="), 10),
    **dict.fromkeys(("nnx.vjp(", "nnx.jvp(", "nnx.eval_shape(", "nnx.capture(", "m.drop("), 8),
    **dict.fromkeys(("nnx.Rngs(", "m.r.", "nnx.List("), 50),
    **dict.fromkeys((".sow(", "nnx.reseed(", "ref=True", "nnx.StateSharding(", "nnx.DiffState("), 10),
    **dict.fromkeys(("jax.new_ref(", "donate_argnums", ".set_metadata(", "nnx.pop(", ".perturb("), 3),
    **dict.fromkeys(fuzz.MODES.values(), 40),
    **dict.fromkeys(("stacked(", "fed(", ".config.", "= Config("), 40),
    **dict.fromkeys(("nnx.transform_metadata(", "(None, nnx.Carry, 0)", "out_sharding=", "nnx.prefix("), 2),
    **dict.fromkeys(fuzz.LAYERS, 1),
}


def test_the_programs_hold_what_there_is():
    texts = [fuzz.source(seed) for seed in SEEDS]
    counts = {part: sum(part in text for text in texts) for part in CONTENTS}
    assert {part: times for part, times in counts.items() if times < CONTENTS[part]} == {}


def test_custom_derivatives_are_drawn_below_and_above_every_transform():
    pairs = set()
    for seed in range(4000):
        nest = [level.transform for level in fuzz.Writer(seed).nest()]
        pairs |= {(above, below) for i, above in enumerate(nest) for below in nest[i + 1 :]}
    customs = ("custom_vjp", "custom_jvp")
    inner = set(fuzz.WRAPS) - set(fuzz.OUTERMOST)
    wanted = {*itertools.product(fuzz.WRAPS, customs), *itertools.product(customs, inner)}
    assert {pair for pair in wanted if pair[0] != pair[1]} - pairs == set()


def test_little_is_avoided():
    avoided = collections.Counter()
    for seed in SEEDS:
        writer = fuzz.Writer(seed)
        writer.program()
        avoided.update(dict.fromkeys(writer.avoided, 1))
    # Programs in which something was left out: docs/differences.md says why, for each.
    most = {
        "sharing in a loop in tree mode": 10,
        "structure under a scan's None or custom_vjp": 80,
        "refs where they do not work": 30,
        "metadata in jit and what is made of it": 110,
    }
    assert {what: times for what, times in avoided.items() if times > most[what]} == {}


PRELUDE = "class M(nnx.Module):\n    def __init__(self):\n        self.w = nnx.Param(jnp.ones(2))\nm = M()\n"


@pytest.mark.parametrize(
    ("flax", "weft", "expected"),
    [
        ("result = m.w", "result = nnx.Param(jnp.ones(2) + 1)", ".[1]: Values"),
        ("result = m, m.w", "result = m, nnx.clone(m).w", "Same(path='[0].w')"),
        ("result = 1 + 'a'", "result = 1", "only flax raises TypeError"),
        ("result = 1 + 'a'", "result = m.missing", "another exception"),
        ("result = 1", "result = m.missing", "only weft raises AttributeError"),
        ("m.tag = 1; result = m", "result = m", "keys"),
    ],
)
def test_a_difference_is_found(flax, weft, expected):
    both = f"{PRELUDE}if nnx.__name__.startswith('flax'):\n    {flax}\nelse:\n    {weft}\n"
    _, difference = fuzz.compare(both)
    assert expected.strip(".") in difference


def test_changes_that_an_exception_leaves_behind_are_found():
    text = f"{PRELUDE}def f(m):\n    m.w[...] = m.w[...] * 2\n    raise ValueError\nattempt(f, m)\nresult = None\n"
    end, difference = fuzz.compare(text)
    assert end == "partial write"
    assert "an exception left changes behind" in difference
