"""Forms: the sorts of classes with annotated fields, as data, so that no other code asks "record or object?".

| form | classes | dims |
|---|---|---|
| `MODULE` | an `equinox.Module`, weft's records among them | its own |
| `OBJECT` | a module of another layer (see `objects`): mutable, its arrays are in boxes | its own |
| `TYPEDDICT`, `DATACLASS`, `NAMEDTUPLE` | *plain* records | in proofs those of the caller (see `policies`) |

A new sort of record is one more row of `FORMS`: code that reads, makes and walks records uses the form's attributes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import typing_extensions
from weft.core.caches import cached_by
from weft.core.records.configuration import field_values, stored
from weft.core.records.kinds import Role, field_roles
from weft.core.records.leaves import keeps_numbers
from weft.core.records.module import standing_for
from weft.core.records.storage import fields_of
from weft.typecheck.language import objects

# (name, static, required, default) of a field; the default `...` means that there is none.
FieldData = tuple[str, bool, bool, Any]


@dataclass(frozen=True, eq=False)
class Form:
    """A sort of class with annotated fields.

    Attributes:
        name: the name for messages and debugging.
        is_class: whether a class is of this form.
        fields: the fields of a class, in order.
        values: returns the fields of an instance that are set, by name.
        make: returns an instance with some fields, without calling the class; other fields have their defaults.
        roles: returns the kinds and tags that a class gives to the arrays in its fields.
        plain: whether instances are bundles of values without dims of their own.
        partial: whether an instance may lack arrays, as the parts of a split record and gradients do.
        mutable: whether an instance may be shared and changed while a call runs.
        inherits: whether the annotations of base classes must be collected from the bases.
    """

    name: str
    is_class: Callable[[type], bool]
    fields: Callable[[Any], list[FieldData]]
    values: Callable[[Any], Mapping[str, Any]]
    make: Callable[[Any, Mapping[str, Any]], Any]
    roles: Callable[[type], Mapping[str, Role]] = lambda cls: {}
    plain: bool = True
    partial: bool = False
    mutable: bool = False
    inherits: bool = True

    def __repr__(self) -> str:
        return self.name

    def instance_in(self, cls: type, value: Any) -> Any:
        """The value if it is an instance of a class, the layer inside if it wraps one, else None.

        An instance of a TypedDict is a dict, so any dict passes here.
        """
        # A wrapper of a layer may stand where the layer's class is annotated.
        if self is MODULE:
            return standing_for(cls, value)
        return value if isinstance(value, dict if self is TYPEDDICT else cls) else None


def _dataclass_fields(cls: Any) -> list[FieldData]:
    missing = dataclasses.MISSING
    return [
        (f.name, bool(f.metadata.get("static")), f.default is missing and f.default_factory is missing, f.default)
        for f in dataclasses.fields(cls)
    ]


def _object_fields(cls: type) -> list[FieldData]:
    # A module of NNX may be a dataclass; if not, the annotations in its class body are its fields.
    if hasattr(cls, "__dataclass_fields__"):
        return _dataclass_fields(cls)
    return [(name, False, True, ...) for base in cls.__mro__[::-1] for name in _declared(base)]


def _declared(base: type) -> list[str]:
    """The attributes that a class of objects declares; none for the classes of the layer that defines objects."""
    layer = objects.layer_of(base)
    if layer is None or base.__module__.startswith(layer.package):
        return []
    hints = vars(base).get("__annotations__", {})
    # A `ClassVar` belongs to the class, and is no data of the object.
    return [name for name, hint in hints.items() if "ClassVar" not in str(hint)]


def _values_of_object(value: Any) -> Mapping[str, Any]:
    return {**_class_attributes(type(value)), **objects.attributes_of(value)}


@cached_by("class")
def _class_attributes(cls: type) -> Mapping[str, Any]:
    # A default in the class body is a value of the object although it is no attribute of the instance.
    return {name: getattr(cls, name) for name, *_ in _object_fields(cls) if hasattr(cls, name)}


def _values_of_dataclass(value: Any) -> Mapping[str, Any]:
    # A field may be unset, as in an instance whose `__init__` is still running.
    return {name: getattr(value, name) for name in value.__dataclass_fields__ if hasattr(value, name)}


def _make_dataclass(cls: Any, values: Mapping[str, Any]) -> Any:
    # The class is not called, because its `__init__` may take other arguments or compute something.
    record = object.__new__(cls)
    for name, value in {**_defaults(cls, values), **values}.items():
        # `object.__setattr__` also works for frozen dataclasses.
        object.__setattr__(record, name, value)
    return record


def _defaults(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of the fields that have no value yet."""
    missing = dataclasses.MISSING
    fields = [field for field in dataclasses.fields(cls) if field.name not in values]
    made = {field.name: field.default_factory() for field in fields if field.default_factory is not missing}
    return made | {field.name: field.default for field in fields if field.default is not missing}


