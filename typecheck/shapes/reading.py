"""Reads the shapes in a function: runs the traces that it takes, and puts their values into words.

The arguments are those of a proof. If the function traces over symbolic sizes, that one trace says everything; else it
is traced at integer sizes, dealt in three ways. Conditions on sizes are reported with the shapes; a function that fails
at all sizes is shown up to the failing line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from weft.core.paths import format_path
from weft.typecheck.arguments.builder import Assignment, Unbuildable
from weft.typecheck.errors import AnnotationError
from weft.typecheck.matching.bindings import Bindings, Origin
from weft.typecheck.proofs.explaining import Budget, Trials
from weft.typecheck.proofs.needs import DEALS, Needs, assignment_for, written_under
from weft.typecheck.proofs.prover import reason_beyond, target_instead
from weft.typecheck.proofs.report import finding_of
from weft.typecheck.proofs.search import begin
from weft.typecheck.proofs.tracing import Target, run_trial
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.shapes.notes import Note, Shapes
from weft.typecheck.shapes.reader import Reader
from weft.typecheck.shapes.sizes import Names
from weft.typecheck.shapes.statements import Assigned, Function, Statements
from weft.typecheck.shapes.values import alike, in_text
from weft.typecheck.sizes.space import Space

# How many options are tried in their second form, to reach lines that the default options do not.
_MOST_OPTIONS = 6


class _Trace(NamedTuple):
    """A trial, and the reader that followed it."""

    trial: Trial
    reader: Reader


def shapes_of(target: Target, source: Statements, dims: Mapping[str, Any], budget: Budget) -> Shapes:
    """The shapes in a function or method.

    Args:
        target: a function or method of the source, as `targets_of` gives it.
        source: the file.
        dims: sizes that the user fixed.
        budget: the limit of the search for sizes at which the function runs.

    Raises:
        AnnotationError: if an annotation cannot be read or evaluated.
    """
    function = source.function_at(target.line)
    line, last = (target.line, target.line) if function is None else (function.line, function.last)
    trials = Trials(target, dims, budget)
    try:
        trial, needs, evidence = begin(trials)
    except Unbuildable as reason:
        return Shapes(target.name, line, last, reason=f"{reason}", traced=False)
    if isinstance(trial.error, AnnotationError):
        raise trial.error
    called = None if trial.ok else target_instead(target, (trial,))
    if called is not None:
        return shapes_of(called, source, dims, budget)
    traces = _traces(target, source, trial, needs, dims)
    notes = _notes(traces, target.products)
    for further in _option_traces(target, source, trial, needs, dims, notes, function):
        # Further traces only fill in lines without a note: the default options are the usual case.
        notes = {**_notes([further], target.products), **notes}
    reason = "" if trial.ok else reason_beyond(trials, evidence, trial, none_passed=True)
    if reason is None:
        finding = finding_of(target, trial)
        reason = f"line {finding.line}: {finding}" if finding.file == target.file else str(finding)
    return Shapes(
        target.name,
        line,
        last,
        tuple(sorted(notes.values(), key=lambda note: (note.line, note.column))),
        _dims(traces[0].reader),
        needs.words(),
        reason,
        trial.error is None,
    )


def _traced(
    target: Target, source: Statements, assignment: Assignment, dims: Mapping[str, Any], space: Space | None = None
) -> _Trace:
    """A trace of the function at the sizes of an assignment, with the reader that followed it."""
    made: list[Reader] = []

    def reading(own: frozenset[str], *, names_per_record: bool, about: tuple[str, int]) -> Reader:
        made.append(Reader(source, own, names_per_record=names_per_record, about=about))
        return made[-1]

    # No instance of an earlier trial is reused: the lines of constructors must run to be read.
    return _Trace(run_trial(dataclasses.replace(target, made={}), assignment, dims, reading, space), made[-1])


def _for_all(target: Target, source: Statements, trial: Trial, needs: Needs, dims: Mapping[str, Any]) -> _Trace | None:
    """The trace over symbolic sizes, if it succeeds and no size had to be replaced by its number; else None."""
    written = written_under(needs, trial.assignment.sizes, dims)
    space = Space()
    sizes = written.dims(written.numbers, space)
    assignment = dataclasses.replace(trial.assignment, sizes={**trial.assignment.sizes, **sizes})
    try:
        trace = _traced(target, source, assignment, dims, space)
    except (Unbuildable, AnnotationError, ValueError, TypeError):  # the function may still run at integer sizes
        return None
    # A pinned size was used as a number, so the trace is about that number only.
    return trace if trace.trial.ok and not space.pinned else None


def _traces(
    target: Target, source: Statements, trial: Trial, needs: Needs, dims: Mapping[str, Any]
) -> Sequence[_Trace]:
    """One trace over symbolic sizes, or else traces at several deals of integers."""
    for_all = _for_all(target, source, trial, needs, dims) if trial.ok else None
    if for_all is not None:
        return [for_all]
    first = _traced(target, source, trial.assignment, dims)
    traces = [first]
    # Several deals of sizes: at a single one, an axis of 12 could be `2*d`, `h*w` or a constant.
    for deal in DEALS[:3]:
        assignment = assignment_for(trial.assignment.sizes, needs, deal, trial.assignment)
        if assignment.sizes == trial.assignment.sizes:
            continue
        try:
            further = _traced(target, source, assignment, dims)
        except Unbuildable:
            continue
        # A deal at which other lines ran, as behind `if n > 8`, has values that cannot be compared line by line.
        if further.trial.ok == trial.ok and further.reader.values.keys() == first.reader.values.keys():
            traces.append(further)
    return traces


def _option_traces(
    target: Target,
    source: Statements,
    trial: Trial,
    needs: Needs,
    dims: Mapping[str, Any],
    notes: Mapping[Assigned, Note],
    function: Function | None,
) -> Iterator[_Trace]:
    """Traces with one option changed each, if the default options leave lines of the function without a note."""
    if not trial.ok or function is None:
        return
    places = {
        place
        for line, statement in source.by_line.items()
        if function.line <= line <= function.last
        for place in statement.assigned
    }
    for place in [*trial.options.counts][:_MOST_OPTIONS] if not places <= notes.keys() else ():
        options = {**trial.assignment.options, place: 1}
        varied = dataclasses.replace(trial, assignment=dataclasses.replace(trial.assignment, options=options))
        trace = _for_all(target, source, varied, needs, dims)
        if trace is not None:
            yield trace


def _notes(traces: Sequence[_Trace], orders: tuple[tuple[str, ...], ...]) -> dict[Assigned, Note]:
    """For each assigned name, a note with its shapes in words."""
    notes: dict[Assigned, Note] = {}
    for place, values in traces[0].reader.values.items():
        columns = [[*reader.values[place].values()] for _, reader in traces]
        # If the traces differ in more than sizes, only the first one is told.
        together = all(
            len(column) == len(columns[0])
            and all(alike(a.value, b.value) for a, b in zip(column, columns[0], strict=True))
            for column in columns
        )
        used = [*zip(*columns, strict=True)] if together else [(value,) for value in values.values()]
        trials = [trial for trial, _ in (traces if together else traces[:1])]
        words: dict[str, None] = {}
        for passes in used:
            names = _names([known for _, known in passes], trials, orders)
            words[in_text([value for value, _ in passes], names.shape)] = None
        # A size in a variable with the dim's own name, as in `d = x.shape[0]`, needs no note.
        if {*words} != {place.text}:
            # The last of several passes, then the first.
            *_, last = words
            text = last if len(words) == 1 else f"{last}, at first {next(iter(words))}"
            notes[place] = Note(place.line, place.column, place.text, text)
    return notes


def _names(
    known: Sequence[tuple[Bindings, ...]], trials: Sequence[Trial], orders: tuple[tuple[str, ...], ...]
) -> Names:
    """The names for sizes in a function: first its own dims, then those of its callers, then those of the proof."""
    sizes: dict[str, tuple[Any, ...]] = {}
    variadics: dict[str, tuple[tuple[Any, ...], ...]] = {}
    for scopes in zip(*known, strict=False):
        for name in scopes[0].variadics:
            shapes = tuple(scope.variadics[name].shape for scope in scopes if name in scope.variadics)
            # A `*name` is used only if it has the same number of axes in each trace.
            if len(shapes) == len(scopes) and len(set(map(len, shapes))) == 1:
                variadics.setdefault(name, shapes)
                for axis, each in enumerate(zip(*shapes, strict=True)):
                    sizes.setdefault(name if len(shapes[0]) == 1 else f"{name}.{axis}", each)
        for name, size in scopes[0].sizes.items():
            each = tuple(scope.sizes.get(name, size) for scope in scopes)
            if name in sizes and [*map(str, sizes[name])] != [*map(str, each)]:
                name = f"{name}'"  # the caller has another dim of this name
            sizes.setdefault(name, each)
    # The keys of the proof come last: a name from an annotation says more to a reader.
    for key in trials[0].assignment.sizes:
        each = tuple(trial.assignment.sizes.get(key) for trial in trials)
        if [*map(str, each)] not in ([*map(str, size)] for size in sizes.values()):
            sizes.setdefault(_as_name(key) if _as_name(key) not in sizes else f"{_as_name(key)}'", each)
    return Names(tuple(sizes.items()), tuple(variadics.items()), orders)


def _dims(reader: Reader) -> dict[str, dict[str, str]]:
    """For each function that ran, the places at which its dims were bound."""
    return {
        function.name: {
            name: _bound_at(origin) if origin.slot.name or origin.axis is not None else f"argument {name}"
            for name, origin in scope.origins.items()
        }
        for function, scope in reader.scopes.items()
    }


def _bound_at(origin: Origin) -> str:
    """The place where a dim was bound, in words."""
    slot, axis = origin.slot, origin.axis
    owner = f"{slot.owner.__qualname__}." if slot.role in ("field", "config") else ""
    path = format_path(origin.path, "") if origin.path else ""
    where = f"{slot.role} {owner}{slot.name}{path}"
    return where if axis is None else f"{where}, axis {axis}"


def _as_name(key: str) -> str:
    """A proof's key as a name: `x.0` is an axis of an array whose annotation gives no shape."""
    return key.removeprefix("self.").replace("....", ".")
