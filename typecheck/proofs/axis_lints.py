"""Axes: what each axis of a value in a jaxpr is made of, and how jaxprs are read for that.

An axis is the *atoms* it is made of, outermost first: a dim has one, an axis that a reshape merged has several, and the
part of a dim that was split off is an atom of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jax.extend.core import Literal as Literal_

Atoms = tuple[tuple[str, int], ...]
One = Literal["given", "kept", "asked", "promoted"]


@dataclass(frozen=True)
class Axis:
    """One axis of a value.

    Attributes:
        atoms: what it is made of, as (name, size), outermost first.
        real: whether the value varies along it; a broadcast does not.
        one: for an axis of size 1, or broadcast from one, how it came to be: given by an annotation or an operation,
            kept by a reduction, asked for by indexing with `None`, or promoted silently.
    """

    atoms: Atoms
    real: bool = True
    one: One = "given"

    @property
    def size(self) -> int:
        """Its size."""
        return math.prod(size for _, size in self.atoms)


Axes = tuple[Axis, ...]


def crossings(left: Axes, right: Axes) -> Iterator[tuple[int, int]]:
    """Pairs of axes (i, j) of one dim, i real in the left operand only and j in the right one only."""
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        for j, (c, d) in enumerate(zip(left, right, strict=True)):
            varies = i != j and a.real and a.atoms and not (b.real and b.atoms)
            if varies and d.real and d.atoms and not (c.real and c.atoms) and a.atoms == d.atoms and a.atoms[0][0]:
                yield i, j


def nobody_asked(one: One, other: One) -> bool:
    """Whether two broadcast axes meet by accident: one promoted silently, or asked for, against one that was there."""
    ways = {one, other}
    return ways in ({"promoted", "given"}, {"promoted", "kept"}, {"asked", "given"})


def regroup(atoms: Sequence[tuple[str, int]], shape: Sequence[int]) -> list[tuple[tuple[str, int], ...]] | None:
    """The atoms of each axis of a reshape in memory order, or None if an axis would cut across atoms.

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
    """How the axes of a gather's result come about.

    Attributes:
        kept: by axis of the result, those of the operand that are taken whole.
        indexed: by axis of the result, those of the indices.
        looked_up: the axes of the operand that the indices go along.
    """

    kept: Mapping[int, Axis]
    indexed: Mapping[int, Axis]
    looked_up: tuple[Axis, ...]


def gathering(eqn: Any, operand: Axes, indices: Axes) -> Gathering:
    """The axes of a gather's result."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(len(operand)) if axis not in gone]
    kept = {
        place: operand[axis]
        for place, axis in zip(numbers.offset_dims, windows, strict=True)
        if sizes[axis] == operand[axis].size
    }
    places = [axis for axis in range(len(shape_of(eqn.outvars[0]))) if axis not in numbers.offset_dims]
    return Gathering(
        kept, dict(zip(places, indices[:-1], strict=True)), tuple(operand[axis] for axis in numbers.start_index_map)
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
    """The jaxpr of an operation that is one call of it with the same operands."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(key)
        inner = getattr(inner, "jaxpr", inner)
        if inner is not None and hasattr(inner, "eqns") and eqn.primitive.name not in ("scan", "while"):
            same = [shape_of(var) for var in inner.invars] == [shape_of(var) for var in eqn.invars]
            return inner if same and len(inner.outvars) == len(eqn.outvars) else None
    return None


def nested_jaxprs(eqn: Any) -> Iterator[tuple[str, Any]]:
    for key, value in eqn.params.items():
        for one in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(one, "jaxpr", one)
            if hasattr(inner, "eqns"):
                yield key, inner


def declared_atoms(sizes: Mapping[str, int], products: Sequence[Sequence[str]]) -> dict[int, Atoms]:
    """What an axis of a size is made of, by the names of the dims and the products that annotations write."""
    atoms: dict[int, Atoms] = {}
    for name, size in sizes.items():
        if size > 1:
            # Of an array of any shape nothing is known; the nameless are never complained of.
            atoms.setdefault(size, (("" if "..." in name else name, size),))
    for product in products:
        if all(sizes.get(name, 1) > 1 for name in product):
            atoms.setdefault(math.prod(sizes[name] for name in product), tuple((name, sizes[name]) for name in product))
    return atoms


def orders(operand: Axes) -> Iterator[list[tuple[str, int]]]:
    """The atoms of all axes in a row; those of `c*r*r`, which speaks of a number and not of an order, in any order."""
    ways = [
        dict.fromkeys(itertools.permutations(axis.atoms))
        if len(set(axis.atoms)) < len(axis.atoms) <= 4
        else (axis.atoms,)
        for axis in operand
    ]
    for order in itertools.islice(itertools.product(*ways), 24):
        yield [atom for atoms in order for atom in atoms]
