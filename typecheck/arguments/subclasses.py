"""Concrete classes in place of abstract ones: those that the same package has.

What an abstract class stands for, its package's subclasses show. Each is an *option* of its place, `kernel class`; a
proof says for which it holds.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from weft.core.caches import cached_by
from weft.typecheck.arguments.uses import is_stub
from weft.typecheck.language.siblings import is_apart

# Of a class with more subclasses, the first ones are known.
_MOST = 24


@cached_by("class")
def is_abstract(cls: type) -> bool:
    """Whether a class has something for its subclasses to bring: methods, or fields (equinox's `AbstractVar`).

    A class that marks methods so and forgets `abc.ABC` can be made, by Python; by what it says, it is abstract. So it
    is if methods of its do nothing but raise NotImplementedError, and some subclass writes them.
    """
    left_open = (getattr(cls, name, None) for name in ("__abstractvars__", "__abstractclassvars__"))
    if any(_refuses_itself(cls, vars(cls).get(name)) for name in ("__new__", "__init__")):
        return True
    methods = (getattr(inspect.getattr_static(cls, name, None), "__isabstractmethod__", False) for name in dir(cls))
    if inspect.isabstract(cls) or any(left_open) or _has_open_fields(cls) or any(one is True for one in methods):
        return True
    stubs = {name for name in dir(cls) if is_stub(inspect.getattr_static(cls, name, None))}
    return bool(stubs) and any(stubs & vars(one).keys() for one in _below(cls))


# What annotations that are kept as texts say, which equinox does not read.
_OPEN_FIELD = re.compile(r"(\w+\.)*Abstract(Class)?Var\[")


def _has_open_fields(cls: type) -> bool:
    """Whether fields are marked by `AbstractVar` where annotations are texts, and given by no subclass."""
    is_open: dict[str, bool] = {}
    for base in reversed(cls.__mro__):
        is_open |= dict.fromkeys(vars(base).keys() & is_open.keys(), False)
        annotations = inspect.get_annotations(base).items()
        is_open |= {name: isinstance(one, str) and _OPEN_FIELD.match(one) is not None for name, one in annotations}
    return any(is_open.values())


def _refuses_itself(cls: type, constructor: Any) -> bool:
    """Whether a constructor that a class writes raises for that very class: `if cls is Node: raise TypeError(...)`."""
    function = getattr(constructor, "__func__", constructor)
    if not inspect.isfunction(function) or cls.__name__ not in function.__code__.co_names:
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    return any(
        isinstance(node, ast.If)
        and isinstance(node.body[-1], ast.Raise)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.ops[0], ast.Is | ast.Eq)
        and ast.unparse(node.test.left) in ("cls", "type(self)", "self.__class__")
        and ast.unparse(node.test.comparators[0]) == cls.__name__
        for node in ast.walk(tree)
    )


def concrete_subclasses(cls: type) -> list[type]:
    """The public subclasses of a class that its own package defines and that are not abstract, by module and line.

    Only what is imported is known (see `siblings`), and what can be found under its name.
    """
    package = cls.__module__.partition(".")[0]
    found = [
        one
        for one in dict.fromkeys(_below(cls))
        if one.__module__.partition(".")[0] == package and not is_abstract(one) and _is_public(one, cls)
        if is_apart(cls.__module__) or not is_apart(one.__module__)
    ]
    return sorted(found, key=lambda one: (one.__module__ != cls.__module__, one.__module__, _line(one)))[:_MOST]


def _below(cls: type) -> Iterator[type]:
    for one in cls.__subclasses__():
        yield one
        yield from _below(one)


def _is_public(cls: type, base: type) -> bool:
    if cls.__name__.startswith("_"):
        return False
    if "<locals>" in cls.__qualname__:
        return cls.__qualname__.rpartition(".")[0] == base.__qualname__.rpartition(".")[0]
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


@cached_by("class")
def _line(cls: type) -> int:
    functions = (inspect.unwrap(one) for one in vars(cls).values() if inspect.isroutine(one))
    codes = [one.__code__ for one in functions if inspect.isfunction(one) and one.__module__ == cls.__module__]
    # What dataclasses generate has no place in a file.
    return min((one.co_firstlineno for one in codes if not one.co_filename.startswith("<")), default=1 << 30)
