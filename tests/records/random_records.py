"""Random records: classes with fields of every sort, instances of them, and what a flat dict of their arrays holds.

A *schema* is a class: its fields and the statements of its method. A *value* is what one field of an instance holds: an
array, configuration, a record, a list, tuple or dict of these. `leaves` and `constants` list what is in an instance,
with the expression that reads it: the program in plain JAX has a dict from that expression to the array, and
configuration written out in its text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

WIDTH = 3

# From kind to its own bases, as the programs' prelude declares them.
KINDS = {
    "weft.Param": ("weft.Param",),
    "Slow": ("Slow", "weft.Param"),
    "weft.BatchStat": ("weft.BatchStat",),
    "Momentum": ("Momentum", "weft.BatchStat"),
    "weft.Cache": ("weft.Cache",),
    "weft.Buffer": ("weft.Buffer",),
    "weft.RngKey": ("weft.RngKey", "weft.RngState"),
    "weft.RngCount": ("weft.RngCount", "weft.RngState"),
}
FLOAT_KINDS = ["", "", "weft.Param", "Slow", "weft.BatchStat", "Momentum", "weft.Cache", "weft.Buffer"]
TAGS = ["frozen", "late"]

# Configuration: what a field may hold, by how a statement uses it.
CONFIGURATION = {
    "number": ["0.5", "2", "-1.5", "True", "1", "0.25", "1.0"],
    "string": ["'tanh'", "'sin'", "'id'"],
    "function": ["jnp.tanh", "jnp.sin", "jax.nn.relu", "twice", "functools.partial(jnp.multiply, 0.5)"],
    "tuple": ["(0.5, 2)", "(1, 'a', jnp.tanh)", "(1.5,)", "(True, (2, 'b'))"],
    "dtype": ["jnp.float32", "jnp.dtype('float32')", "np.float32"],
    "maybe": ["None", "0.75"],
    "own": ["Own(0.5)", "Own(2.0)", "Own(0.5, [1])"],
}
ANNOTATION = {"number": "float", "string": "str", "function": "Any", "tuple": "tuple", "dtype": "Any", "maybe": "Any"}
ANNOTATION["own"] = "Any"


@dataclass(frozen=True)
class Array:
    """An array: its dtype ("f", "i" or "key"), the seed of its first value, and how many copies are stacked in it."""

    dtype: str
    seed: int
    stacked: int = 0


@dataclass(frozen=True)
class Configuration:
    """A value that is no array, as text; its sort is a key of `CONFIGURATION`."""

    sort: str
    text: str


@dataclass(frozen=True)
class Record:
    """An instance: the values of a schema's fields, in order; `stacked` says how many copies lie on its first axis."""

    schema: Schema
    values: tuple[Any, ...]
    stacked: int = 0


@dataclass(frozen=True)
class Row:
    """A list or tuple of values."""

    mutable: bool
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Mapping:
    """A dict of values."""

    values: tuple[tuple[str, Any], ...]


@dataclass
class Field:
    """A field of a class; `make` draws what an instance holds there."""

    name: str
    annotation: str
    make: Callable[[random.Random], Any]
    kind: str = ""
    tag: str = ""
    static: bool = False


@dataclass
class Schema:
    """A class; the statements of its method are put in when programs are written."""

    name: str
    fields: list[Field]
    body: list[Any] = field(default_factory=list)
    stateful: bool = True
    threaded: bool = False
    caches: bool = False

    def instance(self, rng: random.Random) -> Record:
        return Record(self, tuple(field.make(rng) for field in self.fields))


@dataclass(frozen=True)
class Leaf:
    """An array of an instance, and where: `parts` are attribute names (".w") and keys ("[0]", "['a']")."""

    parts: tuple[str, ...]
    kind: str
    tags: frozenset[str]
    array: Array

    @property
    def path(self) -> str:
        return "".join(self.parts)

    @property
    def names(self) -> list[Any]:
        """The parts as `PathContains` sees them."""
        return [part[1:] if part.startswith(".") else eval(part[1:-1]) for part in self.parts]


