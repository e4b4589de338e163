"""Where classes are defined, so that errors can distinguish two classes of the same name.

In a notebook a class is defined again whenever its cell runs, and records that were made before are of *another* class
of the same name: "should be Block, and is Block" helps nobody. The source of the old class cannot be looked up, because
its module has the new one. So each class of records notes its place when it is defined; other classes are located by
the code of their methods.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from types import CodeType
from typing import Any, cast

from weft.core.edge import trees
from weft.core.edge.trees import TreeDef
from weft.core.frames import shorten
from weft.core.paths import Path

# The file and line of each class. Weak, so that a notebook's old classes, and what they hold, can be freed.
_places: weakref.WeakKeyDictionary[type[Any], tuple[str, int]] = weakref.WeakKeyDictionary()


def note_definition(cls: type[Any]) -> None:
    """Notes where a class is defined. Its `__init_subclass__` calls this, while the `class` statement runs."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != cls.__module__:
        frame = frame.f_back
    if frame is not None:
        _places[cls] = frame.f_code.co_filename, frame.f_lineno


def defined_at(cls: type[Any]) -> str:
    """`file:line` of a class, or the notebook's cell; empty if it is unknown.

    >>> from weft.core.records.module import Module
    >>> class Block(Module): ...
    >>> defined_at(Block).rpartition(":")[2]
    '1'
    """
    place = _places.get(cls) or _place_of_code(cls)
    if place is None:
        return ""
    file, line = place
    cell = _cell(file)
    return f"{cell}, line {line}" if cell else f"{shorten(file)}:{line}"


def _place_of_code(cls: type[Any]) -> tuple[str, int] | None:
    functions = (inspect.unwrap(value) for value in vars(cls).values() if callable(value))
    codes = (getattr(function, "__code__", None) for function in functions)
    places = [code for code in codes if isinstance(code, CodeType) and code.co_filename != "<string>"]
    return min(((code.co_filename, code.co_firstlineno) for code in places), default=None)


def _cell(file: str) -> str:
    """IPython's name of the cell that it compiled under this file name, such as `cell In[3]`; empty if it is none."""
    get_shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell: Any = get_shell() if callable(get_shell) else None
    name_of: Any = getattr(getattr(shell, "compile", None), "format_code_name", None)
    words = cast("tuple[str, str] | None", name_of(file)) if callable(name_of) else None
    return " ".join(words).lower().replace("in[", "In[") if words else ""


def same_name(a: Any, b: Any) -> bool:
    """Whether two classes are different, but have the same module and name: the class was defined again.

    >>> same_name(int, int), same_name(int, bool)
    (False, False)
    """
    if a is b or not (isinstance(a, type) and isinstance(b, type)):
        return False
    return (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__)


def another(cls: type[Any]) -> str:
    """A class that only has the name of the expected class, in words: `another Block, defined at model.py:3`."""
    place = defined_at(cls)
    return f"another {cls.__name__}, defined {f'at {place}' if place else 'again'}"


REDEFINED = "the class was defined again after the record was made: make the record again, with the new class"


def redefined_in(definition: TreeDef, tree: Any, path: Path = ()) -> tuple[Path, type[Any], type[Any]] | None:
    """The first node of a tree whose class only has the name of the class in the treedef: its path, the class in the
    treedef, and its own class."""
    wanted: Any = (definition.node_data() or (None,))[0]
    actual = cast("type[Any]", type(tree))
    if same_name(wanted, actual):
        return path, wanted, actual
    children = trees.children_by_part(tree) if wanted is actual else []
    if len(children) != len(definition.children()):
        return None
    pairs = zip(definition.children(), children, strict=True)
    below = (redefined_in(inner, child, (*path, part)) for inner, (part, child) in pairs)
    return next((answer for answer in below if answer is not None), None)
