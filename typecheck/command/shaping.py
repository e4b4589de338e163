"""Reads the shapes of a unit in a worker, or the reason why a function cannot be traced."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from weft.typecheck.command.config import Settings
from weft.typecheck.command.lines import Checked
from weft.typecheck.command.linter import Steps, definitions, first_line, guarded, loaded, proofs_in
from weft.typecheck.command.units import Unit
from weft.typecheck.proofs.frames import place_of
from weft.typecheck.proofs.prover import Proof
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
    with loaded(unit, steps) as module:
        try:
            if isinstance(module, BaseException):
                raise module
            file = str(module.__file__)  # as its code has it: a folder may be reached through a link
            source = Statements(file, text)
        except BaseException as error:  # whatever ends an import, a SystemExit too, is the answer about the file
            yield Shapes("import", 1, 1, reason=f"{type(error).__name__}: {first_line(error)}", traced=False)
            return
        proofs: list[Proof] = []
        for name, thing in definitions(module, {}, private=True):
            place = name, *place_of(inspect.unwrap(thing))
            key = f"{unit.module}:{name}"
            of_thing = guarded(steps, place, lambda thing=thing, key=key: proofs_in(thing, settings, key), strict=True)
            if not isinstance(of_thing, Checked):
                # Methods that are inherited stand in another file, whose lines are not shown.
                own = (proof for proof in of_thing if proof.target.file == file)
                proofs += [proof for proof in own if _stands_on(source, proof.target.line, lines)]
            elif _stands_on(source, place[2], lines):
                yield Shapes(name, place[2], place[2], reason=of_thing.lines[0].message, traced=False)
        for proof in proofs:
            yield from _shapes(proof, source, steps)


def _stands_on(source: Statements, place: int, lines: Sequence[range] | None) -> bool:
    function = source.function_at(place)
    first, last = (place, place) if function is None else (function.first, function.last)
    return lines is None or any(first <= wanted[0] <= last or first in wanted for wanted in lines)


def _shapes(proof: Proof, source: Statements, steps: Steps) -> Iterator[Shapes]:
    """The shapes in one function, or the reason why its trace failed; nothing for a step that was taken before."""
    target = proof.target
    place = target.name, target.file, target.line
    if not steps.enter(place):
        return
    shapes = guarded(steps, place, lambda: shapes_of(target, source, proof.dims, proof.budget), strict=True)
    if isinstance(shapes, Checked):
        reason = shapes.lines[0].message.removeprefix("undecided: ")
        function = source.function_at(target.line)
        line = target.line if function is None else function.line
        shapes = Shapes(target.name, line, line, reason=reason, traced=False)
    yield shapes
