"""Values of plain classes, and objects of other layers, for arguments that are annotated with their class.

Another layer (see `objects`) says in a module of its own what can be made of its classes; that module is imported when
one of them turns up.
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
from weft.typecheck.arguments.builder import BUILDERS, Builder, Scope, Unbuildable, key_dtype
from weft.typecheck.arguments.enumerations import items_of
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Annotation, Instance, Opaque, members_of
from weft.typecheck.language.objects import is_foreign_class, layer_of
from weft.typecheck.language.reading import read
from weft.typecheck.sizes.dim import is_same


def is_made_of_its_own(cls: type) -> bool:
    """Whether there is a rule for the values of a class, its constructor aside."""
    load_values(cls)
    return cls in VALUES or cls in OBJECTS or bool(items_of(cls)) or layer_of(cls) is not None


def value_of(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    """A value of a plain class, or an object of another layer.

    Raises:
        Unbuildable: if there is no rule for its class.
        AnnotationError: for a dtype of jaxtyping's without brackets, in code of the user's.
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
        return next(iter(items.values()))  # a traced program cannot tell equinox's apart, so that one stands for all
    if is_foreign_class(cls):
        raise Unbuildable(f"{place}: {cls.__name__} is a Module of the real flax.nnx, not of weft.nnx")
    if issubclass(cls, jaxtyping.AbstractDtype):
        return _of_bare_dtype(builder, cls, place, scope)
    raise Unbuildable(f"{place}: no {cls.__name__} can be made from its annotation")


def _of_bare_dtype(builder: Builder, cls: Any, place: str, scope: Scope) -> Any:
    """What `key: Key` is meant to be.

    jaxtyping refuses to look at it, so whoever wrote a package with it has never run that under a checker. That is told
    beside what there is to say of its shapes.
    """
    fix = f'{cls.__name__}[Array, "..."]'
    what = f"{place}: {cls.__name__} without an array and a shape accepts nothing"
    if not builder.lenient:
        raise AnnotationError(f"{what}; write {fix}")
    builder.bare.add(f"{what}; it is taken for {fix}")
    return builder.build(read(cls[jax.Array, "" if cls is jaxtyping.Key else "..."]), place, scope)


def _of_function(builder: Builder, spec: Opaque, place: str, scope: Scope) -> Any:
    """What `key: jax.random.PRNGKey` is meant to be: what that function makes.

    A function is no type, and checkers refuse it, as they do `key: Key`; yet many are written so.
    """
    made = next((make for function, make in _MAKING if function is spec.hint), None)
    if made is None:
        raise Unbuildable(f"{place}: nothing to go by in {spec}")
    name, value = spec.hint.__name__, made(builder, place, scope)
    builder.bare.add(f"{place}: {name} is a function, and no type; it is taken for what {name} returns")
    return value


def _any_array(builder: Builder, place: str, scope: Scope) -> Any:
    return builder.build(read(jax.Array), place, scope)


# Functions that are annotated in place of what they make.
_MAKING: tuple[tuple[Any, ValueBuilder], ...] = (
    (jax.random.PRNGKey, lambda builder, place, scope: jax.ShapeDtypeStruct((2,), jnp.dtype("uint32"))),
    (jax.random.key, lambda builder, place, scope: jax.ShapeDtypeStruct((), key_dtype())),
    *((one, _any_array) for one in (jnp.array, jnp.asarray, np.array, np.asarray)),
)
BUILDERS[Opaque] = _of_function


def _flag(builder: Builder, place: str, scope: Scope) -> bool:
    return bool(builder.one_of(place, (False, True)))


def _integer(builder: Builder, place: str, scope: Scope) -> Any:
    """A size, unless it is called like the number of an axis."""
    name = place.removeprefix(scope.path)
    if name.partition("[")[0] in ("axis", "axes", "dimension", "dimensions"):
        return (-1, 0)[builder.choose(place, 2)]
    return integer(builder, name, scope)


def integer(builder: Builder, name: str, scope: Scope) -> Any:
    """A size that is given as an integer."""
    size = builder.size(name, scope)
    builder.numbers |= {key for key, known in builder.sizes.items() if is_same(known, size)}
    return size


ValueBuilder = Callable[[Builder, str, Scope], Any]

# What an argument of a plain class gets.
VALUES: dict[type, ValueBuilder] = {
    type(None): lambda builder, place, scope: None,
    bool: _flag,
    int: lambda builder, place, scope: _integer(builder, place, scope),
    float: lambda builder, place, scope: 0.5,
    complex: lambda builder, place, scope: 0.5j,
    np.dtype: lambda builder, place, scope: jnp.dtype("float32"),
    np.random.Generator: lambda builder, place, scope: np.random.default_rng(0),
}


def register(cls: type, build: ValueBuilder) -> None:
    """Adds a class of values that proofs can make: `build(builder, place, scope)` returns one."""
    VALUES[cls] = build


ObjectBuilder = Callable[[Builder, Instance, str, Scope], Any]

# What an argument of a class of another layer gets (see `objects`); those in `LAST` are made for other arguments.
OBJECTS: dict[type, ObjectBuilder] = {}
LAST: set[type] = set()


def register_object(cls: type, build: ObjectBuilder, *, last: bool = False) -> None:
    """Adds a class of objects that proofs can make: `build(builder, spec, place, scope)` returns an abstract one.

    Args:
        cls: the class.
        build: makes one; `scope.values` are the arguments made before.
        last: whether it is made when all arguments without this mark are.
    """
    OBJECTS[cls] = build
    if last:
        LAST.add(cls)


def load_values(cls: type) -> None:
    """Lets the layer that a class belongs to, if any, register what it can make."""
    layer = layer_of(cls)
    if layer is not None:
        importlib.import_module(layer.values)


# What a required parameter without an annotation gets, where its name says it all; random keys aside (`with_keys`).
BY_NAME: dict[str, ValueBuilder] = {}


def holds_objects(annotation: Annotation) -> bool:
    """Whether an annotation names a class of another layer, such as `nnx.Rngs`."""
    return any(isinstance(one, Instance) and layer_of(one.cls) is not None for one in members_of(annotation))


def is_last(annotation: Annotation) -> bool:
    """Whether an argument is made for other ones, as an optimizer is for a model."""
    members = members_of(annotation)
    for one in members:
        if isinstance(one, Instance):
            load_values(one.cls)
    return any(isinstance(one, Instance) and one.cls in LAST for one in members)
