"""Random programs for both libraries: `source(seed)` is the text of one, `compare(seed)` says how its two runs differ.

A program makes two models `m` and `n` (which may share Variables and objects, or be cyclic) and an array `x`, nests two
or three transforms around functions that mutate them, and calls the nest a few times. Text, so that a difference can be
pasted into a bug report as it is:

    python tests/nnx/fuzz.py 300            # seeds 0..299: counts, and each difference
    python tests/nnx/fuzz.py 17 --show      # one program, and both runs
"""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_spec = importlib.util.spec_from_file_location("weft_agreement", Path(__file__).with_name("agreement.py"))
assert _spec is not None
assert _spec.loader is not None
agreement = sys.modules.setdefault("weft_agreement", importlib.util.module_from_spec(_spec))
_spec.loader.exec_module(agreement)

MODES = {"updates": "", "graph": "graph_updates=False", "tree": "graph=False"}
HEAD = """
class Node(nnx.Module):
    def __init__(self, value, rank):
        self.w = nnx.Param(jnp.full((2,) * rank, value))
        self.b = nnx.BatchStat(jnp.full((2,) * rank, value / 2))
        self.tag = 0
"""


@dataclasses.dataclass(frozen=True)
class Level:
    """One transform of a nest, as its function sees things.

    Attributes:
        transform: its name.
        mode: one of `MODES`.
        ranks: of the arrays in m, in n, and of x.
        mapped: for each of them, the levels at which it is mapped.
        fixed: whether m's structure should stay as it is (in loops and branches).
        frozen: whether nothing may be mutated (in custom_vjp without graph updates).
        rigid: whether structure and metadata may not change (in custom_vjp, and where a scan broadcasts).
        quiet: whether metadata may not change (in jit with graph updates).
        axes: the option that says what is mapped.
    """

    transform: str
    mode: str
    ranks: tuple[int, int, int]
    mapped: tuple[frozenset[int], frozenset[int], frozenset[int]]
    fixed: bool
    frozen: bool
    rigid: bool
    quiet: bool
    axes: str = ""


