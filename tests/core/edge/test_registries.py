"""The registry that JAX has for calls that it has compiled: there, or done without."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from weft.core.edge import _nodes


def register(pack_log):
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    def pack(pair):
        pack_log.append("packed")
        return [pair.a, pair.b], None

    _nodes.register_dispatched_node(
        Pair,
        lambda pair: ((pair.a, pair.b), None),
        lambda _, children: Pair(*children),
        lambda pair: (((jax.tree_util.GetAttrKey("a"), pair.a), (jax.tree_util.GetAttrKey("b"), pair.b)), None),
        pack,
        lambda _, leaves: Pair(*leaves),
    )
    return Pair


def steps(pair_class):
    step = jax.jit(lambda pair: pair_class(pair.b, pair.a + 1))
    pair = pair_class(jnp.zeros(()), jnp.ones(()))
    for _ in range(3):
        pair = step(pair)
    return float(pair.a), float(pair.b)


def test_this_jax_has_a_registry_for_calls_that_are_compiled():
    assert _nodes.has_dispatch_registry()
    log = []
    assert steps(register(log)) == (2.0, 2.0)
    assert log


def test_without_it_classes_are_registered_as_ever(monkeypatch):
    monkeypatch.setattr(_nodes, "has_dispatch_registry", lambda: False)
    log = []
    assert steps(register(log)) == (2.0, 2.0)
    assert log == []
