"""Mutants of programs that are decided: `python tests/typecheck/mutants/mutants.py [--every N] [--from N] [NAME...]`.

Each right program of the corpus (`../bugs`) is changed in one expression (`edits.py`). A mutant is *wrong* if jaxtyping
with beartype, or JAX, objects when it is traced at sizes at which the right one holds, all of them distinct; or at
those at which `verify` says that it fails, if it does. Of the wrong ones `verify` should find all, and of the others
none, but for what it finds by the dims of records, which jaxtyping takes from what was made, if it looks at them.

Prints each wrong one that lives and each false alarm, and the counts at the end.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import inspect
import itertools
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import jax
import jaxtyping
from beartype import beartype
from beartype.roar import BeartypeDecorHintException
from jaxtyping import jaxtyped

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import corpus  # noqa: E402
from edits import mutants_of  # noqa: E402
from weft.typecheck.arguments.builder import Assignment, Builder  # noqa: E402
from weft.typecheck.language.signatures import names_of_class  # noqa: E402
from weft.typecheck.proofs.explaining import USUAL, Trials  # noqa: E402
from weft.typecheck.proofs.prover import proofs_of, verify  # noqa: E402
from weft.typecheck.proofs.report import Report  # noqa: E402
from weft.typecheck.proofs.search import search  # noqa: E402
from weft.typecheck.proofs.tracing import trace  # noqa: E402

PACKAGE = "hooked_mutants"
MOST_RUNS = 8
# By whether it is wrong, and what `verify` says of it.
VERDICTS = {
    (True, "fails"): "killed",
    (True, "warning"): "warned",
    (True, ""): "lives",
    (False, "fails"): "false alarm",
    (False, "warning"): "warned though right",
    (False, ""): "right",
}
_numbers = itertools.count()


@dataclass(frozen=True)
class Original:
    """A decided program, with the assignments at which each of its contracts holds."""

    name: str
    source: str
    assignments: tuple[tuple[Assignment, ...], ...]


@dataclass(frozen=True)
class Mutant:
    """A program with one expression changed.

    Attributes:
        program, edit: which, and what was done.
        wrong: what jaxtyping with beartype, or JAX, objects to; "" if nothing.
        found: what `verify` says.
        only: what `verify` finds by the dims of records, which jaxtyping does not bind.
    """

    program: str
    edit: str
    wrong: str
    found: str
    only: str


def original_of(program: Path, folder: Path) -> Original | None:
    """What is known of a right program; None if it is not decided."""
    entry = corpus.load(corpus.write(program, "right", folder)).entry
    outcomes = [search(Trials(proof.target, {}, USUAL)) for proof in proofs_of(entry, {}, {}, USUAL)]
    if any(outcome.failed or outcome.ended or not outcome.passed for outcome in outcomes):
        return None
    source = corpus.source(program, "right")
    assignments = tuple(tuple(_different([trial.assignment for trial in outcome.passed])) for outcome in outcomes)
    # jaxtyping cannot evaluate every expression that weft can: the dims of a record in it, for one.
    try:
        objects = objection(hooked(source, folder), assignments)
    except BeartypeDecorHintException:  # nor can beartype take `Self` in a class that it does not decorate itself
        return None
    return None if objects else Original(program.stem, source, assignments)


def _different(assignments: list[Assignment]) -> list[Assignment]:
    """Some of each choice of options and ranks."""
    by_choice: dict[Any, list[Assignment]] = collections.defaultdict(list)
    for assignment in assignments:
        by_choice[(tuple(assignment.options.items()), tuple(assignment.ranks.items()))].append(assignment)
    rounds = itertools.zip_longest(*by_choice.values())
    return [assignment for several in rounds for assignment in several if assignment is not None][:MOST_RUNS]


def hooked(source: str, folder: Path) -> ModuleType:
    """A program as a module in which everything is checked by jaxtyping with beartype."""
    package = folder / PACKAGE
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    name = f"mutant_{next(_numbers)}"
    (package / f"{name}.py").write_text(source)
    importlib.invalidate_caches()
    with jaxtyping.install_import_hook(PACKAGE, "beartype.beartype"):
        return importlib.import_module(f"{PACKAGE}.{name}")


def objection(module: ModuleType, assignments: tuple[tuple[Assignment, ...], ...]) -> str:
    """What jaxtyping with beartype, or JAX, says of a hooked program at some sizes; "" if nothing."""
    for proof, several in zip(proofs_of(module.entry, {}, {}, USUAL), assignments, strict=False):
        target = proof.target.instead or proof.target
        for assignment in several:
            try:
                function, args, kwargs = target.prepare(Builder(assignment))
                if isinstance(module.entry, FunctionType) and inspect.unwrap(module.entry) is inspect.unwrap(function):
                    function = module.entry  # with its checks
                elif not hasattr(function, "__wrapped__"):
                    function = jaxtyped(typechecker=beartype)(function)
                trace(function, args, kwargs)
            except Exception as error:  # that it objects is the measurement, in whichever words
                return in_short(error)
    return ""


def in_short(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def judged(original: Original, edit: str, source: str, folder: Path) -> Mutant | None:
    """A mutant with both verdicts; None if it cannot be imported."""
    path = folder / f"plain_{next(_numbers)}.py"
    path.write_text(source)
    try:
        module, checked = corpus.load(path), hooked(source, folder)
    except Exception:  # such a mutant is found by whoever imports it
        return None
    report = verify(module.entry)
    said = str(report) if not report.ok else ""
    wrong = objection(checked, original.assignments) or (_shown(module, checked, report, original) if said else "")
    only = said if not wrong and said and all(_of_record(one.message, module) for one in report.failures) else ""
    return Mutant(original.name, edit, wrong, said or ("warning" if report.warnings else ""), only)


def _shown(module: ModuleType, checked: ModuleType, report: Report, original: Original) -> str:
    """What the failures of a report raise without weft: at their sizes, as the programs of it, or in the sample."""
    sizes = tuple(
        tuple(Assignment(dict(failure.sizes), base[0].ranks, base[0].options) for failure in report.failures)
        for base in original.assignments
    )
    programs = [failure.program for failure in report.failures if failure.program]
    return objection(checked, sizes) or next(
        filter(None, (_raised(program, module) for program in programs)), _sampled(checked)
    )


def _raised(program: str, module: ModuleType) -> str:
    try:
        exec(program, dict(vars(module)))
    except Exception as error:
        return in_short(error)
    return ""


# A finding about a field of a record that was just made, or about one inside of a value: "return: nodes: expected ...".
_OF_RECORD = re.compile(r", field \w+|: [a-z_][\w.\[\]]*: expected")
# One about a dim in a method: "Kernel.features, return: expected Float[Array, "m"], found f32[2]: m is 1, not 2".
_OF_METHOD = re.compile(r"^(\w+)\.\w+, .*: (\w+) is \d+, not \d+$")


def _of_record(message: str, module: ModuleType) -> bool:
    """Whether a finding is one by the dims of a record: of its fields, or in a method, by what the fields bind."""
    method = _OF_METHOD.search(message)
    if _OF_RECORD.search(message) or method is None:
        return bool(_OF_RECORD.search(message))
    owner = getattr(module, method[1], None)
    return isinstance(owner, type) and method[2] in names_of_class(owner)


def _sampled(module: ModuleType) -> str:
    """What a program's own call raises."""
    try:
        jax.eval_shape(module.sample)
    except Exception as error:
        return in_short(error)
    return ""


