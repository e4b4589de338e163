"""Threaded parts as functions of transforms: `weft.scan(weft.remat(t.blocks))(x)` inside of a `thread` block.

What a part is inside of a transform, and how its successor comes out and back into the block, is in
`core.threads.functions`: it is a function that is a tree, which every transform takes, and it returns
`Returned(value, successor)`. Left to do for each transform is to say where the successor rides, or to make room for
it; that is here, and in the options that the transforms' own files pass. A transform that has no way for a successor
refuses parts (`refuse_threaded`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from weft.core.edge import trees
from weft.core.edge.untyped import is_tuple, jax
from weft.core.errors import WeftError
from weft.core.interpreter.rides import Carry
from weft.core.paths import Path
from weft.core.records.leaves import is_array
from weft.core.records.partition import update
from weft.core.records.statics import Static
from weft.core.records.successors import part_of, with_part
from weft.core.threads.blocks import Block, unguarded
from weft.core.threads.functions import Part, Returned, ThreadedFunction, value_of
from weft.core.threads.proxies import threaded_function
from weft.transforms._wrap import by_position

# From a function to one.
Apply = Callable[[Callable[..., Any]], Callable[..., Any]]


def call_part(part: Part, *args: Any, **kwargs: Any) -> Returned:
    """A part as a function of it; the same function for all parts, so that what is compiled for one is found again."""
    return part(*args, **kwargs)


# --- derivatives: the successor is auxiliary output ------------------------------------------------------------------


def _with_auxiliary(has_aux: Static, part: Part, *args: Any, **kwargs: Any) -> Any:
    value, successor = part(*args, **kwargs)
    if has_aux.value and is_tuple(value) and len(value) == 2:
        return value[0], Returned(value[1], successor)
    # If there should be auxiliary output and is none, the transform says so.
    return value if has_aux.value else (value, Returned(None, successor))


def differentiated(transform: Apply, *, has_aux: bool, with_value: bool) -> Apply:
    """A derivative of parts, given the same one with `has_aux`."""

    def of_part(part: Callable[..., Any]) -> Callable[..., Any]:
        function = transform(jax.tree_util.Partial(_with_auxiliary, Static(has_aux), part))

        def run(*args: Any, **kwargs: Any) -> Returned:
            if with_value:
                (value, (aux, successor)), gradient = function(*args, **kwargs)
                return Returned(((value, aux) if has_aux else value, gradient), successor)
            gradient, (aux, successor) = function(*args, **kwargs)
            return Returned((gradient, aux) if has_aux else gradient, successor)

        return run

    return of_part


# --- scan: the record is scanned over --------------------------------------------------------------------------------

_NO_OUTPUTS = Static("no outputs beside the carry")


def _carry_and_outputs(carried: Static, part: Part, *args: Any, **kwargs: Any) -> Returned:
    value, successor = part(*args, **kwargs)
    # A carry may be a pair itself; what tells it from (carry, outputs) is that it is made like the first carry.
    like = trees.structure(args[carried.value])
    if is_tuple(value) and len(value) == 2 and trees.structure(value) != like:
        return Returned(value, successor)
    return Returned((value, _NO_OUTPUTS), successor)


def scanned(make: Callable[[Any, Any], Apply], in_axes: Any, out_axes: Any, default: Any) -> Apply:
    """scan of parts.

    Args:
        make: from `in_axes` and `out_axes` to a scan whose function's own arrays are scanned over, on their leading
        axis.
        in_axes, out_axes: the user's.
        default: what these are if the user says nothing.
    """

    def of_part(part: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Returned:
            if kwargs:
                args, kwargs = by_position(part, args, kwargs)
            axes = (Carry,) if in_axes == default and len(args) == 1 else in_axes
            carried = [i for i, axis in enumerate(axes) if axis is Carry] if is_tuple(axes) else []
            if out_axes != default or len(carried) != 1:
                return make(axes, Returned(out_axes, 0))(part)(*args, **kwargs)
            function = jax.tree_util.Partial(_carry_and_outputs, Static(carried[0]), part)
            (carry, outputs), successor = make(axes, Returned((Carry, 0), 0))(function)(*args, **kwargs)
            return Returned(carry if outputs == _NO_OUTPUTS else (carry, outputs), successor)

        return run

    return of_part


# --- branches: the records are operands, and what one branch changes every branch returns ----------------------------


class _Place(NamedTuple):
    """A record that branches are given: where it is."""

    block: Block
    path: Path


def _outermost(functions: Sequence[ThreadedFunction]) -> list[_Place]:
    """The records that hold those of all functions, none inside of another."""
    places = {(id(f.block), f.path): _Place(f.block, f.path) for f in functions}
    return [place for place in places.values() if not any(_inside(place, other) for other in places.values())]


def _inside(place: _Place, other: _Place) -> bool:
    longer = len(place.path) > len(other.path)
    return place.block is other.block and longer and place.path[: len(other.path)] == other.path


class _Branch:
    """A function of (records, *operands) that returns its value, and what is new in the records."""

    def __init__(self, function: Callable[..., Any], places: Sequence[_Place]):
        self.threaded = threaded_function(function)
        self.function = function
        self.places = places
        self.__name__ = str(getattr(self.threaded or function, "__name__", type(function).__name__))

    def _run(self, records: tuple[Any, ...], operands: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        threaded = self.threaded
        if threaded is None:
            return self.function(*operands), records
        here = _Place(threaded.block, threaded.path)
        index = next(i for i, place in enumerate(self.places) if place == here or _inside(here, place))
        inner = here.path[len(self.places[index].path) :]
        record = records[index]
        for part in inner:
            record = part_of(record, part)
        value, successor = threaded.pure(record, operands, {})
        if successor is None:
            return value, records
        new = with_part(records[index], inner, update(record, successor), lenient=True)
        return value, (*records[:index], new, *records[index + 1 :])

    def learn(self, records: tuple[Any, ...], *operands: Any) -> frozenset[int]:
        """Which leaves of the records the branch changes, by one abstract evaluation."""
        changed: set[int] = set()

        def run(leaves: list[Any]) -> list[Any]:
            rebuilt = unflatten(leaves)
            value, after = self._run(*rebuilt)
            pairs = zip(trees.flatten(rebuilt[0])[0], trees.flatten(after)[0], strict=True)
            changed.update(i for i, (was, now) in enumerate(pairs) if was is not now and is_array(now))
            return [leaf for leaf in trees.flatten(value)[0] if is_array(leaf)]

        leaves, unflatten = _arrays((records, operands))
        jax.eval_shape(run, leaves)
        return frozenset(changed)

    def changing(self, positions: Sequence[int]) -> Callable[..., Returned]:
        """The branch, returning the leaves at these positions."""

        def run(records: tuple[Any, ...], *operands: Any) -> Returned:
            value, after = self._run(records, operands)
            leaves = trees.flatten(after)[0]
            return Returned(value, tuple(leaves[i] for i in positions))

        run.__name__ = run.__qualname__ = self.__name__
        return run


def _arrays(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    leaves, treedef = trees.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]

    def rebuild(arrays: list[Any]) -> Any:
        row = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            row[i] = array
        return treedef.unflatten(row)

    return [leaves[i] for i in places], rebuild


def has_parts(functions: Sequence[Callable[..., Any]]) -> bool:
    """Whether there is a part of a threaded record among functions."""
    return any(threaded_function(function) is not None for function in functions)


def choose_among_parts(choose: Callable[..., Any], functions: Sequence[Callable[..., Any]], operands: Any) -> Any:
    """Calls one of several functions, some of them parts, and writes back what it changes.

    Args:
        choose: calls one of the functions that it is given, `choose(functions, *operands)`.
        functions: the user's.
        operands: the user's.
    """
    threaded = [found for function in functions if (found := threaded_function(function)) is not None]
    places = _outermost(threaded)
    records = tuple(place.block.get(place.path) for place in places)
    operands = tuple(map(value_of, operands))
    branches = [_Branch(function, places) for function in functions]

    def run() -> tuple[Any, list[int], tuple[Any, ...]]:
        changed = sorted(frozenset[int]().union(*(branch.learn(records, *operands) for branch in branches)))
        value, new = choose([branch.changing(changed) for branch in branches], records, *operands)
        return value, changed, new

    try:
        value, changed, new = unguarded(run)
    except WeftError as error:
        error.rename({"output.value": "output"})
        raise
    leaves, treedef = trees.flatten(records)
    latest = dict(zip(changed, new, strict=True))
    after = cast("tuple[Any, ...]", treedef.unflatten([latest.get(i, leaf) for i, leaf in enumerate(leaves)]))
    for place, was, now in zip(places, records, after, strict=True):
        same = all(a is b for a, b in zip(trees.flatten(was)[0], trees.flatten(now)[0], strict=True))
        if not same:
            place.block.put(place.path, now, by="(...)")
    return value
