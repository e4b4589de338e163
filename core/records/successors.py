"""Successors: how one is told from the other things that a call returns, what may follow a record, and how it is put in
its place.

The *successor* of a record is the record that a stateful call returns: `y, bn = bn(x)`. By convention it is what is
returned last, and it is of the record's own type. It must have the structure of what it follows, treedef, shapes and
dtypes, or it could not be carried through a loop or a compiled step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from weft.core.definitions import REDEFINED, another, same_name
from weft.core.edge import trees
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError
from weft.core.paths import Path, format_path, key_part
from weft.core.records import module
from weft.core.records.agree import describe, differences
from weft.core.records.leaves import NUMBERS, is_array, keeps_numbers
from weft.core.records.pending import fields_of

F = TypeVar("F", bound=Callable[..., Any])


def refuse_pair(value: Any, taker: str) -> None:
    """Refuses what a stateful call returns, whole, where its value is meant.

    Raises:
        SuccessorError: naming the record that the successor is one of.
    """
    pair = pair_in_words(value)
    if pair is not None:
        raise SuccessorError(f"{taker} takes an array, and this is {pair}", fix=apart(value))


def pair_in_words(value: object) -> str | None:
    """`a pair (value, successor of a BatchNorm)`, if a value is what a stateful call returns."""
    if type(value) is not tuple or len(cast("tuple[Any, ...]", value)) < 2:
        return None
    *values, last = cast("tuple[Any, ...]", value)
    if not isinstance(last, eqx.Module) or any(isinstance(one, eqx.Module) for one in values):
        return None
    kind = "a pair (value" if len(values) == 1 else "a tuple (value, ..."
    return f"{kind}, successor of a {type(last).__name__})"


def apart(value: tuple[Any, ...]) -> str:
    """How to take such a tuple apart: `take it apart, y, bn = ..., or use thread`."""
    name = type(value[-1]).__name__
    capitals = "".join(letter for letter in name if letter.isupper())
    short = (capitals if len(capitals) > 1 else name).lower()
    names = ", ".join(("y", *(["aux"] * (len(value) - 2)), short))
    return f"take it apart, {names} = ..., or use thread, which keeps successors by itself"


def successor_last(method: F) -> F:
    """Declares that of several records of its own type that a method returns the last is the successor.

    `Keys.fork` is one: `forked, keys = keys.fork(8)`.
    """
    cast(Any, method).__weft_successor_last__ = True
    return method


def is_successor_last(method: Any) -> bool:
    """Whether a method was declared so."""
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
    # Not by JAX where it can be helped: a dict with keys of several types cannot be flattened, but may be returned.
    if tree is None or is_array(tree):
        return
    if isinstance(tree, eqx.Module):
        for field in dataclasses.fields(cast(Any, tree)):
            if not field.metadata.get("static", False):
                yield field.name, getattr(tree, field.name, None)
    elif isinstance(tree, dict):
        yield from cast("dict[Any, Any]", tree).items()
    else:
        level = trees.flatten_one_level(tree)
        yield from () if level is None else ((key_part(key), child) for key, child in level[0])


def is_usual_pair(record: PyTree, result: PyTree) -> bool:
    """Whether a call returned what most do, `(array, successor)`: nothing that would have to be searched."""
    if type(result) is not tuple or len(row := cast("tuple[Any, ...]", result)) != 2:
        return False
    return type(row[1]) is type(record) and is_array(row[0])


def take_successor(
    record: PyTree, result: PyTree, where: str, *, method: Any = None, by_hand: tuple[str, str] | None = None
) -> tuple[PyTree, eqx.Module | None]:
    """Takes the successor of a record out of what a call returned: one of its methods, or a loss.

    Args:
        record: what was called, or given.
        result: what the call returned.
        where: the call in errors, `Net.bn(...)`.
        method: the method, which may be declared `successor_last`.
        by_hand: how the user reaches the record and calls it there, for errors: `t.bn` and `peek(t.bn)(...)`.

    Returns:
        `(rest, successor)`. Of `(y, successor)` the rest is `y`, of `(y, aux, successor)` it is `(y, aux)`, and of a
        successor alone it is None. Without a successor, the result and None.

    Raises:
        SuccessorError: if a successor is anywhere else than at the end, or there may be two.
    """
    cls = cast("type[Any]", type(record))
    if not isinstance(record, eqx.Module):
        return result, None
    if type(result) is cls:
        return None, result
    # Of exactly its type: a record of another class, or of a subclass, is a value like any other.
    # Of the tuple type itself: a named tuple is a value with a meaning of its own.
    row: tuple[Any, ...] = cast("tuple[Any, ...]", result) if cast(Any, type(result)) is tuple else ()
    last = (len(row) - 1,)
    found = dict(find_records(cls, result))
    if not found:
        return result, None
    # Even one is refused elsewhere: to take it for the successor or for a value would both be guesses.
    if set(found) != {last} and not (last in found and is_successor_last(method)):
        raise SuccessorError(
            f"this call returns a {cls.__qualname__} where nobody can tell that it is the successor"
            if len(found) == 1
            else f"this call returns {len(found)} records of its own type, {cls.__qualname__}, of which any may be the "
            "successor",
            at=[f"{where}: returned as {format_path(path, 'result')}" for path in found],
            fix="return (value, successor), with one record of the own type, the last of the tuple"
            + (f"; or take it by hand, y, {by_hand[0]} = {by_hand[1]}, in the call's own order" if by_hand else ""),
        )
    rest = row[:-1]
    return (rest[0] if len(rest) == 1 else rest or None), row[-1]


def part_of(parent: PyTree, part: Any) -> PyTree:
    """One step along a path: a record's field, or a container's item."""
    # The items of a namedtuple have names in paths.
    if isinstance(parent, eqx.Module) or (isinstance(part, str) and hasattr(parent, "_fields")):
        return getattr(cast(Any, parent), part)
    return parent[part]


def with_part(parent: PyTree, path: Path, value: PyTree, *, lenient: bool = False) -> PyTree:
    """A tree of records and containers with another value at a path; everything off the path is shared.

    `lenient` is for what the user has not written down (see `module.with_fields`): a successor, which is checked to be
    made like what it follows, so that the contracts of the records around it hold as they did.
    """
    if not path:
        return value
    part: Any = path[0]
    child = with_part(part_of(parent, part), path[1:], value, lenient=lenient)
    if isinstance(parent, eqx.Module):
        return (
            module.with_fields(parent, {part: child}, lenient=True)
            if lenient
            else module.replaced(parent, {part: child})
        )
    if isinstance(parent, dict):
        items = {**cast("dict[Any, Any]", parent), part: child}
        return items if type(cast(Any, parent)) is dict else type(cast(Any, parent))(items)
    row = [*parent[:part], child, *parent[part + 1 :]]
    return type(parent)(*row) if hasattr(parent, "_fields") else type(parent)(row)


def next_value(old: PyTree, new: PyTree) -> PyTree:
    """What follows an array where a number is put in its place: after `t.count = 0` zeros of its shape and dtype.

    A number that the dtype cannot hold stays itself, to be refused: 0.5 in the place of an integer.
    """
    if type(new) not in NUMBERS or not is_array(old) or not jnp.issubdtype(old.dtype, jnp.number):
        return new
    return jnp.full_like(old, new) if jnp.result_type(old, new) == old.dtype else new


def check_successor(old: PyTree, new: PyTree, where: str) -> None:
    """Refuses a successor of another type or structure.

    Args:
        old: a record, a container or an array.
        new: what shall follow it.
        where: what to call the place in an error.

    Raises:
        SuccessorError: naming every path that differs, before and after.
    """
    if type(old) is not type(new) and not (is_array(old) and is_array(new)):
        found = cast("type[Any]", type(new))
        # A notebook's cell that was run again makes another class of the same name, and the message would read as
        # nonsense.
        again = same_name(type(old), found)
        raise SuccessorError(
            f"the successor of a {type(old).__qualname__} is {another(found) if again else f'a {found.__qualname__}'}",
            at=where,
            fix=REDEFINED
            if again
            else apart(new)
            if pair_in_words(new)
            else "a stateful method returns (value, successor of its own record); a pure one that returns a pair with "
            "another record in it is called on the record itself: peek(t.part)(...)",
        )
    differing = differences(describe(old, ""), describe(new, ""), root=where)
    if differing:
        raise SuccessorError(
            "a successor must keep the structure of what it follows",
            at=differing,
            fix="keep shapes, dtypes and configuration; make a new record where they must change",
        )


def is_alike(old: PyTree, new: PyTree) -> bool:
    """Whether a successor surely has the structure of what it follows; what it shares with that is not looked at."""
    if old is new:
        return True
    kind = cast("type[Any]", type(old))
    if kind is not type(new):
        return False
    if is_array(old):
        return jax.typeof(old) == jax.typeof(new)
    if kind is list or kind is tuple:
        return len(old) == len(new) and all(map(is_alike, old, new))
    # Not equinox's own records: their static fields are to be looked at, which tell 1 from True.
    if not keeps_numbers(kind):
        return False
    was, now = fields_of(old), fields_of(new)
    return was.keys() == now.keys() and all(is_alike(was[name], now[name]) for name in was)
