"""Module: an immutable record that is a pytree.

`Module` is an `equinox.Module`: a frozen dataclass whose non-static fields are its children. Every equinox tool works
on it, and equinox layers nest inside it and around it. What it adds:

- fields declare kinds (see `kinds`);
- what a field holds that is no array is configuration, part of the tree's definition for everybody (see
  `configuration`); what cannot be hashed is refused with the field's name, instead of failing later in a transform;
- its fields say what to do instead when one tries to set them;
- public methods pass through one dispatcher, where contracts check them and where a record that was already replaced
  by its successor is caught (see `thread`). With neither in use the dispatcher is a plain call.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import types
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import equinox as eqx
import jax
from typing_extensions import dataclass_transform
from weft.core import hooks
from weft.core.definitions import note_definition
from weft.core.edge import trees
from weft.core.errors import FrozenError, StructureError
from weft.core.records.cached import SLOT, keep_beside
from weft.core.records.computed import computed_again, computed_fields
from weft.core.records.configuration import Mixed, opened, stored, stored_in_place, stored_static
from weft.core.records.contracted import under_contract
from weft.core.records.cycles import refuse_cycles
from weft.core.records.pending import PENDING, Pending, fields_of, read_dict
from weft.core.records.printing import printed
from weft.core.records.statics import Static
from weft.core.tracebacks import cut

E = TypeVar("E", bound=eqx.Module)

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


# What a public method was called with: arguments, and those by name.
Given = tuple[tuple[Any, ...], dict[str, Any]]
# Runs a record's public method, or refuses to: called with the record, the method, its arguments, and what goes on.
Watcher = Callable[[Any, Callable[..., Any], Given, Callable[[], Any]], Any]
# Those around every call of a public method now; the first is the outermost. An open `thread` block guards its record
# so, and `debug_successors` marks successors; with neither, a call pays for one look at an empty list.
method_watchers: list[Watcher] = []
# Called with every record that was constructed, while debugging.
construction_watchers: list[Callable[[Any], None]] = []
_watchers_lock = threading.Lock()
_watcher_counts: Counter[Watcher] = Counter()


def watch_methods(watcher: Watcher, change: int) -> None:
    """Puts a watcher around public methods while more want it (+1) than have ceased to (-1)."""
    with _watchers_lock:
        _watcher_counts[watcher] += change
        wanted, there = _watcher_counts[watcher] > 0, watcher in method_watchers
        if wanted and not there:
            method_watchers.append(watcher)
        elif there and not wanted:
            method_watchers.remove(watcher)


if TYPE_CHECKING:
    # Mypy cannot follow `type(eqx.Module)`, and would check no constructor.
    _Base = eqx.Module
else:

    class _Constructing(type(eqx.Module)):
        """The metaclass of records: errors of constructors have the user's frames alone."""

        def __call__(cls, *args, **kwargs):
            __tracebackhide__ = True
            try:
                return super().__call__(*args, **kwargs)
            except Exception as error:
                cut(error)
                raise

    class _Base(eqx.Module, metaclass=_Constructing):
        pass