def _make_module(cls: Any, values: Mapping[str, Any]) -> Any:
    record = object.__new__(cls)
    values = {**_defaults(cls, values), **values}
    values = {name: stored(value) for name, value in values.items()} if keeps_numbers(cls) else values
    fields_of(record).update(values)
    return record


def _make_object(cls: type, values: Mapping[str, Any]) -> Any:
    layer = objects.layer_of(cls)
    assert layer is not None
    return layer.new(cls, values)


def _is_namedtuple(cls: type) -> bool:
    # A subclass that only adds methods has its annotations in the base class.
    return (
        issubclass(cls, tuple)
        and hasattr(cls, "_fields")
        and any("__annotations__" in vars(base) for base in cls.__mro__)
    )


def _namedtuple_fields(cls: Any) -> list[FieldData]:
    defaults = cls._field_defaults
    return [(name, False, name not in defaults, defaults.get(name, ...)) for name in cls._fields]


MODULE = Form(
    "module",
    lambda cls: issubclass(cls, eqx.Module),
    _dataclass_fields,
    field_values,
    _make_module,
    field_roles,
    plain=False,
    partial=True,
)
OBJECT = Form(
    "object",
    objects.is_object_class,
    _object_fields,
    _values_of_object,
    _make_object,
    plain=False,
    mutable=True,
)
TYPEDDICT = Form(
    "typeddict",
    lambda cls: bool(typing_extensions.is_typeddict(cls)),
    lambda cls: [(name, False, name in cls.__required_keys__, ...) for name in cls.__annotations__],
    lambda value: value,
    lambda cls, values: dict(values),
    inherits=False,  # the `__annotations__` of a TypedDict include those of its bases
)
DATACLASS = Form(
    "dataclass",
    dataclasses.is_dataclass,
    _dataclass_fields,
    _values_of_dataclass,
    _make_dataclass,
)
NAMEDTUPLE = Form(
    "namedtuple",
    _is_namedtuple,
    _namedtuple_fields,
    lambda value: value._asdict(),
    lambda cls, values: cls(**values),
)

# In this order: a Module is a dataclass as well, and the first form that fits counts.
FORMS = (MODULE, OBJECT, TYPEDDICT, DATACLASS, NAMEDTUPLE)


@cached_by("class")
def form_of(cls: type) -> Form | None:
    """The form of a class; None if it has no annotated fields."""
    return next((form for form in FORMS if form.is_class(cls)), None)


def form_of_value(value: Any) -> Form | None:
    """The form of a value's class; None if it has no annotated fields."""
    return form_of(type(value))


def has_own_dims(cls: type) -> bool:
    """Whether the instances of a class have dims of their own, as records and objects have."""
    form = form_of(cls)
    return form is not None and not form.plain


def is_module(value: Any) -> bool:
    """Whether a value is an equinox Module, weft's records and other libraries' layers included."""
    return isinstance(value, eqx.Module)
