"""Every public class of flax.nnx has the special methods that flax's has, which do the same.

For each class an instance, and for each operator, builtin and protocol of Python what it does with one. What differs on
purpose is in `DIFFERENT`, with the reason.
"""

import collections
import copy
import inspect
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx as flax_nnx
from weft import nnx as weft_nnx

from . import agreement

pytestmark = agreement.followed


def model(nnx):
    return nnx.Dict(w=nnx.Param(jnp.ones(2)), b=nnx.BatchStat(jnp.zeros(2)))


# What makes an instance, by class or by what is special about the instance.
INSTANCES = {
    "Module": lambda nnx: nnx.Module(),
    "Dict": lambda nnx: nnx.Dict(a=1, b=nnx.Param(jnp.ones(2))),
    "Dict, empty": lambda nnx: nnx.Dict(),
    "List": lambda nnx: nnx.List([1, 2]),
    "List, empty": lambda nnx: nnx.List(),
    "Sequential": lambda nnx: nnx.Sequential(jnp.sin, jnp.cos),
    "Linear": lambda nnx: nnx.Linear(2, 2, rngs=nnx.Rngs(0)),
    "Dropout": lambda nnx: nnx.Dropout(0.5),
    "Variable": lambda nnx: nnx.Variable(jnp.ones(2)),
    "Param": lambda nnx: nnx.Param(jnp.ones(2)),
    "Param, a scalar": lambda nnx: nnx.Param(jnp.array(2.0)),
    "Param, an integer": lambda nnx: nnx.Param(jnp.array(2)),
    "Param, a dict": lambda nnx: nnx.Param({"a": jnp.ones(2)}),
    "VariableMetadata": lambda nnx: nnx.VariableMetadata(1),
    "State": lambda nnx: nnx.state(model(nnx)),
    "State, of numbers": lambda nnx: nnx.State({"a": 1, "b": {"c": 2}}),
    "State, empty": lambda nnx: nnx.State({}),
    "FlatState": lambda nnx: nnx.to_flat_state(nnx.state(model(nnx))),
    "GraphDef": lambda nnx: nnx.graphdef(model(nnx)),
    "GraphState": lambda nnx: nnx.unpack(model(nnx)),
    "Rngs": lambda nnx: nnx.Rngs(0),
    "RngStream": lambda nnx: nnx.Rngs(0)["default"],
    "Optimizer": lambda nnx: nnx.Optimizer(model(nnx), optax.sgd(0.1), wrt=nnx.Param),
    "Metric": lambda nnx: nnx.metrics.Average(),
    "MultiMetric": lambda nnx: nnx.MultiMetric(loss=nnx.metrics.Average()),
    "StateAxes": lambda nnx: nnx.StateAxes({"tag": 0, ...: None}),
    "StateSharding": lambda nnx: nnx.StateSharding({nnx.Param: None}),
    "DiffState": lambda nnx: nnx.DiffState(0, nnx.Param),
    "Carry": lambda nnx: nnx.Carry,
    "WithTag": lambda nnx: nnx.WithTag("a"),
    "PathContains": lambda nnx: nnx.PathContains("a"),
    "OfType": lambda nnx: nnx.OfType(nnx.Param),
    "Any": lambda nnx: nnx.Any(nnx.Param),
    "All": lambda nnx: nnx.All(nnx.Param),
    "Not": lambda nnx: nnx.Not(nnx.Param),
    "Everything": lambda nnx: nnx.Everything(),
    "Nothing": lambda nnx: nnx.Nothing(),
    "a jitted function": lambda nnx: nnx.jit(lambda x: x),
    "a recurrent cell": lambda nnx: nnx.LSTMCell(2, 2, rngs=nnx.Rngs(0)),
}


def changed_by(change):
    """What is left of an instance after a change."""

    def changed(a, b):
        change(a)
        return a

    return changed


