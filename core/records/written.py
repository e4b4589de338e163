"""Configuration as text: what records, objects and definitions of trees hold, for `jax.export`.

- Numbers, texts, None, dtypes, shapes, and containers of them are written as they are, with their types;
- functions and classes by the name that leads to them (`jax.nn.relu`), which the reading process imports;
- what is compared by what it holds (filters, frozen dataclasses, namedtuples) by its class and that;
- a function that no name leads to, such as the two of an optax transformation, and what is compared by identity, by
  what it is made of: the reader has a *stand-in* (`Unnamed`).

It is JSON, and nothing that is read is executed but for such imports.

A process that reads an exported step makes its own functions (`optax.adam(1e-3)`). What was exported never calls them:
the step has in it what they do. So they are needed only to tell whether a record is of the make that the step was
exported for, and to be somewhere in the records that it gives. A stand-in knows what the function was made of: the
name of its code, what that calls, and what it closes over. It equals another, and the function itself, if they are
made of the same. What a function does in between is not compared, as that of a function with a name is not.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any, NoReturn, cast

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from weft.core.edge import trees
from weft.core.edge._nodes import definition_of
from weft.core.edge.trees import TreeDef
from weft.core.errors import StaticError
from weft.core.makeup import NOTHING, Makeup, compares_by_identity, digest_of, fold, is_all_attributes, makeup_of, named
from weft.core.records.nodes import nodes_by_class, nodes_by_name
from weft.core.records.statics import Static, stand_ins


class _Empty(eqx.Module):
    """Of no fields, to see what equinox writes where there is nothing."""


(_MISSING,) = cast("tuple[Any, tuple[Any, ...]]", trees.structure(_Empty()).node_data())[1]
_DEFINITION: Any = cast(Any, jax.tree_util).PyTreeDef


class _UnwritableError(Exception):
    """What a value is made of cannot be told."""


class LeftBehindError(StaticError, AttributeError):
    """A function or object that is in another process is called or looked into."""


class Unnamed:
    """In the place of a function or object of the process that exported a function.

    Args:
        text: what it is made of.
    """

    __slots__ = ("text",)

    def __init__(self, text: str):
        self.text = text

    def __eq__(self, other: object) -> bool:
        if type(other) is Unnamed:
            return self.text == other.text
        try:
            kind, content = _encode(other)
        except _UnwritableError:
            return False
        return kind == "unnamed" and json.dumps(content) == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"<left in the process that exported it: {self._name}>"

    @property
    def _name(self) -> str:
        _, place, *_ = json.loads(self.text)
        return ".".join(place)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise LeftBehindError(
            f"{self._name} was left in the process that exported the function which gave this record",
            fix="put your own in its place, as in optimizer.replace(transformation=optax.adam(1e-3)), or go on with "
            "the exported function",
        )


stand_ins.add(Unnamed)


def write_text(value: Any, where: str) -> bytes:
    """A value as text.

    Args:
        value: of what a record's configuration may hold.
        where: what errors call its place.

    Raises:
        StaticError: if it cannot be written.
    """
    return _text(_encode, value, where)


def read_text(text: bytes) -> Any:
    """The inverse of `write_text`.

    Raises:
        StaticError: if something that it names is not there.
    """
    return _decode(json.loads(text))


def write_node(cls: type, data: Any) -> bytes:
    """A node's class and own data as text."""
    return _text(_encode_node, (cls, data), cls.__qualname__)


def read_node(text: bytes) -> tuple[type, Any]:
    """The inverse of `write_node`."""
    return _decode_node(json.loads(text))


def _text(encode: Callable[[Any], Any], value: Any, where: str) -> bytes:
    try:
        return json.dumps(encode(value)).encode()
    except _UnwritableError as error:
        (found,) = error.args
        raise StaticError(
            f"this {type(found).__name__} cannot be exported, because no name leads to it: {found!r:.80}",
            at=where,
            fix="use a function or class that is defined at the top of a module, or pass it as a static argument",
        ) from None


# ---- values as JSON: [kind, content] ---------------------------------------------------------------------------------


def _encode(value: Any) -> list[Any]:
    return fold(value, _look, _combine, lambda level: ["again", level])


