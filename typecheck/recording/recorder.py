"""The recorder: the structure of the arguments of each annotated function that is called while it is installed.

It is an import hook, as `install_import_hook` is: a function that nobody asks about costs nothing, and one that is
asked about costs one call more. `sys.settrace`, which Python 3.11 has, would make every call of the whole run several
times slower, and `sys.monitoring` is not there before 3.12.

It looks at the first calls of a function, then at ever fewer (the 16th, the 32nd, ...), until there are `MOST_CALLS`
structures or `MOST_LOOKS` were taken. A call that raises is forgotten: tests give wrong arguments on purpose.
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

# For one function: how many structures are kept, how many first calls are looked at, and how many calls in all. A loss
# is called once for each step, and a test run must not take longer for it.
MOST_CALLS, FIRST, MOST_LOOKS = 4, 8, 16
# How many characters one call may have in the file, and all calls together.
MOST_OF_CALL, MOST_OF_ALL = 40_000, 20_000_000


class Recorder(ImportHook):
    """Records the calls of packages that are imported from now on.

    Attributes:
        calls: structures by `module:qualname`; each is `{"args": [...], "kwargs": {...}}`.
        full: whether there was more than a file should have.
    """

    decorates_all = True

    too_late = (
        "calls are recorded of packages that are imported from now on, and this one is already",
        "import it later: not in a plugin, nor with `-p`",
    )

    def __init__(self, packages: Sequence[str]):
        super().__init__(packages)
        self.calls: dict[str, list[Node]] = {}
        self.full = False
        self._size = 0

    def missed(self) -> list[str]:
        """The modules of the packages that another import hook has loaded, as jaxtyping's does."""
        loaded = ((name, getattr(module, "__spec__", None)) for name, module in list(sys.modules.items()))
        return sorted(
            name
            for name, spec in loaded
            if self.covers(name) and spec is not None and spec.has_location and not self.has_loaded(spec)
            if str(spec.origin).endswith(".py")
        )

    def checked(self, thing: Any) -> Any:
        """The function with a recorder around it; classes, and names that `weft check` does not judge, stay."""
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
            if has_ended:
                return function(*args, **kwargs)
            count += 1
            if count > FIRST and count & (count - 1):
                return function(*args, **kwargs)
            looks += 1
            if looks == 1 and not _names_arrays(function):
                has_ended = True
                return function(*args, **kwargs)
            call = self.structure(args, kwargs)
            result = function(*args, **kwargs)
            has_ended = self._keep(name, call) or looks >= MOST_LOOKS
            return result

        return recorded

    def structure(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Node:
        """The structure of a call."""
        return {
            "args": [Encoder().argument(one) for one in args],
            "kwargs": {name: Encoder().argument(one) for name, one in kwargs.items()},
        }

    def _keep(self, name: str, call: Node) -> bool:
        """Keeps a call, if there is none like it; whether there are enough."""
        known = self.calls.get(name, [])
        if call in known:
            return False
        size = len(json.dumps(call))
        if size > MOST_OF_CALL:
            return False
        if self._size + size > MOST_OF_ALL:
            self.full = True
            return True
        self._size += size
        self.calls[name] = [*known, call]
        return len(known) + 1 >= MOST_CALLS


def _is_public(qualname: str) -> bool:
    """Whether a name is one of those that `weft check` judges."""
    *owners, last = qualname.split(".")
    return "<locals>" not in owners and all(not one.startswith("_") or one == "__call__" for one in (*owners, last))


def _names_arrays(function: Callable[..., Any]) -> bool:
    try:
        signature = signature_of(function)
    except AnnotationError:
        return True  # a proof says what is wrong with it
    except (TypeError, ValueError):
        return False
    annotations = (signature.returns, *(one.annotation for one in signature.parameters))
    return any(not isinstance(one, Anything) and holds_arrays(one) for one in annotations)
