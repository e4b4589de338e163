"""Successors: which part of a call's result is one, which records may follow a record, and which record it belongs to.

The *successor* of a record is the record that a stateful call returns: `y, bn = bn(x)`. By convention it is the last
element of the result, and has the record's own type. It must have the structure of the record that it follows: with
another treedef, shape or dtype it could not be the carry of a loop.

A student and its teacher are records of one class. Weft takes the last record of the model's class that a loss returns
for the model's successor, so a loss that returned the teacher's successor put the teacher's statistics into the
student. A successor has new state, but the same parameter arrays as the record that it follows: these tell where it
comes from (`check_origin`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from weft.core.caches import kept_in
from weft.core.definitions import REDEFINED, another, same_name
from weft.core.edge import trees
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError
from weft.core.makeup import closed_over, globals_read
from weft.core.paths import Path, format_path
from weft.core.records import module
from weft.core.records.agree import describe, differences
from weft.core.records.kinds import FrozenParam, Param
from weft.core.records.leaves import NUMBERS, is_array, iter_leaves, keeps_numbers, part_of
from weft.core.records.storage import fields_of

F = TypeVar("F", bound=Callable[..., Any])


def refuse_pair(value: Any, taker: str) -> None:
    """Refuses the pair that a stateful call returns, where an array is expected.

    Raises:
        SuccessorError: naming the type of the successor in the pair.
    """
    pair = pair_in_words(value)
    if pair is not None:
        raise SuccessorError(f"{taker} takes an array, and this is {pair}", fix=how_to_unpack(value))


def pair_in_words(value: object) -> str | None:
    """`a pair (value, successor of a BatchNorm)`, if a value looks like the result of a stateful call; else None."""
    if type(value) is not tuple or len(cast("tuple[Any, ...]", value)) < 2:
        return None
    *values, last = cast("tuple[Any, ...]", value)
    if not isinstance(last, eqx.Module) or any(isinstance(element, eqx.Module) for element in values):
        return None
    kind = "a pair (value" if len(values) == 1 else "a tuple (value, ..."
    return f"{kind}, successor of a {type(last).__name__})"


def how_to_unpack(value: tuple[Any, ...]) -> str:
    """The fix for using a stateful call's tuple as an array: `take it apart, y, bn = ..., or use thread`."""
    # A name as users write it: `bn` for a BatchNorm, `linear` for a Linear.
    name = type(value[-1]).__name__
    capitals = "".join(letter for letter in name if letter.isupper())
    short = (capitals if len(capitals) > 1 else name).lower()
    names = ", ".join(("y", *(["aux"] * (len(value) - 2)), short))
    return f"take it apart, {names} = ..., or use thread, which puts successors in their places"


def successor_last(method: F) -> F:
    """Declares that a method returns several records of its own type, of which the last is the successor.

    An example is `Keys.fork`: `forked, keys = keys.fork(8)`.
    """
    cast(Any, method).__weft_successor_last__ = True
    return method


def is_successor_last(method: Any) -> bool:
    """Whether a method was declared by `successor_last`."""
    return getattr(method, "__weft_successor_last__", False)


def records_in(tree: PyTree, path: Path = ()) -> Iterator[tuple[Path, eqx.Module]]:
    """Every record in a tree, with its path; a record comes before those inside of it."""
    if isinstance(tree, eqx.Module):
        yield path, tree
    for part, child in _children(tree):
        yield from records_in(child, (*path, part))


def find_records(cls: type[Any], tree: PyTree, path: Path = ()) -> Iterator[tuple[Path, PyTree]]:
    """The outermost records of exactly one type in a tree, with their paths."""
    if type(tree) is cls:
        yield path, tree
        return
    for part, child in _children(tree):
        yield from find_records(cls, child, (*path, part))


