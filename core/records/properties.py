"""What a class of records does with its properties: cached ones, and those whose contracts are checked.

`functools.cached_property` writes its value into the instance's `__dict__`, which holds a record's fields. So `replace`
copied the value to a successor for whose fields it was wrong, and reading the property changed the treedef, so that
`jit` retraced for the same record. Here the values are stored in a slot that neither JAX nor `replace` reads.

`thread` and `debug_successors` watch public methods alone. Properties, operators, static and class methods only have
their annotations checked, and only if an annotation names more than `int` or `str`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import jax
from jax.core import Tracer
from weft.core import hooks
from weft.core.edge.contexts import current_level

_UNREAD: Any = object()

# The slot of `Module` that holds the values.
SLOT = "_weft_cached"


class CachedProperty(functools.cached_property[Any]):
    """`functools.cached_property` for records, whose value belongs to one record alone."""

    def __init__(self, function: Callable[[Any], Any], name: str):
        super().__init__(function)
        self.attrname = name

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        values = cast("dict[str, tuple[Any, object]] | None", getattr(instance, SLOT, None))
        if values is None:
            values = {}
            object.__setattr__(instance, SLOT, values)
        value, level = values.get(cast(str, self.attrname), (_UNREAD, None))
        if value is _UNREAD or (level is not None and level != current_level()):
            value = self.func(instance)
            # A tracer is dead after its trace, but the record may live longer: a compiled function may close over a
            # model, whose property then held the dead tracer. So the level of the trace is stored with it.
            traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))
            values[cast(str, self.attrname)] = value, current_level() if traced else None
        return value


def use_own_cached_properties(cls: type[Any]) -> None:
    """Replaces the cached properties of a class of records, inherited ones too, by `CachedProperty`."""
    inherited = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    for name, value in inherited.items():
        # Not subclasses of `cached_property`, which may do something else when they are read.
        if type(value) is functools.cached_property:
            setattr(cls, name, CachedProperty(value.func, name))


# --- contracts --------------------------------------------------------------------------------------------------------


_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_OTHERS = ("neg", "pos", "abs", "invert", "getitem", "contains", "iter", "lt", "le", "gt", "ge")
OPERATORS = frozenset(
    [f"__{side}{name}__" for name in _BINARY.split() for side in ("", "r", "i")] + [f"__{name}__" for name in _OTHERS]
)
# Annotations that name no array, as types and as strings. A property that is annotated so is not wrapped, and costs
# nothing.
_PLAIN = {plain for cls in (int, float, bool, str, bytes) for plain in (cls, cls.__name__)} | {None, "None"}


def under_contract(name: str, value: Any) -> Any:
    """An attribute of a class's body with its contract checked, or None if it stays as it is.

    Args:
        name: the name of the attribute.
        value: its value.
    """
    if inspect.isfunction(value):
        return _checked(value) if name in OPERATORS and _may_name_arrays(value) else None
    if name.startswith("_"):
        return None
    if isinstance(value, property) and inspect.isfunction(value.fget) and _may_name_arrays(value.fget):
        return property(_checked(value.fget), value.fset, value.fdel, value.__doc__)
    if isinstance(value, CachedProperty) and _may_name_arrays(value.func):
        return CachedProperty(_checked(value.func), name)
    if isinstance(value, staticmethod | classmethod):
        bound = cast(Any, value)
        inner: Any = bound.__func__
        if inspect.isfunction(inner) and _may_name_arrays(inner):
            return type(bound)(_checked(inner))
    return None


def _may_name_arrays(function: Callable[..., Any]) -> bool:
    annotations: list[Any] = [annotation for annotation in function.__annotations__.values() if annotation is not None]
    return any(not isinstance(annotation, str | type) or annotation not in _PLAIN for annotation in annotations)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return hooks.call_checked(function, args, kwargs, typed=False)

    return checked
