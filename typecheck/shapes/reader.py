"""The reader: follows a trace line by line, and keeps what the lines of one file assigned.

Whatever JAX does with a function, a frame runs it, and its names hold tracers with the shapes that the code is about:
of one example inside `vmap`, of one slice inside `scan`. So the reader is a `Watch` that looks at frames line by line.
"""

from __future__ import annotations

import inspect
from types import CodeType, FrameType
from typing import Any

from weft.typecheck.matching.bindings import Bindings
from weft.typecheck.proofs.following import Left, paused
from weft.typecheck.proofs.watch import Watch
from weft.typecheck.shapes.statements import Assigned, Function, Statement, Statements
from weft.typecheck.shapes.values import Value, value_of

# How many different values of one place are kept.
_MOST = 12

# A value, and the names that the function that it was in knows, of inner functions first.
Found = tuple[Value, tuple[Bindings, ...]]


class _Call:
    """A call that runs, with the statement that it is at, and the last `return` that it came to."""

    def __init__(self, frame: FrameType, known: tuple[Bindings, ...]):
        self.frame, self.known = frame, known
        self.statement: Statement | None = None
        self.returning: Statement | None = None


class Reader(Watch):
    """What the lines of a file assign while it is entered.

    Args:
        source: the file.
        own, apart, about: as of a `Watch`.

    Attributes:
        found: of each place, the different values that it had, in order.
        scopes: of each annotated function that ran, what its names stood for in its first call.
    """

    def __init__(self, source: Statements, own: frozenset[str], *, apart: bool, about: tuple[str, int]):
        super().__init__(own, apart=apart, about=about)
        self.source = source
        self.found: dict[Assigned, dict[str, Found]] = {}
        self.scopes: dict[Function, Bindings] = {}
        self._running: list[_Call] = []

    def reads(self, code: CodeType) -> bool:
        return (
            code.co_filename == self.source.file
            and bool(code.co_flags & inspect.CO_OPTIMIZED)
            and not code.co_name.startswith("<")
        )

    def wants(self, frame: FrameType) -> bool:
        return self.reads(frame.f_code) or super().wants(frame)

    def called(self, frame: FrameType, *, thrown: bool) -> None:
        super().called(frame, thrown=thrown)
        if not self.reads(frame.f_code) or any(one.frame is frame for one in self._running):
            return
        bindings, function = self.bindings_of(frame), self._function(frame.f_code)
        outer = self._running[-1].known if self._running else ()
        call = _Call(frame, outer if bindings is None else (bindings, *outer))
        self._running.append(call)
        if function is not None:
            if bindings is not None:
                self.scopes.setdefault(function, bindings)
            for place in function.bare:
                self._keep(call, place, frame.f_locals.get(place.path[0]))

    def _function(self, code: CodeType) -> Function | None:
        # Decorators stand between the line that a code object begins at and its `def`.
        called_so = [one for one in self.source.functions if one.name == code.co_qualname]
        return min(
            (one for one in called_so if one.line >= code.co_firstlineno), key=lambda one: one.line, default=None
        )

    def at_line(self, frame: FrameType) -> None:
        call = self._call(frame)
        statement = self.source.by_line.get(frame.f_lineno)
        if call is None or statement is call.statement:
            return
        self._look(call)
        call.statement = statement
        if statement is not None and any(place.text == "return" for place in statement.assigned):
            call.returning = statement

    def left(self, frame: FrameType, how: Left, value: Any) -> None:
        call = self._call(frame)
        if call is not None and how != "raises":
            self._look(call)
            # A `with` around a `return` is left after it, and is where the frame stands then.
            statement = call.returning if how == "return" else call.statement
            for place in statement.assigned if statement is not None else ():
                if place.text == how:
                    self._keep(call, place, value)
        if call is not None and how != "yield":
            self._running.remove(call)
        super().left(frame, how, value)

    def _call(self, frame: FrameType) -> _Call | None:
        return next((one for one in reversed(self._running) if one.frame is frame), None)

    def _look(self, call: _Call) -> None:
        """Keeps what the statement that a call was at has assigned."""
        if call.statement is None or not call.statement.assigned:
            return
        names = call.frame.f_locals
        for place in call.statement.assigned:
            if place.text in ("return", "yield") or place.path[0] not in names:
                continue
            try:
                with paused():
                    value = names[place.path[0]]
                    for attribute in place.path[1:]:
                        value = getattr(value, attribute)
            except Exception:  # an attribute that computes something, as a property may
                continue
            self._keep(call, place, value)

    def _keep(self, call: _Call, place: Assigned, given: Any) -> None:
        try:
            with paused():
                value = value_of(given)
        except Exception:  # what makes up its attributes may refuse to be asked for them
            return
        if value is not None:
            kept = self.found.setdefault(place, {})
            if len(kept) >= _MOST:  # the last one counts
                kept.popitem()
            kept.setdefault(f"{value} {[one.sizes for one in call.known]}", (value, call.known))
