"""Every part of a program's inputs gone through, and several changes at once, once a program holds.

A part is a class, an option, or the number of axes of arrays, and one loop goes through all of them (`vary_parts`). A
value that fails by itself need not be a fault of the program: annotations cannot say that a field gives the number of
axes of others. So `goes_with` tells whether the failure goes away when something else is changed together with it. Each
kind of part names the changes that may be related to it, since each costs a trial, and words the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weft.typecheck.arguments.builder import Assignment, Unbuildable
from weft.typecheck.proofs.beyond import beyond_annotations
from weft.typecheck.proofs.explaining import (
    MOST_CLASSES,
    MOST_PAIRS,
    Evidence,
    Explanation,
    Trials,
    explain,
    with_options_in_rounds,
)
from weft.typecheck.proofs.needs import Needs, array_of, ascending, axes, closed
from weft.typecheck.proofs.trial import DTYPE_NAMES, Trial, argument_of, at_guard, is_class, phrases

# New values for entries of an assignment, by the entry's part and key: `{("options", "mask given"): 1}`.
Change = Mapping[tuple[str, str], int | str]


def change_of(**parts: Mapping[str, int | str]) -> Change:
    """A change by its parts: `change_of(options={"mask given": 1}, ranks={"batch": 2})`."""
    return {(part, key): to for part, entries in parts.items() for key, to in entries.items()}


def changed(base: Trial, *changes: Change, **parts: Mapping[str, int | str]) -> Assignment:
    """The assignment of a trial with changes made to it; one may be given by parts: `changed(base, sizes={"n": 1})`."""
    entries: dict[str, dict[str, Any]] = {}
    for change in (*changes, change_of(**parts)):
        for (part, key), to in change.items():
            entries.setdefault(part, dict(getattr(base.assignment, part)))[key] = to
    if "merged" in entries:
        # A change may merge a key into one that another change merges further: each has to point at the last of them.
        entries["merged"] = closed(entries["merged"])
    return dataclasses.replace(base.assignment, **entries)


def difference(base: Trial, trial: Trial) -> Change:
    """The change that leads from one trial to another: their options and numbers of axes that differ."""
    options, usual = trial.assignment.options, base.assignment.options
    ranks = base.assignment.ranks
    return change_of(
        options={place: option for place, option in options.items() if option != usual.get(place, 0)},
        ranks={key: rank for key, rank in trial.assignment.ranks.items() if key in ranks and ranks[key] != rank},
    )


def with_changes(
    trials: Trials, base: Trial, needs: Needs, *changes: Change, **parts: Mapping[str, int | str]
) -> Trial:
    """The trial with some changes, at the sizes of the base; if it fails there, at sizes that meet the needs.

    Raises:
        Unbuildable: if there are no arguments like that.
    """
    trial = trials.attempt(changed(base, *changes, **parts))
    # Options may bring axes of their own, whose sizes the base's needs have not been asked of yet.
    return trial if trial.ok else trials.with_needs(trial, needs, ascending)


def holds(trials: Trials, base: Trial, *changes: Change) -> bool:
    """Whether arguments can be made with some changes, and the trial with them holds."""
    with contextlib.suppress(Unbuildable):
        return trials.attempt(changed(base, *changes)).ok
    return False


def goes_with(trials: Trials, base: Trial, change: Change, others: Iterable[Change]) -> bool:
    """Whether a trial holds with a change together with one of some other changes."""
    return any(holds(trials, base, change, other) for other in others)


def in_words(trial: Trial, changes: Sequence[Change]) -> str:
    """Changes of options and numbers of axes in a reader's words: `mask left out and x of 3 axes`."""
    return " and ".join(
        phrases(trial.options, place, int(to)).taken_here if part == "options" else f"{place} of {axes(int(to))}"
        for change in changes
        for (part, place), to in change.items()
    )


# An entry of an assignment, and its value.
_Entry = tuple[tuple[str, str], int | str]
# The most trials with which all combinations are gone through; of more, only pairs are tried.
_MOST = 24


