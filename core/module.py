"""Module: an immutable record that is a pytree.

`Module` is an `equinox.Module`: a frozen dataclass whose non-static fields are its children. Every equinox tool works
on it, and equinox layers nest inside it and around it. What it adds:

- fields declare kinds (see `kinds`);
- a static field is checked as it is set: arrays and unhashable values are refused with the field's name, instead of
  failing (or recompiling) later in a transform;
- public methods pass through one dispatcher, where contracts check them and where a record that was already replaced
  by its successor is caught (see `thread`). With neither in use the dispatcher is a plain call.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import equinox as eqx
import jax
import numpy as np
from typing_extensions import dataclass_transform
from weft.core import hooks, trees
from weft.core.errors import StaticError
from weft.core.paths import format_path, key_part

if TYPE_CHECKING:
    # The descriptor for checkers: they understand dataclasses' own `field`, not equinox's untyped keywords.
    def static(*, default: Any = ..., default_factory: Callable[[], Any] = ..., kw_only: bool = ...) -> Any: ...

else:

    def static(**kwargs):
        """A field that is part of the structure: hashable, the same on every call, never traced.

        >>> class Scale(Module):
        ...     factor: jax.Array
        ...     axis: int = static(default=-1)
        """
        return eqx.field(static=True, **kwargs)


# Called with (record, method) before a public method runs, while any `thread` block is open; `thread` owns it.
_method_watchers: list[Callable[[object], None]] = []


# On the class, not on a metaclass derived from equinox's: mypy cannot follow `type(eqx.Module)`, and would check no
# constructor. Not `frozen_default`, which would refuse a hand-written `__init__` that sets fields.
@dataclass_transform(field_specifiers=(dataclasses.field, eqx.field, static))
class Module(eqx.Module):
    """Base class of records.

    Fields are declared as in a dataclass; `__init__` may be written by hand. A method that changes state returns the
    *successor* of its record beside its value: `y, bn = bn(x)`.

    >>> import jax.numpy as jnp
    >>> class Counter(Module):
    ...     count: jax.Array
    ...     def __call__(self, x):
    ...         return x + self.count, self.replace(count=self.count + 1)
    >>> y, counter = Counter(jnp.array(1))(10)
    >>> int(y), int(counter.count)
    (11, 2)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in list(vars(cls).items()):
            if inspect.isfunction(value) and (name == "__call__" or not name.startswith("_")):
                setattr(cls, name, _dispatched(value))

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            field = type(self).__dataclass_fields__.get(name)
            if field is not None and field.metadata.get("static", False):
                check_static(value, f"{type(self).__qualname__}.{name}")
            super().__setattr__(name, value)

    def __check_init__(self) -> None:
        contracts = hooks.installed_contracts()
        if contracts is not None:
            contracts.constructed(self)

    def replace(self, **changes: Any) -> Self:
        """A copy with other values in the named fields; nothing else is checked or run.

        Raises:
            AttributeError: if a name is not a field of this record.
            StaticError: if a static field would hold an array or something unhashable.
        """
        fields = {field.name: field for field in dataclasses.fields(self)}
        unknown = [name for name in changes if name not in fields]
        if unknown:
            raise AttributeError(
                f"{type(self).__qualname__} has no field {', '.join(map(repr, unknown))}; "
                f"its fields are {', '.join(fields) or 'none'}"
            )
        copy = object.__new__(type(self))
        values = object.__getattribute__(copy, "__dict__")
        values.update(object.__getattribute__(self, "__dict__"))
        for name, value in changes.items():
            if fields[name].metadata.get("static", False):
                check_static(value, f"{type(self).__qualname__}.{name}")
            values[name] = value
        contracts = hooks.installed_contracts()
        if contracts is not None:
            contracts.replaced(copy)
        return copy


def _dispatched(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _method_watchers:
            for watch in _method_watchers:
                watch(self)
        if hooks.installed_contracts() is None:
            return function(self, *args, **kwargs)
        return hooks.call_checked(function, (self, *args), kwargs)

    return method


def check_static(value: Any, where: str) -> None:
    """Refuses a static value that holds an array or cannot be hashed.

    Raises:
        StaticError: naming the field, and the path inside the value.
    """
    for path, leaf in trees.flatten_with_path(value)[0]:
        if isinstance(leaf, jax.Array | np.ndarray):
            raise StaticError(
                f"an array in a static field: {jax.typeof(leaf)}",
                at=format_path(tuple(map(key_part, path)), where),
                fix="make it an ordinary field (static fields are part of the structure, and are compared by ==), "
                "or store a tuple of numbers",
            )
    try:
        hash(value)
    except TypeError:
        raise StaticError(
            f"a static field holds a mutable or unhashable {type(value).__name__}: {value!r}",
            at=where,
            fix="use a tuple for a list, a frozenset for a set, a frozen dataclass or a tuple of pairs for a dict",
        ) from None
