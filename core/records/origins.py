"""Whose successor a record is: told by the arrays that it shares with others, not by its type alone.

A student and its teacher are records of one class. What a loss returns last of the model's class is taken for the
model's successor, so a loss that returns the teacher's would put the teacher's statistics into the student. A successor
has new state, but the parameters that its call was given: those say where it comes from.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, cast

import equinox as eqx
from weft.core.caches import kept_in
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError
from weft.core.makeup import closed_over, globals_read
from weft.core.records.kinds import FrozenParam, Param
from weft.core.records.leaves import iter_leaves
from weft.core.records.successors import records_in

# Trees with records, each behind what errors call it.
Others = Sequence[tuple[str, PyTree]]


def arguments_by_name(args: Iterable[PyTree], kwargs: Mapping[str, PyTree], names: tuple[str, ...] = ()) -> Others:
    """The arguments of a call by what errors call them: by the parameter's name, if that is known."""
    by_position = ((names[i] if i < len(names) else str(i), value) for i, value in enumerate(args))
    return [(f"argument {name}", value) for name, value in (*by_position, *kwargs.items())]


def closed_over_by(function: Callable[..., Any], depth: int = 3) -> Others:
    """What a function reaches beside its arguments, by what errors call it; through functions within it, too."""
    if isinstance(function, functools.partial):
        part = cast("functools.partial[Any]", function)
        return [*closed_over_by(part.func), *arguments_by_name(part.args, part.keywords)]
    function = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(function, FunctionType):
        return []
    found: list[tuple[str, PyTree]] = []
    for name, value in {**globals_read(function), **closed_over(function)}.items():
        if isinstance(value, FunctionType | MethodType | functools.partial):
            found += closed_over_by(cast("Callable[..., Any]", value), depth - 1) if depth else ()
        elif isinstance(value, eqx.Module) or (
            isinstance(value, tuple | list | dict) and len(cast("Sequence[Any]", value)) < 100
        ):
            # Not what holds data: it would be walked through.
            found.append((f"{name}, which the function closes over", cast(PyTree, value)))
    return found


def check_origin(record: eqx.Module, successor: eqx.Module, others: Others, where: str) -> None:
    """Refuses as a record's successor what another record became.

    Args:
        record: the record.
        successor: what is to follow it.
        others: what else the function that returned it was given, or closes over.
        where: the call in errors.

    Raises:
        SuccessorError: if it has parameters of one of the others and none of the record's.
    """
    if successor is record:
        return
    rows = [(name, one) for name, value in others for one in _of_class(type(record), value) if one is not record]
    if not rows:
        return
    own, new = _parameters(record), _parameters(successor)
    theirs = [(name, _parameters(one)) for name, one in rows]
    # What both share, such as a frozen embedding, says nothing.
    if new & own.difference(*(parameters for _, parameters in theirs)):
        return
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
    return (one for _, one in records_in(value) if type(one) is cls)


def _parameters(record: eqx.Module) -> set[int]:
    """The identities of a record's parameters; of one that has none, of all its arrays."""
    leaves = [leaf for leaf in iter_leaves(record) if leaf.dynamic]
    parameters = [leaf for leaf in leaves if issubclass(leaf.kind, (Param, FrozenParam))]
    return {id(leaf.value) for leaf in parameters or leaves}


# --- what a gradient's function was given beside the model ------------------------------------------------------------

# An update takes the successor from a call that is over: what stood beside the model there is known as long as the user
# holds it. By identity, since records have no hash.
_beside: weakref.WeakValueDictionary[int, eqx.Module] = weakref.WeakValueDictionary()
kept_in("weft.core.records.origins", "identity of a record that is alive", _beside)


def note_beside(model: PyTree, others: Others) -> None:
    """Remembers the records of a model's class that stood beside it in a call."""
    if isinstance(model, eqx.Module):
        for _, value in others:
            for one in _of_class(type(model), value):
                if one is not model:
                    _beside[id(one)] = one


def seen_beside(model: PyTree) -> Others:
    """The records of a model's class that stood beside one in a call and are still alive."""
    others = [one for one in list(_beside.values()) if type(one) is type(model) and one is not model]
    return [(f"another {type(one).__qualname__}, which was given beside it", one) for one in others]
