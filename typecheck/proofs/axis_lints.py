"""The axes of values in a jaxpr: which dims each axis consists of, and functions that read this off the jaxpr.

An axis consists of *atoms*, outermost first: a dim is one atom, an axis that a reshape merged has several, and a part
that a reshape split off a dim is an atom of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jax.extend.core import Literal as Literal_

Atoms = tuple[tuple[str, int], ...]
Origin = Literal["given", "kept", "asked", "promoted"]


@dataclass(frozen=True)
class Axis:
    """One axis of a value.

    Attributes:
        atoms: the dims and parts of dims that the axis consists of, as (name, size), outermost first.
        real: whether the value varies along the axis; along a broadcast axis it does not.
        origin: how an axis of size 1, or one broadcast from it, came to be: "given" by an annotation or an operation,
            "kept" by a reduction, "asked" for by indexing with `None`, or "promoted": added by silent rank promotion.
    """

    atoms: Atoms
    real: bool = True
    origin: Origin = "given"

    @property
    def size(self) -> int:
        """The number of elements along the axis."""
        return math.prod(size for _, size in self.atoms)


Axes = tuple[Axis, ...]


def crossings(first: Axes, second: Axes) -> Iterator[tuple[int, int]]:
    """Pairs of axes (i, j) of the same dim, where only the first operand varies along i and only the second along j."""
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        for j, (c, d) in enumerate(zip(first, second, strict=True)):
            # `(b, 1) - (b,)`: only the first varies along axis 0, only the second along axis 1, and both axes are `b`.
            # Axes whose name is empty are of arrays without a shape, of which nothing is known.
            varies = i != j and a.real and a.atoms and not (b.real and b.atoms)
            if varies and d.real and d.atoms and not (c.real and c.atoms) and a.atoms == d.atoms and a.atoms[0][0]:
                yield i, j


def nobody_asked(origin: Origin, other_origin: Origin) -> bool:
    """Whether two axes of size 1 meet by accident: promotion or `None` added one of them, and a value had the other."""
    # `x[:, None] * x` pairs an axis asked for with a promoted one, `sq + sq.T` two that a reduction kept: both mean all
    # pairs. `x @ w - y[None]`, where `w` has one column, does not.
    ways = {origin, other_origin}
    return ways in ({"promoted", "given"}, {"promoted", "kept"}, {"asked", "given"})


def regroup(atoms: Sequence[tuple[str, int]], shape: Sequence[int]) -> list[tuple[tuple[str, int], ...]] | None:
    """The atoms of each axis of a reshaped value, in memory order; None if a new axis would cut across atoms.

    >>> regroup([("b", 5), ("m", 14)], (5, 2, 7))
    [(('b', 5),), (('m/0', 2),), (('m/1', 7),)]
    >>> regroup([("h", 5), ("s", 7)], (7, 5)) is None
    True
    """
    if math.prod(size for _, size in atoms) != math.prod(shape) or 0 in shape:
        return None if 0 not in shape else [() for _ in shape]
    rest = list(atoms)
    pieces: dict[str, int] = {}
    groups: list[tuple[tuple[str, int], ...]] = []
    for size in shape:
        group: list[tuple[str, int]] = []
        while size > 1:
            name, head = rest.pop(0)
            if size % head == 0:
                group.append((name, head))
                size //= head
            elif head % size == 0:
                root = name.partition("/")[0]
                number = pieces.setdefault(root, 0)
                pieces[root] += 1
                group.append((f"{root}/{number}" if root else "", size))
                rest.insert(0, (f"{root}/{number + 1}" if root else "", head // size))
                size = 1
            else:
                return None
        groups.append(tuple(group))
    return groups


@dataclass(frozen=True)
class Gathering:
    """Where the axes of a gather's result come from.

    Attributes:
        whole: for axes of the result, the axes of the operand that the gather takes whole.
        indexed: for axes of the result, the axes of the indices.
        looked_up: the axes of the operand along which the indices select.
    """

    whole: Mapping[int, Axis]
    indexed: Mapping[int, Axis]
    looked_up: tuple[Axis, ...]


def gathering(eqn: Any, operand: Axes, indices: Axes) -> Gathering:
    """Where each axis of a gather's result comes from: from the operand or from the indices."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(len(operand)) if axis not in gone]
    whole = {
        place: operand[axis]
        for place, axis in zip(numbers.offset_dims, windows, strict=True)
        if sizes[axis] == operand[axis].size
    }
    places = [axis for axis in range(len(shape_of(eqn.outvars[0]))) if axis not in numbers.offset_dims]
    return Gathering(
        whole, dict(zip(places, indices[:-1], strict=True)), tuple(operand[axis] for axis in numbers.start_index_map)
    )


def frames(eqn: Any) -> Iterator[tuple[str, str, int]]:
    """File, function and line of the Python frames that an operation was traced in, innermost first."""
    traceback = eqn.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        yield frame.file_name, frame.function_name, frame.line_num


def is_var(atom: Any) -> bool:
    return not isinstance(atom, Literal_)


def shape_of(var: Any) -> tuple[int, ...]:
    return tuple(getattr(var.aval, "shape", ()))


def inner_jaxpr(eqn: Any) -> Any:
    """The jaxpr of an operation that calls it once on the same operands, such as `jit`; else None."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(key)
        inner = getattr(inner, "jaxpr", inner)
        if inner is not None and hasattr(inner, "eqns") and eqn.primitive.name not in ("scan", "while"):
            # A loop calls its body on slices and carries, and other calls may add operands: axes are followed into a
            # call only where operands and results are those of the operation.
            same = [shape_of(var) for var in inner.invars] == [shape_of(var) for var in eqn.invars]
            return inner if same and len(inner.outvars) == len(eqn.outvars) else None
    return None


def nested_jaxprs(eqn: Any) -> Iterator[tuple[str, Any]]:
    for key, value in eqn.params.items():
        for item in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                yield key, inner


def declared_atoms(sizes: Mapping[str, int], products: Sequence[Sequence[str]]) -> dict[int, Atoms]:
    """The atoms of an axis by its size: a dim's name, or the names in a product that an annotation writes."""
    atoms: dict[int, Atoms] = {}
    for name, size in sizes.items():
        if size > 1:
            # An axis of an array without a shape has no name, and the lints warn of named axes only.
            atoms.setdefault(size, (("" if "..." in name else name, size),))
    for product in products:
        if all(sizes.get(name, 1) > 1 for name in product):
            atoms.setdefault(math.prod(sizes[name] for name in product), tuple((name, sizes[name]) for name in product))
    return atoms


def orders(operand: Axes) -> Iterator[list[tuple[str, int]]]:
    """Yields the atoms of all axes in a row, once for each order of an axis that has equal atoms, such as `c*r*r`."""
    # `c*r*r` says how many channels a pixel shuffle takes and not which `r` is the outer one, so no order of them is
    # wrong.
    ways = [
        dict.fromkeys(itertools.permutations(axis.atoms))
        if len(set(axis.atoms)) < len(axis.atoms) <= 4
        else (axis.atoms,)
        for axis in operand
    ]
    for order in itertools.islice(itertools.product(*ways), 24):
        yield [atom for atoms in order for atom in atoms]
