"""Writes random programs: two models `m` and `n`, an array `x`, a nest of transforms, and a few calls of it.

The models may share Variables and objects, be cyclic, and hold containers, random streams, refs and what was sown. The
functions of the nest mutate them; so does the program itself, between the calls.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Iterator

from fuzz_operations import LAYERS, Features, operations
from fuzz_transforms import (
    AXES,
    COMPILED,
    LOSE_METADATA,
    MODES,
    OF_WHOLE_TREES,
    OUTERMOST,
    RARE,
    RETURNS,
    TAKE_REFS,
    WITH_UPDATES,
    WITHOUT_UPDATES,
    WRAPS,
    Axes,
)

HEAD = """
class Node(nnx.Module):
    def __init__(self, value, like):
        self.w = nnx.Param(jnp.full(like.shape, value))
        self.b = nnx.BatchStat(jnp.full(like.shape, value / 2))
        self.tag = 0
class Config:
    def __init__(self, width):
        self.width, self.memo = width, {}
    def __eq__(self, other):
        return isinstance(other, Config) and self.width == other.width
"""
_EMPTY: frozenset[int] = frozenset()
# How options begin that take the first axis of all of m.
PEELS = ("in_axes=(0,", "in_axes=(nnx.StateAxes({...: 0})")


@dataclasses.dataclass(frozen=True)
class Level:
    """One transform of a nest, as its function sees things.

    Attributes:
        transform: its name.
        mode: one of `MODES`.
        mapped: for m, n and x, the levels at which any of it is mapped.
        surely: for m, n and x, the levels at which all of it is.
        fixed: whether m's structure should stay as it is (in loops and branches).
        rigid: whether structure and metadata may not change (in custom_vjp, and where a scan broadcasts).
        quiet: whether metadata may not change (in jit with graph updates, and what is made of it).
        axes: the options that say what is mapped.
        split: whether random streams in m are split for it.
        peeled: how many axes m's Variables have lost.
    """

    transform: str = ""
    mode: str = "updates"
    mapped: tuple[frozenset[int], frozenset[int], frozenset[int]] = (_EMPTY, _EMPTY, _EMPTY)
    surely: tuple[frozenset[int], frozenset[int], frozenset[int]] = (_EMPTY, _EMPTY, _EMPTY)
    fixed: bool = False
    rigid: bool = False
    quiet: bool = False
    axes: str = ""
    split: bool = False
    peeled: int = 0


class Writer:
    """Writes one program; everything it decides comes from one random generator."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.fresh = 0
        self.mode = self.random.choice([*MODES, "updates"])
        self.variables = {"m": ["m.w", "m.b"], "n": ["n.w", "n.b"]}
        self.objects = {"m": ["m"], "n": ["n"]}
        self.features = Features(
            streams=self.chance(0.3),
            refs=self.chance(0.06),
            sown=self.chance(0.25),
            raw=self.chance(0.2),
            config=self.chance(0.35),
        )
        self.shares = True
        self.peels: int | None = 0  # how many axes m's Variables lose in all; None: not all of them lose them
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
        """The text of the program."""
        nest = list(self.nest())
        if self.peels is not None:
            self.peels = nest[-1].peeled
        self.shares = not any(level.mode == "tree" and level.transform in ("while", "fori") for level in nest)
        setup = self.models()
        functions: list[str] = []
        for depth, level in reversed(list(enumerate(nest))):
            functions += self.function(depth, level, depth + 1 < len(nest))
            functions.append(self.transformed(depth, level))
        lines = [*setup, *functions, self.run(), "before = members(m, n)", "outs = []", *self.calls(nest[0])]
        return HEAD + "\n".join(lines) + "\nresult = (before, m, n, outs)\n"

    def run(self) -> str:
        body = "t0(m, n, x)"
        if self.features.sown and "list" not in self.features.containers and self.chance(0.3):
            body = f"nnx.capture(lambda m: {body}, nnx.Intermediate)(m)"
        return f"def run(m, n, x):\n    return {body}"

    def calls(self, outermost: Level) -> list[str]:
        lines: list[str] = []
        # Splitting streams for the call counts as use of them, also if the call then fails; refs are changed at once; a
        # pullback may fail when the function has succeeded.
        loosely = outermost.split or self.features.refs or outermost.transform == "vjp"
        attempt = "attempt_loosely" if loosely else "attempt"
        for i in range(self.random.choice([1, 2, 3])):
            if self.chance(0.35):
                lines += self.operation(Level(mode=outermost.mode))
            lines.append(f"outs.append({attempt}(run, m, n, x + {i}.0))")
        return lines

    def models(self) -> list[str]:
        lines = ["x = jnp.arange(8.0).reshape(2, 2, 2) / 8", "m, n = Node(1.0, x), Node(2.0, x)"]
        if self.chance(0.5):
            lines.append("m.c = Node(3.0, x)")
            self._has("m", ["m.c.w", "m.c.b"], ["m.c"])
        if self.chance(0.3):
            lines.append("m.l = nnx.List([Node(4.0, x), nnx.Param(jnp.ones((2, 2, 2)))])")
            self._has("m", ["m.l[0].w", "m.l[1]"], ["m.l[0]"], "list")
        if self.chance(0.2):
            lines.append("m.d = nnx.Dict(v=nnx.Cache(jnp.zeros((2, 2, 2))), o=Node(5.0, x))")
            self._has("m", ["m.d['v']", "m.d['o'].w"], ["m.d['o']"], "dict")
        if self.chance(0.2):
            lines.append("m.p = nnx.data([nnx.Param(jnp.ones((2, 2, 2))), {'k': Node(6.0, x)}])")
            self._has("m", ["m.p[0]", "m.p[1]['k'].b"], ["m.p[1]['k']"], "plain")
        if self.features.config:
            lines.append("m.config, n.config = Config(2), Config(2)")
            lines += [f"{at}.config = m.config" for at in self.objects["m"][1:] if self.chance(0.5)]
        if self.features.named:
            lines.append("m.w.set_metadata(out_sharding=('layers', None, None))")
        if self.features.raw:
            lines.append("m.raw = jnp.ones((2, 2, 2))")
        if self.features.streams:
            lines.append(self.pick({"m.r = nnx.Rngs(0, noise=1)": 3, "m.r = nnx.Rngs(noise=jax.random.key(2))": 1}))
            lines += ["m.drop = nnx.Dropout(0.5, rngs=m.r)"] if self.chance(0.4) else []
            self.features.dropout = lines[-1].startswith("m.drop")
        if self.peels is not None and self.chance(0.35):
            made, self.features.layer = self.random.choice(list(LAYERS.items()))
            lines.append(f"m.f = stacked(lambda r: {made}, {self.peels})")
        if self.features.refs:
            lines.append("m.k = nnx.BatchStat(jnp.zeros((2, 2, 2)), ref=True)")
            lines += ["m.q = jax.new_ref(jnp.zeros((2, 2, 2)))"] if self.chance(0.5) else []
            self.features.array_refs = lines[-1].startswith("m.q")
        return lines + self.sharing()

    def _has(self, arg: str, variables: list[str], objects: list[str], container: str = "") -> None:
        self.variables[arg] += variables
        self.objects[arg] += objects
        self.features.containers |= {container} - {""}

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
            *(["n.f = m.f"] if self.features.layer else []),
            *(["n.r = m.r", "n.noise = m.r"] if self.features.streams else []),
        ]
        return self.random.sample(options, self.random.choice([1, 1, 2]))

    # ------------------------------------------------------------------ the nest

    def names(self) -> list[str]:
        """Which transforms, from the outside in."""
        weights = {name: RARE.get(name, 1.0) for name in sorted(WRAPS)}
        for name in WITHOUT_UPDATES if self.mode == "updates" else WITH_UPDATES:
            del weights[name]
        if self.features.streams:
            weights = {name: weight for name, weight in weights.items() if name not in OF_WHOLE_TREES}
        if self.features.refs:
            self.avoided["refs where they do not work"] += 1
            weights = {name: weight for name, weight in weights.items() if name in TAKE_REFS[self.mode]}
        chosen: list[str] = []
        for _ in range(min(self.random.choice([2, 2, 3]), len(weights))):
            chosen.append(self.pick(weights))
            del weights[chosen[-1]]
            if chosen[-1] in OUTERMOST:
                weights = {name: weight for name, weight in weights.items() if name not in OUTERMOST}
                if chosen[-1] == "pmap":
                    weights.pop("shard_map", None)
        chosen.sort(key=lambda name: name not in OUTERMOST)
        if "shard_map" in chosen and not any(name in COMPILED for name in chosen[: chosen.index("shard_map")]):
            chosen = [name for name in chosen if name != "jit"]
            chosen.insert(chosen.index("shard_map"), "jit")
        return chosen

    def choose_axes(self, name: str, mode: str) -> Axes:
        axes = self.random.choice(AXES[name])
        fits = not (axes.prefix if mode == "updates" else axes.kinds)
        fits = fits and not ("donate" in axes.text and self.features.raw)  # which is then gone, without graph updates
        if self.features.streams:
            fits = fits and axes.streams != "none" and not (axes.streams and "grad" in name and mode != "updates")
        return axes if fits or self.chance(0.05) else AXES[name][0]

    def nest(self) -> Iterator[Level]:
        mapped, surely = [_EMPTY] * 3, [_EMPTY] * 3
        fixed, rigid, quiet, peeled = False, False, False, 0
        for depth, name in enumerate(self.names()):
            mode = self.random.choice(list(MODES)) if self.chance(0.1) and not self.features.refs else self.mode
            if name == "named_vmap":  # of which flax loses, and refuses, much with graph updates
                mode = self.mode
            axes = self.choose_axes(name, mode) if name in AXES else Axes("", ())
            if "donate" in axes.text and depth:  # what JAX runs step by step around it would still want the arrays
                axes = Axes("", ())
            # In tree mode, where nothing is shared: flax names the axis of a shared Variable once for each path.
            self.features.named |= name == "named_vmap" and mode == "tree" and self.chance(0.8)
            if name in ("vmap", "named_vmap", "pmap", "shard_map"):
                mapped = [s | {depth} if i in axes.mapped else s for i, s in enumerate(mapped)]
                sure = tuple(i for i in axes.mapped if i or not axes.partly)
                surely = [s | {depth} if i in sure else s for i, s in enumerate(surely)]
            if 0 in axes.mapped:
                peeled += 1
                if axes.partly or name == "shard_map" or not axes.text.startswith(PEELS):
                    self.peels = None
            fixed = fixed or name in ("cond", "switch", "while", "fori", "cached_partial", "custom_jvp")
            fixed = fixed or (name == "scan" and ("Carry, None" in axes.text or "None, nnx.Carry" in axes.text))
            broadcasts = name == "scan" and mode == "updates" and not set(axes.mapped) >= {0, 1}
            broadcasts = broadcasts or name == "custom_vjp"
            if broadcasts:
                self.avoided["structure under a scan's None or custom_vjp"] += 1
            rigid = rigid or broadcasts
            quiet = quiet or name == "jit_partial" or (name in LOSE_METADATA and mode == "updates")
            if quiet:
                self.avoided["metadata in jit and what is made of it"] += 1
            split = self.features.streams and axes.streams == "split" and name not in ("grad", "value_and_grad")
            yield Level(name, mode, tuple(mapped), tuple(surely), fixed, rigid, quiet, axes.text, split, peeled)

    def transformed(self, depth: int, level: Level) -> str:
        """The line that transforms a function: once for all calls, or anew for each."""
        keywords = ", ".join(part for part in (level.axes, MODES[level.mode]) if part)
        text = WRAPS[level.transform](f"f{depth}", f", {keywords}" if keywords else "", level.mode)
        if level.split:
            text = f"nnx.split_rngs(splits=2{', ' if MODES[level.mode] else ''}{MODES[level.mode]})({text})"
        if self.chance(0.5):
            return f"t{depth} = {text}"
        call = text.removeprefix("lambda m, n, x: ") if text.startswith("lambda") else f"{text}(m, n, x)"
        return f"def t{depth}(m, n, x):\n    return {call}"

    def function(self, depth: int, level: Level, has_inner: bool) -> list[str]:
        texts = []
        names = [f"f{depth}"] + ([f"f{depth}_other"] if level.transform in ("cond", "switch") else [])
        returned = self.returned(level, has_inner)
        for name in names:
            body = [line for _ in range(self.random.choice([0, 1, 1, 2])) for line in self.operation(level)]
            body.append(f"out = {f't{depth + 1}(m, n, x)' if has_inner else None}")
            body += [line for _ in range(self.random.choice([0, 1, 1])) for line in self.operation(level)]
            body.append(f"return {RETURNS.get(level.transform, lambda r, a: r)(returned, level.axes)}")
            texts.append("\n    ".join([f"def {name}(m, n, x):", *body]))
        return texts

    def returned(self, level: Level, has_inner: bool) -> str:
        new = "Node(1.5, x)"
        weights = {"None": 1, "x * 2.0": 2, "m.w[...] * 1.0": 1, new: 1, "(x, 3)": 0.5, "nnx.Param(x * 1.0)": 1}
        if level.fixed or level.transform in ("shard_map", "jvp", "vjp", "eval_shape"):
            weights = {"None": 1, "x * 2.0": 3, "m.w[...] * 1.0": 1}
        elif level.mode == "updates":
            target = self.random.choice(self.objects["m"])
            weights |= {"m": 2, "n": 1, target: 1, "m.w": 1, "(m, n.w)": 1, "{'a': m.w, 'k': x}": 1, "[n.w, n.w]": 0.5}
            weights |= {"(m, m)": 0.5, "nnx.clone(m)": 0.5, f"({new}, m.w)": 0.5, f"({target}, m)": 0.5}
            weights |= {"m.r": 0.5, "(m.r, m)": 0.3, "nnx.Rngs(3)": 0.3} if self.features.streams else {}
        else:
            weights |= {"m": 0.1, "(m.w, x)": 0.1, "nnx.clone(m)": 0.5, "nnx.state(m)": 0.1}
        if has_inner and level.transform not in ("vjp", "jvp"):
            weights["out"] = 3
        return self.pick(weights)

    # ------------------------------------------------------------------ what functions do

    def operation(self, level: Level) -> list[str]:
        """One thing that a function does, or the program between two calls."""
        owner = self.pick({"m": 2, "n": 1})
        structural = 0.0 if level.rigid else 0.06 if level.fixed else 1.0 if level.mode == "updates" else 0.15
        self.fresh += 1
        names = {
            "owner": owner,
            "where": self.random.choice(self.objects[owner]),
            "variable": self.random.choice(self.variables[owner]),
            "values": self.values(owner, level),
            "name": f"new{self.fresh % 3}",
            "heard": self.heard(level),
            "number": self.number(),
            "count": str(self.random.randint(0, 2)),
        }
        return [self.pick(operations(names, self.features, structural, 0.0 if level.quiet else structural))]

    def heard(self, level: Level) -> str:
        """A call of m's layer, where its Variables have the shapes of one; of x, if m is mapped as much."""
        if not self.features.layer or level.peeled != self.peels:
            return ""
        fed = "x" if level.mapped[2] <= level.surely[0] or self.chance(0.05) else self.number()
        return self.features.layer.replace("z(", f"fed({fed}, ")

    def values(self, owner: str, level: Level) -> str:
        """A new value for one of the owner's Variables, mapped no more than it is."""
        index = "mn".index(owner)
        at = self.random.choice(self.variables[owner])
        mine = f"{self.random.choice(self.variables[owner])}[...]"
        choices = [(2, "x"), (index, mine), (1, "n.w[...]")]
        if self.features.streams:
            choices += [(0, f"m.r.{self.random.choice(['noise.', ''])}normal(x.shape)"), (0, "m.r.noise.uniform()")]
            choices += [(0, "m.drop(x)")] if self.features.dropout else []
        if self.features.refs:
            choices += [(0, "m.k[...]")]
        operand_index, operand = self.random.choice(choices)
        if not level.mapped[operand_index] <= level.surely[index] and not self.chance(0.05):
            operand = self.number()
        return f"{at}[...] * {self.number()} + like({operand}, {at})"
