"""Reads the shapes of a unit in a worker, or the reason why a function cannot be traced."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from weft.typecheck.command.config import Settings
from weft.typecheck.command.flax_programs import flax_over_weft
from weft.typecheck.command.linter import Steps, definitions, first_line, guarded, proofs_in
from weft.typecheck.command.loading import importable, load
from weft.typecheck.command.units import Unit
from weft.typecheck.proofs.following import listening
from weft.typecheck.proofs.prover import Proof
from weft.typecheck.proofs.watched import forget_closures
from weft.typecheck.proofs.whose import place_of
from weft.typecheck.shapes.notes import Shapes
from weft.typecheck.shapes.reading import shapes_of
from weft.typecheck.shapes.statements import Statements


def shaped(unit: Unit, settings: Settings, text: str, lines: Sequence[range] | None, steps: Steps) -> Iterator[Shapes]:
    """The shapes in each function of a unit, private ones included; for a function that fails, the reason.

    Args:
        unit: the file.
        settings: fixed sizes and arguments, and the budget of each function.
        text: its source.
        lines: if given, only functions on these lines.
        steps: the steps done before, and the function that announces further ones.
    """
    with flax_over_weft(), listening(), importable(unit):
        steps.begin(unit.file)
        try:
            module = load(unit)
            file = str(module.__file__)  # as its code has it: a folder may be reached through a link
            source = Statements(file, text)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not steps.walled:
                raise
            yield Shapes("import", 1, 1, reason=f"{type(error).__name__}: {first_line(error)}", traced=False)
            return
        wanted = [
            proof
            for name, thing in definitions(module, {}, private=True)
            for proof, place in _proofs(unit, name, thing, settings, steps)
            if isinstance(proof, Shapes) or proof.target.file == file
            # Methods that are inherited stand in another file, whose lines are not shown.
            if lines is None or _stands_on(source, place, lines)
        ]
        for proof in wanted:
            yield from _one(proof, source, steps)


def _stands_on(source: Statements, place: int, lines: Sequence[range]) -> bool:
    function = source.function_at(place)
    first, last = (place, place) if function is None else (function.first, function.last)
    return any(first <= one[0] <= last or first in one for one in lines)


def _proofs(
    unit: Unit, name: str, thing: Any, settings: Settings, steps: Steps
) -> Iterator[tuple[Proof | Shapes, int]]:
    proofs: list[Proof] = []
    file, line = place_of(inspect.unwrap(thing))
    trouble = guarded(
        steps, (name, file, line), True, lambda: proofs.extend(proofs_in(thing, settings, f"{unit.module}:{name}"))
    )
    if trouble is not None:
        yield Shapes(name, line, line, reason=trouble.lines[0].message, traced=False), line
    yield from ((proof, proof.target.line) for proof in proofs)


def _one(proof: Proof | Shapes, source: Statements, steps: Steps) -> Iterator[Shapes]:
    if isinstance(proof, Shapes):
        yield proof
        return
    target = proof.target
    place = target.name, target.file, target.line
    if not steps.enter(place):
        return
    read: list[Shapes] = []

    def work() -> None:
        try:
            read.append(shapes_of(target, source, proof.dims, proof.budget))
        finally:
            forget_closures()

    trouble = guarded(steps, place, True, work)
    if trouble is not None:
        reason = trouble.lines[0].message.removeprefix("undecided: ")
        function = source.function_at(target.line)
        line = target.line if function is None else function.line
        yield Shapes(target.name, line, line, reason=reason, traced=False)
    yield from read
