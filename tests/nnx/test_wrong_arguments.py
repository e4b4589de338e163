"""Every public function of flax.nnx, called with arguments of the wrong kind, fails as flax's does.

What catches flax's exception catches weft's: it is each builtin exception that flax's is. What differs on purpose is in
`DIFFERENT`, with the reason.
"""

import inspect

import jax.numpy as jnp
import optax
import pytest
from flax import nnx as flax_nnx
from weft import nnx as weft_nnx

from . import agreement

pytestmark = agreement.followed


def model(nnx):
    return nnx.Dict(w=nnx.Param(jnp.ones(2)), b=nnx.BatchStat(jnp.zeros(2)))


KINDS = {
    "a string": lambda nnx: "x",
    "3": lambda nnx: 3,
    "None": lambda nnx: None,
    "an array": lambda nnx: jnp.ones(2),
    "a class": lambda nnx: nnx.Dict,
    "a Module": model,
    "a State": lambda nnx: nnx.state(model(nnx)),
    "a GraphDef": lambda nnx: nnx.graphdef(model(nnx)),
    "a Variable": lambda nnx: nnx.Param(jnp.ones(2)),
    "a function": lambda nnx: lambda *args, **kwargs: 1.0,
    "a list": lambda nnx: [1, "x"],
    "a dict": lambda nnx: {"a": jnp.ones(2)},
    "an object": lambda nnx: object(),
}
# Calls in which one argument is of the right kind and one is not.
SGD = optax.sgd(0.1)
CALLS = {
    "Optimizer(., tx)": lambda nnx, x: nnx.Optimizer(x, SGD, wrt=nnx.Param),
    "Optimizer(model, .)": lambda nnx, x: nnx.Optimizer(model(nnx), x, wrt=nnx.Param),
    "Optimizer.update(., State)": lambda nnx, x: (
        (m := model(nnx)) and nnx.Optimizer(m, SGD, wrt=nnx.Param).update(x, m)
    ),
    "state(., Param)": lambda nnx, x: nnx.state(x, nnx.Param),
    "state(model, .)": lambda nnx, x: nnx.state(model(nnx), x),
    "split(., Param, ...)": lambda nnx, x: nnx.split(x, nnx.Param, ...),
    "update(model, .)": lambda nnx, x: nnx.update(model(nnx), x),
    "update(., State)": lambda nnx, x: nnx.update(x, nnx.state(model(nnx))),
    "merge(graphdef, .)": lambda nnx, x: nnx.merge(nnx.graphdef(model(nnx)), x),
    "merge(., State)": lambda nnx, x: nnx.merge(x, nnx.state(model(nnx))),
    "merge_state(State, .)": lambda nnx, x: nnx.merge_state(nnx.state(model(nnx)), x),
    "filter_state(., Param)": lambda nnx, x: nnx.filter_state(x, nnx.Param),
    "split_state(State, .)": lambda nnx, x: nnx.split_state(nnx.state(model(nnx)), x),
    "map_state(f, .)": lambda nnx, x: nnx.map_state(lambda path, value: value, x),
    "pop(., Param)": lambda nnx, x: nnx.pop(x, nnx.Param),
    "replace_by_pure_dict(State, .)": lambda nnx, x: nnx.replace_by_pure_dict(nnx.state(model(nnx)), x),
    "Rngs(params=.)": lambda nnx, x: nnx.Rngs(params=x),
    "reseed(model, params=.)": lambda nnx, x: nnx.reseed(nnx.Rngs(params=0), params=x),
    "Linear(., 2)": lambda nnx, x: nnx.Linear(x, 2, rngs=nnx.Rngs(0)),
    "Linear(2, 2, rngs=.)": lambda nnx, x: nnx.Linear(2, 2, rngs=x),
    "Linear()(.)": lambda nnx, x: nnx.Linear(2, 2, rngs=nnx.Rngs(0))(x),
    "grad()(.)": lambda nnx, x: nnx.grad(lambda m: 1.0)(x),
    "vmap(f, in_axes=.)": lambda nnx, x: nnx.vmap(lambda x: x, in_axes=x)(jnp.ones(2)),
    "Dict(.)": lambda nnx, x: nnx.Dict(x),
    "List(.)": lambda nnx, x: nnx.List(x),
    "StateAxes(.)": lambda nnx, x: nnx.StateAxes(x),
    "set_mode": lambda nnx, x: nnx.set_mode(x, deterministic=True),
}

