"""Module: an immutable record that is a pytree.

`Module` is an `equinox.Module`: a frozen dataclass whose non-static fields are its children. Every equinox tool works
on it, and equinox layers nest inside it and around it. It adds:

- kinds of fields (see `kinds`);
- configuration: values in fields that are no arrays are part of the treedef (see `configuration`); a value that cannot
  be hashed is refused with the field's name, instead of failing later in a transform;
- an error that says what to do when somebody sets a field;
- one dispatcher for public methods, where contracts check them and where `thread` reports a record that was already
  replaced by its successor. With neither in use the dispatcher is a plain call.
"""

from __future__ import annotations

import abc
import contextlib
import copyreg
import dataclasses
import functools
import inspect
import threading
import types
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

import equinox as eqx
import jax
from typing_extensions import dataclass_transform
from weft.core import hooks
from weft.core.definitions import note_definition
from weft.core.donations import explain_deleted
from weft.core.edge import trees
from weft.core.errors import FrozenError, StructureError
from weft.core.records.configuration import MixedContainer, opened, stored, stored_in_place, stored_static
from weft.core.records.constructing import computed_again, computed_fields, refuse_cycles, refused_arguments
from weft.core.records.printing import printed
from weft.core.records.properties import SLOT, under_contract, use_own_cached_properties
from weft.core.records.storage import PENDING, Pending, Static, fields_of, read_dict
from weft.core.tracebacks import cut

E = TypeVar("E", bound=eqx.Module)
T = TypeVar("T")

if TYPE_CHECKING:
    # The signature for type checkers, which understand the keywords of `dataclasses.field` but not equinox's untyped
    # ones.
    def static(*, default: Any = ..., default_factory: Callable[[], Any] = ..., kw_only: bool = ...) -> Any: ...

else:

    def static(**kwargs):
        """Declares a field that is part of the treedef: hashable, and never traced.

        >>> class Scale(Module):
        ...     factor: jax.Array
        ...     axis: int = static(default=-1)
        """
        return eqx.field(static=True, **kwargs)


# The arguments of a call of a public method: (args, kwargs).
Given = tuple[tuple[Any, ...], dict[str, Any]]
# Runs around a public method, or refuses it: called with the record, the method, its arguments, and a function that
# goes on with the call.
Watcher = Callable[[Any, Callable[..., Any], Given, Callable[[], Any]], Any]
# The watchers around every call of a public method; the first is the outermost. An open `thread` block guards its
# record by one, and `debug_successors` marks successors by one; with neither, a call pays for one test of an empty
# list.
method_watchers: list[Watcher] = []
# Called with every record that is constructed, while somebody debugs.
construction_watchers: list[Callable[[Any], None]] = []
_watchers_lock = threading.Lock()
_watcher_counts: Counter[Watcher] = Counter()


def watch_methods(watcher: Watcher, change: int) -> None:
    """Adds a watcher (+1), or takes it away (-1); it is active while it was added more often than taken away."""
    with _watchers_lock:
        _watcher_counts[watcher] += change
        wanted, active = _watcher_counts[watcher] > 0, watcher in method_watchers
        if wanted and not active:
            method_watchers.append(watcher)
        elif active and not wanted:
            method_watchers.remove(watcher)


@contextlib.contextmanager
def watching_methods(watcher: Watcher, variable: ContextVar[T], value: T) -> Generator[None]:
    """A `with` block in which a watcher sees the calls of methods; a context variable tells it what for."""
    token = variable.set(value)
    watch_methods(watcher, 1)
    try:
        yield
    finally:
        watch_methods(watcher, -1)
        variable.reset(token)


if TYPE_CHECKING:
    # Mypy does not understand `type(eqx.Module)` as a base, and then checked no constructor of a record.
    _Base = eqx.Module
