"""The two texts of a random program: over weft's records, and over flat dicts of arrays in plain JAX.

Each defines `m`, `x` and `run(m, x) -> (x, m)`. The prelude is what both may call: it knows nothing of either library.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from random_programs import (
    CARRY,
    Level,
    Program,
    axes_to_average,
    may_write,
    shape,
    shape_of_x,
    statements_of,
)
from random_records import Array, Leaf, Schema, construct, leaves, schemas
from random_statements import Code, Statement, chain

PRELUDE = """
import copy, dataclasses, functools, pickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from typing import Annotated, Any
from jaxtyping import Float

def settle(v): return jnp.clip(jnp.asarray(v, jnp.float32), -2.0, 2.0)
def scaled(factor, x): return x if factor is None else x * factor
def twice(x): return 2.0 * x
CHOICES = {"tanh": jnp.tanh, "sin": jnp.sin, "id": lambda x: x}
def like(v, target):
    v = jnp.asarray(v, jnp.float32)
    return v if v.shape == target.shape else jnp.broadcast_to(jnp.tanh(v.sum()), target.shape)
def mean_over(names, v): return jax.lax.pmean(v, names) if names else v
def draw(key, x): return jax.random.uniform(key.reshape(-1)[0], x.shape)
def next_key(key): return jax.random.wrap_key_data(jax.random.key_data(key) + 1, impl=jax.random.key_impl(key))
def total(tree): return sum((jnp.tanh(v.sum()) for v in jax.tree.leaves(tree)), jnp.float32(0))
def reset(v): return 0 if jnp.ndim(v) == 0 else jnp.zeros_like(v)
def seen(w): return jnp.sin(w.sum() + 0.137)  # not tanh: 1 at large sums, where rounding decides what is clipped
def doubled(tree): return jax.tree.map(lambda v: v * 2 if jnp.issubdtype(v.dtype, jnp.floating) else v, tree)
def is_float(path, kind, leaf): return jnp.issubdtype(leaf.dtype, jnp.floating)
def floats(seed, shape): return jnp.asarray(np.random.RandomState(seed).randint(-6, 7, shape) / 4, jnp.float32)
def ints(seed, shape): return jnp.asarray(np.random.RandomState(seed).randint(0, 4, shape), jnp.int32)
def keys(seed, shape): return jax.random.split(jax.random.key(seed), shape) if shape else jax.random.key(seed)
@dataclasses.dataclass(frozen=True)
class Own:  # equal whatever it remembers
    factor: float
    reads: list = dataclasses.field(default_factory=list, compare=False)
    def read(self):
        self.reads.append(1)
        return self.factor
"""
WEFT = """
import weft
from weft.core.threads.handle import peek

class Slow(weft.Param): pass
class Momentum(weft.BatchStat): pass
class Box(weft.Module):
    inner: weft.Module
    note: Any
