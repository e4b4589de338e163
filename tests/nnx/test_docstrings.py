"""Every docstring example of the installed flax.nnx runs under weft.nnx, and prints the same.

The examples are collected from the installed package when the tests run: those of public functions, classes and
methods, wherever they write `>>>`. `from flax import nnx` in them means weft. What an example prints is compared with
what its docstring says, or (where the docstring is out of date) with what it prints or raises under the real library.

Exceptions stand one by one in `EXCEPTIONS`, and an exception that passes fails the test.
"""

import doctest
import inspect
import re
import sys
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flax import nnx as flax_nnx

pytestmark = pytest.mark.wide

# example: why it cannot agree
EXCEPTIONS = {
    "module.view_info": "prints the text of the layers' docstrings, and weft's layers have their own",
    "nn.normalization.WeightNorm": "finds the normalised weights in the Params; here only with `nnx_flax_faults`",
}

ANSI = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")
ADDRESS = re.compile(r"0x[0-9a-f]+")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules():
    """The modules that flax.nnx imports itself: importing another would add to its names."""
    return [module for name, module in sorted(sys.modules.items()) if name.startswith(f"{flax_nnx.__name__}.")]


def documented(thing, name, seen):
    """The thing itself and what is in it, as (name, docstring)."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, types.FunctionType | type | types.ModuleType) or hasattr(thing, "__wrapped__"):
        text = inspect.getdoc(thing)
        if text and ">>>" in text and not (isinstance(thing, type) and "__doc__" not in vars(thing)):
            yield name, text
    if isinstance(thing, type):
        for member, value in vars(thing).items():
            if isinstance(value, property):
                value = value.fget
            elif isinstance(value, staticmethod | classmethod):
                value = value.__func__
            if not member.startswith("_") or member in ("__call__", "__init__"):
                yield from documented(value, f"{name}.{member}", seen)


def collect():
    seen: set[int] = set()
    for module in modules():
        short = module.__name__.removeprefix("flax.nnx.")
        if module.__doc__ and ">>>" in module.__doc__:
            yield short, module.__doc__
        for name, thing in vars(module).items():
            if getattr(thing, "__module__", None) == module.__name__:
                yield from documented(thing, f"{short}.{name}", seen)


EXAMPLES = dict(collect())


class Raised:
    """An exception in place of output; equal to another of the same builtin class."""

    def __init__(self, error, source):
        self.error, self.source = error, source

    def __str__(self):
        return f"{type(self.error).__name__}: {self.error}\n  in: {self.source}"

    def builtin(self):
        return next(base for base in type(self.error).__mro__ if base.__module__ == "builtins")


class Recorder(doctest.DocTestRunner):
    """Keeps what each example printed, or the exception that it raised."""

    def __init__(self):
        super().__init__(checker=self, optionflags=FLAGS, verbose=False)
        self.printed = []

    def check_output(self, want, got, flags):
        self.printed.append((want, got))
        return True

    def report_unexpected_exception(self, out, test, example, exc_info):
        self.printed.append((example.want, Raised(exc_info[1], example.source)))


def run(name, text):
    """What is wanted of each example, and what it prints; in a thread of its own, which keeps its modes."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run, name, text).result()


def _run(name, text):
    recorder = Recorder()
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, name, None, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorder.run(test, out=lambda text: None)
    return recorder.printed


def for_weft(text):
    text = re.sub(r"from flax import nnx\b", "from weft import nnx", text)
    return re.sub(r"(from|import) flax\.nnx\b", r"\1 weft.nnx", text)


def normal(text):
    text = ADDRESS.sub("0x", ANSI.sub("", text)).replace("flax.nnx", "weft.nnx")
    return " ".join(text.split())


def agrees(want, got):
    """Whether an example does what another one does, or what is wanted of it."""
    if isinstance(want, Raised) or isinstance(got, Raised):
        return type(want) is type(got) and isinstance(got.error, want.builtin())
    want, got = normal(want), normal(got)
    return doctest.OutputChecker().check_output(want + "\n", got + "\n", FLAGS) or agrees_but_for_rounding(want, got)


def agrees_but_for_rounding(want, got):
    """Whether only the last digits of numbers differ, which another processor or another order of additions changes."""
    if NUMBER.sub("#", want) != NUMBER.sub("#", got):
        return False
    numbers = ([float(one) for one in NUMBER.findall(text)] for text in (want, got))
    return np.allclose(*numbers, rtol=1e-5, atol=1e-6)


def differences(name, text):
    """Where weft does neither what the docstring says nor what the real library does."""
    ours = run(name, for_weft(text))
    if all(agrees(want, got) for want, got in ours):
        return []
    theirs = [got for _, got in run(name, text)]
    return [
        f"wanted: {normal(str(want))}\ntheirs: {normal(str(real))}\nours:   {normal(str(got))}"
        for (want, got), real in zip(ours, theirs, strict=True)
        if not agrees(want, got) and not agrees(real, got)
    ]


def test_there_are_examples():
    assert len(EXAMPLES) > 90


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_the_same(name):
    mismatches = differences(name, EXAMPLES[name])
    if name in EXCEPTIONS:
        assert mismatches, f"{name} agrees now: take it off the list"
        pytest.skip(EXCEPTIONS[name])
    assert not mismatches, "\n\n".join(mismatches)


@pytest.mark.parametrize(
    ("got", "same"),
    [("[0.1234567 2.]", True), ("[0.1234568 2.]", True), ("[0.1235567 2.]", False), ("[0.1234567 2. 3.]", False)],
)
def test_numbers_differ_by_rounding_only(got, same):
    assert agrees("[0.1234567 2.]\n", got + "\n") is same


def test_exceptions_are_examples():
    assert sorted(EXCEPTIONS.keys() - EXAMPLES.keys()) == []
