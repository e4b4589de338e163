"""Dims: jaxtyping's shape strings as frozen data, and the metadata by which records have axes and dims.

| written | is | matches |
|---|---|---|
| `batch` | `NamedDim` | one axis, the same size wherever the name is in scope |
| `3`, `rows=3` | `FixedDim` | one axis of that size |
| `2*n`, `{self.width}` | `SymbolicDim` | one axis, of the size that the expression has |
| `_`, `_anything` | `AnyDim` | one axis of any size |
| `*batch` | `VariadicDim` | any number of axes, the same wherever the name is in scope |
| `...` | `VariadicDim(None)` | any number of axes |

`#` before a dim lets it be 1 (*broadcastable*); `?` makes a name differ from leaf to leaf of a `PyTree` (*per leaf*).
The empty string is the shape of a scalar. A shape has at most one variadic dim.

An expression has *names* (other dims) and *holes* (`{...}`, Python over the arguments, as in an f-string). It is not
run before `SymbolicDim.evaluate` gets values for both. Sizes need only arithmetic, so JAX's symbolic dimensions work.

Records are annotated beyond their class by leading axes (`Batched`) and linked dims (`Dims`). Both are metadata of
`Annotated`, so static checkers see the record's own type, and fields, methods and `replace` stay typed.
"""

from __future__ import annotations

import ast
import io
import keyword
import re
import tokenize
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Annotated, Any, cast

from weft.core.caches import cached_by
from weft.typecheck.errors import AnnotationError


@dataclass(frozen=True, slots=True)
class NamedDim:
    """One axis whose size has a name."""

    name: str
    broadcastable: bool = False
    per_leaf: bool = False

    def __str__(self) -> str:
        return "?" * self.per_leaf + "#" * self.broadcastable + self.name


@dataclass(frozen=True, slots=True)
class FixedDim:
    """One axis whose size is a number in the annotation."""

    size: int
    broadcastable: bool = False

    def __str__(self) -> str:
        return "#" * self.broadcastable + str(self.size)


@dataclass(frozen=True, slots=True)
class AnyDim:
    """One axis of any size; the name is only for the reader and may be empty."""

    name: str = ""

    def __str__(self) -> str:
        return "_" + self.name


@dataclass(frozen=True, slots=True)
class VariadicDim:
    """Any number of axes; `name=None` stands for `...`."""

    name: str | None
    broadcastable: bool = False
    per_leaf: bool = False

    def __str__(self) -> str:
        if self.name is None:
            return "..."
        return "?" * self.per_leaf + "*" + "#" * self.broadcastable + self.name


