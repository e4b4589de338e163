"""The modules of a package that write subclasses of what another of its modules writes.

What may stand for an abstract class is what its package has for it, and Python knows only the subclasses that were
imported. Which those are must not depend on what an earlier unit has imported: so each unit has these modules imported,
and depends on them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

_CLASS = re.compile(r"^[ \t]*class[ \t]+(\w+)[^(:\n]*(?:\(([^)]*)\))?", re.MULTILINE)
# What a package is tried and shown with stands for nothing of its own, and may do anything when it is imported.
_APART = re.compile(r"(tests?|testing|conftest|examples?|benchmarks?|docs|scripts|setup|__main__|test_.*|.*_test)")

# The classes that a source writes, each with the names of its bases, without the modules that they are found in.
Written = Mapping[str, tuple[str, ...]]


def written(source: str) -> Written:
    """The classes that a source writes.

    >>> written("class Kernel: ...\\nclass RBF(base.Kernel, Generic[T]): ...")
    {'Kernel': ('',), 'RBF': ('Kernel', 'Generic')}
    """
    classes = ((name, bases.split(",")) for name, bases in _CLASS.findall(source))
    return {
        name: tuple(re.split(r"[\[(=]", one)[0].strip().rpartition(".")[2] for one in bases) for name, bases in classes
    }


def below(known: Mapping[str, Written], others: Mapping[str, Written]) -> list[str]:
    """Which of some other modules write subclasses of what the known ones write, and of what those write, in order."""
    names = {name for classes in known.values() for name in classes}
    left, found = dict(others), dict[str, None]()
    while further := [
        one for one, classes in left.items() if names & {base for bases in classes.values() for base in bases}
    ]:
        for one in further:
            names |= left.pop(one).keys()
        found.update(dict.fromkeys(further))
    return list(found)


def is_apart(module: str) -> bool:
    """Whether a module, by its dotted name, is one that its package is tried or shown with."""
    return any(_APART.fullmatch(part) for part in module.split("."))


# What tools make inside of a package's folder, where the folder is a project's own: copies of its modules.
_MADE = frozenset({"build", "dist", "node_modules"})


def sources_below(folder: str) -> Iterator[str]:
    """The Python files below a folder; not what is hidden, what was made of a project, or environments of its own."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            one for one in folders if not one.startswith(".") and not _is_made(os.path.join(place, one))
        )
        yield from (os.path.join(place, one) for one in sorted(files) if one.endswith(".py"))


def modules_of(folder: str, package: str) -> Iterator[tuple[str, str]]:
    """The modules below the folder of a package, by their dotted names, each with its file."""
    for path in sources_below(folder):
        *inner, file = os.path.relpath(path, folder).removesuffix(".py").split(os.sep)
        if all(one.isidentifier() for one in inner):
            yield ".".join((package, *inner, *([] if file == "__init__" else [file]))), path


def _is_made(folder: str) -> bool:
    name = os.path.basename(folder)
    if name == "__pycache__" or os.path.exists(os.path.join(folder, "pyvenv.cfg")):
        return True
    return name in _MADE and not os.path.exists(os.path.join(folder, "__init__.py"))
