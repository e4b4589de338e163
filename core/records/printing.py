"""How a record is printed: its fields without those that are as they are by default.

A field's default is its own, or that of the constructor's argument of its name. A field without one that holds None
says as little: there is no cache, no norm. Compiled functions are printed as functions, and no address is.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import wadler_lindig as wl
from weft.core.caches import kept_with_class
from weft.core.edge.trees import PyTree
from weft.core.records.leaves import is_array

_wl: Any = wl  # `named_objs` is annotated in part


def printed(record: PyTree, **options: Any) -> wl.AbstractDoc:
    """A record for `wadler_lindig`, which lays it out; `hide_defaults=False` in its options shows every field."""
    fields = [field.name for field in dataclasses.fields(record) if field.repr and hasattr(record, field.name)]
    values = {name: getattr(record, name) for name in fields}
    if options["hide_defaults"]:
        cls = cast("type[Any]", type(record))
        defaults = _defaults(cls)
        values = {name: value for name, value in values.items() if not _is_default(value, defaults.get(name))}
    return wl.bracketed(
        begin=wl.TextDoc(f"{type(record).__name__}("),
        docs=_wl.named_objs(list(values.items()), **options | {"custom": _as_function(options["custom"])}),
        sep=wl.comma,
        end=wl.TextDoc(")"),
        indent=options["indent"],
    )


def _as_function(custom: Callable[[Any], wl.AbstractDoc | None]) -> Callable[[Any], wl.AbstractDoc | None]:
    # Once: each record passes it on to those inside, and what is wrapped at each level is called through all of them.
    is_one = isinstance(custom, functools.partial) and cast(Any, custom).func is _show
    return custom if is_one else functools.partial(_show, custom)


def _show(custom: Callable[[Any], wl.AbstractDoc | None], value: Any) -> wl.AbstractDoc | None:
    # Jitted or with a derivative of its own, it is an object that knows which function it stands for.
    if callable(value) and hasattr(value, "__wrapped__") and not inspect.isfunction(value):
        return wl.TextDoc(f"<function {getattr(value, '__name__', type(value).__name__)}>")
    return custom(value)


def _is_default(value: object, default: object) -> bool:
    if value is default or is_array(value):
        return value is default
    try:
        if isinstance(default, int) and isinstance(value, tuple):  # one number, for each axis
            return value == (default,) * len(cast("tuple[object, ...]", value))
        return type(value) is type(default) and bool(value == default)
    except Exception:  # what cannot be compared is shown
        return False


@kept_with_class
def _defaults(cls: type) -> dict[str, Any]:
    own = {field.name: field.default for field in dataclasses.fields(cls) if field.default is not dataclasses.MISSING}
    # Base classes too: a constructor may hand its options on to theirs.
    makers = [vars(base)["__init__"] for base in reversed(cls.__mro__[:-1]) if "__init__" in vars(base)]
    for one in [one for make in makers for one in inspect.signature(make).parameters.values()]:
        if one.default is not inspect.Parameter.empty:
            own[one.name] = one.default
    return own
