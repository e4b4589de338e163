"""Watched functions: finds the function that a frame runs, and makes checks of its calls from its annotations."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal

from weft.core.memory import Recent
from weft.typecheck.language.annotations import ANYTHING, Annotation, StreamOf
from weft.typecheck.language.names import names_of_signature
from weft.typecheck.language.signatures import Parameter, Signature, signature_of
from weft.typecheck.matching.bindings import Slot
from weft.typecheck.matching.compiling import Check, check_of
from weft.typecheck.matching.policies import Policy
from weft.typecheck.proofs.whose import place_of


class Watched:
    """A function whose calls are checked: its signature, and its checks, each made when it is first needed."""

    def __init__(self, signature: Signature):
        self.signature = signature
        self.names = names_of_signature(signature)
        self.place = place_of(signature.function)
        self._checks: dict[tuple[Policy, str], tuple[Slot, Check | None]] = {}

    def argument(self, parameter: Parameter, policy: Policy) -> tuple[Slot, Check | None]:
        """The slot and the check of an argument; the check is None where the annotation allows anything."""
        return self._row("argument", parameter.name, parameter.annotation, policy)

    def result(self, role: Literal["return", "yield"], policy: Policy) -> tuple[Slot, Check | None]:
        """The slot and the check of a returned or yielded value."""
        return self._row(role, "", _annotation_of_result(self.signature, role), policy)

    def _row(
        self, role: Literal["argument", "return", "yield"], name: str, annotation: Annotation, policy: Policy
    ) -> tuple[Slot, Check | None]:
        key = policy, f"{role} {name}"
        if key not in self._checks:
            slot = Slot(role, name, self.signature.function, annotation)
            self._checks[key] = slot, check_of(annotation, policy)
        return self._checks[key]


def _annotation_of_result(signature: Signature, role: Literal["return", "yield"]) -> Annotation:
    returns = signature.returns
    if signature.flavour == "generator" and isinstance(returns, StreamOf):
        return returns.yields if role == "yield" else returns.returns
    return returns if role == "return" and signature.flavour in ("function", "coroutine") else ANYTHING


# By identity, since code objects of two files are equal if their text is. Each code is kept alive, for its `id`.
_watched: Recent[int, tuple[CodeType, Callable[[FrameType], Watched | None]]] = Recent(
    listed=("weft.typecheck.proofs.watched", "code")
)

# The ids of codes whose functions close over values or have defaults.
_closures: set[int] = set()


def watched_of_code(frame: FrameType) -> Watched | None:
    """The function that a frame runs, if it has annotations, else None."""
    code = frame.f_code
    known = _watched.get(id(code))
    if known is None:
        known = _watched.add(id(code), (code, _find_function(frame)))
    return known[1](frame)


def forget_closures() -> None:
    """Drops the functions that close over values, and so the arrays among these; called at the end of a proof."""
    while _closures:
        _watched.forget(_closures.pop())


def _find_function(frame: FrameType) -> Callable[[FrameType], Watched | None]:
    function = None if frame.f_code.co_name.startswith("<") else _function_of_code(frame)
    # A wrapper has the annotations of the function that it wraps, and that one is checked when it runs.
    if function is None or not getattr(function, "__annotations__", None) or hasattr(function, "__wrapped__"):
        return lambda _: None
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        _closures.add(id(frame.f_code))
    read: dict[type | None, Watched | None] = {}

    def of_frame(frame: FrameType) -> Watched | None:
        owner = _owner(frame)
        if owner not in read:
            signature = signature_of(function, owner)
            read[owner] = Watched(signature) if signature.annotated else None
        return read[owner]

    return of_frame


def _owner(frame: FrameType) -> type | None:
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount and code.co_varnames[0] == "self" else None
    return None if first is None else type(first)


def _function_of_code(frame: FrameType) -> FunctionType | None:
    code, node = frame.f_code, None
    if "<locals>" not in code.co_qualname:
        scope: Any = frame.f_globals
        for part in code.co_qualname.split("."):
            node = scope.get(part)
            scope = getattr(node, "__dict__", {})
        node = getattr(node, "__func__", None) or getattr(node, "fget", None) or node
        while node is not None and getattr(node, "__code__", None) is not code:
            node = getattr(node, "__wrapped__", None)
    if node is None:
        # No name leads to a local function, or to one behind a decorator. The function is then what refers to the code.
        node = next((one for one in gc.get_referrers(code) if isinstance(one, FunctionType)), None)
    return node