def _children(tree: PyTree) -> Iterator[tuple[Any, Any]]:
    # Records and dicts are not flattened by JAX, which refuses a dict with keys of several types: a method may return
    # one.
    if tree is None or is_array(tree):
        return
    if isinstance(tree, eqx.Module):
        for field in dataclasses.fields(cast(Any, tree)):
            if not field.metadata.get("static", False):
                yield field.name, getattr(tree, field.name, None)
    elif isinstance(tree, dict):
        yield from cast("dict[Any, Any]", tree).items()
    else:
        yield from trees.children_by_part(tree)


def is_usual_pair(record: PyTree, result: PyTree) -> bool:
    """Whether a call returned `(array, successor)`, as most do, so that the result need not be searched."""
    if type(result) is not tuple or len(row := cast("tuple[Any, ...]", result)) != 2:
        return False
    return type(row[1]) is type(record) and is_array(row[0])


def take_successor(
    record: PyTree, result: PyTree, where: str, *, method: Any = None, by_hand: tuple[str, str] | None = None
) -> tuple[PyTree, eqx.Module | None]:
    """Splits the result of a method, or of a loss, into the value and the successor of a record.

    Args:
        record: the record that was called, or the model that the loss was called with.
        result: the result of the call.
        where: the call in errors, `Net.bn(...)`.
        method: the method, which may be declared `successor_last`.
        by_hand: how the user reaches the record and calls it there, for errors: `t.bn` and `peek(t.bn)(...)`.

    Returns:
        `(rest, successor)`. Of `(y, successor)` the rest is `y`, of `(y, aux, successor)` it is `(y, aux)`, and of a
        successor alone it is None. Without a successor, the result and None.

    Raises:
        SuccessorError: if a record of this type is not the last element, or there are two.
    """
    cls = cast("type[Any]", type(record))
    if not isinstance(record, eqx.Module):
        return result, None
    if type(result) is cls:
        return None, result
    # The type must be the same: a record of another class, or of a subclass, is a value like any other. And only a
    # plain tuple is unpacked: a named tuple is a value with a meaning of its own.
    row: tuple[Any, ...] = cast("tuple[Any, ...]", result) if cast(Any, type(result)) is tuple else ()
    last = (len(row) - 1,)
    records = dict(find_records(cls, result))
    if not records:
        return result, None
    # A single record in another place is refused too: whether it is the successor or a value would be a guess.
    if set(records) != {last} and not (last in records and is_successor_last(method)):
        raise SuccessorError(
            f"this call returns a {cls.__qualname__} where it may be the successor or a value"
            if len(records) == 1
            else f"this call returns {len(records)} records of its own type, {cls.__qualname__}, of which any may be "
            "the successor",
            at=[f"{where}: returned as {format_path(path, 'result')}" for path in records],
            fix="return (value, successor), with one record of the own type, the last of the tuple"
            + (f"; or take it by hand, y, {by_hand[0]} = {by_hand[1]}, in the call's own order" if by_hand else ""),
        )
    rest = row[:-1]
    return (rest[0] if len(rest) == 1 else rest or None), row[-1]


def with_part(parent: PyTree, path: Path, value: PyTree, *, lenient: bool = False) -> PyTree:
    """A tree of records and containers with another value at a path; the rest is shared with the old tree.

    `lenient` is for a successor that weft puts in place and not the user (see `module.with_fields`). It has the
    structure of the record that it follows, so that the contracts of the records around it still hold and are not
    checked.
    """
    if not path:
        return value
    part: Any = path[0]
    child = with_part(part_of(parent, part), path[1:], value, lenient=lenient)
    if isinstance(parent, eqx.Module):
        if lenient:
            return module.with_fields(parent, {part: child}, lenient=True)
        return module.replaced(parent, {part: child})
    if isinstance(parent, dict):
        items = {**cast("dict[Any, Any]", parent), part: child}
        return items if type(cast(Any, parent)) is dict else type(cast(Any, parent))(items)
    # The constructor of a namedtuple takes its items as arguments, that of a list or tuple takes an iterable.
    row = [*parent[:part], child, *parent[part + 1 :]]
    return type(parent)(*row) if hasattr(parent, "_fields") else type(parent)(row)


