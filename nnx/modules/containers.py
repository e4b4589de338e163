"""Dict, List and Sequential: containers that are Modules, with an identity, and elements that are data or static."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, TypeVar

import numpy as np
from weft.nnx.errors import StructureError
from weft.nnx.modules.module import Module
from weft.nnx.objects.attributes import data, static
from weft.nnx.objects.objects import attributes_of, in_order
from weft.nnx.printing.reprlib import MappingReprMixin, SequenceReprMixin
from weft.nnx.variable.variable import Variable

A = TypeVar("A")

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Dict(MappingReprMixin, Module, MutableMapping[str, A]):
    """A mutable mapping whose items are attributes, each of them data or static.

    >>> layers = Dict(a=1, b="x")
    >>> layers["c"] = 2
    >>> sorted(layers), layers.c
    (['a', 'b', 'c'], 2)
    """

    def __init__(self, *args: Any, **kwargs: Any):
        for name, value in dict(*args, **kwargs).items():
            setattr(self, name, value)

    def __getitem__(self, key: str) -> Any:
        try:
            return getattr(self, key)
        # A KeyError, as of every mapping: `get`, `pop` and `setdefault` of `MutableMapping` rely on it.
        except AttributeError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)

    def __delitem__(self, key: str) -> None:
        try:
            delattr(self, key)
        except AttributeError:
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        return iter(list(in_order(self)))

    def __len__(self) -> int:
        return len(attributes_of(self))

    # `MutableMapping` sets `__hash__` to None; graphs need a hash by identity, like all objects.
    def __hash__(self) -> int:
        return id(self)


class List(SequenceReprMixin, Module, MutableSequence[A]):
    """A mutable sequence whose elements are attributes named "0", "1", ..., each of them data or static.

    >>> layers = List([1, "x"])
    >>> layers.append(2)
    >>> list(layers), layers[-1]
    ([1, 'x', 2], 2)
    """

    _pytree__has_int_keys = True

    def __init__(self, iterable: Iterable[A] | None = None, /):
        # Static, so that Lists of different lengths have different structures.
        self._length: int = 0
        for value in () if iterable is None else iterable:
            self.append(value)

    def _get_elem(self, key: int) -> Any:
        return getattr(self, str(key))

    def _set_elem(self, key: int, value: Any) -> None:
        setattr(self, str(key), value)

    def _del_elem(self, key: int) -> None:
        delattr(self, str(key))

    def _move(self, source: int, target: int) -> None:
        """Copies an element to another position. It stays data or static, though its value alone might not tell."""
        mark = data if self._pytree__nodes.get(str(source), False) else static
        self._set_elem(target, mark(self._get_elem(source)))

    def _places(self, index: Any) -> list[int]:
        """The positions of an index or a slice."""
        if isinstance(index, slice):
            return list(range(self._length)[index])
        if not isinstance(index, int):
            raise TypeError(f"Invalid index type: an index is an int or a slice, not {index!r}")
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(f"index {index} is out of bounds for a List of {self._length}")
        return [place]

    # By elements, as lists are, so that objects with Lists in fields are equal if their fields are.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, List) or type(self) is not type(other):
            return NotImplemented
        return len(self) == len(other) and all(map(_is_equal, self, other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # as of every mutable sequence

    def __len__(self) -> int:
        return self._length

    def append(self, value: A) -> None:
        """Adds an element at the end."""
        self._set_elem(self._length, value)
        self._length += 1

    def insert(self, index: int, value: A) -> None:
        """Inserts an element before position `index`."""
        # Clamped to the ends, as `list.insert` does.
        place = min(max(index + self._length if index < 0 else index, 0), self._length)
        for source in reversed(range(place, self._length)):
            self._move(source, source + 1)
        # Deleted first: assigning data to a static attribute is an error, and the old element may be static.
        if place < self._length:
            self._del_elem(place)
        self._set_elem(place, value)
        self._length += 1

    def __iter__(self) -> Iterator[Any]:
        return (self._get_elem(place) for place in range(self._length))

    def __getitem__(self, index: Any) -> Any:
        elements = [self._get_elem(place) for place in self._places(index)]
        return elements if isinstance(index, slice) else elements[0]

    def __setitem__(self, index: Any, value: Any) -> None:
        places, is_slice = self._places(index), isinstance(index, slice)
        if is_slice and not isinstance(value, Iterable):
            raise TypeError(f"cannot assign {value!r} to a slice of a List: expected an iterable")
        values = list(value) if is_slice else [value]
        if len(places) != len(values):
            raise StructureError(f"cannot assign {len(values)} values to a slice of {len(places)} elements")
        for place, element in zip(places, values, strict=True):
            self._set_elem(place, element)

    def __delitem__(self, index: Any) -> None:
        # From the end, because each deletion moves the elements after it.
        for place in sorted(self._places(index), reverse=True):
            for source in range(place + 1, self._length):
                self._move(source, source - 1)
            self._del_elem(self._length - 1)
            self._length -= 1

    def _graph_node_set_key(self, key: Any, value: Any) -> None:
        if not isinstance(key, int):
            raise KeyError(f"the key of a List's element must be an int, got {key!r}")
        # A State may have elements that this List lacks. `update` sorts them, so each is the next.
        if key >= len(self):
            self.insert(key, value)
        elif isinstance(current := self[key], Variable) and isinstance(value, Variable):
            current.update_from_state(value)
        else:
            self[key] = value

    def _graph_node_pop_key(self, key: Any) -> Any:
        # An element that was set beyond the end is the last one.
        value = self[place := min(key, len(self) - 1)]
        del self[place]
        return value


def _is_equal(a: Any, b: Any) -> bool:
    # Arrays and Variables compare elementwise, and broadcast.
    return a is b or (getattr(a, "shape", None) == getattr(b, "shape", None) and bool(np.all(a == b)))


class Sequential(Module, Iterable[Callable[..., Any]]):
    """Calls functions in order, each on the output of the function before.

    A tuple output is passed on as positional arguments, a dict as keyword arguments. A keyword argument of the call,
    such as `rngs`, goes to each function that has a parameter of its name. Iterating yields the functions.

    Raises:
        TypeError: when called, if an element is not callable, or the call and a dict output both set a parameter.

    >>> Sequential(lambda x: (x, x + 1), lambda x, y: x * y)(2)
    6
    """

    def __init__(self, *fns: Callable[..., Any]):
        self.layers = List(fns)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self.layers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # As in flax, an empty chain returns its arguments.
        if not len(self.layers):
            return args[0] if len(args) == 1 else args or kwargs or None
        output: Any = None
        for i, layer in enumerate(self.layers):
            if not callable(layer):
                raise TypeError(f"Sequential[{i}] is not callable: {layer}")
            passed_on: dict[str, Any] = {}
            if i > 0:
                args = output if isinstance(output, tuple) else () if isinstance(output, dict) else (output,)
                passed_on = dict(output) if isinstance(output, dict) else {}
            # Signatures are inspected only if there are keywords: a plain chain of layers pays nothing.
            accepted = accepted_keywords(layer, len(args), kwargs) if kwargs else {}
            if repeated := sorted(passed_on.keys() & accepted):
                raise TypeError(
                    f"Got multiple values for arguments {repeated} in Sequential[{i}]: the call passes them, and so "
                    "does the dict that the function before it returned"
                )
            output = layer(*args, **passed_on, **accepted)
        return output


def accepted_keywords(func: Callable[..., Any], positional: int, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the keyword arguments that a function accepts in addition to some positional arguments.

    Args:
        func: the function; a builtin without a signature accepts none.
        positional: the number of positional arguments.
        kwargs: the keyword arguments.

    >>> accepted_keywords(lambda x, rate=0: x, 1, {"x": 1, "rate": 2, "other": 3})
    {'rate': 2}
    """
    try:
        kinds = {parameter.name: parameter.kind for parameter in inspect.signature(func).parameters.values()}
    # Builtins and some callables of extensions have no signature that Python can read; they are passed no keywords.
    except (TypeError, ValueError):
        return {}
    by_position = [name for name, kind in kinds.items() if kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]
    by_name = {name for name, kind in kinds.items() if kind in _BY_NAME}
    filled = by_name.intersection(by_position[:positional])
    accepts_all = inspect.Parameter.VAR_KEYWORD in kinds.values()
    return {name: value for name, value in kwargs.items() if (accepts_all or name in by_name) and name not in filled}


def has_keyword_arg(func: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter `name` that can be passed by keyword."""
    parameter = inspect.signature(func).parameters.get(name)
    return parameter is not None and parameter.kind in _BY_NAME