@dataclass
class Results:
    """The trials and conditions that a search has found so far.

    Attributes:
        passed, failed, needs, notes: see `Outcome`.
        settled: the places whose options a note mentions already.
        alternatives: trials that hold with other options of these places.
        doubtful: trials that fail for one concrete class of an abstract class, and by no guard of that class.
        in_pairs: whether options were tried alone and in pairs, and not in all combinations.
        unmended: the places and messages of classes' failures that neither options nor needs mended.
        evidence: what trials have shown that no needs explain.
    """

    passed: list[Trial] = field(default_factory=list)
    failed: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    needs: Needs = field(default_factory=Needs)
    settled: set[str] = field(default_factory=set)
    alternatives: list[Trial] = field(default_factory=list)
    doubtful: list[Trial] = field(default_factory=list)
    in_pairs: bool = False
    unmended: set[tuple[object, str]] = field(default_factory=set)
    evidence: Evidence = field(default_factory=Evidence)

    def heed(self, evidence: Evidence) -> None:
        """Adds what further trials have shown."""
        self.evidence = self.evidence.then(evidence)

    def needs_of(self, explanation: Explanation) -> Needs | None:
        """The needs of an explanation, if it found any; what its trials have shown is added."""
        self.heed(explanation.evidence)
        return explanation.needs


class _Part(NamedTuple):
    """A part of a program's inputs that is gone through: a class, an option, or the number of axes of arrays.

    Attributes:
        key: the part, as an entry of an assignment names it, or several entries.
        usual: the value that the part has in the trial that is varied.
        values: the other values to try.
        tried: the trial with a value, and the needs under which it holds.
        excuses: whether a failure with a value only says which values the program is meant for.
        words: the conditions in words, by the values that held and the trials of those that were refused.
    """

    key: tuple[str, str]
    usual: int
    values: Iterable[int]
    tried: Callable[[int], tuple[Trial, Needs]]
    excuses: Callable[[int, Trial], bool]
    words: Callable[[Mapping[int, Trial], Mapping[int, Trial | None]], Iterable[str]]


def vary_parts(trials: Trials, results: Results) -> None:
    """Tries each value of each part, with all other parts as in a trial that held.

    A value that fails is a failure of the program, unless a guard refuses it or annotations cannot say what goes with
    it: then it is a condition.
    """
    seen = set[tuple[tuple[str, str], int]]()
    queue = [results.passed[0]]
    results.passed += results.alternatives
    while queue:
        current = queue.pop(0)
        for part in _parts(trials, results, current):
            holding, refused = {part.usual: current}, dict[int, Trial | None]()
            # One at a time, as a trial may ask a value for something new, which gives that value a further option.
            for value in part.values:
                if (part.key, value) in seen:
                    continue
                seen.add((part.key, value))
                try:
                    trial, needs = part.tried(value)
                except Unbuildable:  # the value could not be tried, and the report says so
                    refused[value] = None
                    continue
                if trial.ok and _suits(trials, results, needs):
                    holding[value] = trial
                    results.passed.append(trial)
                    results.needs = needs
                    queue.append(trial)  # a value may lead to arguments that have options of their own
                elif trial.ok or part.excuses(value, trial):
                    refused[value] = trial
                else:
                    results.failed.append(trial)
                    break
            said = tuple(part.words(holding, refused))  # which may replace what was noted of parts before
            results.notes += said


def _parts(trials: Trials, results: Results, current: Trial) -> Iterator[_Part]:
    """The parts of a trial to go through; classes and numbers of axes are those of the first trial that held alone."""
    if current is results.passed[0]:
        for place in current.options.classes:
            yield _class(trials, results, current, place)
    for place in _places(current, results):
        yield _option(trials, results, current, place)
    if current is results.passed[0] and not results.failed:
        yield from _numbers_of_axes(trials, results, current)