def next_value(old: PyTree, new: PyTree) -> PyTree:
    """The value to store for a new one: for a number in the place of an array, an array of the same shape and dtype.

    So `t.count = 0` stores zeros. A number that the dtype cannot hold (0.5 for an integer) is returned unchanged, and
    is refused later.
    """
    if type(new) not in NUMBERS or not is_array(old) or not jnp.issubdtype(old.dtype, jnp.number):
        return new
    return cast(Any, jnp).full_like(old, new) if jnp.result_type(old, new) == old.dtype else new


def check_successor(old: PyTree, new: PyTree, where: str) -> None:
    """Refuses a successor of another type or structure.

    Args:
        old: a record, a container or an array.
        new: the value that would follow it.
        where: the name of the place in errors.

    Raises:
        SuccessorError: naming every path that differs, before and after.
    """
    if type(old) is not type(new) and not (is_array(old) and is_array(new)):
        new_type = cast("type[Any]", type(new))
        # A notebook cell that is run again defines another class of the same name: "the successor of a Net is a Net"
        # says nothing.
        described = f"a {new_type.__qualname__}"
        fix = (
            "a stateful method returns (value, successor of its own record); call a pure method that returns a pair "
            "with another record on the record itself: peek(t.part)(...)"
        )
        if same_name(type(old), new_type):
            described, fix = another(new_type), REDEFINED
        elif pair_in_words(new):
            fix = how_to_unpack(new)
        raise SuccessorError(f"the successor of a {type(old).__qualname__} is {described}", at=where, fix=fix)
    differing = differences(describe(old, ""), describe(new, ""), root=where)
    if differing:
        raise SuccessorError(
            "a successor must have the structure of the record that it follows",
            at=differing,
            fix="keep shapes, dtypes and configuration; make a new record where they must change",
        )


def is_alike(old: PyTree, new: PyTree) -> bool:
    """Whether a successor surely has the structure of the record that it follows. Parts that both share are skipped."""
    if old is new:
        return True
    kind = cast("type[Any]", type(old))
    if kind is not type(new):
        return False
    if is_array(old):
        return jax.typeof(old) == jax.typeof(new)
    if kind is list or kind is tuple:
        return len(old) == len(new) and all(map(is_alike, old, new))
    # Equinox's own records need the full comparison, because treedefs take 1 and True in a static field for equal.
    if not keeps_numbers(kind):
        return False
    was, now = fields_of(old), fields_of(new)
    return was.keys() == now.keys() and False not in [is_alike(was[name], now[name]) for name in was]


# --- which record a successor belongs to ------------------------------------------------------------------------------

# Trees with records, each with its name in errors.
Others = Sequence[tuple[str, PyTree]]


def arguments_by_name(args: Iterable[PyTree], kwargs: Mapping[str, PyTree], names: tuple[str, ...] = ()) -> Others:
    """The arguments of a call with their names in errors: the parameter's name, if that is known."""
    by_position = ((names[i] if i < len(names) else str(i), value) for i, value in enumerate(args))
    return [(f"argument {name}", value) for name, value in (*by_position, *kwargs.items())]


def closed_over_by(function: Callable[..., Any], depth: int = 3) -> Others:
    """The trees in a function's closure and globals, with their names in errors; also those of functions in it.

    `depth` is how many functions deep it searches: a function may lead back to itself, through a global or a partial
    application of it.
    """
    if isinstance(function, functools.partial):
        part = cast("functools.partial[Any]", function)
        return [*closed_over_by(part.func, depth), *arguments_by_name(part.args, part.keywords)]
    function = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(function, FunctionType):
        return []
    named_trees: list[tuple[str, PyTree]] = []
    for name, value in {**globals_read(function), **closed_over(function)}.items():
        if isinstance(value, FunctionType | MethodType | functools.partial):
            named_trees += closed_over_by(cast("Callable[..., Any]", value), depth - 1) if depth else ()
        elif isinstance(value, eqx.Module) or (
            isinstance(value, tuple | list | dict) and len(cast("Sequence[Any]", value)) < 100
        ):
            # A larger container holds data, not models, and would take long to search.
            named_trees.append((f"{name}, which the function closes over", cast(PyTree, value)))
    return named_trees


