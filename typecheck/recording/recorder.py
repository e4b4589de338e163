"""The recorder: stores the structures of the arguments of annotated functions while it is installed.

It is an import hook like that of `install_import_hook`: a function outside the named packages costs nothing, and one
inside costs one call more. `sys.settrace`, the only means in Python 3.11, would make every call of the run several
times slower, and `sys.monitoring` exists from 3.12 on.

The first calls of a function are looked at, then ever fewer (the 16th, the 32nd, ...), until `MOST_CALLS`
structures are stored or `MOST_LOOKS` calls were looked at. A call that raises is not stored: tests pass wrong
arguments on purpose.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.typecheck.calls.importing import ImportHook
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Anything, holds_arrays
from weft.typecheck.language.signatures import signature_of
from weft.typecheck.recording.structures import Encoder, Node

# For each function: how many structures are stored, how many first calls are looked at, and how many calls in all. A
# loss function is called at each step, and a test run must not take longer because of it.
MOST_CALLS, FIRST, MOST_LOOKS = 4, 8, 16
# The size of one call in the file, and of all calls together, in characters.
MOST_OF_CALL, MOST_OF_ALL = 40_000, 20_000_000


class Recorder(ImportHook):
    """Records the calls of packages that are imported from now on.

    Attributes:
        calls: structures by `module:qualname`, each `{"args": [...], "kwargs": {...}}`.
        full: whether calls were dropped because the file has reached its limit.
    """

    decorates_all = True

    too_late = (
        "calls can be recorded only in a package that is imported later, and this one is imported already",
        "do not import it in a plugin of pytest or with `-p`",
    )

    def __init__(self, packages: Sequence[str]):
        super().__init__(packages)
        self.calls: dict[str, list[Node]] = {}
        self.full = False
        self._size = 0

    def missed(self) -> list[str]:
        """The modules of the packages that another import hook, such as jaxtyping's, has loaded."""
        loaded = ((name, getattr(module, "__spec__", None)) for name, module in list(sys.modules.items()))
        return sorted(
            name
            for name, spec in loaded
            if self.covers(name) and spec is not None and spec.has_location and not self.has_loaded(spec)
            if str(spec.origin).endswith(".py")
        )

    def checked(self, thing: Any) -> Any:
        """Puts a recorder around a function; returns classes, and functions that `weft check` leaves out, unchanged."""
        if isinstance(thing, type) or not _is_public(thing.__qualname__):
            return thing
        return self._recorded(thing)

    def _recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{function.__module__}:{function.__qualname__}"
        count, looks, has_ended = 0, 0, False

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            nonlocal count, looks, has_ended
            __tracebackhide__ = True
            # After the last look a call costs one test of a flag.
            if has_ended:
                return function(*args, **kwargs)
            count += 1
            # A power of two has a single bit: the 16th, 32nd, 64th, ... call,
            # so that late shapes of a long run are seen.
            if count > FIRST and count & (count - 1):
                return function(*args, **kwargs)
            looks += 1
            # Asked at the first call, as annotations may name classes that are defined after the function.
            if looks == 1 and not _names_arrays(function):
                has_ended = True
                return function(*args, **kwargs)
            # Before the call: the function may change its arguments, such as a list or an NNX module.
            call = self.structure(args, kwargs)
            result = function(*args, **kwargs)
            has_ended = self._keep(name, call) or looks >= MOST_LOOKS
            return result

        return recorded

    def structure(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Node:
        """The structure of a call's arguments, as plain data."""
        return {
            "args": [Encoder().argument(value) for value in args],
            "kwargs": {name: Encoder().argument(value) for name, value in kwargs.items()},
        }

    def _keep(self, name: str, call: Node) -> bool:
        """Stores a call unless an equal one is stored; returns whether the function needs no more calls."""
        known = self.calls.get(name, [])
        if call in known:
            return False
        size = len(json.dumps(call))
        # A call with this much configuration would fill the file, and has little that others lack.
        if size > MOST_OF_CALL:
            return False
        if self._size + size > MOST_OF_ALL:
            self.full = True
            return True
        self._size += size
        self.calls[name] = [*known, call]
        return len(known) + 1 >= MOST_CALLS


def _is_public(qualname: str) -> bool:
    """Whether `weft check` judges functions of this name: public ones, `__call__` included."""
    *owners, last = qualname.split(".")
    return "<locals>" not in owners and all(not name.startswith("_") or name == "__call__" for name in (*owners, last))


def _names_arrays(function: Callable[..., Any]) -> bool:
    try:
        signature = signature_of(function)
    except AnnotationError:
        return True  # its proof reports the annotation that cannot be read
    except (TypeError, ValueError):
        return False
    annotations = (signature.returns, *(parameter.annotation for parameter in signature.parameters))
    return any(not isinstance(a, Anything) and holds_arrays(a) for a in annotations)