def _class(trials: Trials, results: Results, base: Trial, place: str) -> _Part:
    """The concrete classes of an abstract class.

    If a guard raises for a class, or the failure depends on what annotations leave open, the program is not meant for
    that class.
    """
    names, usual = base.options.classes[place], base.assignment.options.get(place, 0)

    def words(holding: Mapping[int, Trial], refused: Mapping[int, Trial | None]) -> Iterator[str]:
        said = dict[int, str]()
        for option, trial in sorted(holding.items()):
            # Besides the class, further options may have changed: ` (mask is given)`.
            known, chosen = base.assignment.options, trial.assignment.options.items()
            more = {place: n for place, n in chosen if n and n != known.get(place) and not is_class(place)}
            needed = ", ".join(phrases(trial.options, entry, n).needed for entry, n in more.items())
            said[option] = names[option] + (f" ({needed})" if needed else "")
        # A class that needs much of its own is not named: needs are stated for all classes.
        failing = {option: trial for option, trial in refused.items() if trial is not None and not trial.ok}
        excluded = " or ".join(names[option] + at_guard(trial) for option, trial in failing.items())
        yield f"{argument_of(place) or place} is {' or '.join(said.values())}" + f", not {excluded}" * bool(excluded)
        doubtful = (trial for trial in failing.values() if not trial.guard and beyond_annotations(trial) is None)
        results.doubtful += doubtful

    return _Part(
        ("options", place),
        usual,
        (option for option in range(min(len(names), MOST_CLASSES)) if option != usual),
        lambda option: with_option(trials, results, base, {place: option}),
        lambda option, trial: not is_excused_by_nothing(trials, trial),
        words,
    )


def _places(current: Trial, results: Results) -> Iterator[str]:
    """The places of a trial whose options may decide something.

    Dtypes are tried where an error names them, as most programs take floats alone.
    """
    names = frozenset[str]().union(*(trial.names for trial in results.passed))
    for place in current.options.counts:
        is_read = current.options.is_read(place, names)  # what the program never looks at decides nothing
        if is_read and place not in results.settled and not place.endswith((" dtype", " class")):
            yield place


def _option(trials: Trials, results: Results, current: Trial, place: str) -> _Part:
    """The options of one place."""

    def excuses(option: int, trial: Trial) -> bool:
        # Many who annotate any number of items, or any tree, mean a certain one: a failure is only a condition.
        is_loose = place.endswith((" length", " tree", " width"))
        # A dtype that JAX refuses is none that the program is for, though its annotation allows it; nor is a number
        # next to those that it asks for.
        of_value = trial.options.given.get(place)
        is_made_up = of_value is not None and not of_value.is_asked_for(option)
        is_loose |= (is_made_up or place.endswith(" arrays")) and not trial.violations
        if is_excused_by_nothing(trials, trial) and not _goes_with_axes(trials, current, place, option):
            return False
        return (
            bool(trial.guard)
            or is_loose
            or _is_open(trial)
            or _is_for_others(trials, trial, place)
            or _helped(trials, results, current, place, option)
        )

    def words(holding: Mapping[int, Trial], refused: Mapping[int, Trial | None]) -> Iterator[str]:
        for option, trial in refused.items():
            yield phrases((trial or current).options, place, option).excluded + (
                "" if trial is None else at_guard(trial)
            )

    return _Part(
        ("options", place),
        0,
        itertools.takewhile(lambda option: option < current.options.counts[place], itertools.count(1)),
        lambda option: with_option(trials, results, current, {place: option}),
        excuses,
        words,
    )


