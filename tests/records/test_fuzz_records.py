"""Random programs over random records give what the same programs in plain JAX give."""

from __future__ import annotations

import re

import pytest

from . import fuzz_records as fuzz

pytestmark = pytest.mark.wide

SEEDS = range(100)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_records_compute_what_plain_jax_computes(seed):
    program = fuzz.random_program(seed)
    difference = fuzz.compare(program)
    assert difference is None, f"{difference}\n{fuzz.source(fuzz.shrunk(program))}"


# What the programs must contain, and in how many of them.
CONTENTS = {
    **dict.fromkeys(("weft.thread(", "weft.static()", "Annotated[", "weft.Module"), 60),
    **dict.fromkeys(("weft.jit(", "weft.vmap(", "weft.scan(", "weft.axes({"), 20),
    **dict.fromkeys(("weft.cond(", "weft.fori_loop(", "weft.value_and_grad(", "wrt="), 5),
    **dict.fromkeys(("weft.grad(", "weft.vjp(", "weft.remat(", "weft.while_loop(", "jax.jit(", "jax.vmap("), 2),
    "weft.switch(": 1,
    "def layer(x, part)": 5,
    **dict.fromkeys(("weft.custom_vjp", "eqx.tree_at(", "weft.tree.split(", "weft.tree.select(", "donate_argnums"), 5),
    **dict.fromkeys(
        ("weft.filters.PathContains(", "weft.filters.All(", "weft.filters.Not(", "lambda path, kind, leaf"), 5
    ),
    **dict.fromkeys(("next_key(", ".mixed", "(True, (2, 'b'))"), 10),
    **dict.fromkeys((".seen)", "def pair", "reset(r", "Own(", "reassembled(m)", "copy.copy(m)"), 5),
    **dict.fromkeys(("weft.jvp(", "moves = weft.tree.select(", "=None)", "pickle.loads(", "Box(m", "weft.at("), 2),
}


def test_the_programs_hold_what_there_is():
    texts = [fuzz.source(fuzz.random_program(seed)).split("# --- over records")[1] for seed in SEEDS]
    counts = {part: sum(part in text for text in texts) for part in CONTENTS}
    assert {part: times for part, times in counts.items() if times < CONTENTS[part]} == {}


# One function over records and over dicts, and what is wrong with the first.
CLASS = "import weft\nclass M(weft.Module):\n    w: jax.Array\n    c: float\nm = M(floats(1, (3,)), 0.5)\n"
WRONG = {
    "x: \\[": ("x * 2, m", "x, m"),
    "\\.w: \\[": ("x, m.replace(w=m.w + 1)", "x, m"),
    "\\.w: a float instead of an array": ("x, m.replace(w=1.0)", "x, m"),
    "configuration at \\.c is 1, was 0\\.5": ("x, m.replace(c=1)", "x, m"),
    "\\.w: float16\\(3,\\) instead of float32\\(3,\\)": ("x, m.replace(w=m.w.astype(jnp.float16))", "x, m"),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_difference_is_found(message, monkeypatch):
    difference = _compared(*WRONG[message], "m", monkeypatch)
    assert difference is not None
    assert re.search(message, difference)


def test_a_difference_after_what_happens_between_two_calls_is_found(monkeypatch):
    same = "x, m", "x, m"
    assert _compared(*same, "m", monkeypatch) is None
    difference = _compared(*same, "m.replace(w=m.w + 1)", monkeypatch)
    assert difference is not None
    assert re.search("between two calls, \\.w: \\[", difference)


def _compared(ours, theirs, between, monkeypatch):
    record = fuzz.records.Record(
        fuzz.records.Schema("M", [fuzz.records.Field("w", "", None), fuzz.records.Field("c", "", None)]),
        (fuzz.records.Array("f", 1), fuzz.records.Configuration("number", "0.5")),
    )
    program = fuzz.Program(record, [fuzz.Level([])])
    body = "\nx = floats(0, (3,))\ndef run(m, x): return "
    rest = f"\ndef made(): return m, x\ndef between(m): return {between}"
    monkeypatch.setattr(fuzz, "weft_text", lambda program: CLASS + body + ours + rest)
    monkeypatch.setattr(fuzz, "plain_text", lambda program: "m = {'.w': floats(1, (3,))}" + body + theirs)
    return fuzz.compare(program)


def test_a_program_that_differs_is_made_smaller(monkeypatch):
    program = next(p for p in map(fuzz.random_program, SEEDS) if "jnp.sin" in fuzz.weft_text(p))
    right = fuzz.weft_text
    monkeypatch.setattr(fuzz, "weft_text", lambda program: right(program).replace("run = ", "run = lambda m, x: "))
    smaller = fuzz.shrunk(program)
    assert len(smaller.levels) == 1
    assert smaller.levels[0].before == []
