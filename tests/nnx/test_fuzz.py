"""Random programs give the same outputs, state, sharing and exceptions under flax.nnx and under weft.nnx."""

import collections
import importlib.util
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("weft_fuzz", Path(__file__).with_name("fuzz.py"))
fuzz = sys.modules["weft_fuzz"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz)

SEEDS = range(300)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_libraries_agree(seed):
    text = fuzz.source(seed)
    _, found = fuzz.compare(text)
    assert found is None, f"{found}\n{text}"


def test_the_programs_nest_every_transform_in_every_mode():
    texts = [fuzz.source(seed) for seed in SEEDS]
    for name in ("jit", "remat", "vmap", "scan", "grad", "value_and_grad", "checkify", "cond", "switch"):
        assert sum(f"nnx.{name}(" in text for text in texts) >= 15, name
    for name in ("while_loop", "fori_loop", "custom_vjp_updates", "custom_vjp_plain"):
        assert sum(f"{name}(nnx" in text or f"nnx.{name}(" in text for text in texts) >= 10, name
    for option in fuzz.MODES.values():
        assert sum(option in text for text in texts) >= 40, option


def test_little_is_avoided():
    avoided = collections.Counter()
    for seed in SEEDS:
        writer = fuzz.Writer(seed)
        writer.program()
        avoided.update(dict.fromkeys(writer.avoided, 1))
    # Programs in which something was left out: docs/differences.md says why, for each.
    most = {
        "mutation in custom_vjp without graph updates": 60,
        "sharing in a loop in tree mode": 15,
        "structure under a scan's None or custom_vjp": 120,
    }
    assert {what: times for what, times in avoided.items() if times > most[what]} == {}


PRELUDE = "class M(nnx.Module):\n    def __init__(self):\n        self.w = nnx.Param(jnp.ones(2))\nm = M()\n"


@pytest.mark.parametrize(
    ("flax", "weft", "what"),
    [
        ("result = m.w", "result = nnx.Param(jnp.ones(2) + 1)", ".[1]: Values"),
        ("result = m, m.w", "result = m, nnx.clone(m).w", "Same(path='[0].w')"),
        ("result = 1 + 'a'", "result = 1", "only flax raises TypeError"),
        ("result = 1 + 'a'", "result = m.missing", "another exception"),
        ("result = 1", "result = m.missing", "only weft raises AttributeError"),
        ("m.tag = 1; result = m", "result = m", "keys"),
    ],
)
def test_a_difference_is_found(flax, weft, what):
    both = f"{PRELUDE}if nnx.__name__.startswith('flax'):\n    {flax}\nelse:\n    {weft}\n"
    _, found = fuzz.compare(both)
    assert what.strip(".") in found


def test_changes_that_an_exception_leaves_behind_are_found():
    text = f"{PRELUDE}def f(m):\n    m.w[...] = m.w[...] * 2\n    raise ValueError\nattempt(f, m)\nresult = None\n"
    end, found = fuzz.compare(text)
    assert end == "partial write"
    assert "an exception left changes behind" in found