def _numbers_of_axes(trials: Trials, results: Results, base: Trial) -> Iterator[_Part]:
    """The numbers of axes of each variadic name, and of each array without a shape."""
    dots = {key.rpartition(".")[0] for pair in results.needs.alike for key in pair} & base.ranks.keys()
    if results.needs.of_one_shape:
        # Several arrays, or their `...`, which have the same shape, change at once.
        if dots and not any(_speaks_of_axes(results.needs, key) for key in dots if not key.endswith("]")):
            yield _rank(trials, results, base, tuple(sorted(dots)))
        return
    alone = dict[str, list[str]]()
    for key, (rank, is_unnamed, _) in base.ranks.items():
        if any(rank == key for rank, _ in results.needs.ranks):
            continue
        if is_unnamed and _speaks_of_axes(results.needs, key):
            # The needs name axes of this array by number, which has a meaning for this many axes alone.
            results.needs = results.needs.plus(ranks=(key, rank))
            continue
        noted = len(results.notes)
        yield _rank(trials, results, base, (key,))
        said = results.notes[noted:]
        if is_unnamed and rank == 2 and len(said) > 1:
            alone[key] = said
    # Two arrays without a shape that are added need the same number of axes, so another number for one of them fails.
    if len(alone) > 1 and not results.failed:

        def words(holding: Mapping[int, Trial], refused: Mapping[int, Trial | None]) -> Iterator[str]:
            if not refused:
                results.notes = [note for note in results.notes if not any(note in said for said in alone.values())]
                yield f"{' and '.join(map(array_of, alone))} have the same number of axes, 2 at most"

        yield _rank(trials, results, base, tuple(alone))._replace(values=(0, 1), words=words)


def _rank(trials: Trials, results: Results, base: Trial, keys: tuple[str, ...]) -> _Part:
    """The numbers of axes of one variadic name, or of several `...` at once.

    The program refuses a number, which is no failure, if it raises on purpose (a guard), if the annotation leaves the
    number open and nothing shows a fault of the function's own, if there is no axis where it needs one, or if another
    option of the fields makes it hold.
    """
    key, is_unnamed, usual = keys[0], base.ranks[keys[0]].is_unnamed, base.ranks[keys[0]].axes
    # A body that compares `x.ndim` with 4 may branch there, so the numbers next to those that it writes are tried, too.
    further = (number + offset for number in trials.target.compared_ranks for offset in (-1, 0, 1))
    values = dict.fromkeys((0, 2, 1, *sorted(number for number in further if number > 2)))

    def change(count: int) -> Change:
        return change_of(ranks=dict.fromkeys(keys, count))

    def excuses(count: int, trial: Trial) -> bool:
        return (
            len(keys) > 1
            or bool(trial.guard)
            or (is_unnamed and not is_excused_by_nothing(trials, trial))
            or (count == 0 and trial.error is not None)
            or goes_with(trials, base, change(count), options_of_fields(base))
        )

    def words(holding: Mapping[int, Trial], refused: Mapping[int, Trial | None]) -> Iterator[str]:
        failing = {count: trial for count, trial in refused.items() if trial is not None}
        if failing and max(failing) < max(holding):  # more axes held, so each refused number has a sentence
            yield from (f"{array_of(key)} is not of {axes(count)}{at_guard(trial)}" for count, trial in failing.items())
        elif failing:  # more axes were refused than held, so the sentence lists the numbers that held
            *few, last = [str(number) for number in sorted(holding)]
            said = f"{', '.join(few)} or {last} axes" if few else axes(int(last))
            yield f"{array_of(key)} is of {said}{at_guard(failing[max(failing)])}"

    return _Part(
        ("ranks", " and ".join(keys)),
        usual,
        (count for count in values if count != usual),
        lambda count: (trials.attempt(changed(base, change(count))), results.needs),
        excuses,
        words,
    )


def _speaks_of_axes(needs: Needs, key: str) -> bool:
    """Whether a need names a single axis of an array that may have any number of axes: `x.shape[1] = 3`.

    That an axis equals the same axis of another array is no such need.
    """
    pairs = [*needs.multiples, *needs.equal, *needs.least, *((key, other) for key, other, _ in needs.order)]
    # A need that `x.shape[0] = y.shape[0]` has a meaning for any number of axes.
    pairs += [pair for pair in needs.merged if len({axis.partition("....")[2] or axis for axis in pair}) > 1]
    return any(isinstance(part, str) and part.startswith(f"{key}.") for pair in pairs for part in pair)


