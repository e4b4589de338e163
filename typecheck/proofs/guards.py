"""Guards: statements by which a program refuses arguments on purpose, and the line that raised an error.

A `raise` or `assert` in the program's own package, `eqx.error_if`, and the checks of chex and beartype ask for
something that annotations cannot express. Such a refusal states a precondition and is no fault of the program.
"""

from __future__ import annotations

import linecache
import re
import traceback
from pathlib import Path

from weft.core.caches import cached_by
from weft.typecheck.proofs.whose import is_installed, is_of_library, is_users

_RAISES = re.compile(r"(^|[:;]\s*)(raise|assert)\b")
_CHECKS = re.compile(r"\b(error_if|branched_error_if|die_if_unbearable|checkify\.check|chex\.assert_\w+)\(")
_CHECKERS = re.compile(r"/(equinox/_errors|chex/|beartype/)")


def raised_at(error: BaseException, own: frozenset[str]) -> tuple[tuple[str, int], str]:
    """The user's innermost line in a traceback, and the guard that raised: `guard at FILE:LINE: TEXT` or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if is_users(frame.filename, own)]
    place = (users[-1].filename, users[-1].lineno or 0) if users else ("", 0)
    # A guard may stand in a module that is not judged itself: a helper of the same package refuses on its behalf.
    of_package = [n for n, frame in enumerate(frames) if frame in users or is_packages(frame.filename, own)]
    if not of_package:
        return place, ""
    last, inner = frames[of_package[-1]], frames[of_package[-1] + 1 :]
    text = last.line or ""
    # Only the innermost frame is a `raise`; a line that merely calls what raises, such as JAX, refuses nothing itself.
    by_statement = not inner and _RAISES.search(text)
    by_checker = inner and (_CHECKS.search(text) or _CHECKERS.search(inner[-1].filename))
    if not by_statement and not by_checker:
        return place, ""
    asked = _condition(last.filename, last.lineno or 0, text)
    return place, f"guard at {Path(last.filename).name}:{last.lineno}: {asked}"


def is_refused_by_library(error: Exception | None) -> bool:
    """Whether a `raise` statement of an installed package, or of equinox, raised an error, not Python itself."""
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    return bool(frames) and is_of_library(error) and _RAISES.search(frames[-1].line or "") is not None


def is_packages(file: str, own: frozenset[str]) -> bool:
    """Whether a file is one of `own`, or lies in the same package and in no virtual environment inside of it."""
    if file in own:
        return True
    # Every file of a package that is itself installed lies in an environment, so there that says nothing.
    return any(file.startswith(top) and (is_installed(top) or not is_installed(file)) for top in _packages(own))


@cached_by("files")
def _packages(own: frozenset[str]) -> tuple[str, ...]:
    """The outermost folders of the packages that these files are in."""
    tops: list[str] = []
    for folder in (Path(name).parent for name in sorted(own)):
        top = None
        while (folder / "__init__.py").exists() and folder != folder.parent:
            top, folder = folder, folder.parent
        tops += [f"{top}/"] if top is not None else []
    return tuple(tops)


def _condition(file: str, line: int, text: str) -> str:
    """The text by which a report shows a guard: its line, or of a bare `raise` the `if` on the line before."""
    if not text.startswith("raise"):
        return text
    before = linecache.getline(file, line - 1).strip()
    return before.rstrip(":") if before.startswith(("if ", "elif ")) else text
