"""Random programs over random records, each against the same program in plain functional JAX.

    python tests/records/fuzz_records.py 2000           # seeds 0..1999: counts, and each difference
    python tests/records/fuzz_records.py 2000 5000      # seeds 5000..6999
    python tests/records/fuzz_records.py 17 --show      # one program in both texts, made smaller if they differ
    python tests/records/fuzz_records.py 200 --watch    # each program under `weft.debug.watch` and `nonfinite`, too

Compared are x and every array of the record after each of two calls, that configuration is what it was, that a leaf
which no statement writes is the very array that was passed in, that the caller's record is as it was, and that of a
donated record everything that came out is alive. Then both calls are run again, from the start: nobody looks at the
record between them, but for what `Program.between` does with it.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest's conftest says this for the tests
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

sys.path.append(str(Path(__file__).parent))
import random_records as records
from program_text import PRELUDE, plain_text, weft_text
from random_programs import Level, Program, random_program, smaller, written
from random_records import constants, leaves

__all__ = ["Level", "Program", "compare", "outcome", "random_program", "records", "shrunk", "source"]

# Two compiled programs may round differently; values are held within 2, and loops are short.
TOLERANCE = 2e-5


def source(program: Program) -> str:
    """Both texts, to be pasted into a report."""
    return f"{PRELUDE}\n# --- over records\n{weft_text(program)}\n\n# --- over dicts\n{plain_text(program)}\n"


@contextlib.contextmanager
def _quick_compilation() -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with jax.default_prng_impl("unsafe_rbg"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def _namespace(text: str) -> dict[str, Any]:
    # A module, since classes look their annotations up in theirs.
    module = sys.modules["record_program"] = types.ModuleType("record_program")
    exec(compile(PRELUDE + text, "<program>", "exec"), vars(module))  # the text is written by `program_text`
    return vars(module)


def compare(program: Program, watching: bool = False) -> str | None:
    """How the two runs differ, or None."""
    return outcome(program, watching)[1]


def outcome(program: Program, watching: bool = False) -> tuple[str, str | None]:
    """How a program ended, and how its two runs differ; when `watching`, also how those that weft watches differ."""
    with _quick_compilation():
        try:
            plain = _namespace(plain_text(program))
            theirs, run = [(plain["x"], plain["m"])], jax.jit(plain["run"])
            for _ in range(2):
                theirs.append(run(theirs[-1][1], theirs[-1][0]))
        except Exception as error:
            if "but out_axes is None" in str(error):
                # What passes unchanged through a `remat` in a branch is taken for mapped; weft forwards it.
                return "plain JAX takes what nobody changed for mapped", None
            return "plain JAX fails", f"the program itself is wrong: {type(error).__name__}: {error}"
        try:
            weft = _namespace(weft_text(program))
            different = _run_and_compare(program, weft, theirs)
            if watching and different is None:
                different = _run_watched(weft, theirs)
            return "done", different
        except Exception as error:
            message = " ".join(str(error).split())
            return "weft fails", f"weft raises {type(error).__name__}: {message}"


def _run_and_compare(program: Program, weft: dict[str, Any], theirs: list[Any]) -> str | None:
    first = program.levels[0]
    compiled = first.transform == "jit" and not first.before and not first.after
    # JAX's own transforms give back copies of what did not change.
    compiled = compiled and not any(level.transform.startswith("plain") for level in program.levels)
    donated = "donate" in program.levels[0].options and program.levels[0].transform in ("jit", "plain_jit")
    changed = written(program)
    x, m = weft["x"], weft["m"]
    initial = [np.asarray(_data(_at(m, leaf.path))) for leaf in leaves(program.record)]
    for call, (y, expected) in enumerate(theirs[1:], 1):
        before = {leaf.path: _at(m, leaf.path) for leaf in leaves(program.record)}
        old, (x, m) = m, weft["run"](m, x)
        comparisons = [
            ("x", x, y),
            *((leaf.path, _at(m, leaf.path), expected[leaf.path]) for leaf in leaves(program.record)),
        ]
        for path, ours, value in comparisons:
            wrong = _difference(ours, value)
            if wrong:
                return f"after call {call}, {path}: {wrong}"
        for constant in constants(program.record):
            value, expected_value = _at(m, constant.path), eval(constant.configuration.text, weft)
            if not _same(value, expected_value):
                return f"after call {call}, configuration at {constant.path} is {value!r}, was {expected_value!r}"
        if type(m) is not type(old):
            return f"after call {call}, a {type(m).__name__} instead of a {type(old).__name__}"
        if donated:
            continue
        for path, array in before.items():
            if compiled and path not in changed and _at(m, path) is not array:
                return f"after call {call}, {path} is another array, though nothing writes it"
        if call == 1 and any(
            _difference(_at(old, leaf.path), value) for leaf, value in zip(leaves(program.record), initial, strict=True)
        ):
            return "the caller's record changed"
    return _run_unseen(program, weft, *theirs[-1])


def _run_unseen(program: Program, weft: dict[str, Any], expected_x: Any, expected: dict[str, Any]) -> str | None:
    m, x = weft["made"]()
    x, m = weft["run"](m, x)
    x, m = weft["run"](weft["between"](m), x)
    comparisons = [("x", x, expected_x), *((path, _at(m, path), value) for path, value in expected.items())]
    wrong = [f"{path}: {_difference(ours, value)}" for path, ours, value in comparisons if _difference(ours, value)]
    return f"after {program.between!r} between two calls, {wrong[0]}" if wrong else None


def _run_watched(weft: dict[str, Any], theirs: list[Any]) -> str | None:
    debug, run = weft["weft"].debug, weft["run"]

    def watch(m: Any, x: Any) -> Any:
        return debug.watch(run, every=1)(m, x)[0]

    for name, watched in {"watch": watch, "nonfinite": debug.nonfinite(run)}.items():
        m, x = weft["made"]()
        try:
            for y, expected in theirs[1:]:
                x, m = watched(m, x)
                comparisons = [("x", x, y), *((path, _at(m, path), value) for path, value in expected.items())]
                if wrong := [f"{path}: {text}" for path, *pair in comparisons if (text := _difference(*pair))]:
                    return f"under {name}, {wrong[0]}"
        except Exception as error:
            # Its own error is right where plain JAX has such values, too.
            bad = any(not np.isfinite(v).all() for v in jax.tree.leaves(theirs) if np.issubdtype(v.dtype, np.inexact))
            if not bad or type(error).__name__ != "NonFiniteError":
                return f"under {name}, weft raises {type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _at(record: Any, path: str) -> Any:
    return eval(f"record{path}", {"record": record})


def _data(array: Any) -> Any:
    return jax.random.key_data(array) if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else array


def _difference(ours: Any, theirs: Any) -> str | None:
    if not isinstance(ours, jax.Array):
        return f"a {type(ours).__name__} instead of an array"
    if ours.is_deleted():
        return "its buffer was donated"
    ours, theirs = _data(ours), _data(theirs)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{ours.shape} instead of {theirs.dtype}{theirs.shape}"
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    close = np.allclose(ours, theirs, TOLERANCE, TOLERANCE) if ours.dtype.kind == "f" else np.array_equal(ours, theirs)
    return None if close else f"{ours.tolist()} instead of {theirs.tolist()}"


def _same(actual: Any, expected: Any) -> bool:
    if type(actual) is not type(expected):
        return False
    if isinstance(actual, tuple):
        return len(actual) == len(expected) and all(map(_same, actual, expected))
    if hasattr(actual, "func"):
        return (actual.func, actual.args, actual.keywords) == (expected.func, expected.args, expected.keywords)
    return actual is expected or actual == expected


def shrunk(program: Program, rounds: int = 60) -> Program:
    """A smaller program that still differs: what can be left out is left out."""
    end, _ = outcome(program)
    for _ in range(rounds):
        for candidate in smaller(program):
            if (found := outcome(candidate))[1] is not None and found[0] == end:
                program = candidate
                break
        else:
            break
    return program


def main(argv: list[str]) -> int:
    """Compares many programs, or shows one."""
    watching, argv = "--watch" in argv, [word for word in argv if word != "--watch"]
    if "--show" in argv:
        program = random_program(int(argv[0]))
        difference = compare(program, watching)
        program = shrunk(program) if difference else program
        print(source(program))
        print(compare(program, watching))
        return int(bool(difference))
    start, count = (int(argv[1]), int(argv[0])) if len(argv) > 1 else (0, int(argv[0]))
    ends: collections.Counter[str] = collections.Counter()
    different: dict[int, str] = {}
    for done, seed in enumerate(range(start, start + count)):
        if done and done % 100 == 0:
            print(f"{done} programs, {len(different)} differ", file=sys.stderr, flush=True)
            jax.clear_caches()  # gigabytes after a thousand programs
        end, difference = outcome(random_program(seed), watching)
        ends[end] += 1
        if difference is not None:
            different[seed] = difference
            print(f"seed {seed} ({end}): {difference}"[:420], flush=True)
    print(f"{count} programs: {dict(ends)}; {len(different)} differ")
    kinds = collections.Counter(re.sub(r"[0-9]+", "#", difference)[:60] for difference in different.values())
    for kind, times in kinds.most_common():
        print(f"{times:4} {kind}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