class Writer:
    """Writes one program; everything it decides comes from one random generator."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.fresh = 0
        self.mode = self.random.choice([*MODES, "updates"])
        self.variables = {"m": ["m.w", "m.b"], "n": ["n.w", "n.b"]}
        self.objects = {"m": ["m"], "n": ["n"]}
        self.shares = True
        # How often something was left out on which the two are known to differ (see docs/differences.md).
        self.avoided: collections.Counter[str] = collections.Counter()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, weights: dict[str, float]) -> str:
        return self.random.choices(list(weights), list(weights.values()))[0]

    def number(self) -> str:
        return f"{self.random.randint(1, 9) / 4}"

    # ------------------------------------------------------------------ the models

    def program(self) -> str:
        nest = list(self.nest())
        self.shares = not any(level.mode == "tree" and level.transform in ("while", "fori") for level in nest)
        setup = self.models()
        functions: list[str] = []
        for depth, level in reversed(list(enumerate(nest))):
            inner = nest[depth + 1] if depth + 1 < len(nest) else None
            functions += self.function(depth, level, inner)
        outermost = f"def run(m, n, x):\n    return {self.call(0, nest[0])}"
        calls = [f"outs.append(attempt(run, m, n, x + {i}.0))" for i in range(self.random.choice([1, 2, 3]))]
        lines = [*setup, *functions, outermost, "before = members(m, n)", "outs = []", *calls]
        return HEAD + "\n".join(lines) + "\nresult = (before, m, n, outs)\n"

    def models(self) -> list[str]:
        lines = ["m, n = Node(1.0, 3), Node(2.0, 3)", "x = jnp.arange(8.0).reshape(2, 2, 2) / 8"]
        if self.chance(0.5):
            lines.append("m.c = Node(3.0, 3)")
            self._has("m", ["m.c.w", "m.c.b"], ["m.c"])
        if self.chance(0.3):
            lines.append("m.l = nnx.List([Node(4.0, 3), nnx.Param(jnp.ones((2, 2, 2)))])")
            self._has("m", ["m.l[0].w", "m.l[1]"], ["m.l[0]"])
        if self.chance(0.2):
            lines.append("m.d = nnx.Dict(v=nnx.Cache(jnp.zeros((2, 2, 2))), o=Node(5.0, 3))")
            self._has("m", ["m.d['v']", "m.d['o'].w"], ["m.d['o']"])
        if self.chance(0.2):
            lines.append("m.p = nnx.data([nnx.Param(jnp.ones((2, 2, 2))), {'k': Node(6.0, 3)}])")
            self._has("m", ["m.p[0]", "m.p[1]['k'].b"], ["m.p[1]['k']"])
        if self.chance(0.2):
            lines.append("m.raw = jnp.ones((2, 2, 2))")
        return lines + self.sharing()

    def _has(self, arg: str, variables: list[str], objects: list[str]) -> None:
        self.variables[arg] += variables
        self.objects[arg] += objects

    def sharing(self) -> list[str]:
        if not self.chance(0.45 if self.mode != "tree" else 0.05):
            return []
        if not self.shares:
            self.avoided["sharing in a loop in tree mode"] += 1
            return []
        target = self.random.choice(self.objects["m"][1:] or ["m"])
        options = [
            "n.w = m.w",
            f"{self.random.choice(self.objects['m'])}.again = {self.random.choice(self.variables['m'])}",
            f"{target}.parent = m",
            f"n.other = {target}",
            f"n = {target}",
            "m.n = n",
            "m.tied = n.w",
            "n.b = n.w",
        ]
        return self.random.sample(options, self.random.choice([1, 1, 2]))

    # ------------------------------------------------------------------ the nest

    def nest(self) -> Iterator[Level]:
        ranks, empty = [3, 3, 3], frozenset[int]()
        mapped, fixed, frozen, rigid, quiet = [empty, empty, empty], False, False, False, False
        names = self.random.sample(sorted(WRAPS), self.random.choice([2, 2, 3]))
        for depth, name in enumerate(names):
            mode = self.random.choice(list(MODES)) if self.chance(0.1) else self.mode
            axes, which = "", ()
            if name in AXES:
                axes, which = self.random.choice(AXES[name])
                if mode != "updates" and re.search("StateAxes|DiffState", axes) and not self.chance(0.1):
                    axes, which = AXES[name][0]
                for i in which:
                    ranks[i] -= 1
                if name == "vmap":
                    mapped = [s | {depth} if i in which else s for i, s in enumerate(mapped)]
            fixed = fixed or name in ("cond", "switch", "while", "fori") or (name == "scan" and "Carry, None" in axes)
            frozen = frozen or (name == "custom_vjp" and mode != "updates")
            broadcasts = name == "scan" and mode == "updates" and not set(which) >= {0, 1}
            if broadcasts or name == "custom_vjp":
                self.avoided["structure under a scan's None or custom_vjp"] += 1
            rigid = rigid or broadcasts or name == "custom_vjp"
            quiet = quiet or (name == "jit" and mode == "updates")
            yield Level(name, mode, tuple(ranks), tuple(mapped), fixed, frozen, rigid, quiet, axes)

    def call(self, depth: int, level: Level) -> str:
        keywords = ", ".join(part for part in (level.axes, MODES[level.mode]) if part)
        return WRAPS[level.transform](f"f{depth}", f", {keywords}" if keywords else "", level.mode)

    def function(self, depth: int, level: Level, inner: Level | None) -> list[str]:
        texts = []
        names = [f"f{depth}"] + ([f"f{depth}_other"] if level.transform in ("cond", "switch") else [])
        returned = self.returned(level, inner)
        for name in names:
            body = [line for _ in range(self.random.choice([0, 1, 1, 2])) for line in self.operation(level)]
            out = "None" if inner is None else self.call(depth + 1, inner)
            body.append(f"out = {out}")
            body += [line for _ in range(self.random.choice([0, 1, 1])) for line in self.operation(level)]
            body.append(f"return {RETURNS.get(level.transform, lambda r, a: r)(returned, level.axes)}")
            texts.append("\n    ".join([f"def {name}(m, n, x):", *body]))
        return texts

    def returned(self, level: Level, inner: Level | None) -> str:
        new = f"Node(1.5, {level.ranks[2]})"
        weights = {"None": 1, "x * 2.0": 2, "m.w[...] * 1.0": 1, new: 1, "(x, 3)": 0.5, "nnx.Param(x * 1.0)": 1}
        if level.fixed:
            weights = {"None": 1, "x * 2.0": 3, "m.w[...] * 1.0": 1}
        elif level.mode == "updates":
            target = self.random.choice(self.objects["m"])
            weights |= {"m": 2, "n": 1, target: 1, "m.w": 1, "(m, n.w)": 1, "{'a': m.w, 'k': x}": 1, "[n.w, n.w]": 0.5}
            weights |= {"(m, m)": 0.5, "nnx.clone(m)": 0.5, f"({new}, m.w)": 0.5, f"({target}, m)": 0.5}
        else:
            weights |= {"m": 0.1, "(m.w, x)": 0.1, "nnx.clone(m)": 0.5, "nnx.state(m)": 0.1}
        if inner is not None:
            weights["out"] = 3
        return self.pick(weights)

    # ------------------------------------------------------------------ what functions do

    def operation(self, level: Level) -> list[str]:
        owner = self.pick({"m": 2, "n": 1})
        values = self.values(owner, level)
        structural = 0.0 if level.rigid else 0.06 if level.fixed else 1.0 if level.mode == "updates" else 0.15
        where = self.random.choice(self.objects[owner])
        self.fresh += 1
        name, rank = f"new{self.fresh % 3}", level.ranks[0 if owner == "m" else 1]
        choices = {
            f"{self.variable(owner)}[...] = {values}": 5.0,
            f"{self.variable(owner)}.set_value({values})": 1.0,
            f"{self.variable(owner)}[...] *= {self.number()}": 2.0,
            f"{where}.{name} = nnx.BatchStat(jnp.full((2,) * {rank}, {self.number()}))": structural,
            f"{where}.{name} = Node({self.number()}, {rank})": structural,
            f"{where}.{name} = jnp.full((2,) * {rank}, {self.number()})": structural * 0.5,
            f"{where}.tag = {self.random.randint(0, 2)}": structural,
            f"{where}.tag += 1": structural * 0.5,
            f"if hasattr({where}, 'again'): del {where}.again": structural * 0.3,
            f"if hasattr({where}, '{name}'): del {where}.{name}": structural * 0.5,
            f"{where}.again = {self.variable(owner)}": structural * 0.7,
            f"{where}.self_ = {owner}": structural * 0.4,
            f"{owner}.w, {owner}.b = {owner}.b, {owner}.w": structural * 0.3,
            f"{where}.w = nnx.Param(jnp.full((2,) * {rank}, {self.number()}))": structural * 0.7,
            f"{self.variable(owner)}.set_metadata(note={self.random.randint(0, 2)})": 0.0
            if level.quiet
            else structural * 0.7,
            "m.n = n": structural * 0.4,
            "m.tied, n.tied = n.w, m.w": structural * 0.3,
            "nnx.update(m, nnx.state(m, nnx.Param))": 0.3,
        }
        if level.frozen:
            self.avoided["mutation in custom_vjp without graph updates"] += 1
            return []
        return [self.pick(choices)]

    def variable(self, owner: str) -> str:
        return self.random.choice(self.variables[owner])

    def values(self, owner: str, level: Level) -> str:
        """A new value for one of the owner's Variables: of its shape, and mapped no more than it is."""
        index = "mn".index(owner)
        at = self.variable(owner)
        other_index, other = self.random.choice([(2, "x"), (index, f"{self.variable(owner)}[...]"), (1, "n.w[...]")])
        if not level.mapped[other_index] <= level.mapped[index] and not self.chance(0.05):
            other, other_index = self.number(), index
        if level.ranks[other_index] != level.ranks[index]:
            other = f"{other}.sum()"
        return f"{at}[...] * {self.number()} + {other}"