else:

    class _Refusing(Protocol):
        pass

    class _Constructing(type(eqx.Module), type(Protocol)):
        """The metaclass of records, which cuts weft's own frames out of errors that constructors raise. It is a
        protocol's, too, so that a record may inherit from protocols."""

        # Not those of protocols, in Python, because a record is none.
        __instancecheck__ = abc.ABCMeta.__instancecheck__
        __subclasscheck__ = abc.ABCMeta.__subclasscheck__

        # Python gives each protocol an `__init__` that refuses. Where the protocol came before the record, equinox took
        # it for one that the user has written, and made none from the fields. So these protocols come last while
        # equinox makes the class.
        def mro(cls):
            order = super().mro()
            # A class that writes its own `__init__`, or that is finished, has Python's order.
            if not {"__init__", "__dataclass_fields__"}.isdisjoint(vars(cls)):
                return order
            refusing = [base for base in order if vars(base).get("__init__") is vars(_Refusing)["__init__"]]
            return [*(base for base in order[:-1] if base not in refusing), *refusing, object]

        def __new__(mcs, *args, **kwargs):
            cls = super().__new__(mcs, *args, **kwargs)
            cls._computes_fields = not all(field.init for field in cls.__dataclass_fields__.values())
            if cls.__mro__ != tuple(cls.mro()):
                # In Python's order a protocol's `__init__` would come before one that the class inherits.
                init = cls.__init__
                cls.__bases__ = cls.__bases__  # for this Python asks for the order again
                abc.update_abstractmethods(cls)
                cls.__init__ = init
            return cls

        def __call__(cls, *args, **kwargs):
            __tracebackhide__ = True
            try:
                record = super().__call__(*args, **kwargs)
                contracts = hooks.installed
                if contracts is not None:
                    contracts.constructed(record, (args, kwargs))
                return record
            except Exception as error:
                refused = refused_arguments(cls, args, kwargs) if isinstance(error, TypeError) else None
                if refused is not None:
                    raise cut(refused) from None
                explain_deleted(error, (), args)
                cut(error)
                raise

    class _Base(eqx.Module, metaclass=_Constructing):
        pass


_DATACLASS_OPTIONS = {"init", "repr", "eq", "order", "unsafe_hash", "frozen", "match_args", "slots", "weakref_slot"}


