"""What `jax.export` writes of records: their tree definitions, as text that another process can read.

An exported function keeps the definitions of the trees that it takes and gives. JAX asks, for each type of node, how
its own data is written and read; every `weft.Module` is registered as its class is made, so that a process that has
imported the class reads it. What a record keeps in its definition is its configuration:

- numbers, texts, None, dtypes, and containers of them are written as they are, with their types;
- functions and classes by the name that leads to them (`jax.nn.relu`), which the reading process imports; one that no
  name leads to (a lambda) is refused.

It is JSON, and nothing that is read is executed but for such imports.
"""

from __future__ import annotations

import base64
import enum
import functools
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import equinox as eqx
import jax.export
import numpy as np
from weft.core.edge import names, trees
from weft.core.edge._jax import node_of
from weft.core.errors import StaticError
from weft.core.records.configuration import Mixed
from weft.core.records.statics import Static

C = TypeVar("C", bound=type)

_register: Any = jax.export.register_pytree_node_serialization


class _Empty(eqx.Module):
    """Of no fields, to see what equinox writes where there is nothing."""


(_MISSING,) = cast("tuple[Any, tuple[Any, ...]]", trees.structure(_Empty()).node_data())[1]


def exportable(cls: C) -> C:
    """Lets `jax.export` write and read trees with records of a class; `weft.Module` does so for its own subclasses.

    It is for equinox's modules inside of weft's records, and has to run in the writing and in the reading process.

    Args:
        cls: a class of `equinox.Module`.

    >>> import equinox
    >>> exportable(equinox.nn.Identity) is exportable(equinox.nn.Identity)
    True
    """
    if cls not in _exportable:
        _exportable.add(cls)
        _register_node(cls, f"{cls.__module__}.{cls.__qualname__}")
    return cls


_exportable: set[type] = set()


def exportable_as(cls: type, plain: Callable[[Any], object], back: Callable[[Any], object]) -> None:
    """Lets `jax.export` write and read trees with nodes of another sort, such as objects and Variables.

    Args:
        cls: a class that is registered as a pytree.
        plain: from a node's own data to numbers, texts, functions with names and containers of them.
        back: from these to the data.
    """
    _register_node(cls, f"{cls.__module__}.{cls.__qualname__}", plain, back)


def _itself(value: Any) -> Any:
    return value


def _register_node(
    cls: type, name: str, plain: Callable[[Any], object] = _itself, back: Callable[[Any], object] = _itself
) -> None:
    def write(data: object) -> bytes:
        return _write(cls, plain(data))

    def read(text: bytes) -> object:
        return back(_read(text))

    # One name may stand for several classes: a notebook's cell that was run again, a class that a function makes. The
    # first keeps it; those that follow are numbered, alike in each process that defines them in this order.
    for number in range(1, 10_000):
        try:
            _register(
                cls,
                serialized_name=name if number == 1 else f"{name}#{number}",
                serialize_auxdata=write,
                deserialize_auxdata=read,
                from_children=functools.partial(node_of, cls),
            )
            return
        except ValueError as error:
            if names.NAME_OF_EXPORTS not in str(error):
                raise


def _write(cls: type, data: Any) -> bytes:
    return json.dumps(_encode(data, cls.__qualname__)).encode()


def _read(text: bytes) -> Any:
    return _decode(json.loads(text))


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
    if kind is Static:
        return ["Static", _encode(value.value, where)]
    if kind in (tuple, list):
        return [kind.__name__, parts(value)]
    if kind is frozenset:
        return ["frozenset", parts(sorted(value, key=repr))]
    if kind is dict:
        return ["dict", [parts(pair) for pair in value.items()]]
    if isinstance(value, np.dtype):
        return ["dtype", cast(Any, value).name]
    if isinstance(value, enum.Enum):
        return ["enum", [*_named(kind, where), value.name]]
    if hasattr(value, "num_leaves") and hasattr(value, "unflatten"):
        # A container's own definition, of one level.
        return ["container", _encode(value.unflatten([None] * value.num_leaves), where)]
    return ["name", _named(value, where)]


def _named(value: Any, where: str) -> list[str]:
    """The module and name that lead to a function or class."""
    name: str = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    home: str = getattr(value, "__module__", None) or "builtins"
    # What users name is often made elsewhere: `jax.nn.relu`.
    public = ("jax.nn", "jax.numpy", "jax.lax", "jax.random", "jax")
    for module in (home, *(module for module in public if module in sys.modules)):
        if name and _at(module, name) is value:
            return [module, name]
    raise StaticError(
        f"this {type(value).__name__} cannot be exported, because no name leads to it: {value!r:.80}",
        at=where,
        fix="use a function or class that is defined at the top of a module, or pass it as a static argument",
    )


def _at(module: str, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), cast(Any, importlib.import_module(module)))
    except (ImportError, AttributeError):
        return _MISSING


def _decode(pair: Sequence[Any]) -> Any:
    kind, content = pair
    return _DECODERS[kind](content)


def _decode_all(pairs: Sequence[Any]) -> list[Any]:
    return list(map(_decode, pairs))


def _container(pair: Sequence[Any]) -> Any:
    value = _decode(pair)
    # Of one level, with a leaf for each element, be it None.
    return trees.structure(value, lambda node: node is not value)


def _member(path: Sequence[str]) -> Any:
    module, name, member = path
    return _at(module, name)[member]


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
    "enum": _member,
    "container": _container,
    "name": lambda path: _at(*path),
}

_register_node(Static, "weft.Static")
_register_node(Mixed, "weft.Mixed")
