"""Kinds: the role of a leaf.

A kind is a class, used as a label and never instantiated by records. It is declared on a field, through `Annotated`,
together with the array type that static checkers and contracts read:

    class BatchNorm(Module):
        scale: Float[Array, "c"]                              # an un-kinded inexact array is a Param
        mean: Annotated[Float[Array, "c"], BatchStat]
        table: Annotated[Float[Array, "c"], Buffer, "frozen"]  # strings are tags

Users add kinds by subclassing; a filter for a kind matches its subclasses too. A kind on a field that holds a record or
a container is the default for the leaves inside, whose own fields may declare another. `FrozenParam` alone overrules
what the fields inside declare: a layer that is frozen as a whole has no parameters.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, cast, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.caches import kept_with_class
from weft.core.errors import StaticError
from weft.core.records.axis_names import NO_NAMES, AxisNames, Sharded


class Kind:
    """Base of all kinds. Subclass it to add one: `class Memory(Kind): ...`, and `state: Annotated[Array, Memory]`."""

    # Kinds are mixed into classes that have slots.
    __slots__ = ()


class Param(Kind):
    """Learned by gradient descent: the kind of every inexact array whose field declares no kind.

    >>> from weft import Linear
    >>> from weft.tree import select
    >>> params = select(Linear(2, 3, key=jax.random.key(0)), Param)
    >>> params.kernel.shape, params.bias.shape
    ((2, 3), (3,))
    """

    __slots__ = ()


class LoRAParam(Param):
    """A low-rank adapter's parameter.

    >>> from weft import MLP, lora
    >>> from weft.tree import select
    >>> adapted = lora(MLP(2, 3, 4, key=jax.random.key(0)), 1, key=jax.random.key(1))
    >>> [leaf.shape for leaf in jax.tree.leaves(select(adapted, LoRAParam))]
    [(2, 1), (1, 3), (3, 1), (1, 4)]
    """

    __slots__ = ()


class BatchStat(Kind):
    """A running statistic of batches, such as BatchNorm's mean and variance.

    >>> from weft import BatchNorm
    >>> from weft.tree import select
    >>> [leaf.shape for leaf in jax.tree.leaves(select(BatchNorm(2), BatchStat))]
    [(2,), (2,)]
    """

    __slots__ = ()


class Cache(Kind):
    """State that decoding carries between steps, such as attention's keys and values.

    >>> from weft import KeyValueCache
    >>> from weft.tree import select
    >>> [leaf.shape for leaf in jax.tree.leaves(select(KeyValueCache(8, 2, 4), Cache))]
    [(8, 2, 4), (8, 2, 4), ()]
    """

    __slots__ = ()


class Buffer(Kind):
    """Neither learned nor state: the kind of every integer or boolean array whose field declares no kind.

    >>> from weft.tree import select
    >>> select({"weights": jnp.ones(2), "order": jnp.array([1, 0])}, Buffer)
    {'order': Array([1, 0], dtype=int32), 'weights': None}
    """

    __slots__ = ()


class FrozenParam(Buffer):
    """A parameter that is not learned. On a field that holds records it overrules what they declare: every `Param`
    inside becomes a `FrozenParam`; other kinds stay.

    >>> from weft import Frozen, Linear
    >>> from weft.tree import select
    >>> frozen = Frozen(Linear(2, 3, key=jax.random.key(0)))
    >>> [leaf.shape for leaf in jax.tree.leaves(select(frozen, FrozenParam))]
    [(2, 3), (3,)]
    """

    __slots__ = ()


class RngState(Kind):
    """Random state: keys and counts.

    >>> from weft import Keys
    >>> from weft.tree import select
    >>> len(jax.tree.leaves(select(Keys(0, dropout=1), RngState)))
    4
    """

    __slots__ = ()


class RngKey(RngState):
    """A random key: the kind of every typed key array whose field declares no kind.

    >>> from weft import Keys
    >>> from weft.tree import select
    >>> len(jax.tree.leaves(select(Keys(0, dropout=1), RngKey)))
    2
    """

    __slots__ = ()


class RngCount(RngState):
    """How many keys a stream has drawn.

    >>> from weft import Keys
    >>> from weft.tree import select
    >>> [count.item() for count in jax.tree.leaves(select(Keys(0), RngCount))]
    [0]
    """

    __slots__ = ()


class Intermediate(Kind):
    """A value inside of a computation, recorded for inspection.

    >>> from weft import nnx
    >>> from weft.tree import select
    >>> record = nnx.to_record(nnx.Dict(w=nnx.Param(jnp.ones(2)), seen=nnx.Intermediate(jnp.ones(3))))
    >>> [leaf.shape for leaf in jax.tree.leaves(select(record, Intermediate))]
    [(3,)]
    """

    __slots__ = ()


class Perturbation(Kind):
    """A zero that is added to an intermediate value, so that its gradient is that of the value.

    >>> from weft import nnx
    >>> from weft.tree import select
    >>> record = nnx.to_record(nnx.Dict(w=nnx.Param(jnp.ones(2)), zero=nnx.Perturbation(jnp.zeros(3))))
    >>> [leaf.shape for leaf in jax.tree.leaves(select(record, Perturbation))]
    [(3,)]
    """

    __slots__ = ()


class OptState(Kind):
    """An optimizer's state.

    >>> import optax
    >>> from weft import Linear, Optimizer
    >>> from weft.tree import select
    >>> optimizer = Optimizer(Linear(2, 3, key=jax.random.key(0)), optax.sgd(0.1, momentum=0.9))
    >>> [leaf.shape for leaf in jax.tree.leaves(select(optimizer, OptState))]
    [(3,), (2, 3), ()]
    """

    __slots__ = ()


class MetricState(Kind):
    """A metric's sums and counts so far.

    >>> from weft import metrics
    >>> from weft.tree import select
    >>> len(jax.tree.leaves(select(metrics.Average(), MetricState)))
    2
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Role:
    """What a field's annotation declares for the leaves in it: a kind (or none), tags and axis names.

    Attributes:
        kind: the kind, if the field or one around it declares one.
        tags: the strings in the annotation.
        frozen: the kind that parameters have in place of their own, if a field around declares `FrozenParam`.
        axes: the logical names of the axes.
    """

    kind: type[Kind] | None = None
    tags: frozenset[str] = frozenset()
    frozen: type[FrozenParam] | None = None
    # Not compared: arrays of one kind form one lane, whatever the names of their axes.
    axes: AxisNames = field(default=NO_NAMES, compare=False)

    def inside(self, outer: Role) -> Role:
        """This role, in a field whose own role is `outer`: the inner kind wins, tags add up, frozen stays frozen."""
        if outer == NO_ROLE and outer.axes == NO_NAMES:
            return self
        if outer.kind is not None and issubclass(outer.kind, FrozenParam):
            outer = Role(None, outer.tags, outer.kind, outer.axes)
        axes = self.axes if outer.axes.names is None and not outer.axes.before else self.axes.inside(outer.axes)
        return Role(self.kind or outer.kind, self.tags | outer.tags, outer.frozen or self.frozen, axes)

    def kind_of(self, value: object) -> type[Kind]:
        """The kind of an array with this role."""
        kind = self.kind or kind_of_array(value)
        return self.frozen if self.frozen is not None and issubclass(kind, Param) else kind


