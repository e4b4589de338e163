"""Records that a compiled call returned have no fields until somebody looks, and nobody can tell."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import pickle
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.tree_util import keystr
from weft.core.interpreter import codegen
from weft.core.records.storage import PENDING, fields_of, read_dict

# Parts of a net, of which each has two leaves.
N = codegen.PACKED


class Part(weft.Module):
    scale: jax.Array
    bias: jax.Array


class Net(weft.Module):
    """Large enough to be pending, with fields of all kinds."""

    parts: list[Part]
    frozen: tuple[Part, ...]
    table: dict[str, jax.Array]
    rate: float = 0.5
    name: str = weft.static(default="net")
    missing: jax.Array | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "computed":
            return self.rate * 2
        raise AttributeError(name)

    @property
    def first(self) -> jax.Array:
        return self.parts[0].scale


def net(seed: float = 1.0) -> Net:
    def part(i: int) -> Part:
        return Part(jnp.full(2, seed + i), jnp.zeros(2))

    return Net([part(i) for i in range(N)], (part(100), part(101)), {"a": jnp.ones(3), "b": jnp.zeros(3)}, rate=0.25)


@weft.jit
def step(net: Net, x: jax.Array) -> tuple[jax.Array, Net]:
    return x * 2, net.replace(parts=[part.replace(scale=part.scale + x) for part in net.parts])


def by_hand(net: Net, times: int) -> Net:
    for _ in range(times):
        net = net.replace(parts=[part.replace(scale=part.scale + jnp.float32(1.0)) for part in net.parts])
    return net


def is_pending(record: object) -> bool:
    return PENDING in read_dict(record)


def stepped(times: int = 4) -> Net:
    """A successor that nobody has looked at; four steps, for code is generated at the third."""
    model = net()
    for _ in range(times):
        _, model = step(model, jnp.float32(1.0))
    assert is_pending(model)
    return model


@runtime_checkable
class HasRate(Protocol):
    rate: float


LOOKS: dict[str, Callable[[Net], Any]] = {
    "type": lambda net: (type(net), isinstance(net, Net), isinstance(net, HasRate)),
    "fields": lambda net: (net.rate, net.name, net.missing, net.computed, net.first),
    "vars": lambda net: sorted(vars(net)),
    "__dict__": lambda net: sorted(net.__dict__),
    "dir": lambda net: dir(net),
    "repr": repr,
    "leaves": jax.tree.leaves,
    "map": lambda net: jax.tree.map(lambda leaf: leaf + 1, net),
    "paths": lambda net: [keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(net)],
    "structure": lambda net: str(jax.tree.structure(net)),
    "dataclasses": lambda net: {field.name: getattr(net, field.name) for field in dataclasses.fields(net)},
    "dataclasses.replace": lambda net: dataclasses.replace(net, rate=3.0),
    "replace": lambda net: net.replace(rate=2.0),
    "at": lambda net: weft.at(net).rate.set(3.0),
    "tree_at": lambda net: eqx.tree_at(lambda net: net.parts[0].scale, net, jnp.zeros(2)),
    "partition": lambda net: eqx.combine(*eqx.partition(net, eqx.is_array)),
    "split": lambda net: weft.tree.merge(*weft.tree.split(net, weft.Param, ...)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "cloudpickle": lambda net: cloudpickle.loads(cloudpickle.dumps(net)),
    "equality": lambda net: bool(eqx.tree_equal(net, jax.tree.map(lambda leaf: leaf, net))),
    "weakref": lambda net: weakref.ref(net)(),
    "put into another": lambda net: weft.jit(lambda pair: pair[0])(((net,), 1.0)),
    "plain jit": lambda net: jax.jit(lambda net: net)(net),
    "grad": lambda net: weft.grad(lambda net: (net.first**2).sum())(net),
    "vmap": lambda net: weft.vmap(lambda net, x: net.first * x, in_axes=(None, 0))(net, jnp.arange(2.0)),
    "device_put": jax.device_put,
    "getattr_static": lambda net: sorted(inspect.getattr_static(net, "__dataclass_fields__")),
    "hasattr": lambda net: (hasattr(net, "rate"), hasattr(net, "nothing")),
    "setattr": lambda net: _refused(lambda: setattr(net, "rate", 1.0)),
}


def _refused(change: Callable[[], object]) -> str:
    with pytest.raises(weft.errors.FrozenError) as error:
        change()
    return str(error.value)


@pytest.mark.parametrize("name", LOOKS)
def test_a_pending_record_looks_like_one_made_by_hand(name: str) -> None:
    looked, wanted = LOOKS[name](stepped()), LOOKS[name](by_hand(net(), 4))
    assert jax.tree.structure(looked) == jax.tree.structure(wanted)
    for actual, expected in zip(jax.tree.leaves(looked), jax.tree.leaves(wanted), strict=True):
        assert np.array_equal(actual, expected) if isinstance(actual, jax.Array) else actual == expected


def test_what_is_never_looked_at_is_never_made() -> None:
    model = stepped()
    for _ in range(3):
        _, after = step(model, jnp.float32(1.0))
        assert is_pending(model)
        assert is_pending(after)
        model = after


def test_unchanged_records_are_the_callers_own() -> None:
    first = model = net()
    for _ in range(5):
        _, model = step(model, jnp.float32(1.0))
    assert model.frozen[0] is first.frozen[0]
    assert model.frozen[1] is first.frozen[1]


def test_unchanged_records_of_one_that_nobody_looked_at_are_its_own() -> None:
    model = stepped()
    keeps = weft.jit(lambda net: net.replace(frozen=tuple(part.replace(bias=part.bias + 1) for part in net.frozen)))
    for _ in range(4):
        after = keeps(model)
    made = [after.parts[i] is model.parts[i] for i in range(N)]
    assert all(made)


def test_two_threads_that_look_at_once_see_the_same() -> None:
    for _ in range(20):
        model, barrier, seen = stepped(), threading.Barrier(4), list[Any]()

        def look(model: Net = model, barrier: threading.Barrier = barrier, seen: list[Any] = seen) -> None:
            barrier.wait()
            seen.append(model.parts)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(parts[0]) for parts in seen}) == 1


def test_an_interrupt_while_fields_are_made_leaves_the_record_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stepped()
    pending = read_dict(model)[PENDING]

    def interrupted(leaves: object, records: object) -> None:
        raise KeyboardInterrupt

    made = pending.form.make
    monkeypatch.setattr(pending.form, "make", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _ = model.parts
    monkeypatch.setattr(pending.form, "make", made)
    assert np.array_equal(model.first, by_hand(net(), 4).first)


def test_a_donated_record_is_refused_as_any_other() -> None:
    donates = weft.jit(lambda net: jax.tree.map(lambda leaf: leaf + 1, net), donate_argnums=0)
    model = net()
    for _ in range(4):
        model = donates(model)
    gone = model
    model = donates(model)
    with pytest.raises(weft.errors.DonatedError):
        donates(gone)
    assert gone.parts[0].scale.is_deleted()
    assert not model.parts[0].scale.is_deleted()


def test_what_is_written_past_a_frozen_record_stays() -> None:
    model = stepped()
    object.__setattr__(model, "rate", 7.0)
    assert model.rate == 7.0
    assert fields_of(model)["rate"] == 7.0
    assert np.array_equal(model.first, net().first + 4)


def test_a_pending_record_in_another_one_is_read() -> None:
    class Pair(weft.Module):
        net: Net
        count: jax.Array

    count = weft.jit(lambda pair: pair.replace(count=pair.count + pair.net.first.sum()))
    for _ in range(4):
        pair = count(Pair(stepped(), jnp.float32(0)))
    assert float(pair.count) == 10.0
    assert float(pair.net.first[0]) == 5.0


def test_a_kept_record_holds_no_more_memory_than_one_made_by_hand() -> None:
    def bytes_held_by(make: Callable[[], Net]) -> int:
        make()
        gc.collect()
        tracemalloc.start()
        records = [make() for _ in range(20)]
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del records
        return size

    model = stepped()
    assert bytes_held_by(lambda: step(model, jnp.float32(1.0))[1]) <= bytes_held_by(lambda: by_hand(model, 1)) * 1.05
