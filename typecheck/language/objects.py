"""Objects: mutable modules of another layer (`weft.nnx`), seen by the prover as records are.

An *object* has annotated attributes, as a record has fields, but it is mutated in place, may be shared, and holds its
arrays in *boxes* (Variables). This package does not know the layer: the core knows by name the module that does
(`hooks.register_object_layer`), and that module's `LAYER` says how to read an object, open a box, and turn trees with
objects in them into trees that JAX takes.

The sizes that an object's constructor was given are among its dims, whether or not it keeps them: `Mlp(din, dout)` has
`din` and `dout`. An object has no field for them, so a proof notes them on the objects that it makes (`NOTED`).
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

# The attribute in which a proof notes the sizes that a constructor was given.
NOTED = "_weft_sizes"


@dataclass(frozen=True)
class Layer:
    """What there is to know of a layer of objects.

    Attributes:
        is_record_class: whether a class is one of objects with annotated attributes of their own.
        box: the base class of boxes.
        lasting: boxes whose arrays keep their shapes, parameters say.
        package: the prefix of its own modules' names.
        attributes: the attributes of an object.
        value: what a box holds.
        children: the objects and boxes in an object or container, by attribute or key.
        new: an object of a class with some attributes, without calling it.
        clone: a copy of an object, and of all that is in it.
        opened: a tree with pytrees in place of objects, shared ones as one.
        closed: its inverse; the objects are new ones.
        structure: what two objects of one structure have in common, and the shape and dtype of each array.
        set_attribute: sets an attribute that is no data, or goes on being data.
        set_value: puts something into a box, whatever it is.
        shapes: for the layer's own modules, by the name of the class, the shapes of their arrays, by attribute.
        values: the module that tells `arguments` how to make what an annotation names; imported where that is needed.
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
        TypeError: saying how to use weft's in its place.
    """
    cls = thing if isinstance(thing, type) else type(thing)
    if is_foreign_class(cls):
        raise ForeignObjectError(
            f"{cls.__qualname__} is a Module of the real flax.nnx, and proofs are for those of weft.nnx",
            fix="call weft.nnx.install() before flax.nnx is imported; `weft check` does so by itself",
        )


def is_foreign_class(cls: type) -> bool:
    """Whether a class is one of objects of the real flax.nnx."""
    real = sys.modules.get("flax.nnx")
    base = getattr(real, "Pytree", None) if getattr(real, "__name__", "") == "flax.nnx" else None
    return base is not None and issubclass(cls, base)


@cached_by("class")
def layer_of(cls: type) -> Layer | None:
    """The layer that a class belongs to; asking loads what that layer has for the checker."""
    module = hooks.object_layer(cls)
    return None if module is None else importlib.import_module(module).LAYER


def is_object_class(cls: type) -> bool:
    """Whether instances of a class are objects with annotated attributes."""
    layer = layer_of(cls)
    return layer is not None and layer.is_record_class(cls)


def is_library(cls: type) -> bool:
    """Whether a class is one of a layer's own, not a program's."""
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
    """What a box holds; any other value is itself."""
    layer = layer_of(type(value))
    return layer.value(value) if layer is not None and isinstance(value, layer.box) else value


def attributes_of(value: Any) -> Mapping[str, Any]:
    """The attributes of an object, boxes as they are."""
    layer = layer_of(type(value))
    return {} if layer is None else layer.attributes(value)


def sizes_of_object(value: Any) -> dict[str, Any]:
    """The integers that an object was made of, or keeps, by name; as dims, they are the sizes of these names."""
    attributes = attributes_of(value)
    kept = {name: one for name, one in attributes.items() if is_size(one)}
    return {**kept, **dict(attributes.get(NOTED, ()))}


# What marks the class of the sizes of a proof.
SIZE = "_weft_is_size"


def is_size(value: Any) -> bool:
    """Whether a value can be the size of a dim; what a proof has for one says so, and is not loaded to find out."""
    return type(value) is int or getattr(type(value), SIZE, False) is True


def note_sizes(value: Any, sizes: Mapping[str, Any]) -> None:
    """Notes the sizes that an object's constructor was given; not on a container, whose attributes are its items."""
    layer = layer_of(type(value))
    if layer is not None and sizes and not isinstance(value, Collection) and NOTED not in layer.attributes(value):
        layer.set_attribute(value, NOTED, tuple(sizes.items()))


def objects_in(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every object with annotated attributes in a tree, once, with its path; those that hold others first."""
    seen: dict[int, Any] = {}
    waiting = [(path, tree)]
    while waiting:
        path, node = waiting.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node  # kept, so that its identity stays its own
        if is_object(node):
            yield path, node
        inside = [(_path_of(path, key), child) for key, child in children_of(node).items()]
        waiting += reversed(inside)


def _path_of(path: str, key: Any) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"


def children_of(node: Any) -> Mapping[Any, Any]:
    """What an object or a plain container holds."""
    layer = layer_of(type(node))
    if layer is not None:
        return {} if isinstance(node, layer.box) else layer.children(node)
    if isinstance(node, tuple | list):
        return dict(enumerate(node))
    return node if isinstance(node, dict) else {}


def opened(tree: Any) -> Any:
    """A tree in which JAX sees objects, with what they share, as pytrees."""
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
    """Notes that a layer is there; for the module that has it."""
    _layers[layer.package] = layer
    return layer
