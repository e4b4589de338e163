"""The modules of a package that write subclasses of what another of its modules writes.

What may stand for an abstract class is what its package has for it, and Python knows only the subclasses that were
imported. Which those are must not depend on what an earlier unit has imported: so each unit has these modules imported,
and depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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
