"""The text of objects: a class describes itself by a header and attributes, and this module makes the text.

`__nnx_repr__` yields an `Object` (type, brackets, separators) and then an `Attr` for each line. `repr` is plain, `str`
is coloured on a terminal. Nested objects are indented, up to the depth `config.flax_max_repr_depth`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from weft.modules.summary.texts import size_and_bytes
from weft.nnx.config import config


def supports_color() -> bool:
    """Whether standard output is a terminal (or a notebook) that shows colours."""
    # Looked up and not imported, because IPython takes long to import and may not be installed.
    if "IPython" in sys.modules and getattr(sys.modules["IPython"], "get_ipython", lambda: None)() is not None:
        return True
    terminal = getattr(sys.stdout, "isatty", lambda: False)()
    return terminal and (sys.platform != "win32" or "ANSICON" in os.environ)


class Color(NamedTuple):
    """The escape sequences for the parts of a text."""

    TYPE: str = ""
    ATTRIBUTE: str = ""
    SEP: str = ""
    PAREN: str = ""
    COMMENT: str = ""
    INT: str = ""
    STRING: str = ""
    FLOAT: str = ""
    BOOL: str = ""
    NONE: str = ""
    END: str = ""


def _rgb(red: int, green: int, blue: int) -> str:
    return f"\x1b[38;2;{red};{green};{blue}m"


NO_COLOR = Color()
_TERMINAL = Color(
    TYPE=_rgb(79, 201, 177),
    ATTRIBUTE=_rgb(156, 220, 254),
    SEP=_rgb(212, 212, 212),
    PAREN=_rgb(255, 213, 3),
    COMMENT=_rgb(105, 105, 105),
    INT=_rgb(182, 207, 169),
    STRING=_rgb(207, 144, 120),
    FLOAT=_rgb(182, 207, 169),
    BOOL=_rgb(86, 156, 214),
    NONE=_rgb(86, 156, 214),
    END="\x1b[0m",
)
COLOR = _TERMINAL if supports_color() else NO_COLOR


# Depth and colours of the `repr` that is running; threads print independently.
class _Context(threading.local):
    color: Color = COLOR
    depth: int = 0


_context = _Context()


@contextlib.contextmanager
def _set(**values: Any) -> Iterator[None]:
    before = {name: getattr(_context, name) for name in values}
    for name, value in values.items():
        setattr(_context, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(_context, name, value)


_ATOM_COLORS: tuple[tuple[type, str], ...] = (
    (bool, "BOOL"),
    (int, "INT"),
    (str, "STRING"),
    (float, "FLOAT"),
    (type(None), "NONE"),
)


def colorized(value: Any, /) -> str:
    """Returns the text of a value, coloured by its type; elements of containers are coloured, too."""
    paint = _context.color

    def wrap(start: str, elements: list[str], end: str) -> str:
        return f"{paint.PAREN}{start}{paint.END}{', '.join(elements)}{paint.PAREN}{end}{paint.END}"

    match value:
        case list():
            return wrap("[", [colorized(element) for element in value], "]")
        case tuple():
            return wrap("(", [colorized(element) for element in value], ",)" if len(value) == 1 else ")")
        case dict():
            items = [f"{paint.STRING}{key!r}{paint.END}: {colorized(item)}" for key, item in value.items()]
            return wrap("{", items, "}")
        case set():
            return wrap("{", [colorized(element) for element in value], "}")
        case type():
            return f"{paint.TYPE}{value.__name__}{paint.END}"
        case Representable():
            return get_repr(value)
    # `bool` comes before `int` in the table, of which it is a subclass.
    for atom, color in _ATOM_COLORS:
        if isinstance(value, atom):
            return f"{getattr(paint, color)}{value!r}{paint.END}"
    return repr(value)


@dataclasses.dataclass
class Object:
    """The header of a text: a type (or its name), brackets and separators."""

    type: str | type
    start: str = "("
    end: str = ")"
    kv_sep: str = "="
    indent: str = "  "
    empty_repr: str = ""
    comment: str = ""
    same_line: bool = False

    @property
    def elem_sep(self) -> str:
        return ", " if self.same_line else ",\n"


@dataclasses.dataclass
class Attr:
    """An attribute of a text; with the `raw` flags, key or value is text already."""

    key: Any
    value: Any
    start: str = ""
    end: str = ""
    use_raw_value: bool = False
    use_raw_key: bool = False


class Representable:
    """Base class of objects that print themselves by `__nnx_repr__`."""

    __slots__ = ()

    def __nnx_repr__(self) -> Iterator[Object | Attr]:
        raise NotImplementedError(f"{type(self).__name__} does not define __nnx_repr__")

    def __repr__(self) -> str:
        # Never coloured, even in a terminal: `repr` goes into logs and error messages.
        with _set(color=NO_COLOR):
            return get_repr(self)

    def __str__(self) -> str:
        return get_repr(self)


def get_repr(obj: Representable) -> str:
    """Returns the text of an object, in the current colours.

    Raises:
        TypeError: if `obj` is no `Representable`, or its `__nnx_repr__` yields anything but an `Object` and `Attr`s.
    """
    if not isinstance(obj, Representable):
        raise TypeError(f"not a Representable: {obj!r}")
    with _set(depth=_context.depth + 1):
        parts = iter(obj.__nnx_repr__())
        head = next(parts)
        if not isinstance(head, Object):
            raise TypeError(f"__nnx_repr__ must yield an Object first, got {type(head).__name__}")
        cut = config.flax_max_repr_depth is not None and _context.depth > config.flax_max_repr_depth
        body = "..." if cut else head.elem_sep.join(_format_attr(head, part) for part in parts)
        return _format_object(head, body, inline=head.same_line or cut)


def _format_attr(head: Object, attr: Any) -> str:
    if not isinstance(attr, Attr):
        raise TypeError(f"__nnx_repr__ must yield Attrs after the first, got {type(attr).__name__}")
    paint = _context.color
    value = attr.value if attr.use_raw_value else colorized(attr.value)
    # A text of several lines is indented once more by every object around it.
    value = value.replace("\n", "\n" + head.indent)
    key = attr.key if attr.use_raw_key else f"{paint.ATTRIBUTE}{attr.key}{paint.END}"
    separator = f"{paint.SEP}{head.kv_sep}{paint.END}"
    return f"{'' if head.same_line else head.indent}{attr.start}{key}{separator}{value}{attr.end}"


def _format_object(head: Object, body: str, inline: bool) -> str:
    paint = _context.color
    name = head.type if isinstance(head.type, str) else head.type.__name__
    comment = f"{paint.COMMENT}{head.comment}{paint.END}" if body and not inline else ""
    if not body:
        body = head.empty_repr
    elif not inline:
        body = f"\n{body}\n"

    def painted(color: str, text: str) -> str:
        return f"{color}{text}{paint.END}" if text else ""

    start, end = painted(paint.PAREN, head.start), painted(paint.PAREN, head.end)
    return f"{painted(paint.TYPE, name)}{start}{comment}{body}{end}"


class MappingReprMixin(Representable):
    """Prints a mapping as `Type({...})`."""

    def __nnx_repr__(self):
        yield from _mapping_parts(type(self), self)


class SequenceReprMixin(Representable):
    """Prints a sequence as `Type([...])`."""

    __slots__ = ()

    def __nnx_repr__(self):
        yield Object(type(self), kv_sep="", start="([", end="])")
        values: Any = self
        for value in values:
            yield Attr("", value, use_raw_key=True)


@dataclasses.dataclass(repr=False)
class PrettyMapping(Representable):
    """Prints a mapping over several lines."""

    mapping: Mapping[Any, Any]

    def __nnx_repr__(self):
        yield from _mapping_parts(type(self), self.mapping)


def _mapping_parts(kind: type, mapping: Any) -> Iterator[Object | Attr]:
    yield Object(kind, kv_sep=": ", start="({", end="})")
    for key, value in mapping.items():
        yield Attr(colorized(key), value, use_raw_key=True)


@dataclasses.dataclass(frozen=True, slots=True)
class SizeBytes:
    """The number of elements and of bytes in a tree of arrays."""

    size: int = 0
    bytes: int = 0

    @classmethod
    def from_any(cls, tree: Any) -> SizeBytes:
        shaped = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
        return sum(map(cls.from_array, shaped), cls())

    @classmethod
    def from_array(cls, array: Any) -> SizeBytes:
        size = math.prod(array.shape)
        dtype = np.dtype(array.dtype) if isinstance(array.dtype, str) else array.dtype
        return cls(size, size * dtype.itemsize)

    def __add__(self, addend: SizeBytes) -> SizeBytes:
        return type(self)(self.size + addend.size, self.bytes + addend.bytes)

    def __bool__(self) -> bool:
        return bool(self.size)

    def __repr__(self) -> str:
        return size_and_bytes(self.size, self.bytes)