@dataclass(frozen=True, slots=True)
class Interpolation:
    """One `{...}` of an expression: Python source over the function's arguments."""

    source: str
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class SymbolicDim:
    """One axis whose size is an expression.

    Attributes:
        text: the expression as written.
        pieces: the expression as literal text and holes in turn.
        names: the dims that the expression reads.
    """

    text: str
    pieces: tuple[str | Interpolation, ...]
    names: frozenset[str]
    broadcastable: bool = False

    def __str__(self) -> str:
        return "#" * self.broadcastable + self.text

    @property
    def arguments(self) -> frozenset[str]:
        """The arguments that the holes read, `self` included."""
        return frozenset().union(*(piece.names for piece in self.pieces if isinstance(piece, Interpolation)))

    @property
    def fields(self) -> frozenset[str]:
        """The attributes of `self` that the holes read, such as `width` in `{self.width}`."""
        sources = (piece.source for piece in self.pieces if isinstance(piece, Interpolation))
        return frozenset(name for source in sources for name in re.findall(r"\bself\.(\w+)", source))

    def evaluate(self, sizes: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        """The value of the expression.

        Args:
            sizes: the size of every dim in scope, by name; ints or symbolic dimensions.
            arguments: the function's arguments by name, for the holes.

        Raises:
            UnboundDim: if the expression reads a dim or an argument that has no value yet.
            AnnotationError: if the evaluation fails for another reason.
        """
        values, text = {}, ""
        for number, piece in enumerate(self.pieces):
            if isinstance(piece, str):
                text += piece
                continue
            value = self.run(piece.source, arguments)
            if isinstance(value, str):  # as in an f-string, the text joins the expression: a hole may name a dim
                text += value
            else:
                # A symbolic size has no text that `eval` could read back, so it is passed by a name of its own.
                text += f"_hole{number}_"
                values[f"_hole{number}_"] = value
        # A dim called `in` would be a syntax error, so the text and the names get the same prefix.
        return self.run(_protect_keywords(text), {**{_protected(k): v for k, v in sizes.items()}, **values})

    def run(self, source: str, names: Mapping[str, Any]) -> Any:
        """Evaluates source, such as that of a hole over the arguments; raises as `evaluate` does."""
        # Asked before `eval`, since a NameError would not say whether a dim is unbound or the expression has a mistake.
        unknown = sorted(_free_names(source) - names.keys())
        if unknown:
            raise UnboundDim(self, unknown[0].removeprefix("_kw_"))
        try:
            # `eval` adds Python's builtins to the empty globals, so `min(a, b)` works in a dim.
            return eval(_compiled(source), {}, dict(names))
        except Exception as error:  # the expression is the user's, and may raise anything
            raise AnnotationError(
                f"the dim expression {self.text!r} cannot be evaluated: {type(error).__name__}: {error}"
            ) from None


Dim = NamedDim | FixedDim | AnyDim | VariadicDim | SymbolicDim


class UnboundDim(AnnotationError):
    """A dim expression reads a name that nothing has bound yet; the check may wait for a later argument."""

    def __init__(self, dim: SymbolicDim, name: str):
        self.dim, self.name = dim, name
        super().__init__(f"the dim expression {dim.text!r} reads {name!r}, which nothing binds")


@dataclass(frozen=True, slots=True)
class Shape:
    """The dims of one array annotation, in order; `variadic` is the index of the variadic dim.

    >>> Shape.parse("*batch 2*n #c 3")
    Shape('*batch 2*n #c 3')
    """

    dims: tuple[Dim, ...]
    variadic: int | None = None

    # Cached by text: a package writes the same few shape strings in hundreds of annotations.
    @staticmethod
    @cached_by("text")
    def parse(text: str) -> Shape:
        """Reads a shape string.

        Raises:
            AnnotationError: in one line, naming the dim that cannot be read.
        """
        words = text.split()
        dims = tuple(parse_dim(word, text) for word in words)
        variadic = [i for i, dim in enumerate(dims) if isinstance(dim, VariadicDim)]
        if len(variadic) > 1:
            raise _unreadable(text, " and ".join(words[i] for i in variadic), "a shape has at most one variadic dim")
        return Shape(dims, variadic[0] if variadic else None)

    @property
    def min_rank(self) -> int:
        """The smallest number of axes that a value can have."""
        return len(self.dims) - (self.variadic is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that single axes bind, in order."""
        return tuple(dim.name for dim in self.dims if isinstance(dim, NamedDim))

    def __str__(self) -> str:
        return " ".join(map(str, self.dims))

    def __repr__(self) -> str:
        return f"Shape({str(self)!r})"

    def under(self, outer: Shape) -> Shape:
        """This shape with the axes of `outer` in front, as for a batched type.

        Raises:
            AnnotationError: if both have a variadic dim.
        """
        # With two variadic dims, nothing would say which axes belong to which of them.
        if self.variadic is not None and outer.variadic is not None:
            raise AnnotationError(f"{str(outer)!r} and {str(self)!r} cannot be one shape: each has a variadic dim")
        variadic = outer.variadic if self.variadic is None else self.variadic + len(outer.dims)
        return Shape(outer.dims + self.dims, variadic)


ANY_SHAPE = Shape((VariadicDim(None),), 0)


# Broadcastable, variadic, anonymous, per leaf.
_MARKS = ("#", "*", "_", "?")


def parse_dim(word: str, shape: str | None = None) -> Dim:
    """Reads one dim of a shape string.

    Raises:
        AnnotationError: in one line, naming the dim.
    """
    shape = word if shape is None else shape
    if word == "...":
        return VariadicDim(None)
    if "..." in word:
        raise _unreadable(shape, word, "`...` stands on its own")
    # `Float[Array, "a, b"]` is a common slip, and `a,` would be reported as an unreadable name.
    if "," in word and "(" not in word and "{" not in word:
        raise _unreadable(shape, word, "dims are separated by spaces, not commas")
    marks: set[str] = set()
    body = word
    # Marks come in any order, and a label may stand in front of them or behind.
    while body[:1] in _MARKS or _is_labelled(body):
        if body[0] not in _MARKS:
            body = body.partition("=")[2]
            continue
        if body[0] in marks:
            raise _unreadable(shape, word, f"`{body[0]}` is written twice")
        marks.add(body[0])
        body = body[1:]
    broadcastable, per_leaf = "#" in marks, "?" in marks
    if body == "" or body.isidentifier():
        if "_" in marks and broadcastable:
            raise _unreadable(shape, word, "an anonymous dim matches any size, so `#` has no effect")
        if "*" in marks:
            return VariadicDim(None if "_" in marks else body, broadcastable, per_leaf)
        return AnyDim(body) if "_" in marks else NamedDim(body, broadcastable, per_leaf)
    for mark in "*_?":
        if mark in marks:
            raise _unreadable(shape, word, f"`{mark}` goes with a name only")
    try:
        return FixedDim(int(body), broadcastable)
    except ValueError:
        return _symbolic(body, broadcastable, shape, word)


# `rows=3` documents a fixed size, as in jaxtyping: the label binds nothing.
def _is_labelled(body: str) -> bool:
    label, equals, _ = body.partition("=")
    return bool(equals) and label.isidentifier() and body.count("=") == 1


# A coefficient as a paper writes it, `2K`, for the hint in the error.
_PRODUCT = re.compile(r"(\d+)([A-Za-z_]\w*)")


def _symbolic(body: str, broadcastable: bool, shape: str, word: str) -> SymbolicDim:
    """An expression as a dim, split into its text and its holes."""
    try:
        # Python's f-string parser splits text and holes, so quotes and braces inside holes follow Python's own rules.
        template = ast.parse(f"f{body!r}", mode="eval").body
        assert isinstance(template, ast.JoinedStr)
        pieces = tuple(
            str(part.value)
            if isinstance(part, ast.Constant)
            else Interpolation(source := ast.unparse(cast(ast.FormattedValue, part).value), _free_names(source))
            for part in template.values
        )
        filled = "".join(piece if isinstance(piece, str) else "_hole_" for piece in pieces)
        free = _free_names(_protect_keywords(filled))
    except (SyntaxError, ValueError, AssertionError, tokenize.TokenError):
        product = _PRODUCT.fullmatch(body)
        hint = f"a product is written {product[1]}*{product[2]}" if product else "expressions have no spaces in them"
        raise _unreadable(shape, word, f"it is neither a name, a number nor an expression ({hint})") from None
    names = frozenset(name.removeprefix("_kw_") for name in free - {"_hole_"})
    return SymbolicDim(body, pieces, names, broadcastable)


@cached_by("text")
def _compiled(source: str) -> CodeType:
    return compile(source.strip(), "<dim expression>", "eval")


@cached_by("text")
def _free_names(source: str) -> frozenset[str]:
    """The names that an expression reads; the name of a called function, such as `min`, is not one of them."""
    # `min` of `min(a, b)` must not be reported as an unbound dim: `eval` finds it among Python's builtins.
    tree = ast.parse(source.strip(), mode="eval")
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called)


# A dim may be called `in` or `lambda`, which Python cannot evaluate as names: such names are prefixed.
_OPERATORS = {"if", "else", "and", "or", "not", "None", "True", "False"}


def _protected(name: str) -> str:
    return f"_kw_{name}" if keyword.iskeyword(name) and name not in _OPERATORS else name


@cached_by("text")
def _protect_keywords(source: str) -> str:
    if not any(word in source for word in keyword.kwlist):
        return source
    # By tokens, as a textual replacement would also change the `in` inside `inner`.
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "".join(_protected(t.string) if t.type == tokenize.NAME else t.string for t in tokens).strip()


def _unreadable(shape: str, word: str, why: str) -> AnnotationError:
    place = "" if shape == word else f" in the shape {shape!r}"
    return AnnotationError(f"cannot read the dim {word!r}{place}: {why}")


@dataclass(frozen=True)
class Batching:
    """The leading axes of every array inside, as metadata of `Annotated`."""

    axes: Shape


# A static type checker must see the record's own type, so that fields and methods of a stack stay typed.
if TYPE_CHECKING:
    from typing import Annotated as Batched
else:

    class Batched:
        """The type of a stacked record: `Batched[Linear, "layers"]` is a Linear whose arrays have a leading axis.

        `vmap` and `scan` over it remove the axis, so that the function inside gets a plain `Linear`; the stack and the
        plain record are both checked. Several axes are written as in any shape: `Batched[Linear, "stages layers"]`. Any
        annotation can be batched, also a `PyTree[...]`.

        >>> Batched[int, "layers"].__metadata__
        (Batching(axes=Shape('layers')),)
        """

        def __class_getitem__(cls, item: Any) -> Any:
            if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[1], str):
                raise AnnotationError(
                    f'Batched takes a type and a shape, as in Batched[Linear, "layers"], not {item!r}'
                )
            hint, axes = item
            # Parsed here, so that a mistake in the shape is reported at the line that writes it.
            return Annotated[typing.cast(Any, hint), Batching(Shape.parse(axes))]


class Dims:
    """Links dims of a child record to dims of its parent: `Annotated[Linear, Dims("in=width out=4*width")]`.

    Each word is `child=parent`. The child is a dim that the fields bind. The parent is a name, a number or an
    expression over the dims of the scope around the annotation: the record of the field, or the function's arguments.

    Args:
        links: the words, separated by spaces.

    Raises:
        AnnotationError: in one line, for a word that is not `child=parent`.

    >>> Dims("in=width  out=4*width")
    Dims('in=width out=4*width')
    """

    def __init__(self, links: str):
        read = list[tuple[str, Dim]]()
        for word in links.split():
            # A word is split at its first `=`, because the parent's expression may contain `==`.
            child, equals, parent = word.partition("=")
            trouble = f"cannot read the link {word!r} in Dims({links!r})"
            if not equals or not child.isidentifier():
                raise AnnotationError(f"{trouble}: write it as child=parent")
            dim = parse_dim(parent, links)
            # `in=*batch` would link one size to several axes.
            if isinstance(dim, VariadicDim) or (isinstance(dim, NamedDim) and not dim.name):
                raise AnnotationError(f"{trouble}: the parent's dim must be one axis")
            read.append((child, dim))
        self.links = tuple(read)

    # The links are compared, not the text: other spaces between the words do not change the annotation.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dims) and self.links == other.links

    def __hash__(self) -> int:
        return hash(self.links)

    def __str__(self) -> str:
        return " ".join(f"{child}={dim}" for child, dim in self.links)

    def __repr__(self) -> str:
        return f"Dims({str(self)!r})"
