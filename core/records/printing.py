"""How a record is printed: its fields without those that are as they are by default.

A field's default is its own, or that of the constructor's argument of its name. A field without one that holds None
says as little: there is no cache, no norm.
"""

from __future__ import annotations

import dataclasses
import inspect
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
        docs=_wl.named_objs(list(values.items()), **options),
        sep=wl.comma,
        end=wl.TextDoc(")"),
        indent=options["indent"],
    )


def _is_default(value: object, default: object) -> bool:
    if value is default or is_array(value):
        return value is default
    try:
        return type(value) is type(default) and bool(value == default)
    except Exception:  # what cannot be compared is shown
        return False


@kept_with_class
def _defaults(cls: type) -> dict[str, Any]:
    own = {field.name: field.default for field in dataclasses.fields(cls) if field.default is not dataclasses.MISSING}
    parameters = inspect.signature(cls).parameters
    return own | {name: one.default for name, one in parameters.items() if one.default is not inspect.Parameter.empty}
