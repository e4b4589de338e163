"""Forms: the sorts of classes with annotated fields, as data, so that no other code asks "record or object?".

| form | classes | dims |
|---|---|---|
| `MODULE` | an `equinox.Module`, weft's records among them | its own |
| `OBJECT` | a module of another layer (see `ObjectLayer`): mutable, its arrays are in boxes | its own |
| `TYPEDDICT`, `DATACLASS`, `NAMEDTUPLE` | *plain* records | in proofs those of the caller (see `policies`) |

A new sort of record is one more row of `FORMS`: code that reads, makes and walks records uses the form's attributes.

An *object* is a mutable module of another layer (`weft.nnx`). It has annotated attributes, as a record has fields, but
it is mutated in place, may be shared, and keeps its arrays in *boxes* (Variables). This package does not import the
layer: the core knows the name of its module (`hooks.register_object_layer`). The module's `LAYER` says how to read an
object, open a box, and turn trees with objects into trees that JAX accepts.

The sizes that an object's constructor received are dims of the object, whether or not it stores them: `Mlp(din, dout)`
has `din` and `dout`. The object has no field for them, so a proof notes them on the objects that it makes (`NOTED`).
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import typing_extensions
from weft.core import hooks
from weft.core.caches import cached_by
from weft.core.errors import ForeignObjectError
from weft.core.records.configuration import field_values, stored
from weft.core.records.kinds import Role, field_roles
from weft.core.records.leaves import keeps_numbers
from weft.core.records.module import standing_for
from weft.core.records.storage import fields_of

# The attribute in which a proof notes the sizes that an object's constructor received.
NOTED = "_weft_sizes"


@dataclass(frozen=True)
class ObjectLayer:
    """How to read, make and copy the objects of a layer.

    Attributes:
        is_record_class: whether instances of a class are objects with annotated attributes.
        box: the base class of boxes.
        lasting: classes of boxes whose arrays keep their shapes, such as parameters.
        package: the module prefix of the layer's own classes.
        attributes: returns the attributes of an object.
        value: returns the value in a box.
        children: returns the objects and boxes in an object or container, by attribute or key.
        new: returns an object of a class with some attributes, without calling the class.
        clone: returns a copy of an object and of everything in it.
        opened: returns a tree with pytrees in place of objects; a shared object stays shared.
        closed: the inverse of `opened`; the objects are new.
        structure: returns a value that is equal for objects of one structure, and the shape and dtype of each array.
        set_attribute: sets an attribute without changing whether it is data.
        set_value: puts any value into a box.
        shapes: the shapes of the arrays in the layer's own modules, by class name and attribute.
        values: the module that registers with `arguments` how to make the layer's objects; imported when needed.
    """

    is_record_class: Callable[[type], bool]
    box: type
    lasting: tuple[type, ...]
    package: str
    attributes: Callable[[Any], Mapping[str, Any]]
    value: Callable[[Any], Any]
    children: Callable[[Any], Mapping[Any, Any]]
    new: Callable[[type, Mapping[str, Any]], Any]
    clone: Callable[[Any], Any]
    opened: Callable[[Any], Any]
    closed: Callable[[Any], Any]
    structure: Callable[[Any], Any]
    set_attribute: Callable[[Any, str, Any], None]
    set_value: Callable[[Any, Any], None]
    shapes: Mapping[str, Mapping[str, str]]
    values: str


def refuse_foreign(thing: Any) -> None:
    """Refuses an object, or a class of objects, of the real flax.nnx.

    Raises:
        TypeError: with the call that makes flax.nnx programs use weft.nnx.
    """
    cls = thing if isinstance(thing, type) else type(thing)
    if is_foreign_class(cls):
        raise ForeignObjectError(
            f"{cls.__qualname__} is a Module of the real flax.nnx, and only those of weft.nnx can be proved",
            fix="call weft.nnx.install() before flax.nnx is imported; `weft check` does so by itself",
        )


def is_foreign_class(cls: type) -> bool:
    """Whether a class is a module class of the real flax.nnx."""
    # `weft.nnx.install()` registers weft.nnx under this name, so the module's own name tells the two apart.
    real = sys.modules.get("flax.nnx")
    base = getattr(real, "Pytree", None) if getattr(real, "__name__", "") == "flax.nnx" else None
    return base is not None and issubclass(cls, base)


@cached_by("class")
def layer_of(cls: type) -> ObjectLayer | None:
    """The layer of a class; None if it has none. The first call for a class imports the layer's module."""
    module = hooks.object_layer(cls)
    # Imported on request: a program without NNX must not load it for the checker.
    return None if module is None else importlib.import_module(module).LAYER


