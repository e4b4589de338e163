"""What the functions of random programs do with a record, each statement written twice.

`weft(code)` writes it over the record that `code.root` names (`m`, `self`, or `t` inside a thread block), `plain(code)`
over the flat dict `m` in which the record's arrays lie under `code.prefix`. Both call the same small functions of the
prelude (`settle`, `like`, `mean_over`, ...), so what may differ is what a library does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from random_records import Constant, Leaf, Mapping, Record, Row, constants, contents, leaves, records, stacked

# How an expression of x uses a value of each sort of configuration.
USES = {
    "number": "x * {c}",
    "string": "CHOICES[{c}](x)",
    "function": "{c}(x)",
    "tuple": "x + {c}[0]",
    "dtype": "x.astype({c}) - 0.25",
    "maybe": "scaled({c}, x)",
    "own": "x * {c}.read()",
}
OPERATIONS = ["x * {leaf} + 0.5", "x - {leaf}", "jnp.tanh(x) * {leaf}", "jnp.maximum(x, {leaf})", "x + 0.5 * {leaf}"]
# What a leaf becomes, before it is averaged over the axes that it is not mapped on.
UPDATES = ["0.5 * {leaf} + like(x, {leaf})", "{leaf} - 0.25 * like(x, {leaf})", "like(jnp.sin(x), {leaf})"]


@dataclass
class Code:
    """Lines being written, and where the record is."""

    root: str = "m"
    prefix: str = ""
    record: Record | None = None
    threaded: bool = False
    axes: Callable[[Sequence[str]], str] = lambda paths: "()"
    indent: str = "    "
    lines: list[str] = field(default_factory=list)
    names: list[int] = field(default_factory=lambda: [0])

    def add(self, line: str) -> None:
        self.lines.append(self.indent + line)

    def fresh(self) -> int:
        self.names[0] += 1
        return self.names[0]

    def at(self, **changes: Any) -> Code:
        return replace(self, **changes)

    def read(self, path: str) -> str:
        return f"{self.root}{path}"

    def key(self, path: str) -> str:
        return f"m[{self.prefix + path!r}]"


@dataclass
class Statement:
    """One thing that a function does; `reads` and `writes` are the paths of leaves."""

    def writes(self, record: Record) -> list[str]:
        return []

    def weft(self, code: Code) -> None:
        raise AssertionError(type(self).__name__)

    def plain(self, code: Code) -> None:
        raise AssertionError(type(self).__name__)


@dataclass
class Use(Statement):
    """x becomes a function of itself and a leaf."""

    leaf: Leaf
    operation: str

    def weft(self, code: Code) -> None:
        code.add(f"x = settle({self.operation.format(leaf=f'like({code.read(self.leaf.path)}, x)')})")

    def plain(self, code: Code) -> None:
        code.add(f"x = settle({self.operation.format(leaf=f'like({code.key(self.leaf.path)}, x)')})")


@dataclass
class Configure(Statement):
    """x becomes a function of itself and a configuration value."""

    constant: Constant

    def weft(self, code: Code) -> None:
        code.add(f"x = settle({USES[self.constant.configuration.sort].format(c=code.read(self.constant.path))})")

    def plain(self, code: Code) -> None:
        assert code.record is not None
        text = next(c.configuration.text for c in constants(code.record) if c.path == self.constant.path)
        code.add(f"x = settle({USES[self.constant.configuration.sort].format(c=f'({text})')})")


@dataclass
class Set(Statement):
    """A leaf gets a value of its own dtype: of x, one more, or the next key."""

    leaf: Leaf
    operation: str
    style: str

    def writes(self, record: Record) -> list[str]:
        return [self.leaf.path]

    def _value(self, leaf: str, code: Code) -> str:
        if self.leaf.array.dtype == "i":
            return f"{leaf} + 1"
        if self.leaf.array.dtype == "key":
            return f"next_key({leaf})"
        return f"settle(mean_over({code.axes([code.prefix + self.leaf.path])}, {self.operation.format(leaf=leaf)}))"

    def weft(self, code: Code) -> None:
        leaf = code.read(self.leaf.path)
        if self.leaf.array.dtype == "key":
            code.add(f"x = settle(x + draw({leaf}, x))")
        code.add(assignment(code, self.leaf.parts, self._value(leaf, code), self.style))

    def plain(self, code: Code) -> None:
        leaf = code.key(self.leaf.path)
        if self.leaf.array.dtype == "key":
            code.add(f"x = settle(x + draw({leaf}, x))")
        code.add(f"m = {{**m, {code.prefix + self.leaf.path!r}: {self._value(leaf, code)}}}")


@dataclass
class Call(Statement):
    """A part is called: once, or (if it is a stack) each of its layers by scan."""

    parts: tuple[str, ...]
    style: str

    def _part(self, record: Record) -> Record:
        return next(part for parts, part in records(record) if parts == self.parts)

    def writes(self, record: Record) -> list[str]:
        part = self._part(record)
        if not part.schema.stateful:
            return []
        if part.stacked:  # what scan gives back of a layer is a copy, changed or not
            return ["".join(self.parts) + leaf.path for leaf in leaves(part)]
        return ["".join(self.parts) + path for inner in part.schema.body for path in inner.writes(part)]

    def weft(self, code: Code) -> None:
        assert code.record is not None
        part, path = self._part(code.record), "".join(self.parts)
        name = f"part{code.fresh()}"
        axes = code.axes([code.prefix + inner for inner in self.writes(code.record)])
        if code.threaded and axes == "()" and (part.stacked or self.style == "tree_at"):
            # The part itself is the function that a transform takes.
            code.add(f"x = weft.{'scan' if part.stacked else 'remat'}({code.read(path)})(x)")
            return
        if part.stacked:
            reading = f"peek({code.read(path)})" if code.threaded else code.read(path)
            out = "(weft.Carry, 0)" if part.schema.stateful else "weft.Carry"
            result = f"x, {name}" if part.schema.stateful else "x"
            code.add(f"def layer(x, part): return part(x, axes={axes})")
            code.add(f"scanned = weft.scan(layer, in_axes=(weft.Carry, 0), out_axes={out})")
            code.add(f"{result} = scanned(x, {reading})")
        elif code.threaded or not part.schema.stateful:
            code.add(f"x = {code.read(path)}(x, axes={axes})")
            return
        else:
            code.add(f"x, {name} = {code.read(path)}(x, axes={axes})")
        if part.schema.stateful:
            code.add(assignment(code, self.parts, name, self.style))

    def plain(self, code: Code) -> None:
        assert code.record is not None
        part = self._part(code.record)
        prefix = code.prefix + "".join(self.parts)
        axes = code.axes([code.prefix + path for path in self.writes(code.record)])
        layer = stacked(part, 0) if part.stacked else part
        inner = code.at(prefix=prefix, record=layer, axes=lambda paths: axes)
        if not part.stacked:
            for statement in part.schema.body:
                statement.plain(inner)
            return
        keys = [prefix + leaf.path for leaf in leaves(part)]
        code.add("def layer(x, m):")
        inner = inner.at(indent=code.indent + "    ")
        for statement in part.schema.body:
            statement.plain(inner)
        inner.add("return x, m")
        code.add(f"x, part = jax.lax.scan(layer, x, {{k: m[k] for k in {keys}}})")
        code.add("m = {**m, **part}")


@dataclass
class Whole(Statement):
    """Something done to the whole model that leaves its values as they are."""

    text: str

    def weft(self, code: Code) -> None:
        code.add(self.text)

    def plain(self, code: Code) -> None:
        code.add("pass")


@dataclass
class Scale(Statement):
    """The leaves that a filter selects are halved."""

    filter: str
    paths: tuple[str, ...]

    def writes(self, record: Record) -> list[str]:
        return list(self.paths)

    def weft(self, code: Code) -> None:
        code.add(f"m = weft.tree.update(m, jax.tree.map(lambda v: 0.5 * v, weft.tree.select(m, {self.filter})))")

    def plain(self, code: Code) -> None:
        code.add(f"m = {{**m, **{{k: 0.5 * m[k] for k in {list(self.paths)}}}}}")


@dataclass
class Custom(Statement):
    """A function with its own derivative, which is not the one of its text."""

    leaf: Leaf

    def weft(self, code: Code) -> None:
        path, name = self.leaf.path, f"custom{code.fresh()}"
        code.add("@weft.custom_vjp")
        code.add(f"def {name}(r, x): return x * like(r{path}, x)")
        code.add(f"{name}.defvjp(lambda r, x: (x * like(r{path}, x), None), lambda _, g: (None, 2.0 * g))")
        code.add(f"x = settle({name}({'peek(t)' if code.threaded else code.root}, x))")

    def plain(self, code: Code) -> None:
        name = f"custom{code.fresh()}"
        code.add("@jax.custom_vjp")
        code.add(f"def {name}(v, x): return x * v")
        code.add(f"{name}.defvjp(lambda v, x: (x * v, None), lambda _, g: (None, 2.0 * g))")
        code.add(f"x = settle({name}(like({code.key(self.leaf.path)}, x), x))")


def assignment(code: Code, parts: tuple[str, ...], new: str, style: str) -> str:
    """The statement that puts a new value where `parts` lead, with whatever lies around it as it was."""
    if code.threaded:
        whole = _whole_containers(code.record, parts)
        return f"t{''.join(parts[:whole])} = {chain('t' + ''.join(parts[:whole]), code.record, parts, whole, new)}"
    if style == "tree_at":
        return f"{code.root} = eqx.tree_at(lambda r: r{''.join(parts)}, {code.root}, {new})"
    return f"{code.root} = {chain(code.root, code.record, parts, 0, new)}"


def _whole_containers(record: Any, parts: tuple[str, ...]) -> int:
    """How many parts a handle can go along: a container without records is an ordinary list or dict there."""
    value = record
    for depth, part in enumerate(parts):
        value = _inside(value, part)
        if isinstance(value, (Row, Mapping)) and not any(isinstance(item, tuple) for item in contents(value)):
            return depth + 1
    return len(parts)


def _inside(value: Any, part: str) -> Any:
    if isinstance(value, Record):
        names = [f".{declared.name}" for declared in value.schema.fields]
        return value.values[names.index(part)]
    if isinstance(value, Row):
        return value.values[eval(part)[0]]
    return dict(value.values)[eval(part)[0]]


def chain(text: str, record: Any, parts: tuple[str, ...], start: int, new: str) -> str:
    value = record
    for part in parts[:start]:
        value = _inside(value, part)
    if start == len(parts):
        return new
    part = parts[start]
    inner = chain(f"{text}{part}", record, parts, start + 1, new)
    if isinstance(value, Record):
        return f"{text}.replace({part[1:]}={inner})"
    if isinstance(value, Mapping):
        return f"{{**{text}, {part[1:-1]}: {inner}}}"
    i = eval(part)[0]
    row = f"*{text}[:{i}], {inner}, *{text}[{i + 1}:]"
    return f"[{row}]" if value.mutable else f"({row},)"


# --- drawing ---------------------------------------------------------------------------------------------------------


def random_statements(rng: random.Random, record: Record, count: int, stateful: bool) -> list[Statement]:
    """Statements about what is in a record: its own fields, and calls of its parts."""
    record_leaves, constant = leaves(record), constants(record)
    floats = [leaf for leaf in record_leaves if leaf.array.dtype == "f"]
    parts = [
        parts
        for parts, part in records(record)
        if parts and not _in_stack(record, parts) and (stateful or not part.schema.stateful)
    ]
    makers: list[tuple[float, Callable[[], Statement]]] = [
        (
            3,
            lambda: Use(
                rng.choice([leaf for leaf in record_leaves if leaf.array.dtype != "key"]), rng.choice(OPERATIONS)
            ),
        )
    ]
    if constant:
        makers.append((3, lambda: Configure(rng.choice(constant))))
    if stateful:
        makers.append((4, lambda: Set(rng.choice(record_leaves), rng.choice(UPDATES), _style(rng))))
    if parts:
        makers.append((4, lambda: Call(rng.choice(parts), _style(rng))))
    makers.append((0.3, lambda: Custom(rng.choice(floats))))
    weights = [weight for weight, _ in makers]
    return [rng.choices(makers, weights)[0][1]() for _ in range(count)]


def _style(rng: random.Random) -> str:
    return rng.choice(["replace", "replace", "tree_at"])


def _in_stack(record: Record, parts: tuple[str, ...]) -> bool:
    """Whether what is there lies inside of a stack (whose layers are called by scan, as a whole)."""
    above = [inner for at, inner in records(record) if at and at == parts[: len(at)] and len(at) < len(parts)]
    return any(inner.stacked for inner in above)
