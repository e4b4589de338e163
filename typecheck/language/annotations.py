"""Annotations: what a type hint says, as a tree of frozen data.

`reading.read` turns any hint into one of the classes below; both the runtime checker and the prover work on
these, never on hints. jaxtyping's hints are read through their public attributes (`dim_str`, `dtypes`, `array_type`;
`leaftype` and `structure` of a `PyTree`). Nothing is lost: each node keeps the hint that it was read from as `text`
where a reader needs it.

| hint | node |
|---|---|
| `Float[Array, "a b"]`, `Array`, `np.ndarray` | `ArrayOf` |
| `PyTree[leaf, "T"]` | `TreeOf` |
| `X | Y`, `Optional[X]` | `OneOf` |
| `tuple[...]`, `list[X]`, `dict[K, V]`, and their ABCs | `TupleOf`, `SequenceOf`, `MappingOf` |
| Module, dataclass, NamedTuple, TypedDict, `Self` | `RecordOf` |
| `Batched[X, "layers"]` | `BatchedOf` |
| `Annotated[X, Dims("in=width")]` | `RecordOf` with links |
| `Iterator[X]`, `Generator[Y, S, R]`, `AsyncIterator[X]`, `Awaitable[X]` | `StreamOf`, `AwaitableOf` |
| `Callable[[X], Y]` | `CallableOf` |
| `nnx.Param[X]` | `BoxOf` |
| `Literal[...]`, a class, `Any` | `LiteralOf`, `Instance`, `Anything`, `Variable` |
| anything else | `Opaque`, left to beartype |
| a string that names what does not exist at run time | `Unresolved` |
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from weft.typecheck.language.batched import Dims
from weft.typecheck.language.dims import Shape
from weft.typecheck.language.forms import Form, form_of


class Node:
    """What all annotations have in common: the annotations that they are made of.

    Two things are asked of it. `parts` are about what is *in* a value of it, so a check can look at them: the items of
    a list. `mentions` are all that it is made of: the arguments of a callable, too.

    A record has no parts: its fields are read when they are asked for, so that types may recur.
    """

    # The names of the fields that hold parts, and of those that hold what is only mentioned; one, or a tuple, or None.
    _inside: ClassVar[tuple[str, ...]] = ()
    _outside: ClassVar[tuple[str, ...]] = ()

    @property
    def parts(self) -> tuple[Annotation, ...]:
        """The annotations of what is inside of a value."""
        return _collected(self, self._inside)

    @property
    def mentions(self) -> tuple[Annotation, ...]:
        """The parts, and what else it is made of."""
        return _collected(self, (*self._inside, *self._outside))

    def rebuilt(self, change: Callable[[Annotation], Any]) -> Self:
        """The same annotation of changed parts."""
        held = {name: getattr(self, name) for name in self._inside}
        changed = {
            name: tuple(map(change, one)) if isinstance(one, tuple) else change(one) for name, one in held.items()
        }
        return dataclasses.replace(self, **changed) if changed else self  # pyright: ignore[reportArgumentType]

    def walk(self) -> Iterator[Annotation]:
        """It and all that is inside of it, outermost first."""
        yield self  # pyright: ignore[reportReturnType]
        for part in self.parts:
            yield from part.walk()


def _collected(node: Node, names: tuple[str, ...]) -> tuple[Annotation, ...]:
    found: list[Annotation] = []
    for name in names:
        held = getattr(node, name)
        found += held if isinstance(held, tuple) else () if held is None else (held,)
    return tuple(found)


@dataclass(frozen=True)
class Dtypes:
    """A class of dtypes: `Float`, `Int32`, `Shaped`, ...; `accepted=None` is any dtype."""

    name: str
    accepted: tuple[str | re.Pattern[str], ...] | None = None

    def accepts(self, dtype: str) -> bool:
        """Whether a dtype is in the class, by its name: `float32`, `prng_key`."""
        if self.accepted is None:
            return True
        return any(dtype == one if isinstance(one, str) else bool(one.match(dtype)) for one in self.accepted)


ANY_DTYPE = Dtypes("Shaped")


@dataclass(frozen=True)
class ArrayOf(Node):
    """An array: of a class (`Any`: whatever has a shape and a dtype), a class of dtypes, and a shape."""

    array_type: Any
    dtype: Dtypes
    shape: Shape

    def __str__(self) -> str:
        return f'{self.dtype.name}[{getattr(self.array_type, "__name__", "Any").rpartition(".")[2]}, "{self.shape}"]'


@dataclass(frozen=True)
class TreeOf(Node):
    """A pytree whose leaves are alike; `structure` is the names that its structure is made of, `...` included."""

    _inside = ("leaf",)

    leaf: Annotation
    structure: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"PyTree[{self.leaf}{', ' + repr(' '.join(self.structure)) if self.structure else ''}]"


@dataclass(frozen=True)
class OneOf(Node):
    """A union, in order."""

    _inside = ("members",)

    members: tuple[Annotation, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))

    @property
    def optional(self) -> bool:
        """Whether `None` is one of the members."""
        return NONE in self.members


@dataclass(frozen=True)
class TupleOf(Node):
    """A tuple of a fixed length."""

    _inside = ("items",)

    items: tuple[Annotation, ...]

    def __str__(self) -> str:
        return f"tuple[{', '.join(map(str, self.items)) or '()'}]"


@dataclass(frozen=True)
class SequenceOf(Node):
    """A list, tuple, set or other collection of any length; `cls` is what `isinstance` is asked for."""

    _inside = ("item",)

    cls: type
    item: Annotation

    def __str__(self) -> str:
        return f"tuple[{self.item}, ...]" if self.cls is tuple else f"{self.cls.__name__}[{self.item}]"


@dataclass(frozen=True)
class MappingOf(Node):
    """A mapping."""

    _inside = ("key", "value")

    cls: type
    key: Annotation
    value: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.key}, {self.value}]"


@dataclass(frozen=True)
class RecordOf(Node):
    """A value with named, annotated fields; they are read when asked for (`signatures.fields_of`), so types may recur.

    Attributes:
        cls: the class.
        dims: links between dims of the record and dims in the scope that it is used in, from `Dims`.
    """

    cls: type
    dims: Dims | None = None

    @property
    def form(self) -> Form:
        """Which sort of class it is."""
        form = form_of(self.cls)
        assert form is not None
        return form

    def __str__(self) -> str:
        return f"{self.cls.__name__}({self.dims})" if self.dims else self.cls.__name__


@dataclass(frozen=True)
class Shell(Node):
    """A record of which only the class is asked, because it was checked when it was made."""

    record: RecordOf

    def __str__(self) -> str:
        return str(self.record)


@dataclass(frozen=True)
class BatchedOf(Node):
    """Something whose arrays all carry extra leading axes."""

    _inside = ("inner",)

    inner: Annotation
    axes: Shape

    def __str__(self) -> str:
        return f'Batched[{self.inner}, "{self.axes}"]'


@dataclass(frozen=True)
class BoxOf(Node):
    """A box (a Variable of `weft.nnx`) and what it holds."""

    _inside = ("inner",)

    cls: type
    inner: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.inner}]"


@dataclass(frozen=True)
class StreamOf(Node):
    """An iterator or generator: what it yields, is sent, and returns; never consumed by a check."""

    _outside = ("yields", "sent", "returns")

    cls: type
    yields: Annotation
    sent: Annotation
    returns: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.yields}]"


@dataclass(frozen=True)
class AwaitableOf(Node):
    """Something to await, and its result."""

    _outside = ("result",)

    cls: type
    result: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.result}]"


@dataclass(frozen=True)
class CallableOf(Node):
    """A callable; `parameters=None` is `...`."""

    _outside = ("parameters", "returns")

    parameters: tuple[Annotation, ...] | None
    returns: Annotation

    def __str__(self) -> str:
        parameters = "..." if self.parameters is None else f"[{', '.join(map(str, self.parameters))}]"
        return f"Callable[{parameters}, {self.returns}]"


@dataclass(frozen=True)
class LiteralOf(Node):
    """One of these values."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"Literal[{', '.join(map(repr, self.values))}]"