_AT_ONCE = "what is no function is refused where it is decorated, not at its first call"
_WORKS = "works here: see docs/differences.md"
_ARRAYS = "flax fails at an attribute of the first argument, weft in JAX's check of it as an array"
_MAPPINGS = "any mapping is taken for a State"
_COMPARES = "flax compares what it was passed, which fails for arrays"
_STATES = "a State of arrays is refused where it is used"
_ANY = tuple(KINDS)
# By function or call, the kinds of argument with which the two differ, and why.
DIFFERENT = {
    **dict.fromkeys(("grad", "jit", "pmap", "remat", "scan", "transform_metadata"), (_ANY, _AT_ONCE)),
    **dict.fromkeys(("value_and_grad", "vmap", "shard_map"), (_ANY, _AT_ONCE)),
    **dict.fromkeys(("vjp", "jvp", "make_jaxpr", "jit_partial"), (_ANY, _WORKS)),
    **dict.fromkeys(("avg_pool", "max_pool", "min_pool", "pool", "dot_product_attention"), (_ANY, _ARRAYS)),
    **dict.fromkeys(("filter_state", "map_state", "split_state"), (("a Module", "a dict"), _MAPPINGS)),
    **dict.fromkeys(("filter_state(., Param)", "map_state(f, .)"), (("a Module", "a dict"), _MAPPINGS)),
    **dict.fromkeys(("replace_by_pure_dict", "to_flat_state", "to_pure_dict"), (("a Module", "a dict"), _MAPPINGS)),
    **dict.fromkeys(("state", "variables"), (("a Variable",), "a Variable is its own State")),
    **dict.fromkeys(("state(model, .)", "split_state(State, .)"), (("a Variable",), _COMPARES)),
    **dict.fromkeys(("StateAxes", "StateSharding", "StateAxes(.)"), (("a State",), _STATES)),
    "variable_name_from_type": (("an array", "a Variable"), _COMPARES),
    "custom_vjp": (("a Variable",), "a Variable is callable, though it has no name"),
    "call": (_ANY, "flax's proxy fails where it is used, weft's where it is made"),
    "GraphDef": (_ANY, "the nodes and attributes are read"),
    "dataclass": (("a GraphDef",), "an error of Python's own, about super() in flax's slots"),
    "cond": (("a dict",), "the predicate is checked before the operands"),
    "switch": (("None", "an array", "a dict"), "the branches are checked before the operands"),
    "tabulate": (_ANY, "flax looks up a method of what is no object in a table of its own"),
    "vmap(f, in_axes=.)": (_ANY, "axes are checked when the function is called"),
}
# Switches change the process, and take effect where something is called under them.
SWITCHES = ("set_", "use_", "using_", "var_defaults")
NAMES = [
    name
    for name in sorted(dir(flax_nnx))
    if callable(getattr(flax_nnx, name)) and not name.startswith(("_", *SWITCHES))
]


def call(name, kind):
    def run(nnx):
        value, function = KINDS[kind](nnx), getattr(nnx, name)
        try:
            parameters = inspect.signature(getattr(flax_nnx, name)).parameters.values()
        except (TypeError, ValueError):
            parameters = ()
        required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        named = {p.name: value for p in required if p.kind is p.KEYWORD_ONLY}
        result = function(*[value] * max(1, len(required) - len(named)), **named)
        return list(result) if inspect.isgenerator(result) else result

    return run


def difference(run):
    theirs, ours = (agreement.run(run, nnx) for nnx in (flax_nnx, weft_nnx))
    if isinstance(theirs, Exception) != isinstance(ours, Exception):
        return f"{theirs!r:.100} became {ours!r:.100}"
    if isinstance(theirs, Exception) and not agreement.builtin_bases(theirs) <= agreement.builtin_bases(ours):
        return f"{theirs!r:.100} became {ours!r:.100}"
    return None


def runs(name):
    """For each kind of argument, the program that passes it."""
    if name in CALLS:
        return {kind: lambda nnx, kind=kind: CALLS[name](nnx, KINDS[kind](nnx)) for kind in KINDS}
    return {kind: call(name, kind) for kind in KINDS}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*NAMES, *CALLS])
def test_a_wrong_argument_raises_what_catches_flaxs_error(name):
    listed, _ = DIFFERENT.get(name, ((), ""))
    differing = {kind: difference(run) for kind, run in runs(name).items() if kind not in listed}
    assert {kind: found for kind, found in differing.items() if found} == {}


@pytest.mark.slow
def test_what_is_listed_as_different_differs():
    assert [name for name in DIFFERENT if not any(map(difference, runs(name).values()))] == []


@pytest.mark.parametrize("value", ["x", 3, jnp.ones(2), len])
def test_what_is_no_graph_node_has_no_state(value):
    with pytest.raises(
        weft_nnx.errors.ArgumentKindError, match="takes an object, a container or a Variable, not"
    ) as caught:
        weft_nnx.state(value)
    assert isinstance(caught.value, IndexError | TypeError)
    with pytest.raises(IndexError):
        weft_nnx.Optimizer(value, SGD, wrt=weft_nnx.Param)
