"""Dict, List and Sequential: containers that are Modules, so that what they hold can be shared, and data or static."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, TypeVar

from weft.nnx.errors import StructureError
from weft.nnx.modules.module import Module
from weft.nnx.objects.attributes import data, static
from weft.nnx.objects.objects import attributes_of, in_order
from weft.nnx.printing.reprlib import MappingReprMixin, SequenceReprMixin
from weft.nnx.variable.variable import Variable

A = TypeVar("A")


class Dict(MappingReprMixin, Module, MutableMapping[str, A]):
    """A mutable mapping of names to data or static values; its items are its attributes.

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

    def __hash__(self) -> int:
        return id(self)


class List(SequenceReprMixin, Module, MutableSequence[A]):
    """A mutable sequence of data or static values; its elements are attributes named by their number.

    >>> layers = List([1, "x"])
    >>> layers.append(2)
    >>> list(layers), layers[-1]
    ([1, 'x', 2], 2)
    """

    _pytree__has_int_keys = True

    def __init__(self, it: Iterable[A] | None = None, /):
        self._length: int = 0
        for value in () if it is None else it:
            self.append(value)

    def _get_elem(self, key: int) -> Any:
        return getattr(self, str(key))

    def _set_elem(self, key: int, value: Any) -> None:
        setattr(self, str(key), value)

    def _del_elem(self, key: int) -> None:
        delattr(self, str(key))

    def _move(self, source: int, target: int) -> None:
        """An element in another place is data or static as it was."""
        mark = data if self._pytree__nodes.get(str(source), False) else static
        self._set_elem(target, mark(self._get_elem(source)))

    def _place(self, index: int) -> int:
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(f"index {index} is out of bounds for a List of {self._length}")
        return place

    def __len__(self) -> int:
        return self._length

    def append(self, value: A) -> None:
        """Adds an element at the end."""
        self._set_elem(self._length, value)
        self._length += 1

    def insert(self, index: int, value: A) -> None:
        """Adds an element before another."""
        place = min(max(index + self._length if index < 0 else index, 0), self._length)
        for source in reversed(range(place, self._length)):
            self._move(source, source + 1)
        if place < self._length:
            self._del_elem(place)
        self._set_elem(place, value)
        self._length += 1

    def __iter__(self) -> Iterator[Any]:
        return (self._get_elem(place) for place in range(self._length))

    def __getitem__(self, index: Any) -> Any:
        match index:
            case int():
                return self._get_elem(self._place(index))
            case slice():
                return [self._get_elem(place) for place in range(self._length)[index]]
        raise TypeError(f"Invalid index type: an index is an int or a slice, not {index!r}")

    def __setitem__(self, index: Any, value: Any) -> None:
        match index:
            case int():
                self._set_elem(self._place(index), value)
            case slice():
                if not isinstance(value, Iterable):
                    raise TypeError(f"a slice is set to an iterable, not to {value!r}")
                places, values = range(self._length)[index], list(value)
                if len(places) != len(values):
                    raise StructureError(f"{len(values)} values do not fit a slice of {len(places)}")
                for place, element in zip(places, values, strict=True):
                    self._set_elem(place, element)
            case _:
                raise TypeError(f"Invalid index type: an index is an int or a slice, not {index!r}")

    def __delitem__(self, index: Any) -> None:
        match index:
            case int():
                for place in range(self._place(index) + 1, self._length):
                    self._move(place, place - 1)
                self._del_elem(self._length - 1)
                self._length -= 1
            case slice():
                for place in sorted(range(self._length)[index], reverse=True):
                    del self[place]
            case _:
                raise TypeError(f"Invalid index type: an index is an int or a slice, not {index!r}")

    def _graph_node_set_key(self, key: Any, value: Any) -> None:
        if not isinstance(key, int):
            raise KeyError(f"an element's key is an int, got {key!r}")
        if key >= len(self):
            self.insert(key, value)
        elif isinstance(current := self[key], Variable) and isinstance(value, Variable):
            current.update_from_state(value)
        else:
            self[key] = value


class Sequential(Module, Iterable[Callable[..., Any]]):
    """Calls one function after the other, each on what the one before returned.

    A tuple is passed on as positional arguments, a dict as keyword arguments. Keyword arguments of the call, `rngs`
    among them, go to each function that takes them. Iterating gives the functions.

    Raises:
        TypeError: when called, if one of them is not callable, or an argument comes from the call and from a dict.

    >>> Sequential(lambda x: (x, x + 1), lambda x, y: x * y)(2)
    6
    """

    def __init__(self, *fns: Callable[..., Any]):
        self.layers = List(fns)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self.layers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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
            accepted = accepted_keywords(layer, len(args), kwargs) if kwargs else {}
            if repeated := sorted(passed_on.keys() & accepted):
                raise TypeError(
                    f"Got multiple values for arguments {repeated} in Sequential[{i}]: the call names them, and so "
                    "does the dict that the function before returned"
                )
            output = layer(*args, **passed_on, **accepted)
        return output


def accepted_keywords(func: Callable[..., Any], positional: int, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those keyword arguments that a function takes when it is given some arguments by position.

    Args:
        func: the function; of one that has no signature nothing is known, and it takes none.
        positional: how many arguments it is given by position.
        kwargs: the keyword arguments.

    >>> accepted_keywords(lambda x, rate=0: x, 1, {"x": 1, "rate": 2, "other": 3})
    {'rate': 2}
    """
    try:
        parameters = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):
        return {}
    by_position = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    filled = {one.name for one in by_position[:positional] if one.kind is one.POSITIONAL_OR_KEYWORD}
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return {name: value for name, value in kwargs.items() if name not in filled}
    named = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)} - filled
    return {name: value for name, value in kwargs.items() if name in named}


def has_keyword_arg(func: Callable[..., Any], name: str) -> bool:
    """Whether a function takes this argument by keyword."""
    parameter = inspect.signature(func).parameters.get(name)
    return parameter is not None and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