OPERATIONS = {
    "a == b": operator.eq,
    "a == a": lambda a, b: a == a,
    "a != b": operator.ne,
    "a == 3": lambda a, b: a == 3,
    "a == [1, 2]": lambda a, b: a == [1, 2],
    "hash": lambda a, b: isinstance(hash(a), int),
    "hash(a) == hash(b)": lambda a, b: hash(a) == hash(b),
    "Hashable": lambda a, b: isinstance(a, collections.abc.Hashable),
    "<": operator.lt,
    ">=": operator.ge,
    "len": lambda a, b: len(a),
    "bool": lambda a, b: bool(a),
    "length_hint": lambda a, b: operator.length_hint(a, 5),
    "list": lambda a, b: list(a),
    "[*a]": lambda a, b: [*a],
    "next": lambda a, b: next(a),
    "reversed": lambda a, b: list(reversed(a)),
    "dict(**a)": lambda a, b: dict(**a),
    "sum": lambda a, b: sum(a),
    "'a' in": lambda a, b: "a" in a,
    "1 in": lambda a, b: 1 in a,
    "w in": lambda a, b: "w" in a,
    **{f"[{key!r}]": lambda a, b, key=key: a[key] for key in (0, 9, -1, "a", "w", "missing", slice(1))},
    **{f"[{key!r}] = 7": changed_by(lambda a, key=key: operator.setitem(a, key, 7)) for key in (0, "a")},
    **{f"del [{key!r}]": changed_by(lambda a, key=key: operator.delitem(a, key)) for key in (0, "a", "missing")},
    **{
        f"a {name} {right}": lambda a, b, of=of, right=right: of(a, b if right == "b" else right)
        for name, of in {"+": operator.add, "-": operator.sub, "|": operator.or_, "&": operator.and_}.items()
        for right in ("b", 1)
    },
    "a | {}": lambda a, b: a | {},
    "{} | a": lambda a, b: {} | a,
    "a |= b": operator.ior,
    "a + [3]": lambda a, b: a + [3],
    "[3] + a": lambda a, b: [3] + a,
    "1 + a": lambda a, b: 1 + a,
    "a += b": operator.iadd,
    "a += [3]": lambda a, b: operator.iadd(a, [3]),
    "a * 2": lambda a, b: a * 2,
    "a *= 2": lambda a, b: operator.imul(a, 2),
    "a @ b": operator.matmul,
    "a ^ b": operator.xor,
    "a ** 2": lambda a, b: a**2,
    "a % 2": lambda a, b: a % 2,
    "a // 2": lambda a, b: a // 2,
    "divmod": lambda a, b: divmod(a, 2),
    "a << 1": lambda a, b: a << 1,
    "-a": lambda a, b: -a,
    "abs": lambda a, b: abs(a),
    "~a": lambda a, b: ~a,
    "round": lambda a, b: round(a),
    "int": lambda a, b: int(a),
    "float": lambda a, b: float(a),
    "complex": lambda a, b: complex(a),
    "index": lambda a, b: operator.index(a),
    "bytes": lambda a, b: bytes(a),
    "str": lambda a, b: bool(str(a)),
    "format": lambda a, b: bool(format(a)),
    "format .2f": lambda a, b: format(a, ".2f"),
    "dir": lambda a, b: isinstance(dir(a), list),
    "jnp.asarray": lambda a, b: jnp.asarray(a),
    "np.asarray": lambda a, b: np.asarray(a).tolist(),
    "a()": lambda a, b: a(),
    "a(array)": lambda a, b: a(jnp.ones(2)),
    "with": lambda a, b: operator.methodcaller("__enter__")(a),
    "copy": lambda a, b: copy.copy(a),
    "deepcopy": lambda a, b: copy.deepcopy(a),
    "pickle": lambda a, b: pickle.loads(pickle.dumps(a)),
    "a.missing": lambda a, b: a.missing,
    "a.new = 3": changed_by(lambda a: setattr(a, "new", 3)),
    "del a.missing": changed_by(lambda a: delattr(a, "missing")),
    "jax.tree.leaves": lambda a, b: [type(leaf).__name__ for leaf in jax.tree.leaves(a)],
}

