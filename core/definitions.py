"""Where classes are defined, so that two of one name can be told apart.

In a notebook a class is defined again whenever its cell runs, and what was made before is of *another* class of the
same name: "should be Block, and is Block" helps nobody. The source of a class that was replaced cannot be looked up any
more (its module has the new one), so each class of records notes its place as it is made; others are found by the code
of their methods.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, cast

from weft.core.callers import shorten
from weft.core.edge import trees
from weft.core.edge.trees import TreeDef
from weft.core.paths import Path, key_part

# By class, `file` and `line`. Weak, so that a notebook's old classes, and what they hold, may go.
_places: weakref.WeakKeyDictionary[type[Any], tuple[str, int]] = weakref.WeakKeyDictionary()


def note_definition(cls: type[Any]) -> None:
    """Notes where a class is defined: for its `__init_subclass__` to call, while the `class` statement runs."""
    here = inspect.currentframe()
    frame: FrameType | None = None if here is None or here.f_back is None else here.f_back.f_back
    while frame is not None and frame.f_globals.get("__name__") != cls.__module__:
        frame = frame.f_back
    if frame is not None:
        _places[cls] = frame.f_code.co_filename, frame.f_lineno


def defined_at(cls: type[Any]) -> str:
    """`file:line` of a class, or the notebook's cell; empty if nobody knows.

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
    found = [code for code in codes if isinstance(code, CodeType) and code.co_filename != "<string>"]
    return min(((code.co_filename, code.co_firstlineno) for code in found), default=None)


def _cell(file: str) -> str:
    """What IPython calls the cell that it compiled under this name, such as `cell In[3]`."""
    get_shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell: Any = get_shell() if callable(get_shell) else None
    name_of: Any = getattr(getattr(shell, "compile", None), "format_code_name", None)
    words = cast("tuple[str, str] | None", name_of(file)) if callable(name_of) else None
    return " ".join(words).lower().replace("in[", "In[") if words else ""


def same_name(one: Any, other: Any) -> bool:
    """Whether two classes are different ones of one module and name: one was defined again.

    >>> same_name(int, int), same_name(int, bool)
    (False, False)
    """
    if one is other or not (isinstance(one, type) and isinstance(other, type)):
        return False
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def another(cls: type[Any]) -> str:
    """A class that has the name of the one that is expected, in words: `another Block, defined at model.py:3`."""
    place = defined_at(cls)
    return f"another {cls.__name__}, defined {f'at {place}' if place else 'again'}"


REDEFINED = "a class that is defined again is another one: make the record again, with the class as it is now"


def redefined_in(definition: TreeDef, tree: Any, path: Path = ()) -> tuple[Path, type[Any], type[Any]] | None:
    """The first node of a tree whose class is another one of its definition's name: the path, and both classes."""
    wanted: Any = (definition.node_data() or (None,))[0]
    found = cast("type[Any]", type(tree))
    if same_name(wanted, found):
        return path, wanted, found
    level = trees.flatten_one_level(tree) if wanted is found else None
    children: Sequence[tuple[Any, Any]] = [] if level is None else list(level[0])
    if len(children) != len(definition.children()):
        return None
    pairs = zip(definition.children(), children, strict=True)
    return next(
        (one for child, (key, part) in pairs if (one := redefined_in(child, part, (*path, key_part(key)))) is not None),
        None,
    )
