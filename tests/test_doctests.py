"""Every example in the library's docstrings runs, one test for each module that has any."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
import weft
from weft.core.edge.hijax import CHANGING

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Examples see their own module's names and, like a reader who has written `from weft import *`, weft's public ones.
PUBLIC = {name: getattr(weft, name) for name in weft.__all__}
# Each is imported where JAX is as it expects: boxes whose types change are of JAX 0.10, fixed ones of later releases.
OF_OTHER_JAX = f"weft.nnx.variable.{'fixed' if CHANGING else 'changing'}_boxes"
MODULES = sorted({"weft", *(found.name for found in pkgutil.walk_packages(weft.__path__, "weft."))} - {OF_OTHER_JAX})


def examples_of(name: str) -> list[doctest.DocTest]:
    module = importlib.import_module(name)
    tests = doctest.DocTestFinder(exclude_empty=True).find(module, globs={**PUBLIC, **vars(module)})
    return [test for test in tests if test.examples]


# `__main__` modules run a program on import.
@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_the_examples_of_a_module_hold(name: str):
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    for test in examples_of(name):
        runner.run(test, out=report.append)
    assert not report, "".join(report)
    assert runner.summarize(verbose=False).failed == 0


def test_there_are_examples_to_run():
    assert len(examples_of("weft.core.paths")) == 2
