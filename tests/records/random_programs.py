"""Random programs: a nest of transforms around functions of a random record, written over weft and over plain JAX.

A program is data: a record, and levels. Level i is a function `f{i}` of (m, x) that does something, puts a transform
around `f{i+1}`, and does something again; the last does something only. `weft_text` and `plain_text` write the same
data twice, so a failing program can be made smaller (`smaller`) and printed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from random_copies import random_between, random_copy, random_value_statement
from random_records import KINDS, TAGS, WIDTH, Leaf, Record, leaves, random_root, schemas
from random_statements import Call, Custom, Scale, Statement, Whole, random_statements

CARRY = "weft.Carry"


@dataclass(frozen=True)
class Filter:
    """A filter as text, and what it matches."""

    text: str
    matches: Callable[[Leaf], bool]


@dataclass(frozen=True)
class Rides:
    """Where the leaves of the record ride, as text for weft and by path, and where x does."""

    text: str
    by_path: dict[str, int | str | None]
    x: int | str | None
    size: int


@dataclass
class Level:
    """A function: statements, a transform around the next function, statements; the last one has no transform."""

    before: list[Statement]
    transform: str = ""
    after: list[Statement] = field(default_factory=list)
    rides: Rides | None = None
    options: str = ""
    wrt: tuple[str, tuple[str, ...]] = ("", ())
    others: list[list[Statement]] = field(default_factory=list)  # the other branches
    threaded: bool = False
    number: int = 0


@dataclass
class Program:
    record: Record
    levels: list[Level]
    between: str = "pass"  # done with `m` between two calls


# --- drawing ---------------------------------------------------------------------------------------------------------

TRANSFORMS = ["jit", "vmap", "scan", "cond", "switch", "fori_loop", "while_loop", "grad", "value_and_grad", "remat"]
TRANSFORMS += ["vmap", "scan", "jit", "plain_jit", "plain_vmap", "vjp", "jvp"]
WEIGHTS = [4, 4, 4, 2, 1, 1.5, 1.5, 2, 3, 1.5, 2, 2, 2, 1.5, 1.5, 1, 1.5]


def random_program(seed: int) -> Program:
    rng = random.Random(seed)
    record = random_root(rng)
    for schema in schemas(record):
        instance = schema.instance(random.Random(0))
        schema.body = _statements(rng, instance, rng.choice([1, 2, 3]), schema.stateful)
    depth = rng.choice([1, 1, 2, 2, 3])
    levels: list[Level] = []
    for number in range(depth):
        levels.append(_fitting(_level(rng, record, number), levels))
    if levels[0].transform in ("jit", "plain_jit") and rng.random() < 0.5:
        levels[0].options = "donate_argnums=0"
    levels.append(Level(_block(rng, record, rng.choice([2, 3, 4])), threaded=rng.random() < 0.5, number=depth))
    program = Program(record, levels, random_between(rng, record))
    return _without_jvp(program) if _has_custom(program) else program


def _has_custom(program: Program) -> bool:
    blocks = [schema.body for schema in schemas(program.record)]
    blocks += [block for level in program.levels for block in (level.before, level.after, *level.others)]
    return any(isinstance(statement, Custom) for block in blocks for statement in block)


def _without_jvp(program: Program) -> Program:
    """The program in which nothing is differentiated in forward mode, which `custom_vjp` refuses."""
    levels = [replace(level, transform="remat") if level.transform == "jvp" else level for level in program.levels]
    return replace(program, levels=levels)


def _level(rng: random.Random, record: Record, number: int) -> Level:
    transform = rng.choices(TRANSFORMS, WEIGHTS)[0]
    before, after = (_block(rng, record, rng.choice([0, 0, 1])) for _ in range(2))
    level = Level(before, transform, after, threaded=rng.random() < 0.5, number=number)
    if transform in ("vmap", "scan", "plain_vmap"):
        level.rides = _rides(rng, record, transform, number)
    elif transform in ("cond", "switch"):
        level.others = [_block(rng, record, 2) for _ in range(1 if transform == "cond" else 2)]
    elif transform in ("grad", "value_and_grad", "vjp"):
        level.wrt = _wrt(rng, record)
        level.options = rng.choice(["", "", "argnums=(0, 1)"])
    elif transform == "jvp":
        level.wrt = _wrt(rng, record)
        level.options = rng.choice(["select", "replace"])
    return level


def _fitting(level: Level, around: list[Level]) -> Level:
    """The level, or another one where it does not go with what is around it."""
    if level.transform == "while_loop" and any(outer.wrt[1] for outer in around):
        level = replace(level, transform="fori_loop")  # JAX cannot differentiate a while in reverse
    # What a scan gives each step as it is must come back as it is: loops, branches and JAX's jit give back copies.
    unmapped = [
        path
        for outer in around
        if outer.transform == "scan" and outer.rides is not None
        for path, ride in outer.rides.by_path.items()
        if ride is None
    ]
    rides = level.rides.by_path if level.rides is not None else {}
    if all(rides.get(path, CARRY) is None for path in unmapped):
        return level
    if level.transform == "plain_vmap":
        return replace(level, transform="vmap")
    copies = level.transform in ("scan", "fori_loop", "while_loop", "plain_jit", "cond", "switch")
    return replace(level, transform="jit", rides=None, others=[]) if copies else level


def _block(rng: random.Random, record: Record, count: int) -> list[Statement]:
    statements = _statements(rng, record, count, stateful=True)
    if count and rng.random() < 0.35:
        whole = random_copy(rng) if rng.random() < 0.4 else _whole(rng, record)
        statements.insert(rng.randrange(count + 1), whole)
    return statements


def _statements(rng: random.Random, record: Record, count: int, stateful: bool) -> list[Statement]:
    statements = random_statements(rng, record, count, stateful)
    return [(rng.random() < 0.25 and random_value_statement(rng, record, stateful)) or one for one in statements]


def _whole(rng: random.Random, record: Record) -> Statement:
    chosen = _filters(rng, leaves(record), 2)
    text = ", ".join(filter.text for filter, _ in chosen)
    simple = [
        "m = jax.tree.map(lambda v: v, m)",
        "m = weft.tree.update(m, weft.tree.changes(m, m))",
        "m = jax.tree.unflatten(jax.tree.structure(m), jax.tree.leaves(m))",
        f"structure, *taken = weft.tree.split(m, {text}, ...); m = weft.tree.merge(structure, *reversed(taken))",
        f"m = weft.tree.update(m, weft.tree.select(m, {chosen[0][0].text}))",
        "arrays, rest = eqx.partition(m, eqx.is_array); m = eqx.combine(arrays, rest)",
    ]
    filter, matched = chosen[0]
    if all(leaf.array.dtype == "f" for leaf in matched) and rng.random() < 0.5:
        return Scale(filter.text, tuple(leaf.path for leaf in matched))
    return Whole(rng.choice(simple))


def _filters(rng: random.Random, record_leaves: Sequence[Leaf], count: int) -> list[tuple[Filter, list[Leaf]]]:
    """Filters that each match something that those before leave."""
    chosen: list[tuple[Filter, list[Leaf]]] = []
    rest = list(record_leaves)
    while rest and len(chosen) < count:
        filter = _filter(rng, record_leaves)
        matched = [leaf for leaf in rest if filter.matches(leaf)]
        if matched:
            chosen.append((filter, matched))
            rest = [leaf for leaf in rest if leaf not in matched]
    return chosen


def _filter(rng: random.Random, record_leaves: Sequence[Leaf], depth: int = 0) -> Filter:
    sort = rng.choice(["kind", "kind", "kind", "path", "tag", *(["any", "all", "not", "call"] if depth < 2 else [])])
    if sort == "kind":
        kind = rng.choice(sorted({base for leaf in record_leaves for base in KINDS[leaf.kind]}))
        return Filter(kind, lambda leaf: kind in KINDS[leaf.kind])
    if sort == "path":
        name = rng.choice(sorted({name for leaf in record_leaves for name in leaf.names}, key=str))
        return Filter(f"weft.filters.PathContains({name!r})", lambda leaf: name in leaf.names)
    if sort == "tag":
        tag = rng.choice(TAGS)
        return Filter(rng.choice([f"weft.filters.WithTag({tag!r})", repr(tag)]), lambda leaf: tag in leaf.tags)
    if sort == "call":
        text = "lambda path, kind, leaf: len(path) % 2 == 1"
        return Filter(f"({text})", lambda leaf: len(leaf.names) % 2 == 1)
    first, second = _filter(rng, record_leaves, depth + 1), _filter(rng, record_leaves, depth + 1)
    if sort == "not":
        return Filter(f"weft.filters.Not({first.text})", lambda leaf: not first.matches(leaf))
    join = any if sort == "any" else all
    return Filter(
        f"weft.filters.{sort.capitalize()}({first.text}, {second.text})",
        lambda leaf: join([first.matches(leaf), second.matches(leaf)]),
    )


def _wrt(rng: random.Random, record: Record) -> tuple[str, tuple[str, ...]]:
    """A filter for what to differentiate, and the paths of it; all of them floats."""
    for _ in range(20):
        [(filter, matched)] = _filters(rng, leaves(record), 1)
        if all(leaf.array.dtype == "f" for leaf in matched):
            return filter.text, tuple(leaf.path for leaf in matched)
    matched = [leaf for leaf in leaves(record) if leaf.array.dtype == "f"]
    return "is_float", tuple(leaf.path for leaf in matched)


def _rides(rng: random.Random, record: Record, transform: str, number: int) -> Rides:
    record_leaves = leaves(record)
    choices: list[int | str | None] = {
        "vmap": [0, 0, None, -1],
        "plain_vmap": [0],
        "scan": [0, 0, None, CARRY, CARRY],
    }[transform]
    x = rng.choice([0, 0, CARRY] if transform == "scan" else [0, 0, 0, None, -1])
    size = rng.choice([2, 3])
    if transform == "plain_vmap" or rng.random() < 0.25:
        common_ride = 0 if transform == "plain_vmap" else rng.choice(choices)
        by_path = {leaf.path: common_ride for leaf in record_leaves}
        text = (
            "jax.tree.map(lambda _: 0, m)"
            if common_ride == 0 and transform == "vmap" and rng.random() < 0.6
            else repr(common_ride)
        )
        text = text.strip("'")
    else:
        chosen = _filters(rng, record_leaves, rng.choice([1, 2]))
        drawn = [rng.choice(choices) for _ in range(len(chosen) + 1)]
        by_path = {leaf.path: drawn[-1] for leaf in record_leaves}
        by_path |= {leaf.path: ride for ride, (_, matched) in zip(drawn, chosen, strict=False) for leaf in matched}
        rows = [f"{filter.text}: {ride}" for ride, (filter, _) in zip(drawn, chosen, strict=False)]
        text = f"weft.axes({{{', '.join([*rows, f'...: {drawn[-1]}'])}}})"
    # A key has an axis of its own only in front, as `-1` of a scalar's stack is.
    if transform != "scan" and x is None and not any(isinstance(ride, int) for ride in by_path.values()):
        x = 0
    return Rides(text, by_path, x, size)


# --- what holds at each level ----------------------------------------------------------------------------------------


def shape(program: Program, level: int, leaf: Leaf) -> tuple[int, ...]:
    """The shape of a leaf as `f{level}` sees it."""
    sizes = () if leaf.array.dtype == "key" else (WIDTH,) if leaf.array.dtype == "f" else ()
    base = [leaf.array.stacked, *sizes] if leaf.array.stacked else [*sizes]
    for inner in reversed(program.levels[level:]):
        if inner.rides is not None:
            _add_axis(base, inner.rides.by_path[leaf.path], inner.rides.size)
    return tuple(base)


def shape_of_x(program: Program) -> tuple[int, ...]:
    base = [WIDTH]
    for inner in reversed(program.levels):
        if inner.rides is not None:
            _add_axis(base, inner.rides.x, inner.rides.size)
    return tuple(base)


def _add_axis(sizes: list[int], ride: int | str | None, size: int) -> None:
    if isinstance(ride, int):
        sizes.insert(ride if ride >= 0 else len(sizes) + 1 + ride, size)


def may_write(program: Program, level: int, paths: Sequence[str], branch: bool = False) -> bool:
    """Whether leaves may change in `f{level}`, or in another branch beside what it calls.

    Not where a scan gives each step the same. Nor in a branch inside of a `vmap` that does not map them: the choice may
    be another one for each example, so what comes out is mapped, whatever the branches agree on.
    """
    for i, outer in enumerate(program.levels[:level]):
        if outer.rides is None or all(outer.rides.by_path[path] is not None for path in paths):
            continue
        between = [inner.transform in ("cond", "switch") for inner in program.levels[i + 1 : level + branch]]
        if outer.transform == "scan" or any(between):
            return False
    return True


def axes_to_average(program: Program, level: int, paths: Sequence[str]) -> str:
    """The named axes over which new values of leaves must agree, as the text of a tuple."""
    names = [
        f"a{outer.number}"
        for outer in program.levels[:level]
        if outer.transform in ("vmap", "plain_vmap")
        and outer.rides is not None
        and any(outer.rides.by_path[path] is None for path in paths)
    ]
    return repr(tuple(names))


def statements_of(
    program: Program, level: int, block: list[Statement], threaded: bool, branch: bool = False
) -> list[Statement]:
    """Those statements of a block that are possible at its level."""
    return [
        statement
        for statement in block
        if may_write(program, level, statement.writes(program.record), branch)
        and not (threaded and isinstance(statement, (Whole, Scale)))
        and not (isinstance(statement, Call) and not _can_scan(program, level, statement.parts))
    ]


def _can_scan(program: Program, level: int, parts: tuple[str, ...]) -> bool:
    """Whether a part is one layer, or a stack whose arrays have the layers in front at this level."""
    inside = [leaf for leaf in leaves(program.record) if leaf.parts[: len(parts)] == parts and leaf.array.stacked]
    return len({shape(program, level, leaf)[0] for leaf in inside}) < 2


# --- what changes, and what is smaller -------------------------------------------------------------------------------


def written(program: Program) -> set[str]:
    """The paths of the leaves that may change in a call."""
    paths: set[str] = set()
    for level in program.levels:
        for block in (level.before, level.after, *level.others):
            for statement in block:
                paths |= set(statement.writes(program.record))
        paths |= set(level.wrt[1])
    return paths


def smaller(program: Program) -> Iterator[Program]:
    """The programs that one step makes smaller: without a level, or without a statement."""
    if program.between != "pass":
        yield replace(program, between="pass")
    for i in range(len(program.levels) - 1):
        yield replace(program, levels=[*program.levels[:i], *program.levels[i + 1 :]])
    for i, level in enumerate(program.levels):
        for name in ("before", "after"):
            block = getattr(level, name)
            for j in range(len(block)):
                less = replace(level, **{name: [*block[:j], *block[j + 1 :]]})
                yield replace(program, levels=[*program.levels[:i], less, *program.levels[i + 1 :]])
        if level.threaded:
            less = replace(level, threaded=False)
            yield replace(program, levels=[*program.levels[:i], less, *program.levels[i + 1 :]])