# On the class, not on the metaclass, which checkers do not see. Not `frozen_default`, which would refuse a hand-written
# `__init__` that sets fields.
@dataclass_transform(field_specifiers=(dataclasses.field, eqx.field, static))
class Module(_Base):
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

    # Beside the fields: see `cached`.
    __slots__ = (SLOT,)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        note_definition(cls)
        keep_beside(cls)
        # What is annotated is a field, and a function there its default.
        fields = inspect.get_annotations(cls)
        for name, value in list(vars(cls).items()):
            is_method = inspect.isfunction(value) or getattr(cast(Any, type(value)), "__weft_method__", False)
            if is_method and name not in fields and (name == "__call__" or not name.startswith("_")):
                setattr(cls, name, _dispatched(value))
            elif name not in fields and (checked := under_contract(name, value)) is not None:
                setattr(cls, name, checked)

    # Read by `leaves`, which must not know this class.
    _keeps_configuration = True

    if not TYPE_CHECKING:

        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":  # what JAX asks for, twice for each record that it flattens
                fields = read_dict(self)
                return fields_of(self) if PENDING in fields else fields
            value = object.__getattribute__(self, name)
            kind = type(value)
            if kind is Static or kind is Mixed:
                return value.value
            if kind is Pending:
                fields_of(self)
                return self.__getattribute__(name)
            # Equinox makes a pytree of a bound method. Its own look-up costs twice this one: asked for those only.
            return super().__getattribute__(name) if kind is types.MethodType else value

        def __getattr__(self, name: str) -> Any:
            cls = type(self)
            # A property that ends in an AttributeError of its own comes here, too: that error is the one to tell.
            if hasattr(cls, name):
                return object.__getattribute__(self, name)
            text = f"{cls.__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(jax.Array, name):
                short = cls.__name__.lower()
                text += (
                    f", which arrays have: a call of a stateful record returns (y, successor), and this may be the "
                    f"successor; take the two apart, y, {short} = {short}(x)"
                )
            raise AttributeError(text, name=name, obj=self)

        def __setattr__(self, name: str, value: object) -> None:
            cls = type(self)
            field = cls.__dataclass_fields__.get(name)
            if field is not None and field.metadata.get("static", False):
                stored_static(value, f"{cls.__qualname__}.{name}")
            try:
                super().__setattr__(name, value)
            except dataclasses.FrozenInstanceError:
                raise _frozen(cls, name) from None

    def __check_init__(self) -> None:
        # Once the record is made, so that a constructor may build its lists step by step.
        values = read_dict(self)
        refuse_cycles(self, values)
        for name, field in type(self).__dataclass_fields__.items():
            if name in values:
                values[name] = _kept(type(self), field, values[name])
        contracts = hooks.installed_contracts()
        if contracts is not None:
            contracts.constructed(self)
        for note in construction_watchers:
            note(self)

    def __getstate__(self) -> dict[str, Any]:
        # The fields alone: what a cached property computed is computed again by a copy.
        return dict(fields_of(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        read_dict(self).update(state)
        # cloudpickle makes a class of `__main__` empty first and fills it later; equinox has then told JAX that it has
        # no fields, and every array would be lost at the first transform.
        known = len(tuple(cast(Any, trees.children_of(self))[0]))
        fields = [field for field in dataclasses.fields(self) if not field.metadata.get("static", False)]
        if known != len(fields):
            cls = type(self)
            raise StructureError(
                f"the class {cls.__qualname__} was pickled by value, and JAX does not know its fields here",
                at=f"{cls.__module__}.{cls.__qualname__}: {', '.join(field.name for field in fields)}",
                fix="define it in a module that both processes import, not in the script or notebook itself",
            )

    # `wadler_lindig`'s, by which equinox prints. A subclass's own `__repr__` or `__pdoc__` goes first.
    __pdoc__ = printed

    def replace(self, **changes: object) -> Self:
        """A copy with other values in the named fields; nothing else is checked or run.

        Raises:
            AttributeError: if a name is not a field of this record.
            StaticError: if a static field would hold an array, or any field something unhashable.
            StructureError: if the constructor computes a field (`field(init=False)`) that is not named, and it cannot
                be told what it is now.
        """
        fields = {field.name: field for field in dataclasses.fields(self)}
        unknown = [name for name in changes if name not in fields]
        if unknown:
            raise AttributeError(
                f"{type(self).__qualname__} has no field {', '.join(map(repr, unknown))}; "
                f"its fields are {', '.join(fields) or 'none'}"
            )
        return replaced(self, changes)


def replaced(record: E, changes: Mapping[str, Any], *, lenient: bool = False) -> E:
    """A copy of a record with other values in the named fields, which its contracts look at; see `with_fields`."""
    copy = with_fields(record, changes, lenient=lenient)
    contracts = hooks.installed_contracts() if isinstance(record, Module) else None
    if contracts is not None:
        contracts.replaced(copy)
    return copy


def with_fields(record: E, changes: Mapping[str, Any], *, lenient: bool = False) -> E:
    """A copy of a record with other values in the named fields, which no contract looks at; of equinox's own too.

    Args:
        record: the record.
        changes: the values, by the names of fields.
        lenient: whether a field that the constructor computes stays as it is where it cannot be computed again: for
            changes that the user has not written down.

    Raises:
        StructureError: if the constructor computes a field, and it cannot be told what that is now; see `computed`.
    """
    cls = type(record)
    fields = cls.__dataclass_fields__
    copy = object.__new__(cls)
    values = read_dict(copy)
    values.update(fields_of(record))
    # What the user or a decorator put beside the fields is about the record before.
    if len(values) != len(fields):
        for name in values.keys() - fields.keys() - _NAMES_OF_WRAPPERS:
            del values[name]
    if computed_fields(cls):
        changes = {**changes, **_computed_again(record, changes, lenient)}
    keeps = issubclass(cls, Module)
    for name, value in changes.items():
        values[name] = _kept(cls, fields[name], value, values.get(name)) if keeps else value
    return copy


# What equinox's wrappers of functions take over from them, which is part of their definition as pytrees.
_NAMES_OF_WRAPPERS = frozenset({"__module__", "__name__", "__qualname__", "__doc__", "__annotations__"})


def _computed_again(record: Any, changes: Mapping[str, Any], lenient: bool) -> dict[str, Any]:
    try:
        return computed_again(record, {name: opened(value) for name, value in changes.items()})
    except StructureError:
        if lenient:
            return {}
        raise


def standing_for(cls: type, record: Any) -> Any:
    """What of a record is taken for one of a class: itself, or what it was put in the place of; None if nothing is.

    The class of a wrapper says what it is taken for by `__stands_for__`: the name of the field that holds the layer, or
    another class.

    >>> from weft.modules import Frozen, LayerNorm
    >>> layer = LayerNorm(3)
    >>> standing_for(LayerNorm, Frozen(layer)) is layer, standing_for(LayerNorm, "a text")
    (True, None)
    """
    while not isinstance(record, cls):
        what = getattr(cast("type[Any]", type(record)), "__stands_for__", None)
        if not isinstance(what, str):
            return record if isinstance(what, type) and issubclass(what, cls) else None
        record = getattr(record, what)
    return record


def _dispatched(function: Callable[..., Any]) -> Callable[..., Any]:
    is_call = function.__name__ == "__call__"

    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if is_call and len(args) == 1 and type(args[0]) is type(self) and _holds_labels(self):
            return self
        running = None
        try:
            if method_watchers:
                return _watched(function, self, args, kwargs)
            contracts = hooks.installed_contracts()
            if contracts is None:
                return function(self, *args, **kwargs)
            # As in `call_checked`, without a frame of its own: records call records, hundreds deep.
            running = contracts.enter(function, (self, *args), kwargs)
            return running.leave(running.function(self, *args, **kwargs))
        except Exception as error:
            if running is not None:
                running.fail(error)
            cut(error)
            raise
        finally:
            if running is not None:
                running.end()

    return method


def _watched(function: Callable[..., Any], record: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    __tracebackhide__ = True

    def proceed() -> Any:
        __tracebackhide__ = True
        return hooks.call_checked(function, (record, *args), kwargs)

    for watch in reversed(method_watchers):
        proceed = functools.partial(watch, record, function, (args, kwargs), proceed)
    return proceed()


def _holds_labels(record: Any) -> bool:
    """Whether a record has labels or bools in the places of its arrays, as optax takes them beside parameters.

    optax calls labels and masks that can be called with the parameters, to be given a tree of them: a record that has a
    `__call__` is that tree already.
    """
    leaves = trees.flatten(record)[0]
    return bool(leaves) and not any(hasattr(leaf, "dtype") for leaf in leaves)


def _kept(cls: type[Any], field: dataclasses.Field[Any], value: Any, old: Any = None) -> Any:
    """What a record keeps of a field's value, where it kept another one or none."""
    where = f"{cls.__qualname__}.{field.name}"
    if field.metadata.get("static", False):
        return stored_static(value, where)
    return stored(value, where) if old is None else stored_in_place(value, old, where)


def _frozen(cls: type[Any], name: str) -> FrozenError:
    if name in cls.__dataclass_fields__:
        return FrozenError(
            f"a {cls.__qualname__} cannot be changed in place",
            at=f"{cls.__qualname__}.{name}",
            fix=f"make its successor: record.replace({name}=...); inside a thread block, t.{name} = ...",
        )
    return undeclared(cls, name)


def undeclared(cls: type[Any], name: str) -> FrozenError:
    """The error that something is set that is no field of a record."""
    fields = ", ".join(cls.__dataclass_fields__) or "none"
    return FrozenError(
        f"a {cls.__qualname__} has no field {name!r}; its fields are {fields}",
        at=f"{cls.__qualname__}.{name}",
        fix=f"declare it in the class, with its type: `{name}: Float[Array, ...]`",
    )