def _direct(name: str) -> Callable[[str, str, str], str]:
    return lambda f, keywords, mode: f"nnx.{name}({f}{keywords})(m, n, x)"


def _custom(f: str, keywords: str, mode: str) -> str:
    maker = "custom_vjp_updates" if mode == "updates" else "custom_vjp_plain"
    return f"{maker}(nnx, {f}, dict({keywords[2:]}))(m, n, x)"


def _loop(call: str) -> str:
    return f"loop(m, n, x, lambda start, step: {call})"


# For each transform, the text that applies it to a function and calls it.
WRAPS: dict[str, Callable[[str, str, str], str]] = {
    "jit": _direct("jit"),
    "remat": _direct("remat"),
    "vmap": _direct("vmap"),
    "scan": _direct("scan"),
    "grad": _direct("grad"),
    "value_and_grad": _direct("value_and_grad"),
    "checkify": lambda f, keywords, mode: f"nnx.checkify({f}{keywords})(m, n, x)[1]",
    "cond": lambda f, keywords, mode: f"nnx.cond(x.sum() > 2.0, {f}, {f}_other, m, n, x{keywords})",
    "switch": lambda f, keywords, mode: f"nnx.switch(1, [{f}, {f}_other], m, n, x{keywords})",
    "while": lambda f, keywords, mode: (
        f"nnx.while_loop(lambda c: c[3] < 2, lambda c: ({f}(*c[:3]), (*c[:3], c[3] + 1))[1], (m, n, x, 0){keywords})[2]"
    ),
    "fori": lambda f, keywords, mode: f"nnx.fori_loop(0, 2, lambda i, c: ({f}(*c), c)[1], (m, n, x){keywords})[2]",
    "custom_vjp": _custom,
}
# For each transform that maps, its options, and which of m, n, x they map.
AXES: dict[str, list[tuple[str, tuple[int, ...]]]] = {
    "vmap": [
        ("in_axes=(0, 0, 0)", (0, 1, 2)),
        ("in_axes=(None, None, 0)", (2,)),
        ("in_axes=(0, None, 0)", (0, 2)),
        ("in_axes=(0, 0, None)", (0, 1)),
        ("in_axes=(nnx.StateAxes({...: 0}), 0, 0)", (0, 1, 2)),
        ("in_axes=(nnx.StateAxes({nnx.PathContains('zzz'): 0, ...: None}), None, 0)", (2,)),
    ],
    "scan": [
        ("in_axes=(nnx.Carry, None, 0), out_axes=(nnx.Carry, 0)", (2,)),
        ("in_axes=(0, None, nnx.Carry), out_axes=(nnx.Carry, 0)", (0,)),
        ("in_axes=(None, None, 0), out_axes=0", (2,)),
        ("in_axes=(0, 0, 0), out_axes=0", (0, 1, 2)),
        ("in_axes=(nnx.StateAxes({...: nnx.Carry}), None, 0), out_axes=0", (2,)),
    ],
    "grad": [
        ("has_aux=True", ()),
        ("has_aux=True, argnums=(0, 2)", ()),
        ("has_aux=True, argnums=2", ()),
        ("has_aux=True, argnums=nnx.DiffState(0, nnx.BatchStat)", ()),
    ],
    "value_and_grad": [("has_aux=True", ()), ("has_aux=True, argnums=(1, 2)", ())],
}


