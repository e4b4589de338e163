"""Reading a function: the traces that it takes, and what they show of it and of what it calls in its file.

The arguments are those of a proof. If the function traces over sizes that know themselves, that one trace says
everything; else it is traced at integers, dealt in three ways. Where it holds under needs only, these are said with it;
what nothing makes hold is shown as far as it comes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.core.paths import format_path
from weft.typecheck.arguments.builder import Assignment, Unbuildable
from weft.typecheck.errors import AnnotationError
from weft.typecheck.matching.bindings import Bindings, Origin
from weft.typecheck.proofs.budget import Budget
from weft.typecheck.proofs.needs import DEALS, Needs, assignment_for
from weft.typecheck.proofs.prover import reason_beyond, target_instead
from weft.typecheck.proofs.search import Search
from weft.typecheck.proofs.shown import findings_of
from weft.typecheck.proofs.trial import Target, Trial, run_trial
from weft.typecheck.proofs.under_needs import written_under
from weft.typecheck.shapes.notes import Note, Shapes
from weft.typecheck.shapes.reader import Reader
from weft.typecheck.shapes.sizes import Names
from weft.typecheck.shapes.statements import Assigned, Function, Statements
from weft.typecheck.shapes.values import alike, in_text
from weft.typecheck.sizes.space import Space

# How many options are taken otherwise, for lines that the usual ones do not come to.
_MOST_OPTIONS = 6

# A trace: what was tried, and what was read.
_Trace = tuple[Trial, Reader]


def shapes_of(target: Target, source: Statements, dims: Mapping[str, Any], budget: Budget) -> Shapes:
    """What can be told of one target.

    Args:
        target: a function or method of the source, as `targets_of` gives it.
        source: the file.
        dims: sizes that are kept fixed.
        budget: what the search for sizes that hold may use.

    Raises:
        AnnotationError: if an annotation cannot be read or evaluated.
    """
    function = source.function_at(target.line)
    line, last = (target.line, target.line) if function is None else (function.line, function.last)
    search = Search(target, dims, budget)
    try:
        trial, needs = search.begin()
    except Unbuildable as reason:
        return Shapes(target.name, line, last, reason=f"{reason}", traced=False)
    if isinstance(trial.error, AnnotationError):
        raise trial.error
    other = None if trial.ok else target_instead(target, (trial,))
    if other is not None:
        return shapes_of(other, source, dims, budget)
    traces = _traces(target, source, trial, needs, dims)
    notes = _notes(traces, target.products)
    for further in _other_options(target, source, trial, needs, dims, notes, function):
        notes = {**_notes([further], target.products), **notes}
    return Shapes(
        target.name,
        line,
        last,
        tuple(sorted(notes.values(), key=lambda note: (note.line, note.column))),
        _dims(traces[0][1]),
        needs.words(),
        "" if trial.ok else reason_beyond(search, trial, none_passed=True) or _found(target, trial),
        trial.error is None,
    )


def _found(target: Target, trial: Trial) -> str:
    first = findings_of(target, trial)[0]
    return f"line {first.line}: {first}" if first.file == target.file else str(first)


def _traced(
    target: Target, source: Statements, assignment: Assignment, dims: Mapping[str, Any], space: Space | None = None
) -> _Trace:
    made: list[Reader] = []

    def reading(own: frozenset[str], *, apart: bool, about: tuple[str, int]) -> Reader:
        made.append(Reader(source, own, apart=apart, about=about))
        return made[-1]

    # Records are made anew, so that their constructors are read too.
    return run_trial(dataclasses.replace(target, made={}), assignment, dims, reading, space), made[-1]


def _for_all(target: Target, source: Statements, trial: Trial, needs: Needs, dims: Mapping[str, Any]) -> _Trace | None:
    """The trace over sizes that know themselves, if it holds and takes none of them for a number."""
    written = written_under(needs, trial.assignment.sizes, dims)
    space, sizes = written.dims(written.numbers)
    assignment = dataclasses.replace(trial.assignment, sizes={**trial.assignment.sizes, **sizes})
    try:
        found = _traced(target, source, assignment, dims, space)
    except (Unbuildable, AnnotationError, ValueError, TypeError):  # which then holds for integers
        return None
    return found if found[0].ok and not space.pinned else None


def _traces(
    target: Target, source: Statements, trial: Trial, needs: Needs, dims: Mapping[str, Any]
) -> Sequence[_Trace]:
    for_all = _for_all(target, source, trial, needs, dims) if trial.ok else None
    if for_all is not None:
        return [for_all]
    first = _traced(target, source, trial.assignment, dims)
    found = [first]
    for deal in DEALS[:3]:
        assignment = assignment_for(trial.assignment.sizes, needs, deal, trial.assignment)
        if assignment.sizes == trial.assignment.sizes:
            continue
        try:
            further = _traced(target, source, assignment, dims)
        except Unbuildable:
            continue
        if further[0].ok == trial.ok and further[1].found.keys() == first[1].found.keys():
            found.append(further)
    return found


def _other_options(
    target: Target,
    source: Statements,
    trial: Trial,
    needs: Needs,
    dims: Mapping[str, Any],
    notes: Mapping[Assigned, Note],
    function: Function | None,
) -> Iterator[_Trace]:
    """Traces with one option taken otherwise, while there are places in the function that none has come to."""
    if not trial.ok or function is None:
        return
    places = {
        place
        for line, statement in source.by_line.items()
        if function.line <= line <= function.last
        for place in statement.assigned
    }
    for place in [*trial.options][:_MOST_OPTIONS] if not places <= notes.keys() else ():
        taken = {**trial.assignment.options, place: 1}
        other = dataclasses.replace(trial, assignment=dataclasses.replace(trial.assignment, options=taken))
        found = _for_all(target, source, other, needs, dims)
        if found is not None:
            yield found


def _notes(traces: Sequence[_Trace], orders: tuple[tuple[str, ...], ...]) -> dict[Assigned, Note]:
    """What each place had, in words."""
    found: dict[Assigned, Note] = {}
    for place, values in traces[0][1].found.items():
        columns = [[*reader.found[place].values()] for _, reader in traces]
        together = all(
            len(one) == len(columns[0]) and all(alike(a[0], b[0]) for a, b in zip(one, columns[0], strict=True))
            for one in columns
        )
        used = [*zip(*columns, strict=True)] if together else [(one,) for one in values.values()]
        trials = [trial for trial, _ in (traces if together else traces[:1])]
        words: dict[str, None] = {}
        for passes in used:
            names = _names([known for _, known in passes], trials, orders)
            words[in_text([value for value, _ in passes], names.shape)] = None
        if {*words} != {place.text}:
            found[place] = Note(place.line, place.column, place.text, _in_turn([*words]))
    return found


def _in_turn(words: Sequence[str]) -> str:
    """Of several passes the last, and the first."""
    return words[0] if len(words) == 1 else f"{words[-1]}, at first {words[0]}"


def _names(
    known: Sequence[tuple[Bindings, ...]], trials: Sequence[Trial], orders: tuple[tuple[str, ...], ...]
) -> Names:
    """What sizes are called in a function: as its annotations do, then as those around it, then as the proof does."""
    sizes: dict[str, tuple[Any, ...]] = {}
    variadics: dict[str, tuple[tuple[Any, ...], ...]] = {}
    for scopes in zip(*known, strict=False):
        for name, found in scopes[0].variadics.items():
            shapes = tuple(one.variadics[name].shape for one in scopes if name in one.variadics)
            if len(shapes) == len(scopes) and len({len(one) for one in shapes}) == 1:
                variadics.setdefault(name, shapes)
                for axis in range(len(found.shape)):
                    sizes.setdefault(
                        name if len(found.shape) == 1 else f"{name}.{axis}", tuple(one[axis] for one in shapes)
                    )
        for name, size in scopes[0].sizes.items():
            each = tuple(one.sizes.get(name, size) for one in scopes)
            if name in sizes and [*map(str, sizes[name])] != [*map(str, each)]:
                name = f"{name}'"  # the caller's dim of this name
            sizes.setdefault(name, each)
    for key in trials[0].assignment.sizes:
        each = tuple(trial.assignment.sizes.get(key) for trial in trials)
        if [*map(str, each)] not in ([*map(str, one)] for one in sizes.values()):
            sizes.setdefault(_spoken(key) if _spoken(key) not in sizes else f"{_spoken(key)}'", each)
    return Names(tuple(sizes.items()), tuple(variadics.items()), orders)


def _dims(reader: Reader) -> dict[str, dict[str, str]]:
    return {
        function.name: {
            name: _bound_at(origin) if origin.slot.name or origin.axis is not None else f"argument {name}"
            for name, origin in scope.origins.items()
        }
        for function, scope in reader.scopes.items()
    }


def _bound_at(origin: Origin) -> str:
    """Where a dim was bound, in words."""
    slot, axis = origin.slot, origin.axis
    owner = f"{slot.owner.__qualname__}." if slot.role in ("field", "config") else ""
    path = format_path(origin.path, "") if origin.path else ""
    where = f"{slot.role} {owner}{slot.name}{path}"
    return where if axis is None else f"{where}, axis {axis}"


def _spoken(key: str) -> str:
    """A key of a proof as a name: an axis of an array whose annotation gives no shape is `x.0`."""
    return key.removeprefix("self.").replace("....", ".")