def is_object_class(cls: type) -> bool:
    """Whether instances of a class are objects with annotated attributes."""
    layer = layer_of(cls)
    return layer is not None and layer.is_record_class(cls)


def is_library(cls: type) -> bool:
    """Whether a class is one of the layer's own, such as `nnx.Linear`, and not the program's."""
    layer = layer_of(cls)
    return layer is not None and cls.__module__.startswith(layer.package)


def is_box_class(cls: type) -> bool:
    """Whether instances of a class are boxes."""
    layer = layer_of(cls)
    return layer is not None and issubclass(cls, layer.box)


def is_object(value: Any) -> bool:
    """Whether a value is an object with annotated attributes."""
    return is_object_class(type(value))


def unboxed(value: Any) -> Any:
    """The value in a box; any other value is returned as it is."""
    layer = layer_of(type(value))
    return layer.value(value) if layer is not None and isinstance(value, layer.box) else value


def attributes_of(value: Any) -> Mapping[str, Any]:
    """The attributes of an object, with boxes unopened; nothing for any other value."""
    layer = layer_of(type(value))
    return {} if layer is None else layer.attributes(value)


def sizes_of_object(value: Any) -> dict[str, Any]:
    """The integers that an object stores or was constructed from, by name: each is the size of the dim of that name."""
    attributes = attributes_of(value)
    integers = {name: value for name, value in attributes.items() if is_size(value)}
    return {**integers, **dict(attributes.get(NOTED, ()))}


# The attribute that marks the class of a proof's symbolic sizes.
SIZE = "_weft_is_size"


def is_size(value: Any) -> bool:
    """Whether a value can be the size of a dim: a plain integer, or a symbolic size, which a mark shows."""
    # `bool` is a subclass of `int`, and `True` is no size. The mark spares programs the import of the symbolic sizes.
    return type(value) is int or getattr(type(value), SIZE, False) is True


def note_sizes(value: Any, sizes: Mapping[str, Any]) -> None:
    """Notes on an object the sizes that its constructor received."""
    layer = layer_of(type(value))
    # A container's attributes are its items, and a note among them would be one more item.
    if layer is not None and sizes and not isinstance(value, Collection) and NOTED not in layer.attributes(value):
        layer.set_attribute(value, NOTED, tuple(sizes.items()))