def mutants(programs: list[Path], folder: Path, every: int = 1, start: int = 0) -> Iterator[Mutant]:
    """Each n-th mutant of some programs, judged."""
    number = itertools.count(start)
    sys.path.insert(0, str(folder))
    try:
        for program in programs:
            texts = [
                one
                for one in mutants_of(corpus.source(program, "right"), frozenset({"sample"}))
                if not next(number) % every
            ]
            original = original_of(program, folder) if texts else None
            for edit, text in texts if original is not None else ():
                mutant = judged(original, edit, text, folder)
                if mutant is not None:
                    yield mutant
    finally:
        sys.path.remove(str(folder))


def verdict_of(mutant: Mutant) -> str:
    """What a mutant counts as."""
    said = mutant.found if mutant.found in ("", "warning") else "fails"
    return "only by weft" if mutant.only else VERDICTS[bool(mutant.wrong), said]


def main(arguments: list[str]) -> int:
    """Prints what lives and what is accused falsely, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs of the corpus; all, if none is named")
    parser.add_argument("--every", type=int, default=10, help="of all mutants, each how many-th is judged")
    parser.add_argument("--from", type=int, default=0, dest="start", help="which of those")
    options = parser.parse_args(arguments)
    chosen = [program for program in corpus.PROGRAMS if not options.names or program.stem in options.names]
    counts: collections.Counter[str] = collections.Counter()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for mutant in mutants(chosen, Path(folder), options.every, options.start):
            verdict = verdict_of(mutant)
            counts[verdict] += 1
            if verdict not in ("killed", "right"):
                print(
                    f"{verdict}: {mutant.program}, {mutant.edit}\n    {mutant.wrong[:300]}\n    {mutant.found[:600]}",
                    flush=True,
                )
    wrong = counts["killed"] + counts["warned"] + counts["lives"]
    listed = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(f"{wrong} wrong of {sum(counts.values())} mutants: {listed} ({time.process_time() - began:.0f} s)")
    return int(counts["killed"] < 0.95 * wrong or counts["false alarm"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