def _carry(axes: str) -> str:
    return "m" if "in_axes=(nnx.Carry" in axes else "x" if "nnx.Carry)," in axes else ""


LOSS = "(m.w[...] ** 2).sum() + (n.w[...] * 2.0).sum() + (x * m.b[...].sum()).sum()"
RETURNS: dict[str, Callable[[str, str], str]] = {
    "grad": lambda returned, axes: f"({LOSS}, {returned})",
    "value_and_grad": lambda returned, axes: f"({LOSS}, {returned})",
    "custom_vjp": lambda returned, axes: LOSS,
    "scan": lambda returned, axes: f"({_carry(axes)}, {returned})" if _carry(axes) else returned,
}


def source(seed: int) -> str:
    """The text of one program."""
    return Writer(seed).program()


def _custom_vjp(nnx: Any, function: Any, keywords: dict[str, Any], backward: Any) -> Any:
    def call(m: Any, n: Any, x: Any) -> Any:
        custom = nnx.custom_vjp(function, **keywords)
        custom.defvjp(lambda *args: (function(*args), args), backward)
        return nnx.grad(custom, **keywords)(m, n, x)

    return call


def custom_vjp_updates(nnx: Any, function: Any, keywords: dict[str, Any]) -> Any:
    """A custom rule in its form with graph updates, differentiated."""
    return _custom_vjp(nnx, function, keywords, lambda args, g: (*g[0][:2], args[2] * g[1]))