def reassembled(m): return m.replace(**{f.name: getattr(m, f.name) for f in dataclasses.fields(m)})
"""
MAKERS = {"f": "floats", "i": "ints", "key": "keys"}


def weft_text(program: Program) -> str:
    lines = [WEFT]
    for schema in schemas(program.record):
        lines += _class(schema)
    for i in reversed(range(len(program.levels))):
        lines += _function(program, i, weft=True)

    def array(value: Array, parts: tuple[str, ...]) -> str:
        leaf = next(leaf for leaf in leaves(program.record) if leaf.parts == parts)
        return _array(program, leaf)

    lines.append(f"def made(): return {construct(program.record, array)}, floats(7, {shape_of_x(program)})")
    lines.append(f"m, x = made()\nrun = f{program.levels[0].number}")
    lines.append(f"def between(m):\n    {program.between}\n    return m")
    return "\n".join(lines)


def plain_text(program: Program) -> str:
    lines: list[str] = []
    for i in reversed(range(len(program.levels))):
        lines += _function(program, i, weft=False)
    rows = [f"{leaf.path!r}: {_array(program, leaf)}" for leaf in leaves(program.record)]
    lines.append(f"m = {{{', '.join(rows)}}}")
    lines.append(f"x = floats(7, {shape_of_x(program)})")
    lines.append(f"run = f{program.levels[0].number}")
    return "\n".join(lines)


def _array(program: Program, leaf: Leaf) -> str:
    return f"{MAKERS[leaf.array.dtype]}({leaf.array.seed}, {shape(program, 0, leaf)})"


def _class(schema: Schema) -> list[str]:
    lines = [f"class {schema.name}(weft.Module):"]
    for declared in schema.fields:
        extras = [declared.kind] * bool(declared.kind) + [repr(declared.tag)] * bool(declared.tag)
        annotation = f"Annotated[{', '.join([declared.annotation, *extras])}]" if extras else declared.annotation
        lines.append(f"    {declared.name}: {annotation}{' = weft.static()' if declared.static else ''}")
    record = schema.instance(random.Random(0))
    if schema.caches:
        lines += ["    @functools.cached_property", "    def seen(self): return seen(self.w)"]
    lines.append("    def __call__(self, x, axes=()):")
    code = Code("self", "", record, axes=lambda paths: "axes", indent=" " * 8)
    if schema.stateful and schema.threaded:
        code.add("with weft.thread(self) as t:")
        code = code.at(root="t", threaded=True, indent=" " * 12)
    for statement in schema.body:
        statement.weft(code)
    code.add("return t.done(x)" if code.threaded else "return x, self" if schema.stateful else "return x")
    return lines + code.lines


def _function(program: Program, i: int, weft: bool) -> list[str]:
    level = program.levels[i]
    name, lines = f"f{level.number}", []
    inner = f"f{program.levels[i + 1].number}" if i + 1 < len(program.levels) else ""
    for j, block in enumerate(level.others):
        lines.append(f"def {name}_{j}(m, x):")
        lines += _statements(program, i, block, weft, level.threaded, branch=True)
        lines.append("    return x, m")
    lines.append(f"def {name}(m, x):")
    lines += _statements(program, i, level.before, weft, level.threaded)
    if inner:
        transform = level.transform
        table = WEFT_CALLS if weft else PLAIN_CALLS
        lines += ["    " + line for line in table[transform](program, i, level, inner)]
    lines += _statements(program, i, level.after, weft, level.threaded)
    return [*lines, "    return x, m"]


def _statements(
    program: Program, i: int, block: list[Statement], weft: bool, threaded: bool, branch: bool = False
) -> list[str]:
    chosen = statements_of(program, i, block, threaded, branch)
    code = Code("m", "", program.record, axes=lambda paths: axes_to_average(program, i, paths))
    if weft and threaded and chosen:
        code.add("with weft.thread(m) as t:")
        inside = code.at(root="t", threaded=True, indent=" " * 8)
        for statement in chosen:
            statement.weft(inside)
        inside.add("x, m = t.done(x)")
        return code.lines
    for statement in chosen:
        (statement.weft if weft else statement.plain)(code)
    return code.lines


# --- each transform, over records ------------------------------------------------------------------------------------

Calls = dict[str, Callable[[Program, int, Level, str], list[str]]]


def _options(level: Level) -> str:
    return f", {level.options}" if level.options.startswith("donate") else ""


def _weft_map(program: Program, i: int, level: Level, inner: str) -> list[str]:
    rides = level.rides
    assert rides is not None
    library = "jax" if level.transform == "plain_vmap" else "weft"
    out = 0 if rides.x is None else rides.x
    lines = [
        f"axes = {rides.text}",
        f"mapped = {library}.vmap({inner}, in_axes=(axes, {rides.x}), out_axes=({out}, axes), "
        f"axis_name='a{level.number}', axis_size={rides.size})",
        "x, m = mapped(m, x)",
    ]
    return [*lines, "x = settle(x.mean(0))"] if rides.x is None else lines


def _weft_scan(program: Program, i: int, level: Level, inner: str) -> list[str]:
    rides = level.rides
    assert rides is not None
    return [
        f"def step(m, x): return {inner}(m, x)[::-1]",
        f"axes = {rides.text}",
        f"scanned = weft.scan(step, in_axes=(axes, {rides.x}), out_axes=(axes, {rides.x}), length={rides.size})",
        "m, x = scanned(m, x)",
    ]


def _weft_grad(program: Program, i: int, level: Level, inner: str) -> list[str]:
    text, paths = level.wrt
    transform = level.transform
    both = transform == "vjp" or bool(level.options)
    options = f", {level.options}" if level.options else ""
    lines = ["def loss(m, x):", f"    y, m = {inner}(m, x)", "    return (y * y).sum() * 0.5, (y, m)"]
    if transform == "vjp":
        lines += [
            f"value, pull, (y, after) = weft.vjp(loss, m, x, has_aux=True, wrt={text})",
            "g = pull(jnp.float32(1))",
        ]
    elif transform == "grad":
        lines += [f"g, (y, after) = weft.grad(loss, wrt=FILTER, has_aux=True{options})(m, x)", "value = jnp.float32(0)"]
    else:
        lines += [f"(value, (y, after)), g = weft.value_and_grad(loss, wrt=FILTER, has_aux=True{options})(m, x)"]
    # `wrt` holds for each differentiated argument, so that x needs a filter of its own where there are two.
    lines = [
        line.replace("FILTER", text).replace(f"wrt={text}", f"wrt={_both(text) if both else text}") for line in lines
    ]
    lines += ["g, gx = g"] if both else []
    lines += [f"x = settle(y + 0.25 * total(g) + 0.1 * value{' + 0.1 * gx' if both else ''})", "m = after"]
    if may_write(program, i, paths):
        average = axes_to_average(program, i, paths)
        lines += [
            f"selected = weft.tree.select(m, {text})",
            f"moved = jax.tree.map(lambda p, d: settle(p - 0.1 * mean_over({average}, d)), selected, g)",
            "m = weft.tree.update(m, moved)",
        ]
    return lines


def _weft_jvp(program: Program, i: int, level: Level, inner: str) -> list[str]:
    text, paths = level.wrt
    lines = ["moves = m"]
    if level.options == "replace":  # None, by hand, where nothing moves
        for leaf in leaves(program.record):
            if leaf.path not in paths:
                lines.append(f"moves = {chain('moves', program.record, leaf.parts, 0, 'None')}")
    else:
        lines = [f"moves = weft.tree.select(m, {text})"]
    call = f"weft.jvp({inner}, (m, x), (moves, jnp.ones_like(x)), has_aux=True, wrt={_both(text)})"
    return [*lines, f"x, dx, m = {call}", "x = settle(x + 0.25 * dx)"]


def _both(text: str) -> str:
    return f"weft.filters.Any({text}, lambda path, kind, leaf: path == ())"


WEFT_CALLS: Calls = {
    "jit": lambda p, i, level, inner: [f"x, m = weft.jit({inner}{_options(level)})(m, x)"],
    "plain_jit": lambda p, i, level, inner: [f"x, m = jax.jit({inner}{_options(level)})(m, x)"],
    "vmap": _weft_map,
    "plain_vmap": _weft_map,
    "scan": _weft_scan,
    "remat": lambda p, i, level, inner: [f"x, m = weft.remat({inner})(m, x)"],
    "cond": lambda p, i, level, inner: [f"x, m = weft.cond(x.sum() > 0.3141, {inner}, f{level.number}_0, m, x)"],
    "switch": lambda p, i, level, inner: [
        "index = jnp.int32(jnp.abs(x).sum() * 1.7) % 3",
        f"x, m = weft.switch(index, [{inner}, f{level.number}_0, f{level.number}_1], m, x)",
    ],
    "fori_loop": lambda p, i, level, inner: [f"m, x = weft.fori_loop(0, 2, lambda i, c: {inner}(*c)[::-1], (m, x))"],
    "while_loop": lambda p, i, level, inner: [
        f"m, x, _ = weft.while_loop(lambda c: c[2] < 2, lambda c: (*{inner}(c[0], c[1])[::-1], c[2] + 1), (m, x, 0))"
    ],
    "jvp": _weft_jvp,
    **dict.fromkeys(("grad", "value_and_grad", "vjp"), _weft_grad),
}


# --- each transform, over dicts --------------------------------------------------------------------------------------


def _plain_map(program: Program, i: int, level: Level, inner: str) -> list[str]:
    rides = level.rides
    assert rides is not None
    out = 0 if rides.x is None else rides.x
    lines = [
        f"axes = {rides.by_path}",
        f"mapped = jax.vmap({inner}, in_axes=(axes, {rides.x}), out_axes=({out}, axes), axis_name='a{level.number}', "
        f"axis_size={rides.size})",
        "x, m = mapped(m, x)",
    ]
    return [*lines, "x = settle(x.mean(0))"] if rides.x is None else lines


def _plain_scan(program: Program, i: int, level: Level, inner: str) -> list[str]:
    rides = level.rides
    assert rides is not None
    carried = [path for path, ride in rides.by_path.items() if ride == CARRY]
    scanned = [path for path, ride in rides.by_path.items() if ride == 0]
    carries_x = rides.x == CARRY
    return [
        f"carried, scanned = {carried}, {scanned}",
        "def step(carry, slices):",
        "    (cm, cx), (sm, sx) = carry, slices",
        f"    y, n = {inner}({{**m, **cm, **sm}}, {'cx' if carries_x else 'sx'})",
        "    out_carry = {k: n[k] for k in carried}, " + ("y" if carries_x else "None"),
        "    return out_carry, ({k: n[k] for k in scanned}, " + ("None)" if carries_x else "y)"),
        f"carry = {{k: m[k] for k in carried}}, {'x' if carries_x else 'None'}",
        f"slices = {{k: m[k] for k in scanned}}, {'None' if carries_x else 'x'}",
        f"(cm, cx), (sm, sx) = jax.lax.scan(step, carry, slices, length={rides.size})",
        f"m, x = {{**m, **cm, **sm}}, {'cx' if carries_x else 'sx'}",
    ]


def _plain_grad(program: Program, i: int, level: Level, inner: str) -> list[str]:
    _, paths = level.wrt
    both = level.transform == "vjp" or bool(level.options)
    lines = [
        f"chosen = {{k: m[k] for k in {list(paths)}}}",
        "rest = {k: v for k, v in m.items() if k not in chosen}",
        "def loss(chosen, x):",
        f"    y, m = {inner}({{**rest, **chosen}}, x)",
        "    return (y * y).sum() * 0.5, (y, m)",
        "(value, (y, after)), (g, gx) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(chosen, x)",
    ]
    lines += ["value = jnp.float32(0)"] if level.transform == "grad" else []
    lines += [f"x = settle(y + 0.25 * total(g) + 0.1 * value{' + 0.1 * gx' if both else ''})", "m = after"]
    if may_write(program, i, paths):
        average = axes_to_average(program, i, paths)
        lines.append(f"m = {{**m, **{{k: settle(m[k] - 0.1 * mean_over({average}, g[k])) for k in g}}}}")
    return lines


def _plain_jvp(program: Program, i: int, level: Level, inner: str) -> list[str]:
    return [
        f"chosen = {{k: m[k] for k in {list(level.wrt[1])}}}",
        f"moved = lambda chosen, x: {inner}({{**m, **chosen}}, x)",
        "x, dx, m = jax.jvp(moved, (chosen, x), (chosen, jnp.ones_like(x)), has_aux=True)",
        "x = settle(x + 0.25 * dx)",
    ]


PLAIN_CALLS: Calls = {
    "jit": lambda p, i, level, inner: [f"x, m = jax.jit({inner})(m, x)"],
    "plain_jit": lambda p, i, level, inner: [f"x, m = jax.jit({inner})(m, x)"],
    "vmap": _plain_map,
    "plain_vmap": _plain_map,
    "scan": _plain_scan,
    "remat": lambda p, i, level, inner: [f"x, m = jax.checkpoint({inner})(m, x)"],
    "cond": lambda p, i, level, inner: [f"x, m = jax.lax.cond(x.sum() > 0.3141, {inner}, f{level.number}_0, m, x)"],
    "switch": lambda p, i, level, inner: [
        "index = jnp.int32(jnp.abs(x).sum() * 1.7) % 3",
        f"x, m = jax.lax.switch(index, [{inner}, f{level.number}_0, f{level.number}_1], m, x)",
    ],
    "fori_loop": lambda p, i, level, inner: [f"m, x = jax.lax.fori_loop(0, 2, lambda i, c: {inner}(*c)[::-1], (m, x))"],
    "while_loop": lambda p, i, level, inner: [
        f"step = lambda c: (*{inner}(c[0], c[1])[::-1], c[2] + 1)",
        "m, x, _ = jax.lax.while_loop(lambda c: c[2] < 2, step, (m, x, 0))",
    ],
    "jvp": _plain_jvp,
    **dict.fromkeys(("grad", "value_and_grad", "vjp"), _plain_grad),
}