@dataclass(frozen=True)
class Constant:
    """A configuration value of an instance, and where."""

    parts: tuple[str, ...]
    configuration: Configuration

    @property
    def path(self) -> str:
        return "".join(self.parts)


def contents(value: Any, parts: tuple[str, ...] = (), role: tuple[str, frozenset[str]] = ("", frozenset())) -> Iterator:
    """The leaves, constants and (parts, record) pairs in a value, in the order of the fields."""
    if isinstance(value, Array):
        kind = role[0] or {"f": "weft.Param", "i": "weft.Buffer", "key": "weft.RngKey"}[value.dtype]
        yield Leaf(parts, kind, role[1], value)
    elif isinstance(value, Configuration):
        yield Constant(parts, value)
    elif isinstance(value, Record):
        yield parts, value
        for declared, inner in zip(value.schema.fields, value.values, strict=True):
            tags = role[1] | ({declared.tag} if declared.tag else set())
            yield from contents(inner, (*parts, f".{declared.name}"), (declared.kind or role[0], tags))
    elif isinstance(value, Row):
        for i, inner in enumerate(value.values):
            yield from contents(inner, (*parts, f"[{i}]"), role)
    else:
        for key, inner in value.values:
            yield from contents(inner, (*parts, f"[{key!r}]"), role)


def leaves(value: Any) -> list[Leaf]:
    return [item for item in contents(value) if isinstance(item, Leaf)]


def constants(value: Any) -> list[Constant]:
    return [item for item in contents(value) if isinstance(item, Constant)]


def records(value: Any) -> list[tuple[tuple[str, ...], Record]]:
    """The records in a value with where they are, itself first."""
    return [item for item in contents(value) if isinstance(item, tuple)]


def schemas(value: Any) -> list[Schema]:
    """The classes of the records in a value, what others hold before them."""
    by_name = {record.schema.name: record.schema for _, record in reversed(records(value))}
    return sorted(by_name.values(), key=lambda schema: schema.name)


def stacked(value: Any, size: int) -> Any:
    """An instance with a first axis on every array, as `vmap` over a constructor makes it."""
    if isinstance(value, Array):
        return replace(value, stacked=size)
    if isinstance(value, Record):
        values = tuple(stacked(inner, size) for inner in value.values)
        return replace(value, values=values, stacked=size)
    if isinstance(value, Row):
        return replace(value, values=tuple(stacked(inner, size) for inner in value.values))
    if isinstance(value, Mapping):
        return replace(value, values=tuple((key, stacked(inner, size)) for key, inner in value.values))
    return value


def construct(value: Any, shape_of: Callable[[Array, tuple[str, ...]], str], parts: tuple[str, ...] = ()) -> str:
    """The text that makes a value; `shape_of` gives the text of an array."""
    if isinstance(value, Array):
        return shape_of(value, parts)
    if isinstance(value, Configuration):
        return value.text
    if isinstance(value, Record):
        arguments = (
            construct(inner, shape_of, (*parts, f".{declared.name}"))
            for declared, inner in zip(value.schema.fields, value.values, strict=True)
        )
        return f"{value.schema.name}({', '.join(arguments)})"
    if isinstance(value, Row):
        row = [construct(inner, shape_of, (*parts, f"[{i}]")) for i, inner in enumerate(value.values)]
        return f"[{', '.join(row)}]" if value.mutable else f"({', '.join(row)},)"
    row = [f"{key!r}: {construct(inner, shape_of, (*parts, f'[{key!r}]'))}" for key, inner in value.values]
    return f"{{{', '.join(row)}}}"


# --- drawing ---------------------------------------------------------------------------------------------------------


def random_root(rng: random.Random) -> Record:
    """An instance of a class of three levels at most, with fields of every sort."""
    inner = [_schema(rng, f"A{i}", []) for i in range(rng.choice([1, 1, 2]))]
    middle = [_schema(rng, f"B{i}", inner) for i in range(rng.choice([0, 1, 1]))]
    return _schema(rng, "C0", [*inner, *middle]).instance(rng)


