"""Tells which record a successor belongs to, by the parameters that they share.

A student and its teacher are records of one class. Weft takes the last record of the model's class that a loss returns
for the model's successor, so a loss that returned the teacher's successor put the teacher's statistics into the
student. A successor has new state, but the same parameter arrays as the record that it follows: these tell where it
comes from.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
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

# Trees with records, each with its name in errors.
Others = Sequence[tuple[str, PyTree]]


def arguments_by_name(args: Iterable[PyTree], kwargs: Mapping[str, PyTree], names: tuple[str, ...] = ()) -> Others:
    """The arguments of a call with their names in errors: the parameter's name, if that is known."""
    by_position = ((names[i] if i < len(names) else str(i), value) for i, value in enumerate(args))
    return [(f"argument {name}", value) for name, value in (*by_position, *kwargs.items())]


def closed_over_by(function: Callable[..., Any], depth: int = 3) -> Others:
    """The trees in a function's closure and globals, with their names in errors; also those of functions in it."""
    if isinstance(function, functools.partial):
        part = cast("functools.partial[Any]", function)
        return [*closed_over_by(part.func), *arguments_by_name(part.args, part.keywords)]
    function = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(function, FunctionType):
        return []
    trees: list[tuple[str, PyTree]] = []
    for name, value in {**globals_read(function), **closed_over(function)}.items():
        if isinstance(value, FunctionType | MethodType | functools.partial):
            trees += closed_over_by(cast("Callable[..., Any]", value), depth - 1) if depth else ()
        elif isinstance(value, eqx.Module) or (
            isinstance(value, tuple | list | dict) and len(cast("Sequence[Any]", value)) < 100
        ):
            # A larger container holds data, not models, and would take long to search.
            trees.append((f"{name}, which the function closes over", cast(PyTree, value)))
    return trees


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
kept_in("weft.core.records.origins", "identity of a record that is alive", _rivals)


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