_COPIES = "flax's deep copy of a Variable holds the array of its own proxy, and cannot be written"
_AXES = "flax looks for an entry with tuple.index, whose ValueError no mapping raises, `in` included"
_ALL = "weft's is one function of (path, value) that takes whatever it is called with"
# What differs on purpose: (instance, operation), each a prefix of the name, and why.
DIFFERENT = {
    ("List", "del [0]"): "flax leaves the last element behind, as an attribute that no length counts",
    ("Variable", "deepcopy"): _COPIES,
    ("Param", "deepcopy"): _COPIES,
    ("State", "deepcopy"): _COPIES,
    ("State", "[0] = 7"): "keys that cannot be sorted are refused by a ValueError, before JAX sorts them",
    ("GraphState", "[0] = 7"): "keys that cannot be sorted are refused by a ValueError, before JAX sorts them",
    ("GraphState", "copy"): "flax overflows the stack",
    ("GraphState", "deepcopy"): "flax overflows the stack",
    ("GraphState", "pickle"): "flax overflows the stack",
    ("GraphDef", "a.new"): "flax's slots of a frozen dataclass raise Python's TypeError about super()",
    ("GraphDef", "del a.missing"): "flax's slots of a frozen dataclass raise Python's TypeError about super()",
    **{("StateAxes", operation): _AXES for operation in ("'a' in", "1 in", "w in", "[")},
    **{(name, "a("): _ALL for name in ("WithTag", "PathContains", "Everything", "Nothing")},
    **{(name, "a.new"): "a filter is frozen, as flax's others are" for name in ("Everything", "Nothing")},
}


def outcome(nnx, instance, operation):
    a, b = (INSTANCES[instance](nnx) for _ in range(2))
    return agreement.run(lambda nnx: OPERATIONS[operation](a, b), nnx)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("instance", INSTANCES)
def test_an_instance_does_what_flaxs_does(instance):
    listed = [operation for name, operation in DIFFERENT if instance.startswith(name)]
    differing = {
        operation: difference
        for operation in OPERATIONS
        if not any(operation.startswith(prefix) for prefix in listed)
        and (difference := agreement.difference(*(outcome(nnx, instance, operation) for nnx in (flax_nnx, weft_nnx))))
    }
    assert differing == {}


def test_what_is_listed_as_different_differs():
    alike = [
        (name, prefix)
        for name, prefix in DIFFERENT
        if not any(
            agreement.difference(*(outcome(nnx, instance, operation) for nnx in (flax_nnx, weft_nnx)))
            for instance in INSTANCES
            if instance.startswith(name)
            for operation in OPERATIONS
            if operation.startswith(prefix)
        )
    ]
    assert alike == []


METHODS = ["len", "iter", "next", "contains", "getitem", "setitem", "delitem", "call", "enter", "exit"]
METHODS += ["bool", "int", "float", "index", "array", "jax_array"]
_DEFINED = {name for name in dir(flax_nnx) if inspect.isclass(getattr(flax_nnx, name)) and not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(_DEFINED))
def test_a_class_defines_the_special_methods_that_flaxs_does(name):
    """Of every public class, whether or not an instance is above: containers, numbers, context managers, callables."""
    theirs, ours = getattr(flax_nnx, name), getattr(weft_nnx, name)
    if not inspect.isclass(ours):
        pytest.skip("a function here")
    assert [
        method for method in METHODS if hasattr(theirs, f"__{method}__") and not hasattr(ours, f"__{method}__")
    ] == []
    hashable = [isinstance(kind, type) and kind.__hash__ is not None for kind in (theirs, ours)]
    assert hashable[0] == hashable[1]