def _look(value: Any) -> list[Any] | Makeup:
    kind = cast("type[Any]", type(value))
    if value is _MISSING:
        return ["missing", None]
    if kind in _ATOMS:
        return [kind.__name__, _ATOMS[kind](value)]
    for classes, name, encode in _PLAIN:
        if isinstance(value, classes):
            return [name, encode(value)]
    if isinstance(value, type):
        return _encode_class(cast("type[Any]", value), lenient=True)
    if (path := _name_of(value)) is not None:
        return ["name", path]
    makeup = makeup_of(value)
    if makeup.sort != "object":
        return makeup
    if not _is_readable(kind) and (level := trees.children_of(value)) is not None:
        return Makeup("node", (), (level[1], *level[0]))
    if not is_all_attributes(kind):
        raise _UnwritableError(value)
    attributes = dict(sorted(zip(*makeup_of(value, compared=False)[1:], strict=True)))
    return Makeup("object", attributes, attributes.values())


def _is_readable(kind: type) -> bool:
    """Whether another process can make an object of a class again: it is equal by what it holds."""
    is_data = is_all_attributes(kind) and not compares_by_identity(kind) and not issubclass(kind, eqx.Module)
    return is_data and _name_of(kind) is not None


def _combine(value: Any, makeup: Makeup, parts: list[Any]) -> list[Any]:
    kind, sort = cast("type[Any]", type(value)), makeup.sort
    if sort == "set":
        parts.sort(key=json.dumps)
    elif sort == "mapping":
        parts = [[_encode(name), part] for name, part in zip(value, parts, strict=True)]
    elif sort == "object":
        parts = [list(pair) for pair in zip(makeup.names, parts, strict=True)]
        if _is_readable(kind):
            return ["object", [_encode_class(kind), parts]]
    elif sort == "function":
        parts = [_code(value.__code__, value.__doc__), *parts]
    if kind in (tuple, list, frozenset, dict):
        return [kind.__name__, parts]
    if isinstance(value, tuple) and _name_of(kind) is not None:
        return ["namedtuple", [_encode_class(kind), parts]]
    return ["unnamed", [sort, _place(value if sort == "function" else kind), *parts]]


def _place(value: Any) -> list[str]:
    return [value.__module__, value.__qualname__]


def _encode_class(cls: type, *, lenient: bool = False) -> list[Any]:
    node = nodes_by_class.get(cls)
    name = _name_of(cls)
    if cls is type(None):
        return ["type of None", None]
    if name is not None:
        return ["name", name]
    if node is not None:
        return ["class", node.name]
    if lenient:
        return ["unnamed", ["class", _place(cls)]]
    raise _UnwritableError(cls)


def _name_of(value: Any) -> list[str] | None:
    """The module and name that lead to a function or class, if one does."""
    name: Any = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return None
    home: Any = getattr(value, "__module__", None) or "builtins"
    # What users name is often made elsewhere: `jax.nn.relu`.
    for module in (home, "jax.nn", "jax.numpy", "jax.lax", "jax.random", "jax"):
        if named(module, name) is value:
            return [module, name]
    return None


def _encode_node(node: tuple[type, Any]) -> list[Any]:
    cls, data = node
    known = nodes_by_class.get(cls)
    return [_encode_class(cls), _encode(data if known is None else known.plain(data))]


def _encode_definition(definition: TreeDef) -> list[Any] | None:
    """A node and its children; None for a leaf."""
    node = definition.node_data()
    return None if node is None else [_encode_node(node), list(map(_encode_definition, definition.children()))]


def _encode_array(value: Any) -> list[Any]:
    if isinstance(value, Tracer) or value.dtype.hasobject:
        raise _UnwritableError(cast(Any, value))
    return ["array", _place(type(value)), str(value.dtype), list(value.shape), digest_of(value)]


def _code(code: CodeType, doc: str | None) -> Any:
    """What code names and holds, but not its instructions and their order, which differ from one Python to the next."""
    held = [_code(part, None) if isinstance(part, CodeType) else _constant(part) for part in code.co_consts]
    told = {json.dumps(part) for part in held} - {json.dumps(_constant(doc)), json.dumps(_constant(None))}
    return [code.co_name, sorted(code.co_names), sorted(told)]


