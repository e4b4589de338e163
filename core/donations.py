"""Remembers in which call an array was donated, for the error about a later use of the array.

A donated array is deleted, and JAX does not say by which call. So each plan that donates remembers the first and the
last array that its last call donated: whoever uses a donated tree again mostly passes one of the two. To remember all
arrays would cost each call more than the text of an error is worth.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import jax
from jax.core import Tracer
from weft.core.edge import names, trees
from weft.core.edge.trees import key_part
from weft.core.errors import DonatedError
from weft.core.paths import first_places, format_path
from weft.core.tracebacks import cut

F = TypeVar("F", bound=Callable[..., Any])

PROBLEM = "these arguments were donated to an earlier call, and are gone"
FIX = "use the {successor} that the call returned, or do not donate"


class Donation:
    """The arrays that the last call of a plan donated."""

    def __init__(self, function: str, lanes: Sequence[int]):
        self.place = f"donated in a call of {function}"
        self._first, self._last = lanes[0], lanes[-1]
        # Weak references: JAX leaves an array alone that it could not use, and that must not live longer for an error.
        self.ends: tuple[weakref.ref[Any], ...] = ()
        _donations.add(self)

    def note(self, groups: Sequence[Sequence[Any]]) -> None:
        """Notes that a call has donated the arrays of its donated lanes."""
        try:
            self.ends = weakref.ref(groups[self._first][0]), weakref.ref(groups[self._last][-1])
        except (TypeError, IndexError):  # a Python number has no weak reference, and a lane may be empty
            self.ends = ()


# Weak, so that a donation is forgotten with its plan.
_donations: weakref.WeakSet[Donation] = weakref.WeakSet()


def deleted_among(arrays: Iterable[tuple[str, Any]]) -> list[str]:
    """The deleted arrays, each with its name and type, and the calls that donated them, as far as it is known."""
    deleted = {
        f"{name}: {jax.typeof(array)}": id(array)
        for name, array in arrays
        if isinstance(array, jax.Array) and not isinstance(array, Tracer) and array.is_deleted()
    }
    donors = [d.place for d in list(_donations) if any(id(end()) in deleted.values() for end in d.ends)]
    return [*first_places(list(deleted)), *donors] if deleted else []


def explain_deleted(error: Exception, record: Any, args: Sequence[Any]) -> None:
    """Raises an error that names the deleted arrays of a record's call in place of JAX's, which gives a shape alone.

    An error of an inner record is replaced too: the outermost one knows the whole paths.
    """
    # floor: a ValueError comes from JAX 0.10, if the operation has been compiled before.
    says_so = isinstance(error, RuntimeError | ValueError) and names.DELETED in str(error)
    if not says_so and not isinstance(error, DonatedError):
        return
    roots = [(type(record).__name__, record), *((f"argument {i}", argument) for i, argument in enumerate(args))]
    at = deleted_among(
        (format_path(tuple(map(key_part, keys)), root), leaf)
        for root, tree in roots
        for keys, leaf in trees.flatten_with_path(tree)[0]
    )
    if at:
        raise cut(DonatedError(PROBLEM, at=at, fix=FIX.format(successor="successor"))) from None


def naming_deleted(function: F, *, method: bool = False) -> F:
    """Decorates a function of trees, or a method of a record: of a deleted array JAX says neither whose it is nor which
    call has donated it."""

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except (RuntimeError, ValueError) as error:
            record, rest = (args[0], args[1:]) if method else ((), args)
            explain_deleted(error, record, (*rest, *kwargs.values()))
            raise

    return cast("F", named)
