"""Annotations for records beyond their class: leading axes (`Batched`) and linked dims (`Dims`).

Both are metadata of `Annotated`, so static checkers see the record's own type, and fields, methods and `replace` stay
typed.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.dims import Dim, NamedDim, Shape, VariadicDim, parse_dim


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

    Each word is `child=parent`. `child` is a dim that the child's fields bind. `parent` is a name, a number or an
    expression over the dims around the annotation: those of the field's record, or of the function's arguments.

    Args:
        links: the words, separated by spaces.

    Raises:
        AnnotationError: in one line, for a word that is not `child=parent`.

    >>> Dims("in=width  out=4*width")
    Dims('in=width out=4*width')
    """

    def __init__(self, links: str):
        self.links: tuple[tuple[str, Dim], ...] = tuple(_read_link(word, links) for word in links.split())

    # The links are compared, not the text: other spaces between the words do not change the annotation.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dims) and self.links == other.links

    def __hash__(self) -> int:
        return hash(self.links)

    def __str__(self) -> str:
        return " ".join(f"{child}={dim}" for child, dim in self.links)

    def __repr__(self) -> str:
        return f"Dims({str(self)!r})"


# A word is split at its first `=`, because the parent's expression may contain `==`.
def _read_link(word: str, links: str) -> tuple[str, Dim]:
    child, equals, parent = word.partition("=")
    if not equals or not child.isidentifier():
        raise AnnotationError(f"cannot read the link {word!r} in Dims({links!r}): write it as child=parent")
    dim = parse_dim(parent, links)
    # `in=*batch` would link one size to several axes.
    if isinstance(dim, VariadicDim) or (isinstance(dim, NamedDim) and not dim.name):
        raise AnnotationError(f"cannot read the link {word!r} in Dims({links!r}): the parent's dim must be one axis")
    return child, dim