def custom_vjp_plain(nnx: Any, function: Any, keywords: dict[str, Any]) -> Any:
    """A custom rule in its form without them."""
    return _custom_vjp(nnx, function, keywords, lambda args, g: (nnx.clone(args[0]), nnx.clone(args[1]), args[2] * g))


def program_of(text: str) -> Callable[[Any], Any]:
    """A program's text as a function of the library."""
    import jax
    import jax.numpy as jnp

    code = compile(text, "<program>", "exec")

    def program(nnx: Any) -> Any:
        def attempt(function: Any, *args: Any) -> Any:
            before = agreement.observe((agreement.members(nnx, args[:2]), *args), nnx)
            members = agreement.members(nnx, args[:2])
            try:
                return function(*args)
            except Exception as error:
                after = agreement.observe((members, *args), nnx)
                if nnx.__name__.startswith("weft") and agreement.difference(before, after):
                    raise PartialWriteError(agreement.difference(before, after)) from error
                raise

        names = {"nnx": nnx, "jax": jax, "jnp": jnp, "attempt": attempt}
        names |= {"members": lambda *roots: agreement.members(nnx, *roots)}
        names |= {"custom_vjp_updates": custom_vjp_updates, "custom_vjp_plain": custom_vjp_plain}
        exec(code, names)  # the text is this file's own
        return names["result"]

    return program


class PartialWriteError(BaseException):
    """An exception left the caller's objects changed."""


# Errors of flax that are its own defects (see docs/differences.md): nothing can be compared then.
CRASHES: list[tuple[type[Exception], str]] = [
    (AttributeError, "object has no attribute"),
    (RuntimeError, "already used"),
    (RecursionError, ""),
    (ValueError, "Incorrect number of leaves"),
    (ValueError, "nnx.custom_vjp with graph_updates=False does not support Variable aliasing"),
    (TypeError, "__array__() was called on traced array"),
]


def compare(text: str) -> tuple[str, str | None]:
    """How the two runs of a program went: how they ended, and how they differ (None if they agree)."""
    from flax import nnx as flax_nnx
    from weft import nnx as weft_nnx

    program = program_of(text)
    theirs = agreement.run(program, flax_nnx)
    try:
        ours = agreement.run(program, weft_nnx)
    except PartialWriteError as error:
        return "partial write", f"an exception left changes behind: {error}"
    if isinstance(theirs, RecursionError) or isinstance(ours, RecursionError):
        # JAX's flattening does not give back the depth that it took when this is raised inside of it.
        sys.setrecursionlimit(sys.getrecursionlimit() + 2000)
    if any(isinstance(theirs, kind) and text in str(theirs) for kind, text in CRASHES):
        return "flax crashes", None
    end = type(theirs).__name__ if isinstance(theirs, Exception) else "done"
    return end, agreement.difference(theirs, ours)


def main(argv: list[str]) -> int:
    """Compares many programs, or shows one."""
    if "--show" in argv:
        text = source(int(argv[0]))
        print(text)
        print(compare(text))
        return 0
    start, count = (int(argv[1]), int(argv[0])) if len(argv) > 1 else (0, int(argv[0]))
    ends: collections.Counter[str] = collections.Counter()
    different: dict[int, str] = {}
    for seed in range(start, start + count):
        end, found = compare(source(seed))
        ends[end] += 1
        if found is not None:
            different[seed] = found
            print(f"seed {seed} ({end}): {found}"[:420], flush=True)
    print(f"{count} programs: {dict(ends)}; {len(different)} differ")
    kinds = collections.Counter(re.sub(r"[0-9]+", "#", found)[:60] for found in different.values())
    for kind, times in kinds.most_common():
        print(f"{times:4} {kind}")
    return int(bool(different))


if __name__ == "__main__":
    import os

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main(sys.argv[1:]))
