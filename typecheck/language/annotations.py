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
| `Literal[...]`, a class, `Any` | `LiteralOf`, `Instance`, `Anything` |
| anything else | `Opaque`, left to beartype |
| a string that names what does not exist at run time | `Unresolved` |
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import equinox as eqx
import typing_extensions
from weft.typecheck.language.batched import Dims
from weft.typecheck.language.dims import Shape
from weft.typecheck.language.objects import is_object_class


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
class ArrayOf:
    """An array: of a class (`Any`: whatever has a shape and a dtype), a class of dtypes, and a shape."""

    array_type: Any
    dtype: Dtypes
    shape: Shape

    def __str__(self) -> str:
        return f'{self.dtype.name}[{getattr(self.array_type, "__name__", "Any").rpartition(".")[2]}, "{self.shape}"]'


@dataclass(frozen=True)
class TreeOf:
    """A pytree whose leaves are alike; `structure` is the names that its structure is made of, `...` included."""

    leaf: Annotation
    structure: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"PyTree[{self.leaf}{', ' + repr(' '.join(self.structure)) if self.structure else ''}]"


@dataclass(frozen=True)
class OneOf:
    """A union, in order."""

    members: tuple[Annotation, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))

    @property
    def optional(self) -> bool:
        """Whether `None` is one of the members."""
        return NONE in self.members


@dataclass(frozen=True)
class TupleOf:
    """A tuple of a fixed length."""

    items: tuple[Annotation, ...]

    def __str__(self) -> str:
        return f"tuple[{', '.join(map(str, self.items)) or '()'}]"


@dataclass(frozen=True)
class SequenceOf:
    """A list, tuple, set or other collection of any length; `cls` is what `isinstance` is asked for."""

    cls: type
    item: Annotation

    def __str__(self) -> str:
        return f"tuple[{self.item}, ...]" if self.cls is tuple else f"{self.cls.__name__}[{self.item}]"


@dataclass(frozen=True)
class MappingOf:
    """A mapping."""

    cls: type
    key: Annotation
    value: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.key}, {self.value}]"


@dataclass(frozen=True)
class RecordOf:
    """A value with named, annotated fields; they are read when asked for (`signatures.fields_of`), so types may recur.

    Attributes:
        cls: the class.
        form: which sort of class it is.
        dims: links between dims of the record and dims in the scope that it is used in, from `Dims`.
    """

    cls: type
    form: Literal["module", "object", "dataclass", "namedtuple", "typeddict"]
    dims: Dims | None = None

    def __str__(self) -> str:
        return f"{self.cls.__name__}({self.dims})" if self.dims else self.cls.__name__


@dataclass(frozen=True)
class BatchedOf:
    """Something whose arrays all carry extra leading axes."""

    inner: Annotation
    axes: Shape

    def __str__(self) -> str:
        return f'Batched[{self.inner}, "{self.axes}"]'


@dataclass(frozen=True)
class BoxOf:
    """A box (a Variable of `weft.nnx`) and what it holds."""

    cls: type
    inner: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.inner}]"


@dataclass(frozen=True)
class StreamOf:
    """An iterator or generator: what it yields, is sent, and returns; never consumed by a check."""

    cls: type
    yields: Annotation
    sent: Annotation
    returns: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.yields}]"


@dataclass(frozen=True)
class AwaitableOf:
    """Something to await, and its result."""

    cls: type
    result: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.result}]"


@dataclass(frozen=True)
class CallableOf:
    """A callable; `parameters=None` is `...`."""

    parameters: tuple[Annotation, ...] | None
    returns: Annotation

    def __str__(self) -> str:
        parameters = "..." if self.parameters is None else f"[{', '.join(map(str, self.parameters))}]"
        return f"Callable[{parameters}, {self.returns}]"


@dataclass(frozen=True)
class LiteralOf:
    """One of these values."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"Literal[{', '.join(map(repr, self.values))}]"


@dataclass(frozen=True)
class Instance:
    """An instance of a class; `given` are the arguments of a generic one that says no more of its instances."""

    cls: type
    given: tuple[Annotation, ...] = ()

    def __str__(self) -> str:
        name = "None" if self.cls is type(None) else self.cls.__name__
        return f"{name}[{', '.join(map(str, self.given))}]" if self.given else name


@dataclass(frozen=True)
class Anything:
    """No annotation, `Any`, `object`, or a type variable without a bound."""

    def __str__(self) -> str:
        return "Any"


@dataclass(frozen=True)
class Opaque:
    """A hint that has no array in it and is left to beartype."""

    hint: Any = field(hash=False)

    def __str__(self) -> str:
        return str(self.hint).replace("typing.", "")


@dataclass(frozen=True)
class Unresolved:
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


def record_form(cls: type) -> Literal["module", "object", "dataclass", "namedtuple", "typeddict"] | None:
    """Which sort of class with annotated fields it is, if any."""
    if issubclass(cls, eqx.Module):
        return "module"
    if is_object_class(cls):
        return "object"
    if typing_extensions.is_typeddict(cls):
        return "typeddict"
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and "__annotations__" in vars(cls):
        return "namedtuple"
    return None
