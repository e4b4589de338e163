"""Builds values of plain classes, and objects of other layers such as NNX, for arguments annotated with the class.

Another layer (see `forms.ObjectLayer`) says in a module of its own how to build its classes. It is imported when the
first such class appears, so that proofs without NNX do not load NNX.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
from weft.typecheck.arguments.builder import BUILDERS, Builder, Scope, Unbuildable, random_keys
from weft.typecheck.arguments.enumerations import items_of
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Annotation, Instance, Opaque, members_of
from weft.typecheck.language.forms import is_foreign_class, layer_of
from weft.typecheck.language.reading import read
from weft.typecheck.sizes.dim import is_same


def is_made_of_its_own(cls: type) -> bool:
    """Whether a table or a layer says how to build a class, so that its constructor is not called."""
    load_values(cls)
    return cls in VALUES or cls in OBJECTS or bool(items_of(cls)) or layer_of(cls) is not None


def value_of(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    """A value of a plain class, or an object of another layer, by the rule for that class.

    Raises:
        Unbuildable: if there is no rule for its class.
        AnnotationError: for a jaxtyping dtype without brackets, such as `key: Key`, in the user's own code.
    """
    cls = spec.cls
    load_values(cls)
    if cls in VALUES:
        return VALUES[cls](builder, place, scope)
    if cls in OBJECTS:
        return OBJECTS[cls](builder, spec, place, scope)
    if items := items_of(cls):
        if issubclass(cls, enum.Enum):
            return builder.one_of(place, list(items.values()), str)
        return next(iter(items.values()))  # traced items of equinox look alike, so one stands for all
    if is_foreign_class(cls):
        raise Unbuildable(f"{place}: {cls.__name__} is a Module of the real flax.nnx, not of weft.nnx")
    if issubclass(cls, jaxtyping.AbstractDtype):
        return _of_bare_dtype(builder, cls, place, scope)
    raise Unbuildable(f"{place}: weft has no rule that makes a {cls.__name__}")


def _of_bare_dtype(builder: Builder, cls: Any, place: str, scope: Scope) -> Any:
    """The array that `key: Key` most likely means.

    jaxtyping refuses to check against it, so the package has never run under a checker with this annotation. The report
    says so next to what it says of shapes.
    """
    fix = f'{cls.__name__}[Array, "..."]'
    trouble = f"{place}: jaxtyping accepts no array for {cls.__name__} without brackets"
    if not builder.lenient:
        raise AnnotationError(f"{trouble}; write {fix}")
    builder.bare.add(f"{trouble}; weft takes it to mean {fix}")
    return builder.build(read(cls[jax.Array, "" if cls is jaxtyping.Key else "..."]), place, scope)


def _of_function(builder: Builder, spec: Opaque, place: str, scope: Scope) -> Any:
    """The array that `key: jax.random.PRNGKey` most likely means: the function's result.

    A function is no type and checkers refuse it, as they refuse `key: Key`; yet many programs are annotated this way.
    """
    made = next((make for function, make in _MAKING if function is spec.hint), None)
    if made is None:
        raise Unbuildable(f"{place}: weft cannot make a value from the annotation {spec}")
    name = spec.hint.__name__
    value = made(builder, place, scope)
    builder.bare.add(f"{place}: {name} is a function and not a type; weft takes it to mean what {name} returns")
    return value


# Functions that programs use as annotations for the arrays that these functions return.
_MAKING: tuple[tuple[Any, ValueBuilder], ...] = (
    (jax.random.PRNGKey, lambda builder, place, scope: random_keys()[1]),
    (jax.random.key, lambda builder, place, scope: random_keys()[0]),
    *(
        (make, lambda builder, place, scope: builder.build(read(jax.Array), place, scope))
        for make in (jnp.array, jnp.asarray, np.array, np.asarray)
    ),
)
BUILDERS[Opaque] = _of_function


def _flag(builder: Builder, place: str, scope: Scope) -> bool:
    return bool(builder.one_of(place, (False, True)))


def _integer(builder: Builder, place: str, scope: Scope) -> Any:
    """A size, unless the parameter is named like an axis number, such as `axis`: then -1 or 0."""
    name = place.removeprefix(scope.path)
    if name.partition("[")[0] in ("axis", "axes", "dimension", "dimensions"):
        return (-1, 0)[builder.choose(place, 2)]
    return integer(builder, name, scope)


def integer(builder: Builder, name: str, scope: Scope) -> Any:
    """A size passed as a Python integer; its keys are noted as `numbers`."""
    size = builder.size(name, scope)
    # An integer may be the size of a dim that several keys name, and each of them is then given as a number.
    builder.numbers |= {key for key, known in builder.sizes.items() if is_same(known, size)}
    return size


ValueBuilder = Callable[[Builder, str, Scope], Any]

# How to build an argument of each plain class.
VALUES: dict[type, ValueBuilder] = {
    type(None): lambda builder, place, scope: None,
    bool: _flag,
    int: _integer,
    float: lambda builder, place, scope: builder.value(place, 0.5),
    complex: lambda builder, place, scope: 0.5j,
    np.dtype: lambda builder, place, scope: jnp.dtype("float32"),
    np.random.Generator: lambda builder, place, scope: np.random.default_rng(0),
}


ObjectBuilder = Callable[[Builder, Instance, str, Scope], Any]

# How to build an argument of a class of another layer (see `forms.ObjectLayer`); those in `LAST` are built after the
# others.
OBJECTS: dict[type, ObjectBuilder] = {}
LAST: set[type] = set()


def register_object(cls: type, build: ObjectBuilder, *, last: bool = False) -> None:
    """Adds a class of objects that proofs can make: `build(builder, spec, place, scope)` returns an abstract one.

    Args:
        cls: the class.
        build: makes an instance; `scope.values` has the arguments made so far.
        last: whether instances are made after all arguments whose class is not marked so.
    """
    OBJECTS[cls] = build
    if last:
        LAST.add(cls)


def load_values(cls: type) -> None:
    """Imports the module in which the layer of a class, if it has one, registers how to build its classes."""
    layer = layer_of(cls)
    if layer is not None:
        importlib.import_module(layer.values)


# How to build a required parameter without an annotation, by its name, such as `rngs`; keys are in `with_keys`.
BY_NAME: dict[str, ValueBuilder] = {}


def holds_objects(annotation: Annotation) -> bool:
    """Whether an annotation names a class of another layer, such as `nnx.Rngs`."""
    return any(isinstance(member, Instance) and layer_of(member.cls) is not None for member in members_of(annotation))


def is_last(annotation: Annotation) -> bool:
    """Whether an argument depends on other arguments and is built after them, as an optimizer depends on a model."""
    members = members_of(annotation)
    for member in members:
        if isinstance(member, Instance):
            load_values(member.cls)
    return any(isinstance(member, Instance) and member.cls in LAST for member in members)
