"""The reader: follows a trace line by line and stores the shapes that the lines of one file assign.

Under any transform of JAX a Python frame runs the function. Its names hold tracers with the shapes that the code is
about: of one example inside `vmap`, of one slice inside `scan`. So the reader is a `Watch` that looks at frames.
"""

from __future__ import annotations

import inspect
from types import CodeType, FrameType
from typing import Any, NamedTuple

from weft.typecheck.matching.bindings import Bindings
from weft.typecheck.proofs.frames import Ending, paused
from weft.typecheck.proofs.watch import Watch
from weft.typecheck.shapes.statements import Assigned, Function, Statement, Statements
from weft.typecheck.shapes.values import Value, value_of

# A loop of Python may assign a name a new shape in each pass; the first values and the last one are kept.
_MOST = 12


class Scoped(NamedTuple):
    """A value, with the names bound in its function and in the functions around it, innermost first."""

    value: Value
    known: tuple[Bindings, ...]


class _Call:
    """A running call: its frame, the dims bound in it and its callers, its statement, and its last `return`."""

    def __init__(self, frame: FrameType, known: tuple[Bindings, ...]):
        self.frame, self.known = frame, known
        self.statement: Statement | None = None
        self.returning: Statement | None = None


class Reader(Watch):
    """Stores the values that the lines of a file assign while the reader is entered.

    Args:
        source: the statements of the file.
        own, names_per_record, about: as for a `Watch`.

    Attributes:
        values: for each assigned name, its different values in order.
        scopes: for each annotated function that ran, the names bound in its first call.
    """

    def __init__(self, source: Statements, own: frozenset[str], *, names_per_record: bool, about: tuple[str, int]):
        super().__init__(own, names_per_record=names_per_record, about=about)
        self.source = source
        self.values: dict[Assigned, dict[str, Scoped]] = {}
        self.scopes: dict[Function, Bindings] = {}
        self._running: list[_Call] = []

    def reads(self, code: CodeType) -> bool:
        # Class bodies, comprehensions and lambdas are left out: the notes are about the statements of functions.
        return (
            code.co_filename == self.source.file
            and bool(code.co_flags & inspect.CO_OPTIMIZED)
            and not code.co_name.startswith("<")
        )

    def wants(self, frame: FrameType) -> bool:
        return self.reads(frame.f_code) or super().wants(frame)

    def called(self, frame: FrameType, *, thrown: bool) -> None:
        super().called(frame, thrown=thrown)
        # A generator's frame is entered again at each `next`, and is the same call.
        if not self.reads(frame.f_code) or any(call.frame is frame for call in self._running):
            return
        bindings, function = self.bindings_of(frame), self._function(frame.f_code)
        # The dims of the callers stay known, so that a shape in an inner function can be put into their names.
        outer = self._running[-1].known if self._running else ()
        call = _Call(frame, outer if bindings is None else (bindings, *outer))
        self._running.append(call)
        if function is not None:
            if bindings is not None:
                self.scopes.setdefault(function, bindings)
            # A parameter without an annotation has no shape in the source, so it gets a note when the call begins.
            for place in function.bare:
                self._keep(call, place, frame.f_locals.get(place.path[0]))

    def _function(self, code: CodeType) -> Function | None:
        # A code object begins at its first decorator, and the function's line is that of its `def`.
        below = (f for f in self.source.functions if f.name == code.co_qualname and f.line >= code.co_firstlineno)
        return min(below, key=lambda function: function.line, default=None)

    # The event comes before a line runs, so the values of the line are looked at when the next line begins.
    def at_line(self, frame: FrameType) -> None:
        call = self._call(frame)
        statement = self.source.by_line.get(frame.f_lineno)
        # A statement on several lines has an event for each of them, and is looked at once.
        if call is None or statement is call.statement:
            return
        self._look(call)
        call.statement = statement
        if statement is not None and any(place.text == "return" for place in statement.assigned):
            call.returning = statement

    def ended(self, frame: FrameType, how: Ending, value: Any) -> None:
        call = self._call(frame)
        if call is not None and how != "raises":
            self._look(call)
            # After a `return` inside a `with`, the frame's last line is the `with`, which runs to leave the block.
            statement = call.returning if how == "return" else call.statement
            for place in statement.assigned if statement is not None else ():
                if place.text == how:
                    self._keep(call, place, value)
        if call is not None and how != "yield":
            self._running.remove(call)
        super().ended(frame, how, value)

    def _call(self, frame: FrameType) -> _Call | None:
        return next((call for call in reversed(self._running) if call.frame is frame), None)

    def _look(self, call: _Call) -> None:
        """Stores the values that a call's current statement has assigned."""
        if call.statement is None or not call.statement.assigned:
            return
        names = call.frame.f_locals
        for place in call.statement.assigned:
            # The name is unbound if the branch that assigns it did not run.
            if place.text in ("return", "yield") or place.path[0] not in names:
                continue
            try:
                # Reading an attribute may run user code, whose lines must not be followed as part of the trace.
                with paused():
                    value = names[place.path[0]]
                    for attribute in place.path[1:]:
                        value = getattr(value, attribute)
            except Exception:  # a property may compute and raise
                continue
            self._keep(call, place, value)

    def _keep(self, call: _Call, place: Assigned, value: Any) -> None:
        """Stores a value of an assigned name, with the dims that are known in the call."""
        try:
            with paused():
                shown = value_of(value)
        except Exception:  # an object that computes its attributes may refuse
            return
        if shown is not None:
            values = self.values.setdefault(place, {})
            if len(values) >= _MOST:  # the last value replaces the one before, as it is shown first
                values.popitem()
            # The scopes' sizes are part of the key: the same text in another call may be about other dims.
            values.setdefault(f"{shown} {[scope.sizes for scope in call.known]}", Scoped(shown, call.known))
