"""Plans are found again while nothing structural changed, and never when something did."""

import copy
import dataclasses
import gc
import pickle
import threading
import weakref
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st
from weft import nnx
from weft.nnx.graphs.definitions import RefMap
from weft.nnx.graphs.flattening import Flattener
from weft.nnx.graphs.plan import Plan, plan_of
from weft.nnx.objects.stability import is_stable

ARRAY = jnp.array([1.0, 2.0])


@dataclasses.dataclass
class MutableConfig:
    size: int = 1

    def __hash__(self):
        return self.size


@dataclasses.dataclass
class PlainConfig:
    size: Any = 1


@dataclasses.dataclass(frozen=True)
class FrozenConfig:
    size: int = 1


class Node(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(ARRAY)
        self.raw = ARRAY
        self.size = 1
        self.xs = nnx.data([nnx.Param(ARRAY), {"a": ARRAY, "n": 3}])
        self.children = nnx.List()


class Loose(nnx.Object):
    def __init__(self):
        self.items = [nnx.Param(ARRAY), "s"]
        self.table = {"a": [nnx.BatchStat(ARRAY)]}


def planless(roots):
    """The same description, found without any plan."""
    walk = Flattener(RefMap(), None, with_paths=True)
    for root in roots:
        walk.root(root)
    return walk.graphdef(), walk.paths, walk.leaves


def agrees(plan, roots):
    graphdef, paths, leaves = planless(roots)
    values = [leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf for leaf in leaves]
    return (
        plan.graphdef == graphdef
        and list(plan.paths) == list(paths)
        and all(mine is theirs for mine, theirs in zip(plan.leaves, leaves, strict=True))
        and all(mine is theirs for mine, theirs in zip(plan.read(), values, strict=True))
    )


MUTATIONS = {
    "set static": lambda n, i: setattr(n, "size", i),
    "swap variable": lambda n, i: setattr(n, "w", nnx.Param(ARRAY * i)),
    "swap array": lambda n, i: setattr(n, "raw", ARRAY * i),
    "new attribute": lambda n, i: setattr(n, f"new{i % 4}", nnx.BatchStat(i)),
    "delete": lambda n, i: delattr(n, f"new{i % 4}") if hasattr(n, f"new{i % 4}") else None,
    "write value": lambda n, i: n.w.set_value(ARRAY + i),
    "metadata": lambda n, i: n.w.set_metadata(note=i),
    "metadata again": lambda n, i: n.w.set_metadata(dict(n.w.get_metadata())),
    "append to container": lambda n, i: n.xs.append(nnx.Param(i)),
    "write into container": lambda n, i: n.xs[1].__setitem__("n", i),
    "array into container": lambda n, i: n.xs[1].__setitem__("a", ARRAY * i),
    "pop from container": lambda n, i: n.xs.pop() if len(n.xs) > 2 else None,
    "append to List": lambda n, i: n.children.append(Node()) if len(n.children) < 3 else None,
    "delete from List": lambda n, i: n.children.__delitem__(0) if len(n.children) else None,
    "share": lambda n, i: setattr(n, "again", n.children[0] if len(n.children) else n.w),
    "cycle": lambda n, i: setattr(n, "me", n),
    "through vars": lambda n, i: vars(n).__setitem__("size", i),
    "held dict": lambda n, i: _held.setdefault(id(n), vars(n)).__setitem__("size", -i),
    "deeper": lambda n, i: setattr(n.children[0], "size", i) if len(n.children) else None,
    "pop": lambda n, i: nnx.pop(n, nnx.BatchStat),
    "update": lambda n, i: nnx.update(n, {"w": nnx.Param(ARRAY * i, tag=i), "fresh": ARRAY}),
    "mutable static": lambda n, i: setattr(n, "config", MutableConfig(i)),
    "mutate static": lambda n, i: setattr(n.config, "size", i) if hasattr(n, "config") else None,
    "static without hash": lambda n, i: setattr(n, "table", {"sizes": [i % 3]}),
    "mutate static without hash": lambda n, i: n.table["sizes"].append(i % 3) if hasattr(n, "table") else None,
    "drop static": lambda n, i: delattr(n, "config") if hasattr(n, "config") else None,
    "ref": lambda n, i: n.w.set_raw_value(jax.new_ref(ARRAY)) if i % 5 == 0 else None,
    "nothing": lambda n, i: None,
}
_held = {}


@pytest.mark.slow
@hypothesis.given(st.lists(st.tuples(st.sampled_from(sorted(MUTATIONS)), st.integers(1, 20)), min_size=1, max_size=12))
@hypothesis.settings(max_examples=120)
def test_a_plan_is_never_stale(mutations):
    node, untouched = Node(), Node()
    _held.clear()
    roots = (node, untouched)
    assert agrees(plan_of(roots), roots)
    for name, number in mutations:
        MUTATIONS[name](node, number)
        assert agrees(plan_of(roots), roots), name
        assert nnx.graphdef(node) == planless((node,))[0], name


@hypothesis.given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_plans_of_objects_without_a_record_of_data_are_never_stale(steps):
    node = Loose()
    for step in steps:
        match step:
            case 0:
                node.items.append(nnx.Cache(step))
            case 1:
                node.table["a"].append(3)
            case 2:
                node.table["b"] = (ARRAY, [nnx.Param(1)])
            case 3:
                node.items[0] = "was a Param"
            case 4:
                node.items = [nnx.Param(2)]
            case 5 if "b" in node.table:
                node.table["b"][1].append(ARRAY)
        assert agrees(plan_of((node,)), (node,))


class Mixin:
    def greet(self):
        return "hello"


class Mixed(Mixin, nnx.Module):
    def __init__(self):
        self.size = 1


@pytest.mark.parametrize("make", [Mixed, lambda: nnx.Dict(size=1)])
def test_attributes_set_through_vars_are_seen_whatever_the_bases(make):
    node = make()
    plan_of((node,))
    vars(node)["size"] = 2
    assert agrees(plan_of((node,)), (node,))


def test_the_same_plan_is_found_while_only_values_change():
    node = Node()
    plan = plan_of((node,))
    node.w[...] = ARRAY * 2
    nnx.update(node, nnx.state(node, nnx.Param))
    assert plan_of((node,)) is plan
    node.size = 2
    assert plan_of((node,)) is not plan


def test_metadata_replaced_elsewhere_does_not_matter():
    node = Node()
    plan = plan_of((node,))
    nnx.Param(1).set_metadata(a=1)
    assert plan_of((node,)) is plan


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n)), nnx.clone])
def test_copies_have_plans_of_their_own(twin_of):
    node = Node()
    plan = plan_of((node,))
    twin = twin_of(node)
    assert plan_of((twin,)) is not plan
    assert agrees(plan_of((twin,)), (twin,))
    twin.size = 5
    assert plan_of((node,)) is plan