def with_option(trials: Trials, results: Results, base: Trial, options: Mapping[str, int]) -> tuple[Trial, Needs]:
    """The trial with some options changed, and the needs under which it holds.

    If it fails and the option is a class, the trial that got furthest is returned: a failure behind the guards of the
    class's constructor says more than the guards do.
    """
    needs = results.needs
    fresh = with_changes(trials, base, needs, options=options)
    of_class = any(map(is_class, options))
    # Classes of a large hierarchy often fail alike: what neither options nor needs mended once is not tried again.
    if of_class and not fresh.ok and (fresh.place, fresh.complaint) in results.unmended:
        return fresh, needs
    first = fresh
    if of_class:
        fresh, evidence = with_options_in_rounds(trials, fresh, frozenset(options))
        results.heed(evidence)
    if fresh.ok:
        return fresh, needs
    explanation = explain(trials, fresh, needs, ascending)
    further = results.needs_of(explanation)
    if further is not None:
        return trials.with_needs(fresh, further, ascending), further
    if of_class:
        results.unmended.add((first.place, first.complaint))
    # Joined sizes pass many a guard, and a later failure may come from the joining.
    return (explanation.stuck if of_class and not explanation.stuck.assignment.merged else fresh), needs


def _is_for_others(trials: Trials, trial: Trial, place: str) -> bool:
    """Whether a failing option may be there for other code: a member of a union, or a field left at its default.

    A record's class writes its unions for all users, and a base class those of its methods for all subclasses. Which
    members a single function, or subclass, takes is written nowhere. A wrong result of the target itself is wrong for
    each member. If a function that the target calls takes another member only, that is the member the target takes.
    """
    target = trials.target
    if not place.endswith((" type", " given", " present")) or _breaks_own_promise(trials, trial):
        return False
    if not place.endswith(" type"):  # a record may lack a field that only other functions read
        return "." in place and not place.startswith("self.")
    return "." in place.removeprefix("self.") or target.inherited


def _breaks_own_promise(trials: Trials, trial: Trial) -> bool:
    """Whether the target itself returns another shape than it says."""
    target = trials.target
    return any(violation.place[:2] == (target.file, target.line) for violation in trial.violations)


def is_excused_by_nothing(trials: Trials, trial: Trial) -> bool:
    """Whether the user's own function returns another shape than it says.

    In an installed package nobody can ask which options its author meant to be given together.
    """
    return trials.target.is_users and trial.breaks_promise and _breaks_own_promise(trials, trial)


def _suits(trials: Trials, results: Results, needs: Needs) -> bool:
    """Whether all variants that held so far also hold under new needs: a report states one set of needs for all."""
    if needs == results.needs:
        return True
    variants = {tuple(trial.assignment.options.items()): trial for trial in reversed(results.passed)}
    try:
        return all(trials.with_needs(trial, needs, ascending).ok for trial in variants.values())
    except Unbuildable:
        return False


def _is_open(trial: Trial) -> bool:
    """Whether an error depends on something that annotations leave open, so that another choice of it may hold."""
    return not trial.violations and beyond_annotations(trial) is not None


def _goes_with_axes(trials: Trials, base: Trial, place: str, option: int) -> bool:
    """Whether a failing option goes with another choice, which no annotation can say.

    That is another member of a union, or, for an option of a record's field, another number of axes.
    """
    if place.endswith(" type"):
        return True
    ranks = (change_of(ranks={key: rank}) for key, usual in base.ranks.items() for rank in (1, 2) if rank != usual.axes)
    return "." in place and goes_with(trials, base, change_of(options={place: option}), ranks)


def _helped(trials: Trials, results: Results, base: Trial, place: str, option: int) -> bool:
    """Whether an option that fails alone holds with another option, or a field's with another number of axes."""
    if not place.endswith(" type") and _goes_with_axes(trials, base, place, option):
        return True
    for options in _options_together(trials, base, {place: option}):
        with contextlib.suppress(Unbuildable):
            if with_option(trials, results, base, options)[0].ok:
                return True
    return False


