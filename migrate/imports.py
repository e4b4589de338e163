"""Rewrites import statements of which some names move to other modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from .findings import Changes
from .reading import Reader, as_node, comments_in, dotted


def move_from(reader: Reader, node: cst.ImportFrom, to: Mapping[str, tuple[str, str]], changes: Changes) -> None:
    """Rewrites a `from` import, so that some of its names come from other modules.

    Args:
        node: the statement.
        to: for an imported name its new module and name; other names stay.
    """
    assert not isinstance(node.names, cst.ImportStar)
    modules: dict[str | None, list[cst.ImportAlias]] = {}
    for alias in node.names:
        module, name = to.get(dotted(alias.name), (None, ""))
        if module is not None and name != dotted(alias.name):
            bound = alias.asname or cst.AsName(cst.Name(dotted(alias.name)))
            alias = alias.with_changes(name=cst.Name(name), asname=None if dotted(bound.name) == name else bound)
        modules.setdefault(module, []).append(alias)
    if len(modules) == 1:
        ((module, aliases),) = modules.items()
        if module is not None:
            changes.edits[node] = lambda old: old.with_changes(module=as_node(module), names=aliases)
        return
    staying = modules.pop(None, None)
    new = [cst.ImportFrom(module=as_node(module or ""), names=_plain(aliases)) for module, aliases in modules.items()]
    # The names that stay come first, in the original statement with its parentheses and comments.
    replace_statement(reader, node, [_with_names(node, staying), *new] if staying else new, changes)


def _plain(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    return [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in aliases]


def _with_names(node: cst.ImportFrom, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """Returns the import statement with only `aliases` left.

    libcst stores the comma and the line break before the closing parenthesis with the last name, so the new last name
    takes over those of the old one.
    """
    assert not isinstance(node.names, cst.ImportStar)
    *before, last = aliases
    end = node.names[-1].comma
    comma = last.comma if node.lpar and isinstance(end, cst.Comma) else cst.MaybeSentinel.DEFAULT
    if isinstance(comma, cst.Comma) and isinstance(end, cst.Comma):
        space, closing = comma.whitespace_after, end.whitespace_after
        if isinstance(space, cst.ParenthesizedWhitespace) and isinstance(closing, cst.ParenthesizedWhitespace):
            comma = comma.with_changes(
                whitespace_after=space.with_changes(last_line=closing.last_line, indent=closing.indent)
            )
        else:
            comma = end
    return node.with_changes(names=[*before, last.with_changes(comma=comma)])


def replace_statement(
    reader: Reader, node: cst.BaseSmallStatement, new: Sequence[cst.BaseSmallStatement], changes: Changes
) -> None:
    """Replaces a statement by several, on a line each if it is on a line of its own."""
    line = reader.parent(node)
    if not (isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1):
        plain = [statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for statement in new[:-1]]
        last = new[-1].with_changes(semicolon=node.semicolon)
        changes.edits[node] = lambda old: cst.FlattenSentinel([*plain, last])
        return
    copied = [text for statement in new for text in comments_in(statement)]
    # Comments of removed names would be lost, so they become lines above the last statement.
    lost = [text for text in comments_in(node) if text not in copied]
    comments = [cst.EmptyLine(comment=cst.Comment(text)) for text in lost]

    def lines(old: cst.SimpleStatementLine) -> cst.FlattenSentinel[cst.SimpleStatementLine]:
        made = [old.with_changes(body=[new[0]]), *(cst.SimpleStatementLine([statement]) for statement in new[1:])]
        made[-1] = made[-1].with_changes(leading_lines=[*made[-1].leading_lines, *comments])
        return cst.FlattenSentinel(made)

    changes.edits[line] = lines
