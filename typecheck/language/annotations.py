"""Annotations: a type hint as a tree of frozen data.

`reading.read` turns any hint into one of the classes below; the run-time checker and the prover work on these, never on
hints. jaxtyping's hints are read through their public attributes (`dim_str`, `dtypes`, `array_type`; `leaftype` and
`structure` of a `PyTree`). Nothing is lost: where the original hint is needed, the node stores it.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from weft.typecheck.language.dims import Dims, Shape
from weft.typecheck.language.forms import Form, form_of


class Node:
    """The base class of all annotations: gives access to the annotations that a node contains.

    `parts` are the annotations of values *inside* a value, such as the items of a list, so a check can look at them.
    `mentions` are all annotations in the hint: also the parameters of a callable, which no check can look at.

    A record has no parts: its fields are read on request, so that types may be recursive.
    """

    # The attributes that hold parts, and those that hold further annotations: a single one, a tuple of them, or None.
    _inside: ClassVar[tuple[str, ...]] = ()
    _outside: ClassVar[tuple[str, ...]] = ()

    @property
    def parts(self) -> tuple[Annotation, ...]:
        """The annotations of the values inside a value."""
        return _collected(self, self._inside)

    @property
    def mentions(self) -> tuple[Annotation, ...]:
        """The parts, and all other annotations in the hint."""
        return _collected(self, (*self._inside, *self._outside))

    def rebuilt(self, change: Callable[[Annotation], Any]) -> Self:
        """The same annotation with each part replaced by `change(part)`."""
        parts = {name: getattr(self, name) for name in self._inside}
        changed = {
            name: tuple(map(change, part)) if isinstance(part, tuple) else change(part) for name, part in parts.items()
        }
        return dataclasses.replace(self, **changed) if changed else self  # pyright: ignore[reportArgumentType]

    def walk(self) -> Iterator[Annotation]:
        """This annotation and all parts below, outermost first."""
        yield self  # pyright: ignore[reportReturnType]
        for part in self.parts:
            yield from part.walk()


def _collected(node: Node, names: tuple[str, ...]) -> tuple[Annotation, ...]:
    annotations: list[Annotation] = []
    for name in names:
        attribute = getattr(node, name)
        annotations += attribute if isinstance(attribute, tuple) else () if attribute is None else (attribute,)
    return tuple(annotations)


@dataclass(frozen=True)
class Dtypes:
    """A jaxtyping class of dtypes: `Float`, `Int32`, `Shaped`, ...; `accepted=None` accepts any dtype."""

    name: str
    accepted: tuple[str | re.Pattern[str], ...] | None = None

    # By name and not by `np.dtype`: NumPy has no dtype object for random keys, and jaxtyping has patterns for names.
    def accepts(self, dtype: str) -> bool:
        """Whether a dtype, by its name such as `float32` or `prng_key`, is in the class."""
        return bool(self.accepted_of((dtype,)))

    def accepted_of(self, dtypes: Sequence[str]) -> list[str]:
        """Those of several dtypes that are in the class."""
        if self.accepted is None:
            return list(dtypes)
        patterns = [name for name in self.accepted if not isinstance(name, str)]
        of_patterns = {dtype for pattern in patterns for dtype in dtypes if pattern.match(dtype)}
        return [dtype for dtype in dtypes if dtype in self.accepted or dtype in of_patterns]


ANY_DTYPE = Dtypes("Shaped")


@dataclass(frozen=True)
class ArrayOf(Node):
    """An array: its class (`Any` for everything with a shape and a dtype), its class of dtypes, and its shape."""

    array_type: Any
    dtype: Dtypes
    shape: Shape

    def __str__(self) -> str:
        return f'{self.dtype.name}[{getattr(self.array_type, "__name__", "Any").rpartition(".")[2]}, "{self.shape}"]'


@dataclass(frozen=True)
class TreeOf(Node):
    """A pytree with one annotation for all leaves; `structure` lists the names in its structure, `...` included."""

    _inside = ("leaf",)

    leaf: Annotation
    structure: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"PyTree[{self.leaf}{', ' + repr(' '.join(self.structure)) if self.structure else ''}]"


@dataclass(frozen=True)
class OneOf(Node):
    """A union; `members` are in the order of the hint: of members that fit equally badly, an error names the first."""

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
    """A list, tuple, set or other collection of any length; `cls` is the class that `isinstance` checks."""

    _inside = ("item",)

    cls: type
    item: Annotation

    def __str__(self) -> str:
        return f"tuple[{self.item}, ...]" if self.cls is tuple else f"{self.cls.__name__}[{self.item}]"


@dataclass(frozen=True)
class MappingOf(Node):
    """A mapping from keys to values; `cls` is the class that `isinstance` checks."""

    _inside = ("key", "value")

    cls: type
    key: Annotation
    value: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.key}, {self.value}]"


@dataclass(frozen=True)
class RecordOf(Node):
    """A value with named, annotated fields; `signatures.fields_of` reads them on request, as types may be recursive.

    Attributes:
        cls: the class.
        dims: the links from `Dims` between dims of the record and dims of the scope around it.
    """

    cls: type
    dims: Dims | None = None

    @property
    def form(self) -> Form:
        """The sort of class: module, object, TypedDict, dataclass or named tuple."""
        form = form_of(self.cls)
        assert form is not None
        return form

    def __str__(self) -> str:
        return f"{self.cls.__name__}({self.dims})" if self.dims else self.cls.__name__


@dataclass(frozen=True)
class CheckedRecord(Node):
    """A record of which only the class is checked, since the record checked itself when it was made."""

    record: RecordOf

    def __str__(self) -> str:
        return str(self.record)


@dataclass(frozen=True)
class BatchedOf(Node):
    """A value whose arrays all have the leading axes `axes`."""

    _inside = ("inner",)

    inner: Annotation
    axes: Shape

    def __str__(self) -> str:
        return f'Batched[{self.inner}, "{self.axes}"]'


@dataclass(frozen=True)
class BoxOf(Node):
    """A box (a Variable of `weft.nnx`) and the annotation of its value."""

    _inside = ("inner",)

    cls: type
    inner: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.inner}]"


@dataclass(frozen=True)
class StreamOf(Node):
    """An iterator or generator with the types that it yields, is sent and returns; checks never consume it."""

    _outside = ("yields", "sent", "returns")

    cls: type
    yields: Annotation
    sent: Annotation
    returns: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.yields}]"


@dataclass(frozen=True)
class AwaitableOf(Node):
    """An awaitable and the annotation of its result."""

    _outside = ("result",)

    cls: type
    result: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.result}]"


@dataclass(frozen=True)
class CallableOf(Node):
    """A callable; `parameters=None` stands for `...`."""

    _outside = ("parameters", "returns")

    parameters: tuple[Annotation, ...] | None
    returns: Annotation

    def __str__(self) -> str:
        parameters = "..." if self.parameters is None else f"[{', '.join(map(str, self.parameters))}]"
        return f"Callable[{parameters}, {self.returns}]"


@dataclass(frozen=True)
class LiteralOf(Node):
    """A `Literal`: equal to one of `values`."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"Literal[{', '.join(map(repr, self.values))}]"