@dataclass(frozen=True)
class Instance(Node):
    """An instance of a class; `given` are the arguments of a generic one that says no more of its instances."""

    _outside = ("given",)

    cls: type
    given: tuple[Annotation, ...] = ()

    def __str__(self) -> str:
        name = "None" if self.cls is type(None) else self.cls.__name__
        return f"{name}[{', '.join(map(str, self.given))}]" if self.given else name


@dataclass(frozen=True)
class Anything(Node):
    """No annotation, `Any` or `object`."""

    def __str__(self) -> str:
        return "Any"


@dataclass(frozen=True)
class Variable(Anything):
    """A type variable without a bound: anything, and the same wherever it stands."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Opaque(Node):
    """A hint that has no array in it and is left to beartype."""

    hint: Any = field(hash=False)

    def __str__(self) -> str:
        return str(self.hint).replace("typing.", "")


@dataclass(frozen=True)
class Unresolved(Node):
    """A string annotation whose names do not exist at run time (imported under `TYPE_CHECKING`, say)."""

    text: str
    reason: str

    def __str__(self) -> str:
        return self.text


Annotation = (
    ArrayOf
    | TreeOf
    | OneOf
    | TupleOf
    | SequenceOf
    | MappingOf
    | RecordOf
    | Shell
    | BatchedOf
    | BoxOf
    | StreamOf
    | AwaitableOf
    | CallableOf
    | LiteralOf
    | Instance
    | Anything
    | Opaque
    | Unresolved
)

ANYTHING, NONE = Anything(), Instance(type(None))


def members_of(annotation: Annotation) -> tuple[Annotation, ...]:
    """The members of a union; of anything else itself."""
    return annotation.members if isinstance(annotation, OneOf) else (annotation,)


def holds_arrays(annotation: Annotation) -> bool:
    """Whether an array, or a record that may hold one, can be inside of a value."""
    return any(isinstance(one, _WITH_ARRAYS) for one in annotation.walk())


_WITH_ARRAYS = (ArrayOf, TreeOf, RecordOf, Shell, BatchedOf, BoxOf)