def options_of_fields(base: Trial) -> Iterator[Change]:
    """Each option of a record's field, which may decide how many axes arguments have; no annotation can say that."""
    return (change_of(options={place: 1}) for place in base.options.counts if "." in place)


def _options_together(trials: Trials, base: Trial, options: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yields options that fail alone, together with each further option that changes the failure.

    A further option is left out if it is itself at fault: if it fails alone in the same way, or gets less far.
    """
    alone = trials.attempt(changed(base, options=options))
    for place, count in base.options.counts.items():
        for option in range(1, min(count, MOST_CLASSES) if is_class(place) else count):
            with contextlib.suppress(Unbuildable):  # arguments that cannot be made mend nothing
                if place in options or is_inert(trials, base, options, place, option):
                    continue
                both = trials.attempt(changed(base, options={**options, place: option}))
                if both.ok or not (
                    both.progress < alone.progress
                    or _alike(both, trials.attempt(changed(base, options={place: option})))
                ):
                    yield {**options, place: option}


def is_inert(trials: Trials, base: Trial, options: Mapping[str, int], place: str, option: int = 1) -> bool:
    """Whether a trial with one more option fails as the trial without it does.

    The same needs would explain both failures, so the search looks for them only once.
    """
    alone, both = (trials.attempt(changed(base, options={**options, **more})) for more in ({}, {place: option}))
    return _alike(both, alone)


def _alike(first: Trial, second: Trial) -> bool:
    """Whether two trials fail in the same place with the same message."""
    return not first.ok and (first.complaint, first.place) == (second.complaint, second.place)


def vary_together(trials: Trials, results: Results) -> None:
    """Tries all combinations of changes that each hold alone, or, of many, pairs.

    Of changes that hold alone, only a broken annotation is a failure. An error may be one of a choice nobody makes.
    """
    base = results.passed[0]
    reads_dtypes = any(not DTYPE_NAMES.isdisjoint(trial.names) for trial in results.passed)
    # A trial at other sizes alone has no change, and would be counted as one in each combination.
    differences = (difference(base, passed) for passed in results.passed[1:])
    known = dict.fromkeys(frozenset(change.items()) for change in differences if change)
    # What was changed together, such as two arguments that are left out together, stays together.
    changes = [
        change for change in known if reads_dtypes or not any(place.endswith(" arrays") for (_, place), _ in change)
    ]
    every = list(itertools.islice(_combinations(changes, len(changes)), _MOST + 1))
    results.in_pairs = len(every) > _MOST
    chosen = itertools.islice(_combinations(changes, 2), MOST_PAIRS) if results.in_pairs else every
    for several in (each for each in chosen if frozenset().union(*each) not in known):
        # In the order of their places: that of a set differs from process to process, and notes are in this order.
        together = [dict(sorted(change, key=operator.itemgetter(0))) for change in several]
        try:
            trial = with_changes(trials, results.passed[0], results.needs, *together)
        except Unbuildable:
            continue
        if trial.ok:
            results.passed.append(trial)
        # An array without a shape promises no size, so a violation about its sizes may only show that the changes do
        # not go together; and so may the classes of two arguments.
        elif trial.violations and not (
            any(is_class(place) for (_, place), _ in frozenset().union(*several))
            or any(key in trial.keys.unnamed for key in trial.spoken_of)
        ):
            results.failed.append(trial)
            break
        else:
            results.notes.append(f"not both {in_words(trial, together)}{at_guard(trial)}")


def _combinations(changes: Sequence[frozenset[_Entry]], most: int) -> Iterator[tuple[frozenset[_Entry], ...]]:
    """Two changes or more, no two of which change the same entry; the fewest first."""
    for size in range(2, most + 1):
        for several in itertools.combinations(changes, size):
            entries = [entry for change in several for entry, _ in change]
            if len(entries) == len({*entries}):
                yield several