@dataclass(frozen=True)
class Instance(Node):
    """An instance of a class; its type arguments say nothing about the arrays in the instance."""

    _outside = ("arguments",)

    cls: type
    arguments: tuple[Annotation, ...] = ()

    def __str__(self) -> str:
        name = "None" if self.cls is type(None) else self.cls.__name__
        return f"{name}[{', '.join(map(str, self.arguments))}]" if self.arguments else name


@dataclass(frozen=True)
class Anything(Node):
    """A value without an annotation, or annotated `Any` or `object`."""

    def __str__(self) -> str:
        return "Any"


@dataclass(frozen=True)
class Variable(Anything):
    """A type variable without a bound: any value, of the same type wherever the variable stands in a signature."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Opaque(Node):
    """A hint without arrays, which beartype checks."""

    # Left out of the hash: a hint may be unhashable, such as one with a list in its metadata.
    hint: Any = field(hash=False)

    def __str__(self) -> str:
        return str(self.hint).replace("typing.", "")


@dataclass(frozen=True)
class Unresolved(Node):
    """A string annotation with names that do not exist at run time, such as imports under `TYPE_CHECKING`."""

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
    | CheckedRecord
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
    """The members of a union; for any other annotation, the annotation itself."""
    return annotation.members if isinstance(annotation, OneOf) else (annotation,)


def holds_arrays(annotation: Annotation) -> bool:
    """Whether a value can hold an array, or a record that may hold one."""
    return any(isinstance(part, _WITH_ARRAYS) for part in annotation.walk())


_WITH_ARRAYS = (ArrayOf, TreeOf, RecordOf, CheckedRecord, BatchedOf, BoxOf)