def objects_in(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every object with annotated attributes in a tree, once, with its path; an object comes before those inside it."""
    seen: dict[int, Any] = {}
    waiting = [(path, tree)]
    while waiting:
        path, node = waiting.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node  # the reference keeps the object alive, so that its id is not reused
        if is_object(node):
            yield path, node
        inside = [(_path_of(path, key), child) for key, child in children_of(node).items()]
        # Reversed, since the list is a stack and children must be visited in their order.
        waiting += reversed(inside)


def records_in(tree: Any, *, inside: bool = True) -> list[Any]:
    """The Modules in a tree, outermost first; with `inside=False`, only the outermost."""
    records: list[Any] = []
    # Objects of other libraries may be pytrees that contain themselves, so each node is visited only once.
    seen: dict[int, Any] = {}

    def visit(node: Any) -> None:
        def is_end(child: Any) -> bool:
            if child is node:
                return False
            again = id(child) in seen
            seen[id(child)] = child  # the reference keeps the object alive, so that its id is not reused
            return again or isinstance(child, eqx.Module)

        for leaf in jax.tree.leaves(node, is_leaf=is_end):
            if isinstance(leaf, eqx.Module):
                records.append(leaf)
                if inside:
                    visit(leaf)

    visit(tree if type(tree) is list else [tree])
    return records


def _path_of(path: str, key: Any) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"


def children_of(node: Any) -> Mapping[Any, Any]:
    """The children of an object, list, tuple or dict, by attribute, index or key."""
    layer = layer_of(type(node))
    if layer is not None:
        return {} if isinstance(node, layer.box) else layer.children(node)
    if isinstance(node, tuple | list):
        return dict(enumerate(node))
    return node if isinstance(node, dict) else {}


def opened(tree: Any) -> Any:
    """The tree with pytrees in place of objects, so that JAX can trace it; shared objects stay shared."""
    for layer in _layers.values():
        tree = layer.opened(tree)
    return tree


def closed(tree: Any) -> Any:
    """The inverse of `opened`, with new objects."""
    for layer in _layers.values():
        tree = layer.closed(tree)
    return tree


# The layers whose modules are imported, by package.
_layers: dict[str, ObjectLayer] = {}


def loaded(layer: ObjectLayer) -> ObjectLayer:
    """Registers a layer; the layer's own module calls this when it is imported."""
    _layers[layer.package] = layer
    return layer


class FieldData(NamedTuple):
    """What a form knows of a field, without its annotation.

    Attributes:
        name: its name.
        static: whether the field is part of the treedef.
        required: whether the constructor needs a value for it.
        default: the default; `...` or `dataclasses.MISSING` if there is none, or a factory makes it.
    """

    name: str
    static: bool
    required: bool
    default: Any


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
        FieldData(
            f.name, bool(f.metadata.get("static")), f.default is missing and f.default_factory is missing, f.default
        )
        for f in dataclasses.fields(cls)
    ]


def _object_fields(cls: type) -> list[FieldData]:
    # A module of NNX may be a dataclass; if not, the annotations in its class body are its fields.
    if hasattr(cls, "__dataclass_fields__"):
        return _dataclass_fields(cls)
    return [
        FieldData(name, static=False, required=True, default=...)
        for base in cls.__mro__[::-1]
        for name in _declared(base)
    ]


def _declared(base: type) -> list[str]:
    """The attributes that a class of objects declares; none for the classes of the layer that defines objects."""
    layer = layer_of(base)
    if layer is None or base.__module__.startswith(layer.package):
        return []
    hints = vars(base).get("__annotations__", {})
    # A `ClassVar` belongs to the class, and is no data of the object.
    return [name for name, hint in hints.items() if "ClassVar" not in str(hint)]


def _values_of_object(value: Any) -> Mapping[str, Any]:
    return {**_class_attributes(type(value)), **attributes_of(value)}


@cached_by("class")
def _class_attributes(cls: type) -> Mapping[str, Any]:
    # A default in the class body is a value of the object although it is no attribute of the instance.
    return {field.name: getattr(cls, field.name) for field in _object_fields(cls) if hasattr(cls, field.name)}


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
    layer = layer_of(cls)
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
    return [
        FieldData(name, static=False, required=name not in defaults, default=defaults.get(name, ...))
        for name in cls._fields
    ]


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
    is_object_class,
    _object_fields,
    _values_of_object,
    _make_object,
    plain=False,
    mutable=True,
)
TYPEDDICT = Form(
    "typeddict",
    lambda cls: bool(typing_extensions.is_typeddict(cls)),
    lambda cls: [
        FieldData(name, static=False, required=name in cls.__required_keys__, default=...)
        for name in cls.__annotations__
    ],
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
