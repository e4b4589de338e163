"""What is judged of a file, and what each contract of it gave, as lines.

What is verified is what a module defines itself: public functions with an array in their annotations, and public
Modules. Work goes in *steps*: the import, each definition, each contract of it. A worker announces every step before
it takes it, so that one that does not come back is known, and the next worker goes on after it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from weft.core.errors import ForeignObjectError, WeftError
from weft.typecheck.command.called import Recorded
from weft.typecheck.command.config import Settings
from weft.typecheck.command.defined import definitions
from weft.typecheck.command.flax_programs import flax_over_weft
from weft.typecheck.command.lines import Checked, Fix, Line, joined, one_line, undecided
from weft.typecheck.command.loading import import_below, importable, load
from weft.typecheck.command.markers import ignore_of, skip_reason
from weft.typecheck.command.units import WEFT, Unit, installed_roots, shown, units_of
from weft.typecheck.errors import AnnotationError
from weft.typecheck.proofs.budget import USUAL, Budget
from weft.typecheck.proofs.following import listening
from weft.typecheck.proofs.prover import Proof, proofs_of
from weft.typecheck.proofs.report import Cause, Contract, Finding, Verdict
from weft.typecheck.proofs.watched import forget_closures
from weft.typecheck.proofs.whose import place_of

Announce = Callable[[int, str, str, int], None]


def check(names: Iterable[str], *, only: str | None = None, strict: bool = False, budget: Budget = USUAL) -> Checked:
    """Checks files, folders and modules by dotted name in this process, with nothing between it and what they do.

    Args:
        names: what to check.
        only: a regular expression that the qualified name of what is checked must match somewhere.
        strict: whether warnings, and what is undecided, are failures.
        budget: what each proof may use.
    """
    settings = Settings(only, strict, budget.trials, budget.seconds)
    units, troubles = units_of(names)
    return joined([troubles, *(part for parts in judge_here(units, settings) for part in parts)])


def judge_here(units: Iterable[Unit], settings: Settings) -> Iterator[list[Checked]]:
    """Judges units in this process: what tests give to the command in place of its workers."""
    return (list(judged(unit, settings)) for unit in units)


class Steps:
    """The steps of one unit, numbered.

    Args:
        after: the number of the last step that is not to be taken again.
        announce: is told number, name, file and line of each step before it is taken.
        walled: whether this process is a worker, where nobody's ^C arrives.
    """

    def __init__(
        self,
        after: int = 0,
        announce: Announce = lambda number, name, file, line: None,
        walled: bool = False,
    ):
        self.after, self.announce, self.walled = after, announce, walled
        self.number = 0

    def begin(self, file: str) -> None:
        """The first step is the import, which every worker takes."""
        self.number = 1
        self.announce(1, "import", shown(file), 0)

    def enter(self, name: str, file: str, line: int) -> bool:
        """Whether to take the next step."""
        self.number += 1
        if self.number <= self.after:
            return False
        self.announce(self.number, name, shown(file), line)
        return True


def judged(unit: Unit, settings: Settings, steps: Steps | None = None) -> Iterator[Checked]:
    """The parts of one unit, one after the other."""
    steps = steps or Steps()
    linecache.checkcache(str(Path(unit.file).resolve()))  # markers are read from there
    with flax_over_weft(), listening(), importable(unit):
        steps.begin(unit.file)
        try:
            module = load(unit)
        except BaseException as error:  # whatever a file does on import, even SystemExit, must not end the others
            if isinstance(error, KeyboardInterrupt) and not steps.walled:
                raise
            file, line = _raised_at(error, unit.file)
            missing = _missing(error)
            if missing:
                yield one_line("unbuilt", file, line, "import", f"not checked: it needs {missing}", "missing")
            else:
                what = f"{type(error).__name__}: {first_line(error)}"
                yield one_line("unusable", file, line, "import", what, "import")
            return
        # A step of its own: what else a package does when it is imported is not to cost this unit.
        if steps.enter("subclasses of its package", unit.file, 0) or steps.number != steps.after:
            import_below(unit.module)
        failed: dict[str, Exception] = {}
        recorded = Recorded(unit, module, settings)
        found = [*definitions(module, failed)]
        for name, error in failed.items():
            if _is_asked(name, settings):
                yield _crash(shown(unit.file), 0, name, error)
        for name, thing in found:
            if _is_asked(name, settings):
                yield from _definition(unit, name, thing, settings, steps, recorded)
        for name, function, owner in recorded.others():
            if _is_asked(name, settings):
                yield from _called(unit, name, function, owner, settings, steps, recorded)


def _called(
    unit: Unit, name: str, function: Any, owner: type | None, settings: Settings, steps: Steps, recorded: Recorded
) -> Iterator[Checked]:
    """The verdict of a function from its recorded calls alone."""
    file, line = place_of(inspect.unwrap(function))
    reason = skip_reason(file, line) or (skip_reason(*place_of(owner)) if owner is not None else None)
    if reason is not None or not steps.enter(name, file, line):
        return
    key = f"{unit.module}:{name.partition('.')[0]}"
    yield Checked(targets=(key,))
    dims, budget = dict(settings.dims.get(key, {})), Budget(settings.trials, settings.seconds)
    yield from _verdict(
        steps, (name, file, line), settings, lambda: recorded.contract(name, function, owner, dims, budget)
    )


def _is_asked(name: str, settings: Settings) -> bool:
    return settings.only is None or re.search(settings.only, name) is not None


def _definition(
    unit: Unit, name: str, thing: Any, settings: Settings, steps: Steps, recorded: Recorded
) -> Iterator[Checked]:
    """The parts of one function or class."""
    file, line = place_of(thing)
    key = f"{unit.module}:{name}"
    if not steps.enter(name, file, line) and steps.number == steps.after:
        return  # this is what ended the last worker
    yield Checked(targets=(key,))
    reason = skip_reason(file, line)
    if reason is not None:
        yield one_line("skipped", shown(file), line, name, reason, "skipped")
        return
    proofs: list[Proof] = []
    trouble = guarded(
        steps, (name, file, line), settings.strict, lambda: proofs.extend(proofs_in(thing, settings, key))
    )
    if trouble is not None:
        yield trouble
        return
    for proof in proofs:
        target = proof.target
        recorded.judged.add(target.name)
        if not steps.enter(target.name, target.file, target.line):
            continue
        reason = skip_reason(target.file, target.line)
        if reason is not None:
            yield one_line("skipped", shown(target.file), target.line, target.name, reason, "skipped")
        else:
            yield _proved(proof, thing, settings, steps, recorded)


def proofs_in(thing: Any, settings: Settings, key: str) -> list[Proof]:
    """What there is to prove of a thing, with the sizes and arguments that the configuration has for it."""
    given = {name: _value(one) for name, one in settings.args.get(key, {}).items()}
    return proofs_of(thing, given, settings.dims.get(key, {}), Budget(settings.trials, settings.seconds))


def _value(given: Any) -> Any:
    """An argument of the configuration; `{ import = "module:name" }` is what has that name."""
    if not (isinstance(given, dict) and set(given) == {"import"}):
        return given
    module, _, name = str(given["import"]).partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise AnnotationError(f"the configuration's import = {given['import']!r}: {first_line(error)}") from None


def _proved(proof: Proof, thing: Any, settings: Settings, steps: Steps, recorded: Recorded) -> Checked:
    target = proof.target

    def work() -> Contract:
        return recorded.instead(proof.contract(), thing, proof.dims, proof.budget)

    (part,) = _verdict(steps, (target.name, target.file, target.line), settings, work)
    return part


def _verdict(
    steps: Steps, place: tuple[str, str, int], settings: Settings, work: Callable[[], Contract | None]
) -> Iterator[Checked]:
    """The part that one contract gives; none if there is nothing to say of it."""
    found: list[Contract | None] = []

    def prove_it() -> None:
        try:
            found.append(work())
        finally:
            forget_closures()

    trouble = guarded(steps, place, settings.strict, prove_it)
    if trouble is not None:
        yield trouble
        return
    if found[0] is not None:
        yield _part(found[0], settings.strict)


def guarded(steps: Steps, place: tuple[str, str, int], strict: bool, work: Callable[[], None]) -> Checked | None:
    """Does the work of one step, and says so if it ended otherwise than with a verdict."""
    name, file, line = place[0], shown(place[1]), place[2]
    try:
        work()
    except AnnotationError as error:
        return one_line("unusable", file, line, name, first_line(error), "annotation")
    except ForeignObjectError as error:
        return one_line("unbuilt", file, line, name, f"not checked: {error.what}", "unbuilt")
    except WeftError as error:
        return one_line("unusable", file, line, name, f"{type(error).__name__}: {first_line(error)}", "annotation")
    except RecursionError:
        return undecided(file, line, name, Cause.RECURSION.value, strict=strict, lasting=True)
    except MemoryError:
        return undecided(file, line, name, "it took more memory than there is", strict=strict)
    except Exception as error:
        return _crash(file, line, name, error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not steps.walled:
            raise
        reason = f"it raises {type(error).__name__}({', '.join(map(repr, error.args))}), which ends a program"
        return undecided(file, line, name, reason, strict=strict, lasting=True)
    return None


def _crash(file: str, line: int, name: str, error: Exception) -> Checked:
    """What an internal error of weft's leaves of a contract."""
    message = f"undecided: weft failed: {type(error).__name__}: {first_line(error)} ({_place(error)}); please report it"
    return Checked((Line("crash", file, line, name, message, "internal"),), (Verdict.UNDECIDED.value,), lasting=False)


