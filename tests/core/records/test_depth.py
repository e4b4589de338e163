"""Records in records, hundreds deep: they are called and printed about as deep as Python goes, two frames a record."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float
from weft.core.edge.contexts import DEBUG_KEYS, DEBUG_SUCCESSORS, is_on


class Wrap(weft.Module):
    inner: Any

    def __call__(self, x):
        return self.inner(x)


class Typed(weft.Module):
    inner: Any

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.inner(x)


class End(weft.Module):
    w: Float[Array, ""]

    def __call__(self, x):
        return self.w * x


def chain(wrap: type[Any], depth: int) -> Any:
    model: Any = End(jnp.ones(()))
    for _ in range(depth):
        model = wrap(model)
    return model


def in_a_thread(function: Callable[[], Any]) -> Any:
    """Python counts the frames of each thread; here none are pytest's."""
    results: list[Any] = []
    before = threading.stack_size(128 << 20)
    try:
        thread = threading.Thread(target=lambda: results.append(function()))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    return results


@pytest.mark.skipif(is_on(DEBUG_SUCCESSORS) or is_on(DEBUG_KEYS), reason="what debugs has frames at each call")
@pytest.mark.parametrize("wrap", [Wrap, Typed])
@pytest.mark.parametrize("how", [lambda f: f, weft.jit], ids=["eager", "jit"])
def test_calls_of_records_reach_three_hundred_levels(wrap: type[Any], how: Any):
    run = how(lambda model, x: model(x))
    [out] = in_a_thread(lambda: run(chain(wrap, 300), jnp.ones(2)))
    assert out.tolist() == [1.0, 1.0]


def test_records_are_printed_as_deep_as_equinox_prints_them():
    [text] = in_a_thread(lambda: repr(chain(Wrap, 230)))
    assert text.count("Wrap(") == 230


def test_a_records_type_is_learned_without_printing_it():
    printed: list[int] = []

    class Loud(weft.Module):
        w: jax.Array

        def __repr__(self) -> str:
            printed.append(1)
            return "Loud"

    assert weft.jit(lambda model: model.w)(Loud(jnp.ones(2))).shape == (2,)
    assert printed == []


class Holder:
    it: Any = None


class InItself(weft.Module):
    w: jax.Array
    part: Any = None
    kept: Any = weft.static(default=None)

    def __init__(self, how: str):
        self.w = jnp.ones(2)
        if how == "field":
            self.part = self
        elif how == "object":
            self.kept = Holder()
            self.kept.it = [self]
        else:
            self.part = [] if how == "list" else {"a": ([],)}
            (self.part if how == "list" else self.part["a"][0]).append(self)


CYCLES = {"field": r"InItself\.part", "list": r"InItself\.part\[0\]", "dict": r"InItself\.part\.a\[0\]\[0\]"}


@pytest.mark.parametrize(("how", "path"), [*CYCLES.items(), ("object", r"InItself\.kept\.it\[0\]")])
def test_a_record_that_is_in_itself_is_refused_when_it_is_made(how: str, path: str):
    with pytest.raises(weft.errors.StructureError, match=rf"(?s)an InItself contains itself\n  at: {path}\n"):
        InItself(how)


def test_what_leads_to_one_thing_twice_is_no_cycle():
    shared, holder = [jnp.ones(2)], Holder()
    holder.it = holder  # the program's own, of which no record is part
    assert len(jax.tree.leaves(Wrap([shared, holder, {"a": shared}]))) == 2