NO_ROLE = Role()


def kind_of_array(value: object) -> type[Kind]:
    """The kind of an array whose field declares none, by its dtype."""
    dtype: Any = getattr(value, "dtype", None)
    if dtype is None:
        is_number = isinstance(value, (bool, int, float, complex))
        dtype = cast(Any, np).result_type(type(value)) if is_number else np.dtype(object)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return RngKey
    return Param if jnp.issubdtype(dtype, jnp.inexact) else Buffer


@kept_with_class
def field_roles(cls: type) -> dict[str, Role]:
    """The role of each annotated field of a dataclass, by name.

    Raises:
        StaticError: if a field declares two kinds, or its annotation mentions `Annotated` and cannot be resolved.
    """
    hints = field_annotations(cls)
    return {
        field.name: _role_of_annotation(hints.get(field.name), f"{cls.__qualname__}.{field.name}")
        for field in dataclasses.fields(cls)
    }


def field_annotations(cls: type) -> dict[str, Any]:
    """The annotations of a class, with `Annotated`, and with string annotations resolved if possible.

    An annotation that cannot be resolved (a name under `TYPE_CHECKING`, say) does not hide the others.
    """
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:  # it evaluates the user's strings, which may raise anything
        return {
            name: _resolve(annotation, base, name)
            for base in reversed(cls.__mro__)
            for name, annotation in inspect.get_annotations(base).items()
        }


