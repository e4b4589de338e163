"""Every example in the library's docstrings runs as the site shows it, one test for each module that has any."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
from pathlib import Path

import pytest
import weft
from weft.core.edge.hijax import CHANGING

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# The site shows each example with the imports that it needs; it runs with these and nothing else.
SPEC = importlib.util.spec_from_file_location(
    "weft_docs_examples", Path(__file__).resolve().parents[1] / "docs" / "hooks" / "examples.py"
)
assert SPEC is not None
assert SPEC.loader is not None
shown = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(shown)
# Each is imported where JAX is as it expects: boxes whose types change are of JAX 0.10, fixed ones of later releases.
OF_OTHER_JAX = f"weft.nnx.variable.{'fixed' if CHANGING else 'changing'}_boxes"
MODULES = sorted({"weft", *(found.name for found in pkgutil.walk_packages(weft.__path__, "weft."))} - {OF_OTHER_JAX})


def examples_of(name: str) -> list[doctest.DocTest]:
    module = importlib.import_module(name)
    tests = doctest.DocTestFinder(exclude_empty=True).find(module, globs={})
    return [test for test in tests if test.examples]


def run_imports(test: doctest.DocTest, module: str) -> None:
    """Binds what a reader who copies the example from the site has bound."""
    for line in shown.imports_of([example.source for example in test.examples], importlib.import_module(module)):
        exec(line, test.globs)


# `__main__` modules run a program on import.
@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_the_examples_of_a_module_hold(name: str):
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    for test in examples_of(name):
        run_imports(test, name)
        runner.run(test, out=report.append)
    assert not report, "".join(report)
    assert runner.summarize(verbose=False).failed == 0


def test_there_are_examples_to_run():
    assert len(examples_of("weft.core.paths")) == 2


def test_the_examples_of_the_site_s_own_hook_hold():
    assert doctest.testmod(shown).failed == 0


def test_an_example_begins_with_the_imports_that_it_needs():
    module = importlib.import_module("weft.modules.dense.linear")
    text = shown.shown("Adds.\n\n>>> relu(jnp.ones(2))\n", module)
    assert ">>> import jax.numpy as jnp\n>>> from weft import relu\n>>> relu(" in text
