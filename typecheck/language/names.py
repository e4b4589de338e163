"""The names of dims in annotations, signatures and classes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType

from weft.core.caches import cached_by
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Annotation, ArrayOf, BatchedOf, RecordOf
from weft.typecheck.language.dims import NamedDim, Shape, SymbolicDim, VariadicDim
from weft.typecheck.language.forms import form_of
from weft.typecheck.language.objects import layer_of
from weft.typecheck.language.signatures import Signature, fields_of, signature_of


def fields_in_holes(annotations: Iterable[Annotation]) -> frozenset[str]:
    """The fields that expressions in annotations read, such as `width` in `{self.width}`."""
    dims = (dim for one in annotations for shape in shapes_in(one) for dim in shape.dims)
    return frozenset().union(*(dim.fields for dim in dims if isinstance(dim, SymbolicDim)))


def shapes_in(
    annotation: Annotation, enters: Callable[[RecordOf], bool] = lambda _: False, seen: frozenset[type] = frozenset()
) -> Iterator[Shape]:
    """The shapes in an annotation, leading axes included, and in the fields of records for which `enters` is true."""
    for part in annotation.walk():
        match part:
            case ArrayOf(shape=shape) | BatchedOf(axes=shape):
                yield shape
            # `seen` ends recursive types, such as a tree node with fields of its own class.
            case RecordOf(cls=cls) if cls not in seen and enters(part):
                for field in fields_of(cls):
                    yield from shapes_in(field.annotation, enters, seen | {cls})
            case _:
                pass


def names_in(annotation: Annotation, of_records: bool = True) -> frozenset[str]:
    """The dims that an annotation names; with `of_records`, also those of plain records, which share the scope."""
    return frozenset().union(*_names_of_arrays(annotation, of_records))


def _names_of_arrays(annotation: Annotation, of_records: bool = True) -> Iterator[frozenset[str]]:
    return map(_names_in_shape, shapes_in(annotation, lambda record: of_records and record.form.plain))


def _names_in_shape(shape: Shape) -> frozenset[str]:
    names: set[str] = set()
    for dim in shape.dims:
        if isinstance(dim, NamedDim):
            names.add(dim.name)
        elif isinstance(dim, VariadicDim) and dim.name:
            names.add("*" + dim.name)
        elif isinstance(dim, SymbolicDim):
            names |= dim.names
    return frozenset(names)


def names_of_signature(signature: Signature, of_records: bool = True) -> frozenset[str]:
    """The dims that a function's annotations name; with `of_records`, also those of records among the arguments."""
    annotations = (signature.returns, *(p.annotation for p in signature.parameters))
    return frozenset().union(*(names_in(annotation, of_records) for annotation in annotations))


def name_groups(signature: Signature) -> tuple[frozenset[str], ...]:
    """The sets of dims that one array names: a set for each array with several, of a function and its class."""
    annotations = _annotations_of(signature)
    return tuple(dict.fromkeys(names for a in annotations for names in _names_of_arrays(a) if len(names) > 1))


def _annotations_of(signature: Signature) -> tuple[Annotation, ...]:
    """The annotations of a function's result and parameters, and of the fields of its class."""
    owner = signature.owner
    fields = fields_of(owner) if owner is not None and form_of(owner) is not None else ()
    return (signature.returns, *(p.annotation for p in signature.parameters), *(f.annotation for f in fields))


@cached_by("class")
def names_of_fields(cls: type) -> frozenset[str]:
    """The dims that the fields of a class name."""
    return frozenset().union(*(names_in(field.annotation) for field in fields_of(cls)))


@cached_by("class")
def names_of_class(cls: type) -> frozenset[str]:
    """The dims that the fields and methods of a class name, without those of base classes of NNX."""
    layer = layer_of(cls)
    own = [base for base in cls.__mro__ if layer is None or not base.__module__.startswith(layer.package)]
    functions = [inspect.unwrap(value) for base in own for value in vars(base).values() if callable(value)]
    names = frozenset() if form_of(cls) is None else names_of_fields(cls)
    for function in functions:
        if isinstance(function, FunctionType) and function.__annotations__:
            # A method with an unreadable annotation is reported when the method itself is checked.
            with contextlib.suppress(AnnotationError):
                names |= names_of_signature(signature_of(function, cls))
    return names


def products_in(signature: Signature) -> tuple[tuple[str, ...], ...]:
    """The dims of a signature that are products of names, such as `h*c`, each as a tuple of the names in order."""
    annotations = _annotations_of(signature)
    shapes = (shape for annotation in annotations for shape in shapes_in(annotation, lambda _: True))
    split = dict.fromkeys(
        tuple(dim.text.split("*")) for shape in shapes for dim in shape.dims if isinstance(dim, SymbolicDim)
    )
    orders = [names for names in split if all(name.isidentifier() for name in names)]
    # A program with `h*w` in one place and `w*h` in another uses both orders, so neither is the right one.
    return tuple(names for names in orders if sum(sorted(names) == sorted(order) for order in orders) == 1)