def test_setstate_on_a_planned_object_is_seen():
    node = Node()
    plan_of((node,))
    node.__setstate__({"size": 9})
    assert agrees(plan_of((node,)), (node,))


def test_a_static_value_keeps_the_plan_until_it_equals_another():
    node = Node()
    node.config = FrozenConfig()
    assert plan_of((node,)) is plan_of((node,))
    for config in (MutableConfig(), PlainConfig()):
        node.config = config
        plan = plan_of((node,))
        assert plan_of((node,)) is plan
        config.size = 7
        assert plan_of((node,)) is not plan
        assert agrees(plan_of((node,)), (node,))


def test_a_static_value_that_is_no_plain_data_turns_the_plan_off():
    node = Node()
    node.config = PlainConfig(jnp.ones(2))
    assert plan_of((node,)) is not plan_of((node,))


@pytest.mark.parametrize(
    ("value", "stable"),
    [
        (3, True), ("s", True), ((1, "a", None), True), (frozenset((1,)), True), (jnp.float32, True),
        (jax.nn.relu, True), (lambda x: x, True),
        (jax.lax.Precision.HIGHEST, True), (jnp.dtype("float32"), True), (FrozenConfig(), True),
        (jax.sharding.PartitionSpec("a"), True), ([1], False), ({"a": 1}, False), ((1, [2]), False),
        (MutableConfig(), False), (FrozenConfig([1]), False), (jax.nn.initializers.zeros, True),
    ],
)  # fmt: skip
def test_stability(value, stable):
    assert is_stable(value) is stable


def test_a_plan_keeps_no_root_alive_and_lets_go_of_the_others():
    first, second = Node(), Node()
    plan_of((first, second))
    variable, gone = weakref.ref(second.w), weakref.ref(second)
    del second
    assert gone() is None
    assert variable() is None
    gone = weakref.ref(first)
    del first
    assert gone() is None


def test_bare_variables_are_not_kept():
    node, variable = Node(), nnx.Param(ARRAY)
    plan_of((node, variable))
    gone = weakref.ref(variable)
    del variable
    gc.collect()
    assert gone() is None


def test_a_plan_refuses_to_be_written_from_another_trace_level():
    node = Node()

    def inside():
        local = nnx.Param(ARRAY)
        with pytest.raises(TypeError, match="different trace level"):
            Plan((node, local)).check_writable()
        return local[...]

    jax.jit(inside)()


def test_threads_that_mutate_never_leave_a_stale_plan():
    node = Node()

    def mutate(offset):
        for i in range(150):
            setattr(node, f"t{offset}", i)
            plan_of((node,))

    threads = [threading.Thread(target=mutate, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert agrees(plan_of((node,)), (node,))
    assert (node.t0, node.t1, node.t2) == (149, 149, 149)
