"""The lints of axes: warnings about arrays of the right shape whose axes are not what their names say.

They follow each axis through a jaxpr. An axis consists of *atoms*, outermost first. A dim is one atom, and an axis that
a reshape merged has several. A part that a reshape split off a dim is an atom of its own. In a trace at distinct sizes
an axis keeps its atoms through any operation that keeps its size, so only a few primitives need a rule.

`outer-product`: an elementwise operation pairs every element of a dim with every element of the same dim, by accident.
One operand has an axis of size 1, from an annotation, a product or `keepdims`, and the rank of the other was promoted
silently: `(b, 1) - (b,)` is a `(b, b)`.

`swapped-axes`: an update overwrites a slice of an array in which the update's dim belongs to another axis.

`memory-order`: a reshape whose new axes cut across the old ones. `(h, s, c)` reshaped to `(s, h * c)` has the right
shape, and rows that mix the heads of several positions; a transpose was forgotten.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jax.extend.core import Literal as Literal_
from weft.core.edge.equations import inner_jaxprs, opened
from weft.core.edge.names import (
    ASKING,
    ELEMENTWISE,
    FORWARDING,
    INDEXING_FILE,
    KEEPING,
    REDUCTIONS_FILE,
    RESHAPING,
    UNARY,
)
from weft.typecheck.proofs.frames import is_users
from weft.typecheck.proofs.tracing import frames, shape_of

Atoms = tuple[tuple[str, int], ...]
Origin = Literal["given", "kept", "asked", "promoted"]
Rule = Literal["outer-product", "memory-order", "swapped-axes"]


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


def is_var(atom: Any) -> bool:
    return not isinstance(atom, Literal_)


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


@dataclass(frozen=True)
class Warning_:
    """A warning of a lint, with the user's line."""

    rule: Rule
    message: str
    file: str
    line: int


