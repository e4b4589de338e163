"""Migrates weft 0.2 to 0.3: renames names that moved, and makes arguments positional that lost their keyword.

Each file is migrated on its own, without a group: an object is the same object under its old and its new name.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import libcst as cst

from .findings import Changes, Finding, written
from .imports import move_from
from .reading import Reader, dotted, names_of

# The table is imported by name when it is needed, because `migrate` must not depend on weft's other rooms.
_TABLE = "weft.core.public_names"
_DOTTED = re.compile(r"(?<![\w.])weft(?:\.\w+)+")
_IN_TEXT = "strings are not rewritten"
_STAR_BROUGHT = {"core", "metrics", "modules", "ops", "transforms", "tree"}
# By transform, the parameters that 0.2 accepted as keywords and that are positional only in 0.3.
_BY_POSITION = {
    "weft.associative_scan": ("function", "elems"),
    "weft.cond": ("pred", "true_fun", "false_fun"),
    "weft.fori_loop": ("lower", "upper", "body_fun", "init"),
    "weft.jvp": ("function", "primals", "tangents"),
    "weft.map": ("function", "xs"),
    "weft.switch": ("index", "branches"),
    "weft.while_loop": ("cond_fun", "body_fun", "init"),
}


@cache
def _table() -> Any:
    return importlib.import_module(_TABLE)


def _place_of(name: str) -> str | None:
    """Returns the dotted name in 0.3 of a name in 0.2; None if the name has not moved."""
    module, _, last = name.rpartition(".")
    return _table().place_of(module, last) if module.partition(".")[0] == "weft" else None


def changes_of(reader: Reader) -> Changes:
    """Returns the edits that move a file from weft 0.2 to 0.3, and the places that a person has to edit."""
    changes = Changes()
    for node in reader.nodes:
        match node:
            case cst.ImportFrom():
                _import_from(reader, node, changes)
            case cst.Attribute():
                _attribute(reader, node, changes)
            case cst.Call():
                _call(reader, node, changes)
                _looked_up(reader, node, changes)
            case cst.SimpleString() | cst.FormattedStringText() if not reader.is_docstring(node):
                # A string may be read by any program (a configuration, a message), so a person decides about it.
                for name in dict.fromkeys(filter(None, map(_former, _DOTTED.findall(node.value)))):
                    _leave(reader, node, changes, _IN_TEXT, f"{name} is {_place_of(name)}", "check")
            case _:
                pass
    return changes


def _former(text: str) -> str | None:
    """Returns the name of 0.2 that a dotted text begins with: `weft.core.AxisError` of `weft.core.AxisError.args`."""
    parts = text.split(".")
    begins = (".".join(parts[:stop]) for stop in range(2, len(parts) + 1))
    return next((name for name in begins if _place_of(name)), None)


def _leave(
    reader: Reader, node: cst.CSTNode, changes: Changes, why: str, fix: str, work: str = "rename", code: str = ""
) -> None:
    place = reader.source.path, reader.line(node)
    changes.findings.append(Finding(*place, code or written(node)[:60], why, fix, work=work))


def _looked_up(reader: Reader, node: cst.Call, changes: Changes) -> None:
    """Lists a name that a call looks up by its text: `getattr(weft, "drop")`, `patch.object(weft, "drop")`."""
    for owner, text in itertools.pairwise(node.args):
        if isinstance(text.value, cst.SimpleString):
            names = [f"{module}.{text.value.evaluated_value}" for module in sorted(reader.imported(owner.value))]
            for name in filter(_place_of, names):
                code = f"{written(owner.value)}, {text.value.value}"
                _leave(reader, node, changes, _IN_TEXT, f"{name} is {_place_of(name)}", "check", code)


def _import_from(reader: Reader, node: cst.ImportFrom, changes: Changes) -> None:
    module = dotted(node.module)
    if node.relative or module.partition(".")[0] != "weft":
        return
    if isinstance(node.names, cst.ImportStar):
        _star(reader, node, changes)
        return
    places = {name: place for name in names_of(node) if (place := _place_of(f"{module}.{name}"))}
    if places:
        move_from(reader, node, {name: _split(place) for name, place in places.items()}, changes)


def _split(place: str) -> tuple[str, str]:
    module, _, name = place.rpartition(".")
    return module, name


def _star(reader: Reader, node: cst.ImportFrom, changes: Changes) -> None:
    # Names that the file binds itself hide names of the star import, so they are not affected.
    used = {node.value for node in reader.nodes if isinstance(node, cst.Name)} - reader.stored
    names = sorted(name for name in used if name in _STAR_BROUGHT or _place_of(f"weft.{name}"))
    if dotted(node.module) == "weft" and names:
        places = (f"{name} is {_place_of(f'weft.{name}') or f'weft.{name}'}" for name in names)
        _leave(reader, node, changes, "names that the file uses do not come with it any more", "; ".join(places))


def _attribute(reader: Reader, node: cst.Attribute, changes: Changes) -> None:
    place = next((place for name in sorted(reader.imported(node)) if (place := _place_of(name))), None)
    if place is None or isinstance(reader.parent(node), (cst.ImportFrom, cst.ImportAlias)):
        return
    # The new name is written below the file's own name for weft, which may be an alias: `import weft as w`.
    root: cst.BaseExpression = node.value
    while isinstance(root, cst.Attribute) and "weft" not in reader.imported(root):
        root = root.value
    if "weft" not in reader.imported(root) or isinstance(reader.parent(node), cst.AssignTarget):
        _leave(reader, node, changes, "the file has no name for weft itself here", f"it is {place}")
        return
    made: cst.BaseExpression = root
    for part in place.split(".")[1:]:
        made = cst.Attribute(made, cst.Name(part))
    # `(weft.update)(x)` has its parentheses on the outer attribute, and the new expression has to keep them.
    changes.edits[node] = lambda old: made.with_changes(lpar=old.lpar, rpar=old.rpar)


def _call(reader: Reader, node: cst.Call, changes: Changes) -> None:
    names = [name for name in reader.imported(node.func) if name in _BY_POSITION]
    parameters = _BY_POSITION[names[0]] if names else ()
    named = [arg for arg in node.args if arg.keyword is not None and arg.keyword.value in parameters]
    if not named:
        return
    # Keywords may stand in any order. To reorder them would change the order in which Python evaluates the arguments.
    if not _are_in_order(node.args, parameters, len(named)):
        order = ", ".join(parameters)
        _leave(
            reader,
            node.func,
            changes,
            "weft 0.3 takes these arguments by position only",
            f"pass them in this order: {order}",
            "check",
        )
        return
    for arg in named:
        changes.edits[arg] = lambda old: old.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)


def _are_in_order(args: Sequence[cst.Arg], parameters: Sequence[str], named: int) -> bool:
    """Whether the keyword arguments follow the positional ones in the order of the parameters, with nothing between."""
    keywords = [arg.keyword and arg.keyword.value for arg in args]
    before = keywords.count(None)
    expected = [*[None] * before, *parameters[before : before + named]]
    return keywords[: before + named] == expected and not any(arg.star for arg in args)
