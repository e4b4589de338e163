"""`weft check`: verifies what files and modules declare, and prints what does not hold, like a linter.

Each file is imported under a name that is not `__main__`, so that a script's main part does not run. What is verified
is what it defines itself: public functions with an array in their annotations, and public Modules. A line that ends in
`# weft: skip(reason)` on a `def` or `class` leaves that one out, with the reason in the summary.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import multiprocessing
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.core.errors import ForeignObjectError, WeftError
from weft.typecheck.command.flax_programs import flax_over_weft
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.forms import has_own_dims
from weft.typecheck.language.objects import is_foreign_class
from weft.typecheck.proofs.budget import USUAL, Budget
from weft.typecheck.proofs.following import listening
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Contract, Finding, Verdict
from weft.typecheck.proofs.targets import is_annotated, public_methods
from weft.typecheck.proofs.whose import place_of

_SKIP = re.compile(r"#\s*weft:\s*skip\((.*?)\)")


@dataclass(frozen=True)
class Line:
    """One line of output.

    Attributes:
        level: `error`, `warning`, `undecided` (the search ended without a verdict), `skipped` (on request), `unbuilt`
            (no arguments could be made), `unusable`.
        file, line: where.
        name: the function or class.
        message: what there is to say.
    """

    level: str
    file: str
    line: int
    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name}: {self.message}"


@dataclass(frozen=True)
class Checked:
    """What checking one file or module gave."""

    lines: tuple[Line, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    assumptions: tuple[str, ...] = field(default=())

    def __add__(self, other: Checked) -> Checked:
        return Checked(self.lines + other.lines, self.verdicts + other.verdicts, self.assumptions + other.assumptions)

    @property
    def exit_code(self) -> int:
        """2 if something was unusable, 1 if something fails (under `strict` also what is undecided), else 0."""
        levels = {line.level for line in self.lines}
        return 2 if "unusable" in levels else 1 if "error" in levels else 0

    def count(self, level: str) -> int:
        """How many lines of a level there are."""
        return sum(line.level == level for line in self.lines)

    @property
    def summary(self) -> str:
        """The last line of the report."""
        counts = {verdict: self.verdicts.count(verdict) for verdict in Verdict}
        parts = [
            f"{counts[Verdict.PROVED]} proved",
            f"{counts[Verdict.HOLDS]} hold on the sizes tried",
            f"{counts[Verdict.FAILS]} fail",
            *([f"{counts[Verdict.UNDECIDED]} undecided"] if counts[Verdict.UNDECIDED] else []),
        ]
        for level, words in (
            ("warning", "warnings"),
            ("unbuilt", "not checked"),
            ("skipped", "skipped"),
            ("unusable", "unusable"),
        ):
            if self.count(level):
                parts.append(f"{self.count(level)} {words}")
        return f"{len(self.verdicts)} contracts: {', '.join(parts)}"


def check(
    names: Iterable[str], *, only: str | None = None, strict: bool = False, jobs: int = 1, budget: Budget = USUAL
) -> Checked:
    """Checks paths (files, or folders of them) and modules by dotted name.

    Args:
        names: what to check.
        only: a regular expression that the qualified name of what is checked must match somewhere.
        strict: whether warnings, and what is undecided, are failures.
        jobs: how many processes share the work.
        budget: what each proof may use.

    Raises:
        AnnotationError: if `only` is not a regular expression.
    """
    try:
        re.compile(only or "")
    except re.error as error:
        raise AnnotationError(f"--only is not a regular expression: {only!r}: {error}") from None
    units: list[Path | str] = []
    checked = Checked()
    for name in names:
        found = list(_units(name))
        units += found
        if not found:
            checked += Checked((Line("unusable", name, 0, "weft check", "no such file, folder or module"),))
    units = list(dict.fromkeys(units))
    if jobs > 1 and len(units) > 1:
        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(min(jobs, len(units)), mp_context=spawn) as pool:
            results = list(pool.map(functools.partial(_check_unit, only=only, strict=strict, budget=budget), units))
    else:
        results = [_check_unit(unit, only, strict, budget) for unit in units]
    for result in results:
        checked += result
    return dataclasses.replace(checked, lines=tuple(dict.fromkeys(checked.lines)))


def _units(name: str) -> Iterator[Path | str]:
    path = Path(name)
    if path.is_dir():
        yield from sorted(one for one in path.rglob("*.py") if not any(p.startswith(".") for p in one.parts))
    elif path.is_file():
        yield path
    elif re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name) and _exists(name):
        yield name


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _check_unit(unit: Path | str, only: str | None, strict: bool, budget: Budget) -> Checked:
    with flax_over_weft(), listening():
        return _check_module(unit, only, strict, budget)


def _check_module(unit: Path | str, only: str | None, strict: bool, budget: Budget) -> Checked:
    try:
        module = load(unit)
    except BaseException as error:  # whatever a file does on import, even SystemExit, must not end the others
        if isinstance(error, KeyboardInterrupt):
            raise
        file, line = _raised_at(error, str(unit))
        return Checked((Line("unusable", file, line, "import", f"{type(error).__name__}: {_first(error)}"),))
    checked = Checked()
    for name, thing in definitions(module):
        if only is None or re.search(only, name):
            checked += check_one(name, thing, strict, budget)
    return checked


def load(unit: Path | str) -> ModuleType:
    """Imports a file, as a part of its package if it is in one, or a module by name."""
    if isinstance(unit, str):
        return importlib.import_module(unit)
    path = unit.resolve()
    name = _module_name(path)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if "." in name or _exists(name):
        try:
            module = importlib.import_module(name)
            if Path(module.__file__ or "").resolve() == path:
                return module
        except ModuleNotFoundError as error:
            if error.name != name and not name.startswith(f"{error.name}."):
                raise
    spec = importlib.util.spec_from_file_location(f"weft_check_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {unit}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _module_name(path: Path) -> str:
    """The dotted name that a file is imported by, from the packages that it is in."""
    weft = Path(__file__).resolve().parents[2]
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").exists():
        parts.append("weft" if folder == weft else folder.name)
        if folder == weft:
            break
        folder = folder.parent
    return ".".join(reversed(parts)) or path.stem


def definitions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public functions and Modules that a module defines itself, in the order of its lines."""
    found: list[tuple[int, str, Any]] = []
    own = {id(value): name for name, value in vars(module).items() if getattr(value, "__name__", None) == name}
    for name, value in vars(module).items():
        if own.get(id(value), name) != name:
            continue  # another name for what is found under its own
        if name.startswith("_") or getattr(inspect.unwrap(value), "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            checkable = has_own_dims(value) or is_foreign_class(value)
            if checkable and not inspect.isabstract(value) and _has_contract(value):
                found.append((place_of(value)[1], value.__qualname__, value))
        elif not callable(value) or has_own_dims(type(value)) or is_foreign_class(type(value)):
            continue
        elif is_annotated(value):
            found.append((place_of(value)[1], name, value))
    for _, name, value in sorted(found, key=lambda one: one[0]):
        yield name, value


def _has_contract(cls: type) -> bool:
    return any(True for _ in public_methods(cls))


def check_one(name: str, thing: Any, strict: bool, budget: Budget) -> Checked:
    """Verifies one function or class."""
    file, line = place_of(thing)
    reason = _skip_reason(file, line)
    if reason is not None:
        return Checked((Line("skipped", _shown(file), line, name, reason or "no reason given"),))
    try:
        report = verify(thing, strict=strict, trials=budget.trials, seconds=budget.seconds)
    except AnnotationError as error:
        return Checked((Line("unusable", _shown(file), line, name, _first(error)),))
    except ForeignObjectError as error:
        return Checked((Line("unbuilt", _shown(file), line, name, f"not checked: {error.what}"),))
    except WeftError as error:
        return Checked((Line("unusable", _shown(file), line, name, f"{type(error).__name__}: {_first(error)}"),))
    contracts = [one for one in report.contracts if _skip_reason(one.file, one.line) is None]
    lines = [
        Line("skipped", _shown(one.file), one.line, one.name, _skip_reason(one.file, one.line) or "no reason given")
        for one in report.contracts
        if one not in contracts
    ]
    for contract in contracts:
        lines += _lines(contract, strict)
    return Checked(
        tuple(lines),
        tuple(_verdict(one, strict) for one in contracts),
        tuple(f"{one.name} holds when {what}" for one in contracts for what in one.assumptions),
    )


def _verdict(contract: Contract, strict: bool) -> Verdict:
    return Verdict.FAILS if strict and contract.warnings else contract.verdict


def _lines(contract: Contract, strict: bool) -> list[Line]:
    if contract.verdict is Verdict.SKIPPED:
        return [Line("unbuilt", _shown(contract.file), contract.line, contract.name, f"not checked: {contract.reason}")]
    if contract.verdict is Verdict.UNDECIDED:
        level, message = "error" if strict else "undecided", f"undecided: {contract.reason}"
        return [Line(level, _shown(contract.file), contract.line, contract.name, message)]

    def line(level: str, one: Finding) -> Line:
        return Line(level, _shown(one.file), one.line, contract.name, f"{one.rule}: {one}")

    return [line("error", one) for one in contract.failures] + [
        line("error" if strict else "warning", one) for one in contract.warnings
    ]


def _skip_reason(file: str, line: int) -> str | None:
    """The reason of a `# weft: skip(...)` on the lines of a `def` or `class`, decorators included."""
    import linecache

    for number in range(line, line + 12):
        text = linecache.getline(file, number)
        found = _SKIP.search(text)
        if found:
            return found.group(1)
        if text.rstrip().endswith(":") or not text:
            return None
    return None


def _shown(file: str) -> str:
    path = Path(file)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _raised_at(error: BaseException, file: str) -> tuple[str, int]:
    if isinstance(error, SyntaxError):
        return _shown(error.filename or file), error.lineno or 0
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if Path(traceback.tb_frame.f_code.co_filename).resolve() == Path(file).resolve():
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return file, line