def _resolve(annotation: object, cls: type, name: str) -> Any:
    if not isinstance(annotation, str):
        return annotation
    scope = {**vars(sys.modules.get(cls.__module__, typing)), **vars(cls)}
    try:
        return eval(annotation, scope)
    except Exception as error:  # as above; a string that declares no kind is read by the contracts alone
        if "Annotated" in annotation:
            raise StaticError(
                f"cannot resolve the annotation {annotation!r}: {error}",
                at=f"{cls.__qualname__}.{name}",
                fix="import its names at run time, at the top level of the module (not under TYPE_CHECKING)",
            ) from error
        return None


def _role_of_annotation(annotation: object, where: str) -> Role:
    """What a field's annotation declares; `where` is the field, for errors."""
    labels = list(_labels(annotation))
    kinds = [label for label in labels if isinstance(label, type) and issubclass(label, Kind)]
    sharded = [label for label in labels if isinstance(label, Sharded)]
    tags = frozenset(label for label in labels if isinstance(label, str))
    if len(set(kinds)) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in set(kinds)))
        raise StaticError(f"a field has one kind, but this one declares {names}", at=where, fix="split the field")
    if len(set(sharded)) > 1:
        names = ", ".join(sorted(map(repr, set(sharded))))
        raise StaticError(f"a field names its axes once, but this one says {names}", at=where, fix="split the field")
    axes = sharded[0].axes if sharded else NO_NAMES
    if (dims := _dims(annotation)) is not None:
        axes = replace(axes, rank=len(dims), dims=dims)
    return Role(kinds[0] if kinds else None, tags, axes=axes)


def names_its_axes(cls: type, name: str) -> bool:
    """Whether the dims of a field may be names of axes; those of weft's own layers, such as `in`, are local to them."""
    own = next((base for base in cls.__mro__ if name in inspect.get_annotations(base)), cls)
    return own.__module__.partition(".")[0] != "weft"


def _dims(annotation: object) -> tuple[str | None, ...] | None:
    """The names of the axes of the arrays in a field, None for one without; None if their number is open."""
    arrays = [dims for dims in _dims_of_arrays(annotation) if dims is not None]
    if len({len(dims) for dims in arrays}) != 1 or None in _dims_of_arrays(annotation):
        return None
    # Two arrays of one rank, as in a union, have names only where they agree.
    return tuple(names[0] if len(set(names)) == 1 else None for names in zip(*arrays, strict=True))


def _dims_of_arrays(annotation: object) -> Iterator[tuple[str | None, ...] | None]:
    """For each array in an annotation the names of its axes; None if their number is open."""
    shape = getattr(annotation, "dim_str", None)
    if not isinstance(shape, str):
        for argument in get_args(annotation):
            yield from _dims_of_arrays(argument)
    elif "*" in shape or "..." in shape:
        yield None
    else:
        yield tuple(dim if dim.isidentifier() and not dim.startswith("_") else None for dim in shape.split())


def _labels(annotation: Any) -> Iterator[object]:
    """What an annotation declares by `Annotated`, at any depth."""
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
        annotation = annotation.__origin__
    for argument in get_args(annotation):
        yield from _labels(argument)
