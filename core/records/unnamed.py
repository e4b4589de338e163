"""Functions and objects that no name leads to, such as the two functions of an optax transformation.

They are made by others (`optax.adam(1e-3)`), and a process that reads an exported step makes its own. What was exported
never calls them: the step has in it what they do. So they are needed only to tell whether a record is of the make that
the step was exported for, and to be somewhere in the records that it gives. For both there is a *stand-in*, which knows
what the function was made of: the name of its code, what that calls, and what it closes over.

A stand-in equals another, and the function itself, if they are made of the same. What a function does in between is not
compared, as that of a function with a name is not.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from weft.core.edge import trees
from weft.core.errors import StaticError

_HEAP_TYPE = 1 << 9
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
        kind, *parts = json.loads(self.text)
        return ".".join(parts[0]) if kind in ("function", "object") else kind

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


def name_of(value: Any) -> list[str] | None:
    """The module and name that lead to a function or class, if one does."""
    name: Any = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return None
    home: Any = getattr(value, "__module__", None) or "builtins"
    # What users name is often made elsewhere: `jax.nn.relu`.
    public = ("jax.nn", "jax.numpy", "jax.lax", "jax.random", "jax")
    for module in (home, *(module for module in public if module in sys.modules)):
        if named(module, name) is value:
            return [module, name]
    return None


def named(module: str, name: str) -> Any:
    """What a name leads to; `NOTHING` if it leads nowhere."""
    try:
        return functools.reduce(getattr, name.split("."), cast(Any, importlib.import_module(module)))
    except (ImportError, AttributeError):
        return NOTHING


NOTHING = object()


def attributes_of(value: Any) -> dict[str, Any] | None:
    """What an instance of a class that is written in Python holds; None for what holds something else."""
    cls = cast("type[Any]", type(value))
    if cls is object or not all(base.__flags__ & _HEAP_TYPE for base in cls.__mro__[:-1]):
        return None
    slots = [name for base in cls.__mro__ for name in cast("Iterable[str]", vars(base).get("__slots__", ()))]
    held = {name: getattr(value, name) for name in slots if name[:2] != "__" and hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})}


def is_compared_by_content(cls: type) -> bool:
    """Whether instances of a class are equal by what they hold, so that another can be made elsewhere."""
    return cls.__eq__ is not object.__eq__


def make_up(value: Any) -> str:
    """What a value is made of, as text that is the same in each process.

    Raises:
        Unwritable: if it cannot be told.
    """
    return json.dumps(_made_of(value, []))


def _made_of(value: Any, around: list[Any]) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float, complex, bytes)):
        return [type(value).__name__, repr(value)]
    if type(value) is Unnamed:
        return json.loads(value.text)
    if isinstance(value, np.dtype):
        return ["dtype", cast(Any, value).name]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return _array(value)
    if (name := name_of(value)) is not None:
        return ["name", *name]
    for depth, outer in enumerate(around):
        if outer is value:
            return ["again", depth]

    def each(values: Iterable[Any]) -> list[Any]:
        return [_made_of(part, [*around, value]) for part in values]

    if isinstance(value, FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        given = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [
            "function",
            [value.__module__, value.__qualname__],
            _code(value.__code__, value.__doc__),
            each(given),
            each(cells),
        ]
    if isinstance(value, MethodType):
        return ["method", *each((value.__func__, value.__self__))]
    if isinstance(value, functools.partial):
        return ["partial", *each((value.func, value.args, value.keywords))]
    if hasattr(value, "__wrapped__"):
        return ["wrapped", *each((cast("type[Any]", type(value)), value.__wrapped__))]
    if isinstance(value, Mapping):
        return ["mapping", *each(cast("Mapping[Any, Any]", value).items())]
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(each(cast("Iterable[Any]", value)), key=json.dumps)]
    if isinstance(value, (tuple, list)):
        return [type(cast(Any, value)).__name__, *each(cast("Iterable[Any]", value))]
    if isinstance(value, type):
        return ["class", *_place(cast("type[Any]", value))]
    if isinstance(value, DEFINITION):
        return ["definition", *each((*(value.node_data() or ()), *value.children()))]
    if (level := trees.children_of(value)) is not None:
        return ["node", _place(cast("type[Any]", type(value))), *each((level[1], *level[0]))]
    attributes = attributes_of(value)
    if attributes is None:
        raise Unwritable
    return ["object", _place(cast("type[Any]", type(value))), each(sorted(attributes.items()))]


def _place(cls: type) -> list[str]:
    return [cls.__module__, cls.__qualname__]


def _array(value: Any) -> Any:
    if isinstance(value, Tracer) or jnp.issubdtype(value.dtype, jax.dtypes.extended):
        raise Unwritable
    numbers = np.asarray(value)
    if numbers.dtype.hasobject:
        raise Unwritable
    return ["array", str(numbers.dtype), numbers.shape, hashlib.sha256(numbers.tobytes()).hexdigest()]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was put into it yet
        return None


def _code(code: CodeType, doc: str | None) -> Any:
    """What code names and holds, but not its instructions and their order, which differ from one Python to the next."""
    held = [_code(part, None) if isinstance(part, CodeType) else _constant(part) for part in code.co_consts]
    told = {json.dumps(part) for part in held} - {json.dumps(_constant(doc)), json.dumps(_constant(None))}
    return [code.co_name, sorted(code.co_names), sorted(told)]


def _constant(value: Any) -> Any:
    if isinstance(value, frozenset):
        return ["set", *sorted(map(repr, cast("Iterable[Any]", value)))]
    return repr(value)
