"""Configuration as text: what records, objects and definitions of trees hold, for `jax.export`.

- Numbers, texts, None, dtypes, shapes, and containers of them are written as they are, with their types;
- functions and classes by the name that leads to them (`jax.nn.relu`), which the reading process imports;
- what is compared by what it holds (filters, frozen dataclasses, namedtuples) by its class and that;
- a function that no name leads to, and what is compared by identity, by what it is made of: the reader has a
  stand-in, which equals its own (see `unnamed`).

It is JSON, and nothing that is read is executed but for such imports.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from weft.core.edge import trees
from weft.core.edge._nodes import definition_of
from weft.core.edge.trees import TreeDef
from weft.core.errors import StaticError
from weft.core.makeup import NOTHING, compares_by_identity, is_all_attributes, makeup_of, named
from weft.core.records.nodes import nodes_by_class, nodes_by_name
from weft.core.records.statics import Static
from weft.core.records.unnamed import (
    DEFINITION,
    Unnamed,
    Unwritable,
    make_up,
    name_of,
)


class _Empty(eqx.Module):
    """Of no fields, to see what equinox writes where there is nothing."""


(_MISSING,) = cast("tuple[Any, tuple[Any, ...]]", trees.structure(_Empty()).node_data())[1]


def write_text(value: Any, where: str) -> bytes:
    """A value as text.

    Args:
        value: of what a record's configuration may hold.
        where: what errors call its place.

    Raises:
        StaticError: if it cannot be written.
    """
    return json.dumps(_encode(value, where)).encode()


def read_text(text: bytes) -> Any:
    """The inverse of `write_text`.

    Raises:
        StaticError: if something that it names is not there.
    """
    return _decode(json.loads(text))


def write_node(cls: type, data: Any) -> bytes:
    """A node's class and own data as text."""
    return json.dumps(_encode_node(cls, data, cls.__qualname__)).encode()


def read_node(text: bytes) -> tuple[type, Any]:
    """The inverse of `write_node`."""
    return _decode_node(json.loads(text))


# ---- values as JSON: [kind, content] ---------------------------------------------------------------------------------


def _encode(value: Any, where: str) -> list[Any]:
    def parts(values: Sequence[Any]) -> list[Any]:
        return [_encode(part, where) for part in values]

    kind = cast("type[Any]", type(value))
    if value is _MISSING:
        return ["missing", None]
    if value is None or kind in (bool, str):
        return [kind.__name__, value]
    if kind in (int, float, complex):
        return [kind.__name__, repr(value)]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if kind is Unnamed:
        return ["unnamed", value.text]
    if kind is Static:
        return ["Static", _encode(value.value, where)]
    if kind in (tuple, list):
        return [kind.__name__, parts(value)]
    if kind is frozenset:
        return ["frozenset", sorted(parts(tuple(value)), key=json.dumps)]
    if kind is dict:
        return ["dict", [parts(pair) for pair in value.items()]]
    if isinstance(value, np.dtype):
        return ["dtype", cast(Any, value).name]
    if isinstance(value, jax.ShapeDtypeStruct):
        return ["shape", [list(value.shape), cast(Any, value).dtype.name]]
    if isinstance(value, enum.Enum):
        return ["enum", [*_named(kind, where), value.name]]
    if isinstance(value, DEFINITION):
        return ["definition", _encode_definition(cast(TreeDef, value), where)]
    if isinstance(value, type):
        return _encode_class(cast("type[Any]", value), where)
    if (name := name_of(value)) is not None:
        return ["name", name]
    if isinstance(value, tuple):
        return ["namedtuple", [_encode_class(kind, where), parts(cast("tuple[Any, ...]", value))]]
    if is_all_attributes(kind) and not compares_by_identity(kind):
        attributes = dict(zip(*makeup_of(value, compared=False)[1:], strict=True))
        return ["object", [_encode_class(kind, where), _encode(attributes, where)]]
    try:
        return ["unnamed", make_up(value)]
    except Unwritable:
        raise _unwritable(value, where) from None


def _encode_class(cls: type, where: str) -> list[Any]:
    if cls is type(None):
        return ["type of None", None]
    node = nodes_by_class.get(cls)
    if node is not None and name_of(cls) is None:
        return ["class", node.name]
    return ["name", _named(cls, where)]


def _encode_node(cls: type, data: Any, where: str) -> list[Any]:
    known = nodes_by_class.get(cls)
    return [_encode_class(cls, where), _encode(data if known is None else known.plain(data), where)]


def _encode_definition(definition: TreeDef, where: str) -> list[Any] | None:
    """A node and its children; None for a leaf."""
    node = definition.node_data()
    if node is None:
        return None
    return [_encode_node(*node, where), [_encode_definition(child, where) for child in definition.children()]]


def _named(value: Any, where: str) -> list[str]:
    name = name_of(value)
    if name is None:
        raise _unwritable(value, where)
    return name


def _unwritable(value: Any, where: str) -> StaticError:
    return StaticError(
        f"this {type(value).__name__} cannot be exported, because no name leads to it: {value!r:.80}",
        at=where,
        fix="use a function or class that is defined at the top of a module, or pass it as a static argument",
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
    cls, attributes = map(_decode, pair)
    made = object.__new__(cls)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def _decode_enum(path: Sequence[str]) -> Any:
    *place, member = path
    return _decode_name(place)[member]


def _itself(value: Any) -> Any:
    return value


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
    "unnamed": Unnamed,
}