def _constant(value: Any) -> Any:
    return ["set", *sorted(map(repr, cast("Iterable[Any]", value)))] if isinstance(value, frozenset) else repr(value)


def _itself(value: Any) -> Any:
    return value


def _encode_enum(value: Any) -> list[str]:
    name = _name_of(type(value))
    if name is None:
        raise _UnwritableError(value)
    return [*name, value.name]


# How values without parts are written: those of a class itself, and those of its subclasses under which kind.
_ATOMS: dict[type, Callable[[Any], Any]] = {
    type(None): _itself,
    bool: _itself,
    str: _itself,
    int: repr,
    float: repr,
    complex: repr,
    bytes: lambda value: base64.b64encode(value).decode(),
}
_PLAIN: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (Unnamed, "unnamed", lambda value: json.loads(value.text)),
    (Static, "Static", lambda value: _encode(value.value)),
    (enum.Enum, "enum", _encode_enum),
    (np.dtype, "dtype", lambda value: value.name),
    ((jax.Array, np.ndarray, np.generic), "unnamed", _encode_array),
    (tuple(_ATOMS), "unnamed", lambda value: ["number or text", _place(type(value)), repr(value)]),
    (jax.ShapeDtypeStruct, "shape", lambda value: [list(value.shape), value.dtype.name]),
    (_DEFINITION, "definition", _encode_definition),
)


# ---- and back --------------------------------------------------------------------------------------------------------


def _decode(pair: Sequence[Any]) -> Any:
    kind, content = pair
    return _DECODERS[kind](content)


def _decode_all(pairs: Sequence[Any]) -> list[Any]:
    return list(map(_decode, pairs))


def _decode_name(path: Sequence[str]) -> Any:
    with contextlib.suppress(ImportError):
        importlib.import_module(path[0])
    found = named(*path)
    if found is NOTHING:
        raise StaticError(
            f"what was exported names {'.'.join(path)}, which this process does not have",
            fix="import or define it first, under the same name as in the process that exported it",
        )
    return found


def _decode_class(name: str) -> type:
    if name not in nodes_by_name:
        raise StaticError(
            f"what was exported holds records or objects of {name}, a class that this process has not defined",
            fix="define it before reading, as the process did that exported it",
        )
    return nodes_by_name[name].cls


def _decode_node(pair: Sequence[Any]) -> tuple[type, Any]:
    cls, data = map(_decode, pair)
    known = nodes_by_class.get(cls)
    return cls, data if known is None else known.back(data)


def _decode_definition(node: Sequence[Any] | None) -> TreeDef:
    if node is None:
        return trees.structure(0)
    return definition_of(*_decode_node(node[0]), [_decode_definition(child) for child in node[1]])


def _decode_namedtuple(pair: Sequence[Any]) -> Any:
    cls, parts = pair
    # Its own `__new__` may ask for more than is written, and nothing that is read is run.
    return cast(Any, tuple).__new__(_decode(cls), _decode_all(parts))


def _decode_object(pair: Sequence[Any]) -> Any:
    cls, attributes = pair
    made = object.__new__(_decode(cls))
    for name, value in attributes:
        object.__setattr__(made, name, _decode(value))
    return made


def _decode_enum(path: Sequence[str]) -> Any:
    *place, member = path
    return _decode_name(place)[member]


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "missing": lambda _: _MISSING,
    "NoneType": _itself,
    "bool": _itself,
    "str": _itself,
    "int": int,
    "float": float,
    "complex": complex,
    "bytes": base64.b64decode,
    "Static": lambda pair: Static(_decode(pair)),
    "tuple": lambda pairs: tuple(_decode_all(pairs)),
    "list": _decode_all,
    "frozenset": lambda pairs: frozenset(_decode_all(pairs)),
    "dict": lambda items: dict(map(_decode_all, items)),
    "dtype": np.dtype,
    "shape": lambda pair: jax.ShapeDtypeStruct(tuple(pair[0]), np.dtype(pair[1])),
    "enum": _decode_enum,
    "definition": _decode_definition,
    "class": _decode_class,
    "type of None": lambda _: type(None),
    "name": _decode_name,
    "namedtuple": _decode_namedtuple,
    "object": _decode_object,
    "unnamed": lambda content: Unnamed(json.dumps(content)),
}
