"""Successors: what may follow a record, and how one is put in its place.

The *successor* of a record is the record that a stateful call returns: `y, bn = bn(x)`. It must have the structure of
what it follows, treedef, shapes and dtypes, or it could not be carried through a loop or a compiled step.
"""

from __future__ import annotations

from typing import Any, cast

import equinox as eqx
from weft.core import module
from weft.core.agree import describe, differences
from weft.core.definitions import REDEFINED, another, same_name
from weft.core.errors import SuccessorError
from weft.core.leaves import is_array
from weft.core.paths import Path


def _a(cls: type[Any]) -> str:
    return f"a {cls.__qualname__}"


def refuse_pair(value: Any, taker: str) -> None:
    """Refuses what a stateful call returns, whole, where its value is meant.

    Raises:
        SuccessorError: naming the record that the successor is one of.
    """
    pair = pair_in_words(value)
    if pair is not None:
        raise SuccessorError(f"{taker} takes an array, and this is {pair}", fix=apart(value))


def pair_in_words(value: Any) -> str | None:
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


def part_of(parent: Any, part: Any) -> Any:
    """One step along a path: a record's field, or a container's item."""
    # The items of a namedtuple have names in paths.
    if isinstance(parent, eqx.Module) or (isinstance(part, str) and hasattr(parent, "_fields")):
        return getattr(cast(Any, parent), part)
    return parent[part]


def with_part(parent: Any, path: Path, value: Any) -> Any:
    """A tree of records and containers with another value at a path; everything off the path is shared."""
    if not path:
        return value
    part: Any = path[0]
    child = with_part(part_of(parent, part), path[1:], value)
    if isinstance(parent, eqx.Module):
        return with_field(parent, part, child)
    if isinstance(parent, dict):
        items = {**cast("dict[Any, Any]", parent), part: child}
        return items if type(cast(Any, parent)) is dict else type(cast(Any, parent))(items)
    row = [*parent[:part], child, *parent[part + 1 :]]
    return type(parent)(*row) if hasattr(parent, "_fields") else type(parent)(row)


def with_field(record: eqx.Module, name: str, value: Any) -> eqx.Module:
    """A record with another value in one field; for equinox modules, which have no `replace`, too."""
    if isinstance(record, module.Module):
        return record.replace(**{name: value})
    return module.with_fields(record, {name: value})


def check_successor(old: Any, new: Any, where: str) -> None:
    """Refuses a successor of another type or structure.

    Args:
        old: a record, a container or an array.
        new: what shall follow it.
        where: what to call the place in an error.

    Raises:
        SuccessorError: naming every path that differs, before and after.
    """
    if type(old) is not type(new) and not (is_array(old) and is_array(new)):
        again = same_name(type(old), type(new))
        raise SuccessorError(
            f"the successor of a {type(old).__qualname__} is {another(type(new)) if again else _a(type(new))}",
            at=where,
            fix=REDEFINED
            if again
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
