"""Axis names: logical names of array axes, by which a model is sharded over a mesh.

They are declared on the field, with the shape and the kind, and do not name any mesh:

    kernel: Annotated[Float[Array, "in out"], Sharded("embed", "mlp")]
    bias: Annotated[Float[Array, "out"], Sharded("mlp")]
    blocks: Annotated[Block, Sharded("layers", ...)]      # an axis in front of what is declared inside

Rules map a *logical* name to an axis of the mesh when the model is placed (`weft.shard`). The names of a field that
holds a record are the default for the arrays inside, aligned at the last axis as in broadcasting, so that
`Annotated[Linear, Sharded("embed", "mlp")]` names the axes of the kernel and of the bias. The fields inside may declare
their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any

from weft.core.errors import StaticError

Name = str | None


@dataclass(frozen=True, slots=True)
class AxisNames:
    """The names of the axes of the arrays in a field.

    Attributes:
        before: the names of leading axes that containers add: of layers, of members.
        names: the names of the array's own axes; None if none are declared.
        inherited: whether the names were declared for a record around the field, and so for arrays of any rank.
        dims: the names of the dims in the field's annotation, None for a dim without one.
        rank: the number of axes in the field's annotation, if that says it. A stacked bias has two axes, as a kernel
            has, but must not get the kernel's names.
    """

    before: tuple[Name, ...] = ()
    names: tuple[Name, ...] | None = None
    inherited: bool = False
    rank: int | None = None
    dims: tuple[Name, ...] = ()

    def inside(self, outer: AxisNames) -> AxisNames:
        """These names, in a field with outer names: the inner names win, and leading axes add up."""
        before = outer.before + self.before
        if self.names is not None or outer.names is None:
            return replace(self, before=before)
        return AxisNames(before, outer.names, inherited=True, rank=self.rank, dims=self.dims)

    def of_rank(self, rank: int) -> tuple[Name, ...] | None:
        """A name, or None, for each axis of an array.

        None if the array has fewer axes than names that its own field declares. Names that it inherits are for arrays
        of any rank, so those that do not fit are left out.
        """
        names = self.names or ()
        if self.names is None or self.inherited:
            before = self.before[:rank]
            own = rank - len(before) if self.rank is None else min(self.rank, rank - len(before))
            names = names[max(0, len(names) - own) :]
            names = (*(None,) * (own - len(names)), *names)
        else:
            before = self.before
        # Further leading axes come from a constructor under `vmap`, which the field's annotation does not show.
        further = rank - len(before) - len(names)
        return None if further < 0 else (*(None,) * further, *before, *names)


NO_NAMES = AxisNames()


class Sharded:
    """Logical names for the axes of an array, in a field's annotation: `Annotated[Float[Array, "in out"],
    Sharded("embed", "mlp")]`.

    Args:
        names: a name for each axis, or None for an axis that is never divided. With `...` at the end they name leading
            axes, before the axes that the fields inside declare: `Annotated[Block, Sharded("layers", ...)]`.

    Raises:
        StaticError: if a name is no text, or `...` is not the last.

    >>> Sharded("embed", "mlp"), Sharded("layers", ...)
    (Sharded('embed', 'mlp'), Sharded('layers', ...))
    """

    __slots__ = ("axes",)

    def __init__(self, *names: str | EllipsisType | None):
        own = names[:-1] if names and names[-1] is ... else names
        wrong: list[Any] = [name for name in own if name is not None and not isinstance(name, str)]
        if wrong:
            raise StaticError(
                f"a logical axis has a name or None, not {wrong[0]!r}",
                fix='write Sharded("embed", "mlp"), or Sharded("layers", ...) for axes in front',
            )
        texts = tuple(name for name in own if name is None or isinstance(name, str))
        self.axes = AxisNames(names=texts) if len(own) == len(names) else AxisNames(before=texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sharded) and self.axes == other.axes

    def __hash__(self) -> int:
        return hash(self.axes)

    def __repr__(self) -> str:
        if self.axes.names is None:
            return f"Sharded({', '.join(map(repr, self.axes.before))}, ...)"
        return f"Sharded({', '.join(map(repr, self.axes.names))})"