def check_origin(record: eqx.Module, successor: eqx.Module, others: Others, where: str) -> None:
    """Refuses a successor that belongs to another record than the one that it would follow.

    Args:
        record: the record.
        successor: the record that would follow it.
        others: the other arguments of the function that returned it, and the trees in its closure.
        where: the call in errors.

    Raises:
        SuccessorError: if the successor has parameters of another record and none of `record`.
    """
    if successor is record:
        return
    rivals = [
        (name, rival) for name, value in others for rival in _of_class(type(record), value) if rival is not record
    ]
    if not rivals:
        return
    own, new = _parameters(record), _parameters(successor)
    theirs = [(name, _parameters(rival)) for name, rival in rivals]
    # Parameters that the record shares with a rival, such as a frozen embedding, decide nothing.
    if new & own.difference(*(parameters for _, parameters in theirs)):
        return
    # A successor whose parameters belong to nobody may be a trained copy, which only the user knows: it is accepted.
    foreign = next((name for name, parameters in theirs if new & (parameters - own)), None)
    if foreign is None:
        return
    name = type(record).__qualname__
    raise SuccessorError(
        f"this {name} is not the successor of the {name} that it would follow: it has the parameters of {foreign}, "
        "and none of its",
        at=where,
        fix="return the successor of the record itself, last, and the other as a value, for example in a dict; to go "
        "on with the other's parameters on purpose, copy them: jax.tree.map(jnp.copy, other)",
    )


def _of_class(cls: type[Any], value: PyTree) -> Iterator[eqx.Module]:
    return (record for _, record in records_in(value) if type(record) is cls)


def _parameters(record: eqx.Module) -> set[int]:
    """The ids of a record's parameters, or of all its arrays if it has no parameters."""
    leaves = [leaf for leaf in iter_leaves(record) if leaf.dynamic]
    parameters = [leaf for leaf in leaves if issubclass(leaf.kind, (Param, FrozenParam))]
    return {id(leaf.value) for leaf in parameters or leaves}


# --- the other records of a model's class in a call of grad -----------------------------------------------------------

# `Optimizer.update` gets a successor after the call that returned it has ended. The records of that call's arguments
# are remembered here, weakly, and by id because records have no hash.
_rivals: weakref.WeakValueDictionary[int, eqx.Module] = weakref.WeakValueDictionary()
kept_in("weft.core.records.successors", "identity of a record that is alive", _rivals)


def note_rivals(model: PyTree, others: Others) -> None:
    """Remembers the records of a model's class among the other arguments of a call."""
    if isinstance(model, eqx.Module):
        for _, value in others:
            for rival in _of_class(type(model), value):
                if rival is not model:
                    _rivals[id(rival)] = rival


def rivals_of(model: PyTree) -> Others:
    """The remembered records of a model's class that are still alive, but the model itself."""
    rivals = [rival for rival in list(_rivals.values()) if type(rival) is type(model) and rival is not model]
    return [(f"another {type(rival).__qualname__}, an argument of the same call", rival) for rival in rivals]


# --- gradients, and models that were updated --------------------------------------------------------------------------


class LastArrays:
    """The arrays of the last few trees of some sort, by which `Optimizer.update` tells a gradient from a model.

    Both have the same structure, and a mark in it would break `jax.tree.map` over the two. Arrays are known by
    identity: what a compiled function returns, or a clipped gradient, is unknown, and is then accepted.
    """

    def __init__(self) -> None:
        self._rows: deque[list[weakref.ref[Any]]] = deque(maxlen=8)

    def note(self, arrays: Sequence[Any]) -> None:
        """Remembers the arrays of a tree, weakly."""
        with contextlib.suppress(TypeError):  # Python numbers, and trees of arrays, have no weak reference
            self._rows.append([*map(weakref.ref, arrays)])

    def __contains__(self, array: object) -> bool:
        return any(ref() is array for row in tuple(self._rows) for ref in row)


GRADIENTS, PARAMETERS = LastArrays(), LastArrays()
