"""Functions and objects that no name leads to, such as the two functions of an optax transformation.

They are made by others (`optax.adam(1e-3)`), and a process that reads an exported step makes its own. What was exported
never calls them: the step has in it what they do. So they are needed only to tell whether a record is of the make that
the step was exported for, and to be somewhere in the records that it gives. For both there is a *stand-in*, which knows
what the function was made of: the name of its code, what that calls, and what it closes over.

A stand-in equals another, and the function itself, if they are made of the same. What a function does in between is not
compared, as that of a function with a name is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import CodeType
from typing import Any, NoReturn, cast

import jax
import numpy as np
from jax.core import Tracer
from weft.core.edge import trees
from weft.core.errors import StaticError
from weft.core.makeup import Makeup, digest_of, fold, is_all_attributes, makeup_of, named
from weft.core.records.statics import stand_ins

DEFINITION: Any = cast(Any, jax.tree_util).PyTreeDef


class Unwritable(Exception):
    """What a function or object is made of cannot be told."""


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
            return self.text == make_up(other)
        except Unwritable:
            return False

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"<left in the process that exported it: {self._name}>"

    @property
    def _name(self) -> str:
        kind, place, *_ = json.loads(self.text)
        return ".".join(place) if isinstance(place, list) else kind

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


def name_of(value: Any) -> list[str] | None:
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


def make_up(value: Any) -> str:
    """What a value is made of, as text that is the same in each process.

    Raises:
        Unwritable: if it cannot be told.
    """
    return json.dumps(fold(value, _look, _combine, lambda level: ["again", level]))


def _look(value: Any) -> Any:
    kind = cast("type[Any]", type(value))
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float, complex, bytes)):
        return [kind.__name__, repr(value)]
    if kind is Unnamed:
        return json.loads(value.text)
    if isinstance(value, np.dtype):
        return ["dtype", cast(Any, value).name]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        if isinstance(value, Tracer) or value.dtype.hasobject:
            raise Unwritable
        return ["array", str(value.dtype), value.shape, digest_of(value)]
    if (name := name_of(value)) is not None:
        return ["name", *name]
    if isinstance(value, type):
        return ["class", _place(value)]
    if isinstance(value, DEFINITION):
        return Makeup("definition", (), (*(value.node_data() or ()), *value.children()))
    makeup = makeup_of(value)
    if makeup.sort != "object":
        return makeup
    if (level := trees.children_of(value)) is not None:
        return Makeup("node", (), (level[1], *level[0]))
    if not is_all_attributes(kind):
        raise Unwritable
    return makeup


def _combine(value: Any, makeup: Makeup, parts: list[Any]) -> list[Any]:
    place = _place(value if makeup.sort == "function" else type(value))
    if makeup.sort == "function":
        parts = [_code(value.__code__, value.__doc__), *parts]
    elif makeup.sort == "mapping":
        parts = [
            [fold(name, _look, _combine, lambda level: None), part] for name, part in zip(value, parts, strict=True)
        ]
    elif makeup.sort == "set":
        parts.sort(key=json.dumps)
    elif makeup.sort == "object":
        parts = sorted([name, part] for name, part in zip(makeup.names, parts, strict=True))
    return [makeup.sort, place, *parts]


def _place(value: Any) -> list[str]:
    return [value.__module__, value.__qualname__]


def _code(code: CodeType, doc: str | None) -> Any:
    """What code names and holds, but not its instructions and their order, which differ from one Python to the next."""
    held = [_code(part, None) if isinstance(part, CodeType) else _constant(part) for part in code.co_consts]
    told = {json.dumps(part) for part in held} - {json.dumps(_constant(doc)), json.dumps(_constant(None))}
    return [code.co_name, sorted(code.co_names), sorted(told)]


def _constant(value: Any) -> Any:
    if isinstance(value, frozenset):
        return ["set", *sorted(map(repr, cast("Iterable[Any]", value)))]
    return repr(value)