# On the class and not on the metaclass, which type checkers do not see. Without `frozen_default`, by which checkers
# would refuse a hand-written `__init__` that sets fields.
@dataclass_transform(field_specifiers=(dataclasses.field, eqx.field, static))
class Module(_Base):
    """Base class of records.

    Fields are declared as in a dataclass; `__init__` may be written by hand. A method that changes state returns its
    value and the *successor* of its record: `y, bn = bn(x)`.

    >>> import jax.numpy as jnp
    >>> class Counter(Module):
    ...     count: jax.Array
    ...     def __call__(self, x):
    ...         return x + self.count, self.replace(count=self.count + 1)
    >>> y, counter = Counter(jnp.array(1))(10)
    >>> int(y), int(counter.count)
    (11, 2)
    """

    # A slot for the values of cached properties (see `properties`), and one in which Python notes that a record was
    # made by `Box[Array](x)`: in `__dict__` that counted into the treedef, and `Box(x)` had another.
    __slots__ = (SLOT, "__orig_class__")

    def __init_subclass__(cls, *, kw_only: bool = False, **kwargs: object) -> None:
        if refused := kwargs.keys() & _DATACLASS_OPTIONS:
            raise TypeError(
                f"a record is a frozen dataclass, which takes no {' and no '.join(sorted(refused))}: of the options of "
                "a dataclass it has kw_only"
            )
        super().__init_subclass__(**kwargs)
        if kw_only:  # as if the class had written it before its fields: equinox passes no options on to `dataclass`
            cls.__annotations__ = {"_": dataclasses.KW_ONLY, **inspect.get_annotations(cls)}
        note_definition(cls)
        use_own_cached_properties(cls)
        # An annotated name is a field, and a function assigned to it is its default, not a method.
        fields = inspect.get_annotations(cls)
        for name, value in list(vars(cls).items()):
            is_method = inspect.isfunction(value) or getattr(cast(Any, type(value)), "__weft_method__", False)
            if is_method and name not in fields and (name == "__call__" or not name.startswith("_")):
                setattr(cls, name, _dispatched(value))
            elif name not in fields and (checked := under_contract(name, value)) is not None:
                setattr(cls, name, checked)

    # Read by `leaves`, which cannot import this class.
    _keeps_configuration = True
    # Whether the constructor computes fields; the metaclass sets it when the class has its fields.
    _computes_fields = False

    if not TYPE_CHECKING:

        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":  # JAX reads it twice for each record that it flattens
                fields = read_dict(self)
                return fields_of(self) if PENDING in fields else fields
            value = object.__getattribute__(self, name)
            kind = type(value)
            if kind is Static or kind is MixedContainer:
                return value.value
            if kind is Pending:
                fields_of(self)
                return self.__getattribute__(name)
            # Equinox turns a bound method into a pytree. Its `__getattribute__` takes twice as long as this one, so it
            # is called for methods only.
            return super().__getattribute__(name) if kind is types.MethodType else value

        def __getattr__(self, name: str) -> Any:
            cls = type(self)
            # Python also comes here if a property raises an AttributeError. It is raised again, because its text says
            # more than that the attribute is missing.
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
            # Equinox accepts `__name__` and the like from a constructor, and counts them into the treedef.
            if field is None and name != "__orig_class__":
                raise undeclared(cls, name)
            if field is not None and field.metadata.get("static", False):
                value = stored_static(value, f"{cls.__qualname__}.{name}").value
            try:
                super().__setattr__(name, value)
            except dataclasses.FrozenInstanceError:
                raise FrozenError(
                    f"a {cls.__qualname__} cannot be changed in place",
                    at=f"{cls.__qualname__}.{name}",
                    fix=f"make its successor: record.replace({name}=...); inside a thread block, t.{name} = ...",
                ) from None

    def __check_init__(self) -> None:
        # When the constructor has finished, so that it may build its lists step by step.
        values = read_dict(self)
        refuse_cycles(self, values)
        fields = type(self).__dataclass_fields__
        for name in values:
            if name not in fields:
                raise undeclared(type(self), name)
            values[name] = _stored(type(self), fields[name], values[name])
        for note in construction_watchers:
            note(self)

    def __hash__(self) -> int:
        # By the treedef, which holds lists and dicts of configuration as nodes; an array is refused.
        leaves, treedef = trees.flatten(self)
        return hash((treedef, *leaves))

    def __getstate__(self) -> dict[str, Any]:
        # Only the fields: a copy computes its cached properties again.
        return dict(fields_of(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        read_dict(self).update(state)
        # cloudpickle rebuilds a class of `__main__` in two steps: it creates the class without fields, and then fills
        # it. Equinox registers it with JAX in the first step, as a node without children, so that the first transform
        # of such a record lost every array.
        registered = len(tuple(cast(Any, trees.children_of(self))[0]))
        fields = [field for field in dataclasses.fields(self) if not field.metadata.get("static", False)]
        if registered != len(fields):
            cls = type(self)
            raise StructureError(
                f"the class {cls.__qualname__} was pickled by value, and JAX does not know its fields here",
                at=f"{cls.__module__}.{cls.__qualname__}: {', '.join(field.name for field in fields)}",
                fix="define it in a module that both processes import, not in the script or notebook itself",
            )

    # The hook of `wadler_lindig`, with which equinox prints. A subclass may define its own `__repr__` or `__pdoc__`.
    __pdoc__ = printed

    def replace(self, **changes: object) -> Self:
        """A copy with other values in the named fields, whose converters run. The constructor does not run; contracts
        check the fields.

        Raises:
            AttributeError: if a name is not a field of this record.
            StaticError: if a static field would hold an array, or any field an unhashable value.
            StructureError: if the constructor computes another field (`field(init=False)`), and it is unknown whether
                that depends on the new values.
        """
        fields = {field.name: field for field in dataclasses.fields(self)}
        unknown = [name for name in changes if name not in fields]
        if unknown:
            raise AttributeError(
                f"{type(self).__qualname__} has no field {', '.join(map(repr, unknown))}; "
                f"its fields are {', '.join(fields) or 'none'}"
            )
        return replaced(self, changes)


def _missing() -> Any:
    return next(iter(cast(Any, trees.children_of(Module()))[1]), None)


# Equinox writes a sentinel into treedefs, in the place of an attribute that a record does not have. It is compared by
# identity, so that a treedef that was pickled did not equal itself.
copyreg.pickle(cast("type[Any]", type(_missing())), lambda _: (_missing, ()))


def replaced(record: E, changes: Mapping[str, Any], *, lenient: bool = False) -> E:
    """A copy of a record with other values in the named fields, which contracts check; see `with_fields`."""
    copy = with_fields(record, changes, lenient=lenient)
    contracts = hooks.installed if isinstance(record, Module) else None
    if contracts is not None:
        contracts.replaced(copy)
    return copy


def with_fields(record: E, changes: Mapping[str, Any], *, lenient: bool = False) -> E:
    """A copy of a record, weft's or equinox's own, with other values in the named fields, which no contract checks.

    Args:
        record: the record.
        changes: the values, by the names of fields.
        lenient: for changes that weft makes and not the user: whether converters of fields do not run, since values
            that weft puts back have been converted, or are none (masks, labels); and whether a field that the
            constructor computes stays as it is, rather than raising, if it is unknown whether it changes.

    Raises:
        StructureError: if it is unknown whether a field that the constructor computes changes; see `constructing`.
    """
    cls = type(record)
    fields = cls.__dataclass_fields__
    if not lenient:
        changes = {name: converted(cls, name, value) for name, value in changes.items()}
    copy = object.__new__(cls)
    values = read_dict(copy)
    values.update(fields_of(record))
    # Other attributes, which the user or a decorator set on the old record, may not be true of the copy.
    if len(values) != len(fields):
        for name in values.keys() - fields.keys() - _NAMES_OF_WRAPPERS:
            del values[name]
    # Equinox's own records do not say whether they compute fields.
    if getattr(cls, "_computes_fields", True) and computed_fields(cls):
        with contextlib.suppress(*([StructureError] if lenient else ())):
            plain = {name: opened(value) for name, value in changes.items()}
            changes = {**changes, **computed_again(record, plain)}
    keeps = issubclass(cls, Module)
    for name, value in changes.items():
        values[name] = _stored(cls, fields[name], value, values.get(name)) if keeps else value
    return copy


def converted(cls: type[Any], name: str, value: Any) -> Any:
    """A new value of a field, after the field's converter. It runs for whatever a user puts into a field."""
    converter = cls.__dataclass_fields__[name].metadata.get("converter")
    return value if converter is None else converter(value)


# Attributes that equinox's wrappers copy from the functions that they wrap; the treedefs of wrappers contain them.
_NAMES_OF_WRAPPERS = frozenset({"__module__", "__name__", "__qualname__", "__doc__", "__annotations__"})


def standing_for(cls: type, record: Any) -> Any:
    """The record of a class that a record is or wraps; None if there is none.

    A contract that asks for a `LayerNorm` accepts `Frozen(LayerNorm(3))`. The class of a wrapper says by
    `__stands_for__` what it wraps: the name of the field that holds the layer, or another class.

    >>> from weft.modules import Frozen, LayerNorm
    >>> layer = LayerNorm(3)
    >>> standing_for(LayerNorm, Frozen(layer)) is layer, standing_for(LayerNorm, "a text")
    (True, None)
    """
    while not isinstance(record, cls):
        wrapped = getattr(cast("type[Any]", type(record)), "__stands_for__", None)
        if not isinstance(wrapped, str):
            return record if isinstance(wrapped, type) and issubclass(wrapped, cls) else None
        record = getattr(record, wrapped)
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
            contracts = hooks.installed
            if contracts is None:
                return function(self, *args, **kwargs)
            # The body of `call_checked`, inlined: records call records, and one more frame for each record exhausted
            # the stack of deep models.
            running = contracts.enter(function, (self, *args), kwargs)
            return running.leave(running.function(self, *args, **kwargs))
        except Exception as error:
            if running is not None:
                running.fail(error)
            explain_deleted(error, self, args)
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
    """Whether a record has strings or bools in the places of its arrays: a tree of labels, or a mask, for optax.

    If a mask is callable, optax calls it with the parameters to get a tree. A record with a `__call__` is callable and
    is already that tree, so that its call with parameters returns the record itself.
    """
    leaves = trees.flatten(record)[0]
    return bool(leaves) and not any(hasattr(leaf, "dtype") for leaf in leaves)


def _stored(cls: type[Any], field: dataclasses.Field[Any], value: Any, old: Any = None) -> Any:
    """A field's value as the record stores it, in the place of an old stored value if there is one."""
    where = f"{cls.__qualname__}.{field.name}"
    if field.metadata.get("static", False):
        return stored_static(value, where)
    return stored(value, where) if old is None else stored_in_place(value, old, where)


def undeclared(cls: type[Any], name: str) -> FrozenError:
    """The error for setting an attribute that is no field of a record."""
    fields = ", ".join(cls.__dataclass_fields__) or "none"
    return FrozenError(
        f"a {cls.__qualname__} has no field {name!r}; its fields are {fields}",
        at=f"{cls.__qualname__}.{name}",
        fix=f"declare it in the class, with its type: `{name}: Float[Array, ...]`",
    )
