"""The transforms that random programs nest: how each is applied, what it maps, and what its function returns.

Tables, one row for each transform; `Writer` in `fuzz_writer.py` draws from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

MODES = {"updates": "", "graph": "graph_updates=False", "tree": "graph=False"}


@dataclasses.dataclass(frozen=True)
class Axes:
    """One choice of what a transform maps.

    Attributes:
        text: its options.
        mapped: which of m, n, x are mapped.
        partly: whether only some Variables of m are.
        kinds: whether the options give axes by filter, which only graph updates take.
        prefix: whether the options are a prefix of m, which only the other modes take.
        streams: what is to be done about random streams in m: "split" them first, or nothing.
    """

    text: str
    mapped: tuple[int, ...]
    partly: bool = False
    kinds: bool = False
    prefix: bool = False
    streams: str = ""


def _prefix_of_m(filters: str) -> str:
    return f"in_axes=(nnx.prefix(m, {{{filters}}}, graph=graph), None, 0)"


_MAPPED = [
    Axes("in_axes=(0, 0, 0)", (0, 1, 2), streams="split"),
    Axes("in_axes=(None, None, 0)", (2,)),
    Axes("in_axes=(0, None, 0)", (0, 2), streams="split"),
    Axes("in_axes=(0, 0, None)", (0, 1), streams="split"),
    Axes("in_axes=(nnx.StateAxes({...: 0}), 0, 0)", (0, 1, 2), kinds=True, streams="split"),
    Axes("in_axes=(nnx.StateAxes({nnx.PathContains('zzz'): 0, ...: None}), None, 0)", (2,), kinds=True),
    Axes("in_axes=(nnx.StateAxes({nnx.Param: 0, ...: None}), None, 0)", (0, 2), partly=True, kinds=True),
    Axes("in_axes=(nnx.StateAxes({nnx.RngState: None, ...: 0}), 0, 0)", (0, 1, 2), partly=True, kinds=True),
    Axes(_prefix_of_m("nnx.Param: 0, ...: None"), (0, 2), partly=True, prefix=True),
    Axes(_prefix_of_m("nnx.RngState: None, ...: 0"), (0, 2), partly=True, prefix=True),
]
_SPECS = "mesh=mesh, in_specs=({}, {}, P('i')), out_specs=P('i')"

_OF_KINDS = "nondiff_argnums=(nnx.DiffState(0, nnx.Param), nnx.DiffState(1, nnx.BatchStat))"

# For each transform that maps, its choices; the first one fits every mode.
AXES: dict[str, list[Axes]] = {
    "vmap": [
        *_MAPPED,
        Axes("in_axes=(0, 0, 0), out_axes=-1", (0, 1, 2), streams="split"),
        Axes("in_axes=(1, -1, 0)", (0, 1, 2)),
    ],
    "named_vmap": _MAPPED[:4],
    "pmap": [dataclasses.replace(axes, text=f"{axes.text}, devices=devices") for axes in _MAPPED[:7]],
    "shard_map": [
        Axes(_SPECS.format("P()", "P()"), (2,)),
        Axes(_SPECS.format("P('i')", "P('i')"), (0, 1, 2), streams="none"),
        Axes(_SPECS.format("nnx.StateSharding({nnx.Param: P('i'), ...: P()})", "P()"), (0, 2), True, True),
        Axes(_SPECS.format("nnx.StateSharding({nnx.RngState: P(), ...: P('i')})", "P('i')"), (0, 1, 2), True, True),
    ],
    "scan": [
        Axes("in_axes=(nnx.Carry, None, 0), out_axes=(nnx.Carry, 0)", (2,)),
        Axes("in_axes=(None, nnx.Carry, 0), out_axes=(nnx.Carry, 0)", (2,)),
        Axes("in_axes=(0, None, nnx.Carry), out_axes=(nnx.Carry, 0)", (0,), streams="split"),
        Axes("in_axes=(None, None, 0), out_axes=0", (2,)),
        Axes("in_axes=(0, 0, 0), out_axes=0", (0, 1, 2), streams="split"),
        Axes("in_axes=(nnx.StateAxes({...: nnx.Carry}), None, 0), out_axes=0", (2,), kinds=True),
        Axes("in_axes=(nnx.StateAxes({nnx.Param: 0, ...: nnx.Carry}), None, 0), out_axes=0", (0, 2), True, True),
    ],
    "grad": [
        Axes("has_aux=True, argnums=2", ()),
        Axes("has_aux=True", (), streams="split"),
        Axes("has_aux=True, argnums=(0, 2)", (), streams="split"),
        Axes("has_aux=True, argnums=nnx.DiffState(0, nnx.BatchStat)", (), kinds=True),
    ],
    "value_and_grad": [
        Axes("has_aux=True, argnums=(1, 2)", ()),
        Axes("has_aux=True", (), streams="split"),
        Axes("has_aux=True, argnums=nnx.DiffState(0, nnx.Any(nnx.Param, nnx.BatchStat))", (), kinds=True),
    ],
    "jit": [Axes("", ()), Axes("", ()), Axes("donate_argnums=0", ())],
    "custom_vjp": [
        Axes("", ()),
        Axes("differentiate=True", ()),
        Axes(_OF_KINDS, (), kinds=True),
        Axes(f"differentiate=True, {_OF_KINDS}", (), kinds=True),
        Axes("takes_updates=True", (), prefix=True),
        Axes("differentiate=True, takes_updates=True", (), prefix=True),
    ],
}


def _direct(name: str) -> Callable[[str, str, str], str]:
    def text(f: str, keywords: str, mode: str) -> str:
        if "graph=graph" in keywords:  # a prefix of m: made when m is there
            keywords = keywords.replace("graph=graph", f"graph={mode != 'tree'}")
            return f"lambda m, n, x: nnx.{name}({f}{keywords})(m, n, x)"
        return f"nnx.{name}({f}{keywords})"

    return text


def _named(f: str, keywords: str, mode: str) -> str:
    inner = keywords.replace(", graph_updates=False", "")
    return f"nnx.vmap(nnx.transform_metadata({f}{inner}, partition='layers'){keywords})"


# For each transform, the text of a function of m, n and x, from that of the function (or the two) it transforms.
WRAPS: dict[str, Callable[[str, str, str], str]] = {
    **{name: _direct(name) for name in ("jit", "remat", "vmap", "scan", "grad", "value_and_grad", "pmap", "shard_map")},
    "named_vmap": _named,
    "checkify": lambda f, keywords, mode: f"lambda m, n, x: nnx.checkify({f}{keywords})(m, n, x)[1]",
    "cond": lambda f, keywords, mode: f"lambda m, n, x: nnx.cond(x.sum() > 2.0, {f}, {f}_other, m, n, x{keywords})",
    "switch": lambda f, keywords, mode: f"lambda m, n, x: nnx.switch(1, [{f}, {f}_other], m, n, x{keywords})",
    "while": lambda f, keywords, mode: (
        f"lambda m, n, x: nnx.while_loop(lambda c: c[3] < 2, lambda c: ({f}(*c[:3]), (*c[:3], c[3] + 1))[1], "
        f"(m, n, x, 0){keywords})[2]"
    ),
    "fori": lambda f, keywords, mode: (
        f"lambda m, n, x: nnx.fori_loop(0, 2, lambda i, c: ({f}(*c), c)[1], (m, n, x){keywords})[2]"
    ),
    "custom_vjp": lambda f, keywords, mode: f"custom_vjp({f}{keywords})",
    "custom_jvp": lambda f, keywords, mode: f"custom_jvp({f}, graph={mode != 'tree'})",
    "jit_partial": lambda f, keywords, mode: f"lambda m, n, x: nnx.jit_partial({f}, m, n{keywords})(x)",
    "cached_partial": lambda f, keywords, mode: f"lambda m, n, x: nnx.cached_partial(nnx.jit({f}), m, n)(x)",
    "eval_shape": lambda f, keywords, mode: f"lambda m, n, x: nnx.eval_shape({f}, m, n, x{keywords})",
    "vjp": lambda f, keywords, mode: f"lambda m, n, x: pulled_back(nnx.vjp({f}, m, n, x, has_aux=True{keywords}))",
    "jvp": lambda f, keywords, mode: f"lambda m, n, x: nnx.jvp({f}, (m, n, x), nnx.clone((m, n, x)){keywords})",
}
# Chosen less often than the others.
RARE = {
    "named_vmap": 0.7,
    "pmap": 0.7,
    "cached_partial": 0.5,
    "jit_partial": 0.9,
    "eval_shape": 0.3,
    "vjp": 0.8,
    "jvp": 0.6,
}
OUTERMOST = ("pmap", "cached_partial", "jit_partial", "eval_shape")
# What must be around what JAX would otherwise run step by step, compiling each.
COMPILED = ("jit", "jit_partial", "cached_partial", "pmap")
# Those in which flax has no graph updates (weft has), and the one that needs them.
WITHOUT_UPDATES = ("jit_partial", "vjp", "jvp", "named_vmap")
WITH_UPDATES = ("cached_partial",)
# Those in which flax loses what happens to metadata under graph updates, and those in which refs work in each mode: JAX
# has none in what is differentiated or carried, and flax loses what happens to them (see docs/differences.md).
LOSE_METADATA = ("jit", "shard_map", "cached_partial")
_TAKE_REFS = ("jit", "remat", "vmap", "pmap", "shard_map", "checkify", "cond", "switch", "jit_partial")
TAKE_REFS = {"updates": ("jit",), "graph": _TAKE_REFS, "tree": _TAKE_REFS}
# Those that differentiate all of a tree, random keys included, unless they are told not to.
OF_WHOLE_TREES = ("custom_vjp", "vjp", "jvp")


def carry_of(axes: str) -> str:
    """What a scan's function returns first."""
    places = {"in_axes=(nnx.Carry": "m", "(None, nnx.Carry, 0)": "n", "nnx.Carry),": "x"}
    return next((carried for place, carried in places.items() if place in axes), "")


LOSS = "(m.w[...] ** 2).sum() + (n.w[...] * 2.0).sum() + (x * m.b[...].sum()).sum()"
# For each transform whose function returns something of its own: that, with what the program chose to return.
RETURNS: dict[str, Callable[[str, str], str]] = {
    "grad": lambda returned, axes: f"({LOSS}, {returned})",
    "value_and_grad": lambda returned, axes: f"({LOSS}, {returned})",
    "vjp": lambda returned, axes: f"({LOSS}, {returned})",
    "custom_vjp": lambda returned, axes: LOSS,
    "scan": lambda returned, axes: f"({carry_of(axes)}, {returned})" if carry_of(axes) else returned,
}
