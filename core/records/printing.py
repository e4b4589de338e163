"""How a record is printed: without fields that have their default value.

A field's default is that of its declaration, or of the constructor's argument of the same name. A field without a
default that is None is left out too: there is no cache, no norm. Compiled functions are printed by name, without an
address.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import wadler_lindig as wl
from weft.core.caches import kept_with_class
from weft.core.edge.trees import PyTree, children_of
from weft.core.records.leaves import is_array

_wl: Any = wl  # `named_objs` is annotated in part


def printed(record: PyTree, **options: Any) -> wl.AbstractDoc:
    """The document of a record for `wadler_lindig`, which prints it; `hide_defaults=False` shows every field."""
    fields = [field.name for field in dataclasses.fields(record) if field.repr and hasattr(record, field.name)]
    values = {name: getattr(record, name) for name in fields}
    if options["hide_defaults"]:
        cls = cast("type[Any]", type(record))
        defaults = _defaults(cls)
        values = {name: value for name, value in values.items() if not _is_default(value, defaults.get(name))}
    # Wrapped only once: each record passes it on to the records inside, and a wrapper for each level would be called
    # through all of them.
    custom = options["custom"]
    shown = custom if getattr(custom, "func", None) is _show else functools.partial(_show, custom)
    return wl.bracketed(
        begin=wl.TextDoc(f"{type(record).__name__}("),
        docs=_wl.named_objs(list(values.items()), **options | {"custom": shown}),
        sep=wl.comma,
        end=wl.TextDoc(")"),
        indent=options["indent"],
    )


def _show(custom: Callable[[Any], wl.AbstractDoc | None], value: Any) -> wl.AbstractDoc | None:
    # A jitted function, or one with its own derivative, is an object with the function in `__wrapped__`.
    has_own_text = inspect.isfunction(value) or children_of(value) is not None
    if not has_own_text and callable(value) and hasattr(value, "__wrapped__"):
        return wl.TextDoc(f"<function {getattr(value, '__name__', type(value).__name__)}>")
    return custom(value)


def _is_default(value: object, default: object) -> bool:
    if value is default or is_array(value):
        return value is default
    try:
        if isinstance(default, int) and isinstance(value, tuple):  # one number, for each axis
            return value == (default,) * len(cast("tuple[object, ...]", value))
        return type(value) is type(default) and bool(value == default)
    except Exception:  # the values cannot be compared, so the field is shown
        return False


@kept_with_class
def _defaults(cls: type) -> dict[str, Any]:
    own = {field.name: field.default for field in dataclasses.fields(cls) if field.default is not dataclasses.MISSING}
    # Base classes too: a constructor may pass its options on to theirs.
    constructors = [vars(base)["__init__"] for base in reversed(cls.__mro__[:-1]) if "__init__" in vars(base)]
    for constructor in constructors:
        for parameter in inspect.signature(constructor).parameters.values():
            if parameter.default is not inspect.Parameter.empty:
                own[parameter.name] = parameter.default
    return own