def _place(error: BaseException) -> str:
    """Where in weft an error was raised last."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(WEFT):
            return f"{path.relative_to(WEFT)}:{frame.lineno}"
    return "outside of weft"


def _part(contract: Contract, strict: bool) -> Checked:
    """One contract as lines, with what its markers ignore."""
    lines: list[Line] = []
    marks: list[tuple[str, int]] = []
    for line, file in _lines(contract, strict):
        marker = ignore_of(file, line.line) if line.level in ("error", "warning", "undecided") else None
        if marker is not None:
            marks.append((shown(file), marker[0]))
            line = Line("ignored", line.file, line.line, line.name, f"{line.message} [{marker[1]}]", line.rule)
        lines.append(line)
    is_error = strict or any(_is_own_mistake(one, contract) for one in contract.warnings)
    verdict = Verdict.FAILS if is_error and contract.warnings else contract.verdict
    if marks and all(line.level == "ignored" for line in lines):
        told = "ignored" if verdict in (Verdict.FAILS, Verdict.UNDECIDED) else verdict.value
    else:
        told = verdict.value
    where = f"{shown(contract.file)}:{contract.line}: {contract.name}"
    when = "given" if contract.failures else "holds when"  # what fails does so where these are met
    assumptions = tuple(f"{where}: {when} {what}" for what in contract.assumptions)
    # What ended with its time may have more of it on another machine; what ended with its trials does so everywhere.
    lasting = contract.cause is not Cause.SECONDS
    return Checked(tuple(lines), (told,), assumptions, marks=tuple(marks), lasting=lasting, name=contract.name)


def _lines(contract: Contract, strict: bool) -> Iterator[tuple[Line, str]]:
    """The lines of a contract, each with the whole path of its file."""

    def line(level: str, file: str, number: int, message: str, rule: str) -> tuple[Line, str]:
        return Line(level, shown(file), number, contract.name, message, rule), file

    def of(level: str, one: Finding) -> tuple[Line, str]:
        fix = Fix(one.fix, *(one.edit or ())) if one.fix else None
        told, file = line(level, one.file, one.line, f"{one.rule}: {one}", one.rule)
        return dataclasses.replace(told, program=one.program, fix=fix), file

    if contract.verdict is Verdict.SKIPPED:
        yield line("unbuilt", contract.file, contract.line, f"not checked: {contract.reason}", "unbuilt")
    elif contract.verdict is Verdict.UNDECIDED:
        level = "error" if strict else "undecided"
        yield line(level, contract.file, contract.line, f"undecided: {contract.reason}", "undecided")
    else:
        yield from (of("error", one) for one in contract.failures)
        for one in contract.warnings:
            yield of("error" if strict or _is_own_mistake(one, contract) else "warning", one)


def _is_own_mistake(finding: Finding, contract: Contract) -> bool:
    """Whether a warning is a failure here: `(b, 1) - (b,)` in code that is not installed.

    It is the commonest bug of losses, and its owner can mend it; in another's package it can only be read.
    """
    installed = installed_roots()
    return finding.rule == "outer-product" and not (
        finding.file.startswith(installed) or contract.file.startswith(installed)
    )


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _missing(error: BaseException) -> str:
    """The library that an import failed for, in words, if it is one that is not installed; else nothing.

    A module of the project's own that is not there is a mistake of the project's.
    """
    chain: BaseException | None = error
    while chain is not None and not isinstance(chain, ModuleNotFoundError):
        chain = chain.__cause__ or chain.__context__
    top = ((chain and chain.name) or "").partition(".")[0]
    if not top or importlib.util.find_spec(top) is not None:
        return ""
    return f"torch, which is not installed ({_TORCH})" if top == "torch" else f"{top}, which is not installed"


_TORCH = "it is torch code: weft checks JAX's"


def _raised_at(error: BaseException, file: str) -> tuple[str, int]:
    """Where an import failed: the line of the syntax error, or the file's own line that led to it."""
    if isinstance(error, SyntaxError):
        return shown(error.filename or file), error.lineno or 0
    line, frames = 0, traceback.extract_tb(error.__traceback__)
    for frame in frames:
        if Path(frame.filename).resolve() == Path(file).resolve():
            line = frame.lineno or 0
    return shown(file), line
