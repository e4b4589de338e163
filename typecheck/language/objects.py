"""Objects: mutable modules of another layer (`weft.nnx`), which the prover treats like records.

An *object* has annotated attributes, as a record has fields, but it is mutated in place, may be shared, and keeps its
arrays in *boxes* (Variables). This package does not import the layer: the core knows the name of the layer's module
(`hooks.register_object_layer`), whose `LAYER` says how to read an object, open a box, and turn trees with objects into
trees that JAX accepts.

The sizes that an object's constructor received are dims of the object, whether or not it stores them: `Mlp(din, dout)`
has `din` and `dout`. The object has no field for them, so a proof notes them on the objects that it makes (`NOTED`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft.core import hooks
from weft.core.caches import cached_by
from weft.core.errors import ForeignObjectError

# The attribute in which a proof notes the sizes that an object's constructor received.
NOTED = "_weft_sizes"


@dataclass(frozen=True)
class Layer:
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
def layer_of(cls: type) -> Layer | None:
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
    for layer in _loaded():
        tree = layer.opened(tree)
    return tree


def closed(tree: Any) -> Any:
    """The inverse of `opened`, with new objects."""
    for layer in _loaded():
        tree = layer.closed(tree)
    return tree


_layers: dict[str, Layer] = {}


def _loaded() -> Iterator[Layer]:
    yield from _layers.values()


def loaded(layer: Layer) -> Layer:
    """Registers a layer; the layer's own module calls this when it is imported."""
    _layers[layer.package] = layer
    return layer
