"""Concrete classes to stand for an abstract class: the subclasses that the same package defines.

Each subclass is an *option* of its place, such as `kernel class`, and a report says for which of them the contract
holds.
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
from weft.typecheck.arguments.parameters import is_stub
from weft.typecheck.language.siblings import is_test_or_script

# Each subclass costs at least one trial, so a base class such as `eqx.Module` may not bring all of a package.
_MOST = 24


@cached_by("class")
def is_abstract(cls: type) -> bool:
    """Whether a class leaves methods, or fields (equinox's `AbstractVar`), to its subclasses.

    Python lets a class be instantiated that marks methods abstract and forgets `abc.ABC`; weft takes its word that it
    is abstract. A class whose methods only raise NotImplementedError is abstract if some subclass writes them.
    """
    left_open = (getattr(cls, name, None) for name in ("__abstractvars__", "__abstractclassvars__"))
    if any(_refuses_own_class(cls, vars(cls).get(name)) for name in ("__new__", "__init__")):
        return True
    methods = (getattr(inspect.getattr_static(cls, name, None), "__isabstractmethod__", False) for name in dir(cls))
    if inspect.isabstract(cls) or any(left_open) or _has_open_fields(cls) or any(mark is True for mark in methods):
        return True
    stubs = {name for name in dir(cls) if is_stub(inspect.getattr_static(cls, name, None))}
    return bool(stubs) and any(stubs & vars(subclass).keys() for subclass in _below(cls))


# `from __future__ import annotations` turns annotations into texts, in which equinox does not see `AbstractVar`.
_OPEN_FIELD = re.compile(r"(\w+\.)*Abstract(Class)?Var\[")


def _has_open_fields(cls: type) -> bool:
    """Whether a field is marked `AbstractVar` in an annotation that is a text, and no class below gives the field."""
    is_open: dict[str, bool] = {}
    for base in reversed(cls.__mro__):
        is_open |= dict.fromkeys(vars(base).keys() & is_open.keys(), False)
        annotations = inspect.get_annotations(base).items()
        is_open |= {
            name: isinstance(annotation, str) and _OPEN_FIELD.match(annotation) is not None
            for name, annotation in annotations
        }
    return any(is_open.values())


def _refuses_own_class(cls: type, constructor: Any) -> bool:
    """Whether a constructor raises for the very class that defines it: `if cls is Node: raise TypeError(...)`."""
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
    """The public, concrete subclasses of a class that its own package defines, ordered by module and line.

    Only imported modules are searched (see `siblings`), and only classes that their module has under their name.
    """
    package = cls.__module__.partition(".")[0]
    classes = [
        subclass
        for subclass in dict.fromkeys(_below(cls))
        if subclass.__module__.partition(".")[0] == package and not is_abstract(subclass) and _is_public(subclass, cls)
        if is_test_or_script(cls.__module__) or not is_test_or_script(subclass.__module__)
    ]
    return sorted(classes, key=lambda c: (c.__module__ != cls.__module__, c.__module__, _line(c)))[:_MOST]


def _below(cls: type) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _below(subclass)


def _is_public(cls: type, base: type) -> bool:
    if cls.__name__.startswith("_"):
        return False
    if "<locals>" in cls.__qualname__:
        return cls.__qualname__.rpartition(".")[0] == base.__qualname__.rpartition(".")[0]
    value: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is cls


@cached_by("class")
def _line(cls: type) -> int:
    functions = (inspect.unwrap(member) for member in vars(cls).values() if inspect.isroutine(member))
    codes = [f.__code__ for f in functions if inspect.isfunction(f) and f.__module__ == cls.__module__]
    # Methods that dataclasses generate have no line in a source file.
    return min((code.co_firstlineno for code in codes if not code.co_filename.startswith("<")), default=1 << 30)