def _schema(rng: random.Random, name: str, parts: list[Schema]) -> Schema:
    fields = [_array_field(rng, "w", "f")]
    fields += [_array_field(rng, letter, "f") for letter in "bv"[: rng.choice([0, 1, 1, 2])]]
    if rng.random() < 0.4:
        fields.append(_array_field(rng, "count", "i"))
    if rng.random() < 0.3:
        fields.append(Field("key", "jax.Array", lambda rng: Array("key", rng.randrange(99))))
    for i in range(rng.choice([0, 1, 1, 2])):
        fields.append(_configuration_field(rng, f"c{i}"))
    if rng.random() < 0.3:
        fields.append(_mixed_field(rng, "mixed", parts))
    if parts:
        fields += [_part_field(rng, f"p{i}", parts) for i in range(rng.choice([1, 2]))]
    rng.shuffle(fields)
    return Schema(name, fields, stateful=rng.random() < 0.75, threaded=rng.random() < 0.5, caches=rng.random() < 0.5)


def _array_field(rng: random.Random, name: str, dtype: str) -> Field:
    kind = rng.choice(FLOAT_KINDS if dtype == "f" else ["", "weft.Cache", "weft.Buffer"])
    tag = rng.choice([*TAGS, "", "", ""])
    annotation = rng.choice(["jax.Array", "jax.Array", f"Float[jax.Array, '*{name}']"]) if dtype == "f" else "jax.Array"
    return Field(name, annotation, lambda rng: Array(dtype, rng.randrange(99)), kind, tag)


def _configuration_field(rng: random.Random, name: str) -> Field:
    sort = rng.choice(list(CONFIGURATION))
    return Field(
        name,
        ANNOTATION[sort],
        lambda rng: Configuration(sort, rng.choice(CONFIGURATION[sort])),
        static=rng.random() < 0.4,
    )


def _mixed_field(rng: random.Random, name: str, parts: list[Schema]) -> Field:
    """A container in which arrays, records and configuration lie side by side."""
    sorts = [rng.choice(["array", "record" if parts else "array", *CONFIGURATION]) for _ in range(3)]
    shape = rng.choice(["list", "tuple", "dict"])
    kind = rng.choice(["", "", "weft.BatchStat"])
    chosen = [rng.choice(parts) if parts else None for _ in sorts]

    def make(rng: random.Random) -> Any:
        values = tuple(_entry(rng, sort, schema) for sort, schema in zip(sorts, chosen, strict=True))
        if shape == "dict":
            return Mapping(tuple(zip(("z", "a", "k"), values, strict=True)))
        return Row(shape == "list", values)

    return Field(name, "Any", make, kind)


def _entry(rng: random.Random, sort: str, schema: Schema | None) -> Any:
    if sort == "array":
        return Array("f", rng.randrange(99))
    if sort == "record":
        assert schema is not None
        return schema.instance(rng)
    return Configuration(sort, rng.choice(CONFIGURATION[sort]))


def _part_field(rng: random.Random, name: str, parts: list[Schema]) -> Field:
    schema = rng.choice(parts)
    kind = rng.choice(["", "", "", "weft.Cache"])
    shape = rng.choice(["one", "one", "stack", "list", "tuple", "dict"])
    if shape == "stack" and any(leaf.array.stacked for leaf in leaves(schema.instance(random.Random(0)))):
        shape = "one"  # no stacks of stacks

    def make(rng: random.Random) -> Any:
        if shape == "one":
            return schema.instance(rng)
        if shape == "stack":
            return stacked(schema.instance(rng), 2)
        if shape == "dict":
            return Mapping((("b", schema.instance(rng)), ("a", schema.instance(rng))))
        return Row(shape == "list", (schema.instance(rng), schema.instance(rng)))

    return Field(name, "Any", make, kind, rng.choice(["", "", "late"]))