class Lint:
    """Follows the axes of one jaxpr and collects warnings."""

    def __init__(self, declared: Mapping[int, Atoms], own: frozenset[str]):
        self.declared, self.own = declared, own
        self.warnings: list[Warning_] = []
        # The warnings of outer products, by the variables that depend on them. A warning is dropped if its value turns
        # out to be meant: returned as it is, or combined with a value that has both axes.
        self._suspects: dict[Any, tuple[Warning_, ...]] = {}
        # The enclosing calls, outermost first: an operation inside of one may only know lines of a library.
        self._calls: list[Any] = []

    def run(self, closed: Any) -> list[Warning_]:
        """The warnings about a closed jaxpr."""
        jaxpr = closed.jaxpr
        inputs = [self.fresh(var.aval) for var in (*jaxpr.constvars, *jaxpr.invars)]
        results = self._walk(jaxpr, inputs)
        for var, axes in zip(jaxpr.outvars, results, strict=True):
            if is_var(var):
                self._returned(axes)
        # A function that returns all pairs, with an annotation of two axes that holds, means them.
        wanted = {warning for var in jaxpr.outvars if is_var(var) for warning in self._suspects.get(var, ())}
        return [warning for warning in dict.fromkeys(self.warnings) if warning not in wanted]

    def _returned(self, axes: Axes) -> None:
        """Compares a returned axis, merged from dims, with the order of these dims in the annotation's product."""
        for axis in axes:
            declared = self.declared.get(axis.size, ())
            if (
                declared != axis.atoms
                # `r*r` has no order that could be wrong.
                and len(declared) == len(set(declared)) > 1
                and sorted(declared) == sorted(axis.atoms)
            ):
                self._warn(
                    None,
                    "memory-order",
                    f"an axis {self._show((axis,))} is returned where the annotation writes "
                    f"{self._show((Axis(declared),))}: the same dims, merged in another order",
                )

    def fresh(self, aval: Any) -> Axes:
        """The axes of a value of which only the sizes are known: an axis of size 7 is the dim whose size is 7."""
        return tuple(self._axis(size) for size in getattr(aval, "shape", ()))

    def _axis(self, size: int) -> Axis:
        return Axis(() if size == 1 else self.declared.get(size, ((str(size), size),)))

    def _walk(self, jaxpr: Any, inputs: Sequence[Axes]) -> list[Axes]:
        """The axes of the results of a jaxpr, from those of its inputs."""
        env: dict[Any, Axes] = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))

        def read(atom: Any) -> Axes:
            return env[atom] if is_var(atom) else self.fresh(atom.aval)

        for eqn in jaxpr.eqns:
            operands = [read(operand) for operand in eqn.invars]
            for var, axes in zip(eqn.outvars, self._apply(eqn, operands), strict=True):
                # A primitive may do more than its rule knows, such as a reduction that keeps an axis; sizes that do not
                # fit say so, and the result is then read off its sizes alone.
                env[var] = axes if tuple(axis.size for axis in axes) == shape_of(var) else self.fresh(var.aval)
        return [read(var) for var in jaxpr.outvars]

    def _apply(self, eqn: Any, operands: list[Axes]) -> list[Axes]:
        """The axes of the results of one operation, from those of its operands."""
        name = eqn.primitive.name
        if name == "broadcast_in_dim":
            return [self._broadcast(eqn, operands[0])]
        if name == "reshape":
            return [self._reshape(eqn, operands[0])]
        if name == "transpose":
            return [tuple(operands[0][axis] for axis in eqn.params["permutation"])]
        if name == "tile":
            # A tile repeats the whole axis, so the number of the copy is its outermost part.
            repeats = zip(operands[0], eqn.params["reps"], strict=True)
            return [tuple(Axis(((str(n), n), *axis.atoms)) if n > 1 else axis for axis, n in repeats)]
        if name == "squeeze":
            gone = eqn.params["dimensions"]
            return [tuple(axis for number, axis in enumerate(operands[0]) if number not in gone)]
        if name in UNARY:
            self._pass_on(eqn)
            return [operands[0]]
        if name in ELEMENTWISE:
            return [self._elementwise(eqn, operands)]
        if name.startswith(("reduce_", "arg")) and "axes" in eqn.params:
            gone = eqn.params["axes"]
            return [tuple(axis for number, axis in enumerate(operands[0]) if number not in gone) for _ in eqn.outvars]
        if name == "dot_general":
            self._contraction(eqn, operands)
        if name == "gather":
            return [self._gather(eqn, *operands)]
        if name == "dynamic_update_slice":
            self._update(eqn, operands[0], operands[1])
            return [operands[0]]
        if name == "concatenate":
            return [self._concatenate(eqn, operands)]
        inner = inner_jaxpr(eqn)
        if inner is not None:
            return self._call(eqn, inner, operands)
        # Loops and branches: a body is walked for its own warnings, and the results are told by their sizes.
        for nested in map(opened, inner_jaxprs(eqn.params)):
            self._walk(nested, [self.fresh(var.aval) for var in (*nested.constvars, *nested.invars)])
        return [self._inherit(shape_of(var), operands) for var in eqn.outvars]

    def _call(self, eqn: Any, inner: Any, operands: list[Axes]) -> list[Axes]:
        # Suspects are carried into the call and out of it. `jnp` functions are jitted, so an outer product that was
        # made outside may be combined, inside, with the value that shows that it was meant.
        for var, outer in zip(inner.invars, eqn.invars, strict=True):
            if is_var(outer) and outer in self._suspects:
                self._suspects[var] = self._suspects[outer]
        self._calls.append(eqn)
        results = self._walk(inner, [*(self.fresh(var.aval) for var in inner.constvars), *operands])
        self._calls.pop()
        for var, result in zip(eqn.outvars, inner.outvars, strict=True):
            if is_var(result) and result in self._suspects:
                self._suspects[var] = self._suspects[result]
        return results

    def _inherit(self, shape: tuple[int, ...], operands: Iterable[Axes]) -> Axes:
        """The axes of a result, recognised by their sizes: in a trace at distinct sizes, each size names its origin."""
        known: dict[int, set[tuple[tuple[str, int], ...]]] = {}
        for axes in operands:
            for axis in axes:
                known.setdefault(axis.size, set()).add(axis.atoms)
        return tuple(
            Axis(next(iter(known[size]))) if len(known.get(size, ())) == 1 else self._axis(size) for size in shape
        )

    def _broadcast(self, eqn: Any, operand: Axes) -> Axes:
        """The axes of a broadcast value: those of the operand, and new ones along which it does not vary."""
        source = dict(zip(eqn.params["broadcast_dimensions"], operand, strict=True))
        self._pass_on(eqn)
        how = self._how(eqn)
        result: list[Axis] = []
        for axis, size in enumerate(eqn.params["shape"]):
            known = source.get(axis)
            if known is None:
                result.append(dataclasses.replace(self._axis(size), real=False, origin=how))
            elif known.size == size:
                result.append(known)
            else:
                # The axis was of size 1, and keeps how it came to be there: that decides whether a pairing was asked
                # for.
                result.append(dataclasses.replace(self._axis(size), real=False, origin=known.origin))
        return tuple(result)

    def _how(self, eqn: Any) -> Origin:
        """How an axis of size 1 came to be, by the library functions that the user's line called."""
        called = self._called(eqn)
        functions = {function for _, function in called}
        if any(file.endswith(REDUCTIONS_FILE) for file, _ in called) or functions & KEEPING:
            return "kept"
        if any(INDEXING_FILE in file for file, _ in called) or functions & ASKING:
            return "asked"
        return "promoted"

    def _called(self, eqn: Any) -> list[tuple[str, str]]:
        """File and name of the library functions that the user's innermost line called, innermost first."""
        called: list[tuple[str, str]] = []
        for file, function, _ in frames(eqn):
            if is_users(file, self.own):
                break
            if not function.startswith(FORWARDING):
                called.append((file, function.rpartition(".")[2]))
        return called

    def _warn(self, eqn: Any, rule: Rule, message: str) -> Warning_:
        """Adds a warning with the user's innermost line, of an operation or of the calls around it."""
        around = (
            frame for equation in (eqn, *reversed(self._calls)) if equation is not None for frame in frames(equation)
        )
        place = next(((file, line) for file, _, line in around if is_users(file, self.own)), ("", 0))
        warning = Warning_(rule, message, *place)
        self.warnings.append(warning)
        return warning

    def _elementwise(self, eqn: Any, operands: list[Axes]) -> Axes:
        """The axes of an elementwise result; warns if the operands pair a dim with itself."""
        shape = shape_of(eqn.outvars[0])
        full = [axes for axes in operands if len(axes) == len(shape)]
        suspects = tuple(warning for var in eqn.invars if is_var(var) for warning in self._suspects.get(var, ()))
        if suspects and any(
            all(axis.real and axis.atoms for axis in axes) and not self._suspects.get(var, ())
            for var, axes in zip(eqn.invars, operands, strict=True)
            if is_var(var) and len(axes) == len(shape) and len(axes) > 1
        ):
            # A value that has both axes by itself, such as a mask of pairs, shows that the outer product was meant.
            self.warnings = [warning for warning in self.warnings if warning not in suspects]
            suspects = ()
        new = self._outer_product(eqn, full)
        suspects += () if new is None else (new,)
        if suspects:
            self._suspects[eqn.outvars[0]] = suspects
        return tuple(self._join([axes[axis] for axes in full], size) for axis, size in enumerate(shape))

    def _join(self, axes: list[Axis], size: int) -> Axis:
        """An axis of an elementwise result, from that axis of its operands."""
        fitting = [axis for axis in axes if axis.size == size]
        # A broadcast operand says nothing of the axis if another operand varies along it.
        real = [axis for axis in fitting if axis.real]
        known = {axis.atoms for axis in real or fitting}
        if len(known) == 1:
            return (real or fitting)[0]
        return dataclasses.replace(self._axis(size), real=bool(real))

    def _pass_on(self, eqn: Any) -> None:
        """Makes the result of an operation depend on the warnings that its operands depend on."""
        for var in eqn.invars:
            if is_var(var) and var in self._suspects:
                self._suspects[eqn.outvars[0]] = self._suspects[var]

    def _outer_product(self, eqn: Any, operands: list[Axes]) -> Warning_ | None:
        """The warning of a dim that is paired with itself by accident; None if there is none."""
        for number, first in enumerate(operands):
            for second in operands[number + 1 :]:
                for i, j in crossings(first, second):
                    name = first[i].atoms[0][0]
                    if not nobody_asked(second[i].origin, first[j].origin):
                        continue
                    shapes = " with ".join(self._show(axes, only_real=True) for axes in (first, second))
                    return self._warn(
                        eqn,
                        "outer-product",
                        f"{eqn.primitive.name} of {shapes} pairs every {name} with every {name}; "
                        f"if that is not meant, give both the same axes",
                    )
        return None

    def _gather(self, eqn: Any, operand: Axes, indices: Axes) -> Axes:
        """Warns of `x[:, i]` with axes (b, c) and (b,): it pairs every b with every b, unlike `x[arange(b), i]`."""
        numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
        shape = shape_of(eqn.outvars[0])
        gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        windows = [axis for axis in range(len(operand)) if axis not in gone]
        # Of the result's axes, those that the operand gives whole, and those that the indices give.
        whole = {
            place: operand[axis]
            for place, axis in zip(numbers.offset_dims, windows, strict=True)
            if sizes[axis] == operand[axis].size
        }
        places = [axis for axis in range(len(shape)) if axis not in numbers.offset_dims]
        indexed = dict(zip(places, indices[:-1], strict=True))
        # `distances[:, order]` permutes an axis by indices of its own dim, which pairs nothing.
        looked_up = {operand[axis].atoms for axis in numbers.start_index_map}
        pairs = itertools.product(whole.values(), indexed.values())
        names = [kept.atoms[0][0] for kept, index in pairs if kept.atoms and kept.atoms == index.atoms not in looked_up]
        if names and not names[0].isdigit() and names[0]:
            warning = self._warn(
                eqn,
                "outer-product",
                f"indexing of {self._show(operand)} with {self._show(indices[:-1])} pairs every {names[0]} with every "
                f"{names[0]}; if that is not meant, index both axes",
            )
            self._suspects[eqn.outvars[0]] = (warning,)
        # `take_along_axis` needs an axis of size 1 in its indices. In the result nobody asked for that axis, as after
        # `keepdims=True`.
        known = {
            **whole,
            **{n: dataclasses.replace(axis, origin="kept") if axis.size == 1 else axis for n, axis in indexed.items()},
        }
        return tuple(known.get(axis, self._axis(size)) for axis, size in enumerate(shape))

    def _update(self, eqn: Any, operand: Axes, update: Axes) -> None:
        """Warns of an update that is written along one axis while its dim is that of another axis of the array."""
        for i, written in enumerate(update):
            atoms = written.atoms
            homes = [j for j, axis in enumerate(operand) if axis.atoms == atoms and atoms and atoms[0][0]]
            if homes and i not in homes and all(update[j].atoms != atoms for j in homes):
                self._warn(
                    eqn,
                    "swapped-axes",
                    f"an update {self._show(update)} is written into {self._show(operand)}: "
                    f"its {self._show((written,))[1:-1]} lies along another axis there",
                )

    def _reshape(self, eqn: Any, operand: Axes) -> Axes:
        """The axes of a reshaped value; warns of a reshape that cuts across the axes of its operand."""
        shape = eqn.params["new_sizes"]
        atoms = [atom for axis in operand for atom in axis.atoms]
        if math.prod(size for _, size in atoms) != math.prod(shape):
            return self.fresh(eqn.outvars[0].aval)
        regrouped = next(
            (axes for axes in (regroup(order, shape) for order in orders(operand)) if axes is not None), None
        )
        if regrouped is not None:
            how = self._how(eqn)
            return tuple(Axis(group, origin=how) for group in regrouped)
        called = self._called(eqn)
        if called and called[-1][1] in RESHAPING and all(name for name, _ in atoms):
            result = self.fresh(eqn.outvars[0].aval)
            self._warn(
                eqn,
                "memory-order",
                f"reshape of {self._show(operand)} to {self._show(result)} cuts across the axes in memory order; "
                f"transpose first, so that the axes to merge are adjacent",
            )
        return self.fresh(eqn.outvars[0].aval)

    def _contraction(self, eqn: Any, operands: list[Axes]) -> None:
        """Warns of two axes that are summed over together and have the same atoms in different orders."""
        ((first, second), _) = eqn.params["dimension_numbers"]
        for i, j in zip(first, second, strict=True):
            axes = operands[0][i], operands[1][j]
            mine, theirs = (axis.atoms for axis in axes)
            if mine != theirs and len(mine) > 1 and sorted(mine) == sorted(theirs):
                self._warn(
                    eqn,
                    "memory-order",
                    f"{eqn.primitive.name} joins an axis {self._show(axes[:1])} with an axis {self._show(axes[1:])}: "
                    f"the same dims, merged in another order",
                )

    def _concatenate(self, eqn: Any, operands: list[Axes]) -> Axes:
        """The axes of a concatenation; of equal pieces, the number of the piece is the outermost atom."""
        dimension, shape = eqn.params["dimension"], shape_of(eqn.outvars[0])
        pieces = {axes[dimension].atoms for axes in operands}
        axes = list(self._inherit(shape, operands))
        if len(pieces) == 1 and len(operands) > 1:
            (atoms,) = pieces
            axes[dimension] = Axis(((f"{len(operands)}", len(operands)), *atoms))
        return tuple(axes)

    def _show(self, axes: Axes, only_real: bool = False) -> str:
        """Axes as text, `(b, h*c)`; with `only_real`, a broadcast axis is shown as the 1 that it was."""

        def word(axis: Axis) -> str:
            if not axis.atoms or (only_real and not axis.real):
                return "1"
            return "*".join(name or str(size) for name, size in axis.atoms)

        return f"({', '.join(map(word, axes))})"
