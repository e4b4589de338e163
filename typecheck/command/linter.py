"""Judges the contracts of a file, and makes the lines of each.

A module's own public functions with arrays in their annotations, and its own public classes, are verified. The work
is divided into *steps*: the import, each definition, each contract of a definition. A worker announces each step
before taking it, so that a step that never ends is known, and the next worker goes on after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import linecache
import os
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from weft.core.errors import ForeignObjectError, WeftError
from weft.typecheck.command.config import Settings
from weft.typecheck.command.defined import definitions, unjudged
from weft.typecheck.command.lines import Checked, Fix, Line, joined, one_line, undecided
from weft.typecheck.command.loading import flax_over_weft, import_below, importable, load
from weft.typecheck.command.units import Unit, ignore_of, installed_roots, shown, skip_reason, units_of
from weft.typecheck.errors import AnnotationError
from weft.typecheck.proofs.explaining import USUAL, Budget
from weft.typecheck.proofs.frames import listening, place_of, text_of_fault
from weft.typecheck.proofs.prover import Proof, proofs_of
from weft.typecheck.proofs.report import Cause, Contract, Finding, Verdict
from weft.typecheck.proofs.watch import forget_closures

PRIVATE = "it is private, and is checked only where checked public code calls it"
Announce = Callable[[int, str, str, int], None]
T = TypeVar("T")
# The name, file and line of a function or class.
Place = tuple[str, str, int]


def check(names: Iterable[str], *, only: str | None = None, strict: bool = False, budget: Budget = USUAL) -> Checked:
    """Checks files, folders and modules by dotted name in this process, which imports them.

    Args:
        names: files, folders or modules.
        only: a regular expression; only functions and classes whose qualified name it matches are checked.
        strict: whether warnings and undecided contracts are failures.
        budget: the limits of each proof.
    """
    settings = Settings(only, strict, budget.trials, budget.seconds)
    units, troubles = units_of(names)
    return joined([troubles, *(part for parts in judge_here(units, settings) for part in parts)])


def judge_here(units: Iterable[Unit], settings: Settings) -> Iterator[list[Checked]]:
    """Judges units in this process; tests pass this function to the command in place of its workers."""
    return (list(judged(unit, settings)) for unit in units)


class Steps:
    """The numbered steps of one unit.

    Args:
        after: the number of the last step to skip.
        announce: called with the number, name, file and line of each step before it is taken.
        walled: whether this process is a worker, which the user's ^C does not reach.
        known: the definitions, as `module:name`, whose outcomes need not be found.

    Attributes:
        definition: the definition that is being judged; "" before the first, and `module:` after the last.
    """

    def __init__(
        self,
        after: int = 0,
        announce: Announce = lambda number, name, file, line: None,
        walled: bool = False,
        known: Collection[str] = (),
    ):
        self.after, self.announce, self.walled, self.known = after, announce, walled, known
        self.number, self.definition = 0, ""

    def begin(self, file: str) -> None:
        """Takes the first step, the import, which no worker can skip."""
        self.number = 1
        self.announce(1, "import", shown(file), 0)

    def enter(self, place: Place) -> bool:
        """Counts a step, and announces it unless it is skipped; returns whether to take it."""
        name, file, line = place
        self.number += 1
        if self.number <= self.after:
            return False
        self.announce(self.number, name, shown(file), line)
        return True

    @property
    def has_ended_a_worker(self) -> bool:
        """Whether the current step is the one that ended the last worker, and not one that was completed."""
        return self.number == self.after


def judged(unit: Unit, settings: Settings, steps: Steps | None = None) -> Iterator[Checked]:
    """Judges a unit and yields its parts."""
    steps = steps or Steps()
    with loaded(unit, steps) as module:
        if isinstance(module, BaseException):
            yield _not_imported(unit, module)
            return
        # A step of its own: if importing another module ends the process, this unit must still get its verdicts.
        if steps.enter(("subclasses of its package", unit.file, 0)) or not steps.has_ended_a_worker:
            import_below(unit.module)
        unreadable: dict[str, Exception] = {}
        things = [*definitions(module, unreadable)]

        def asked(named: Iterable[Any]) -> Iterator[Any]:
            return (entry for entry in named if re.search(settings.only or "", entry[0]))

        for name, error in asked(unreadable.items()):
            yield _crash((name, shown(unit.file), 0), error)
        for name, thing in asked(things):
            yield from _definition(unit, name, thing, settings, steps)
        steps.definition = f"{unit.module}:"
        for name, thing in asked(unjudged(module, things)):
            file, line = place_of(thing)
            yield one_line("unbuilt", shown(file), line, name, f"not checked: {PRIVATE}", "private")


@contextlib.contextmanager
def loaded(unit: Unit, steps: Steps) -> Iterator[ModuleType | BaseException]:
    """The module of a unit, or the error of its import; inside of the `with` block the unit can be traced."""
    linecache.checkcache()  # markers are read from it, and files may have changed
    with flax_over_weft(), listening(), importable(unit):
        steps.begin(unit.file)
        try:
            module: ModuleType | BaseException = load(unit)
        except BaseException as error:  # a SystemExit in one file must not end the run
            if isinstance(error, KeyboardInterrupt) and not steps.walled:
                raise
            module = error
        yield module


def _not_imported(unit: Unit, error: BaseException) -> Checked:
    """The line for a file whose import failed: at the failing line of the file, or with the library that is missing."""
    # The place is a syntax error's line, or the last line of the file itself in the traceback.
    own = Path(unit.file).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno or 0 for frame in frames if Path(frame.filename).resolve() == own]
    file, line = shown(unit.file), lines[-1] if lines else 0
    if isinstance(error, SyntaxError):
        file, line = shown(error.filename or unit.file), error.lineno or 0
    missing = _missing(error)
    if missing:
        # An installed package may have modules for optional libraries. One's own file needs what it imports.
        is_installed = os.path.realpath(unit.file).startswith(installed_roots())
        level, prefix = ("unbuilt", "not checked: ") if is_installed else ("unusable", "")
        return one_line(level, file, line, "import", f"{prefix}it needs {missing}", "missing")
    return one_line("unusable", file, line, "import", f"{type(error).__name__}: {first_line(error)}", "import")


def _definition(unit: Unit, name: str, thing: Any, settings: Settings, steps: Steps) -> Iterator[Checked]:
    """The parts of one function or class."""
    place = (name, *place_of(thing))
    key = steps.definition = f"{unit.module}:{name}"
    if key in steps.known:
        yield Checked(targets=(key,))
        return
    # A definition that an earlier worker judged is examined again, because contracts of it may remain to be judged.
    if not steps.enter(place) and steps.has_ended_a_worker:
        return
    yield Checked(targets=(key,))
    proofs = _skipped(place) or guarded(steps, place, lambda: proofs_in(thing, settings, key), strict=settings.strict)
    if isinstance(proofs, Checked):
        yield proofs
        return
    for proof in proofs:
        place = proof.target.name, proof.target.file, proof.target.line
        if steps.enter(place):
            part = _skipped(place) or guarded(steps, place, proof.contract, strict=settings.strict)
            yield part if isinstance(part, Checked) else _part(part, settings.strict)


def _skipped(place: Place) -> Checked | None:
    """The line for a function or class that a marker leaves out; None if there is no marker."""
    name, file, line = place
    reason = skip_reason(file, line)
    return None if reason is None else one_line("skipped", shown(file), line, name, reason, "skipped")


def proofs_in(thing: Any, settings: Settings, key: str) -> list[Proof]:
    """The proofs of a function or class, with its sizes and arguments from the configuration."""
    args = {name: _value(written) for name, written in settings.args.get(key, {}).items()}
    return proofs_of(thing, args, settings.dims.get(key, {}), Budget(settings.trials, settings.seconds))


def _value(written: Any) -> Any:
    """An argument from the configuration; `{ import = "module:name" }` stands for an object that TOML cannot write."""
    if not (isinstance(written, dict) and set(written) == {"import"}):
        return written
    module, _, name = str(written["import"]).partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise AnnotationError(f"[tool.weft.check] import = {written['import']!r} fails: {first_line(error)}") from None


def guarded(steps: Steps, place: Place, work: Callable[[], T], *, strict: bool) -> T | Checked:
    """Returns the result of the work of one step, or a `Checked` that says why the work gave none."""
    name, file, line = place[0], shown(place[1]), place[2]
    try:
        return work()
    except AnnotationError as error:
        return one_line("unusable", file, line, name, first_line(error), "annotation")
    except ForeignObjectError as error:
        return one_line("unbuilt", file, line, name, f"not checked: {error.what}", "unbuilt")
    except WeftError as error:
        return one_line("unusable", file, line, name, f"{type(error).__name__}: {first_line(error)}", "annotation")
    except RecursionError:
        return undecided(file, line, name, Cause.RECURSION.value, strict=strict, lasting=True)
    except MemoryError:
        return undecided(file, line, name, "it needs more memory than there is", strict=strict)
    except Exception as error:  # a fault of weft's: the other contracts are judged all the same
        return _crash((name, file, line), error)
    # `sys.exit` in a traced function is the program's own end, and must not end the run.
    except BaseException as error:
        # In the command's own process ^C must end the run, in a worker it cannot have come from the user.
        if isinstance(error, KeyboardInterrupt) and not steps.walled:
            raise
        reason = f"it raises {type(error).__name__}({', '.join(map(repr, error.args))}), which ends a program"
        return undecided(file, line, name, reason, strict=strict, lasting=True)
    finally:
        # Even after an error: the closures of a trial hold its arrays, and a run has thousands of trials.
        forget_closures()


def _crash(place: Place, error: Exception) -> Checked:
    """The part for a contract at which weft itself failed: one verdict is lost, and the exit code is 2."""
    name, file, line = place
    return Checked(
        (Line("crash", file, line, name, f"undecided: {text_of_fault(error)}", "internal"),),
        (Verdict.UNDECIDED.value,),
        lasting=False,
    )


def _part(contract: Contract, strict: bool) -> Checked:
    """The part for one contract, after applying the markers in its source."""
    lines: list[Line] = []
    marks: list[tuple[str, int]] = []
    for line, file in _lines(contract, strict):
        marker = ignore_of(file, line.line) if line.level in ("error", "warning", "undecided") else None
        if marker is not None:
            marks.append((shown(file), marker[0]))
            line = Line("ignored", line.file, line.line, line.name, f"{line.message} [{marker[1]}]", line.rule)
        lines.append(line)
    # A warning that counts as a failure makes the contract fail, although its proof succeeded.
    is_error = strict or any(_is_own_mistake(warning, contract) for warning in contract.warnings)
    verdict = Verdict.FAILS if is_error and contract.warnings else contract.verdict
    is_accepted = bool(marks) and all(line.level == "ignored" for line in lines)
    told = "ignored" if is_accepted and verdict in (Verdict.FAILS, Verdict.UNDECIDED) else verdict.value
    where = f"{shown(contract.file)}:{contract.line}: {contract.name}"
    when = "given" if contract.failures else "holds when"  # a failure occurs although the conditions are met
    assumptions = tuple(f"{where}: {when} {condition}" for condition in contract.assumptions)
    # A proof that ran out of time may finish on a faster machine; one that ran out of trials ends there everywhere.
    lasting = contract.cause not in (Cause.SECONDS, Cause.FAULT)
    return Checked(tuple(lines), (told,), assumptions, marks=tuple(marks), lasting=lasting, name=contract.name)


def _lines(contract: Contract, strict: bool) -> Iterator[tuple[Line, str]]:
    """The lines of a contract, each with the full path of its file, where markers are searched."""

    def line(level: str, file: str, number: int, message: str, rule: str) -> tuple[Line, str]:
        return Line(level, shown(file), number, contract.name, message, rule), file

    def of(level: str, finding: Finding) -> tuple[Line, str]:
        fix = Fix(finding.fix, **(finding.edit._asdict() if finding.edit else {})) if finding.fix else None
        told, file = line(level, finding.file, finding.line, f"{finding.rule}: {finding}", finding.rule)
        return dataclasses.replace(told, program=finding.program, fix=fix), file

    if contract.verdict is Verdict.SKIPPED:
        yield line("unbuilt", contract.file, contract.line, f"not checked: {contract.reason}", "unbuilt")
    elif contract.verdict is Verdict.UNDECIDED:
        level, rule = ("error" if strict else "undecided"), "undecided"
        if contract.cause is Cause.FAULT:
            level, rule = "crash", "internal"
        yield line(level, contract.file, contract.line, f"undecided: {contract.reason}", rule)
    else:
        yield from (of("error", failure) for failure in contract.failures)
        for warning in contract.warnings:
            yield of("error" if strict or _is_own_mistake(warning, contract) else "warning", warning)


def _is_own_mistake(finding: Finding, contract: Contract) -> bool:
    """Whether a warning counts as a failure: `(b, 1) - (b,)` in code that is not installed.

    It is the commonest bug in loss functions, and the owner of the code can mend it; the user of an installed package
    cannot.
    """
    installed = installed_roots()
    return finding.rule == "outer-product" and not (
        finding.file.startswith(installed) or contract.file.startswith(installed)
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _missing(error: BaseException) -> str:
    """The missing library, in words, because of which an import failed; "" if the cause is another one.

    A missing module of the project itself is the project's mistake.
    """
    chain: BaseException | None = error
    # An import may fail inside of another one, whose error has the missing module as its cause.
    while chain is not None and not isinstance(chain, ModuleNotFoundError):
        chain = chain.__cause__ or chain.__context__
    top = ((chain and chain.name) or "").partition(".")[0]
    if not top or importlib.util.find_spec(top) is not None:
        return ""
    return f"{top}, which is not installed" + (" (it is torch code: weft checks JAX code)" if top == "torch" else "")
