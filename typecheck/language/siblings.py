"""Finds the modules of a package that define subclasses of classes in another module of the package.

An abstract class is proved for its package's subclasses, and Python knows only those that were imported. Which ones are
known must not depend on the modules that an earlier unit imported, so these modules are imported for each unit, and
its verdict is cached with them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

_CLASS = re.compile(r"^[ \t]*class[ \t]+(\w+)[^(:\n]*(?:\(([^)]*)\))?", re.MULTILINE)
# Tests, examples and scripts: their subclasses are no part of the package, and importing them may have effects.
_NO_PACKAGE = re.compile(r"(tests?|testing|conftest|examples?|benchmarks?|docs|scripts|setup|__main__|test_.*|.*_test)")

# The classes that a source file defines, each with the names of its bases (without their modules).
Written = Mapping[str, tuple[str, ...]]


# A regular expression and no `ast`: a search reads every file of a package, and parsing takes longer.
def written(source: str) -> Written:
    """The classes that a source text defines, with the names of their bases.

    >>> written("class Kernel: ...\\nclass RBF(base.Kernel, Generic[T]): ...")
    {'Kernel': ('',), 'RBF': ('Kernel', 'Generic')}
    """
    classes = ((name, bases.split(",")) for name, bases in _CLASS.findall(source))
    return {
        name: tuple(re.split(r"[\[(=]", base)[0].strip().rpartition(".")[2] for base in bases)
        for name, bases in classes
    }


def below(known: Mapping[str, Written], others: Mapping[str, Written]) -> list[str]:
    """The modules among `others` that define direct or indirect subclasses of classes in `known`, by module."""
    names = {name for classes in known.values() for name in classes}
    remaining, modules = dict(others), list[str]()
    # A subclass of one round may be the base of a class in a module that an earlier round passed over.
    while further := [module for module, bases in remaining.items() if names & set[str]().union(*bases.values())]:
        for module in further:
            names |= remaining.pop(module).keys()
        modules += further
    return modules


def is_test_or_script(module: str) -> bool:
    """Whether a module, by its dotted name, belongs to tests, examples or scripts."""
    return any(_NO_PACKAGE.fullmatch(part) for part in module.split("."))


# Folders in which build tools leave copies of the package's modules.
_MADE = frozenset({"build", "dist", "node_modules"})


def sources_below(folder: str) -> Iterator[str]:
    """The Python files below a folder, without hidden folders, build folders and virtual environments."""
    for place, folders, files in os.walk(folder):
        # `os.walk` descends only into the folders that stay in this list.
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not _is_made(os.path.join(place, name))
        )
        paths = (os.path.join(place, name) for name in sorted(files) if name.endswith(".py"))
        # Reading a named pipe would wait for a writer for ever.
        yield from filter(os.path.isfile, paths)


def modules_of(folder: str, package: str) -> Iterator[tuple[str, str]]:
    """The modules below a package's folder, as dotted names with their files."""
    for path in sources_below(folder):
        *inner, file = os.path.relpath(path, folder).removesuffix(".py").split(os.sep)
        if all(map(str.isidentifier, inner)):
            yield ".".join((package, *inner, *([] if file == "__init__" else [file]))), path


def _is_made(folder: str) -> bool:
    name = os.path.basename(folder)
    if name == "__pycache__" or os.path.exists(os.path.join(folder, "pyvenv.cfg")):
        return True
    # A package may well be called `build`: only a folder without `__init__.py` counts as made by a tool.
    return name in _MADE and not os.path.exists(os.path.join(folder, "__init__.py"))
