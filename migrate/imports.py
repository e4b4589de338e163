"""Import statements, rewritten: some names of one come from another module from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from .findings import Changes
from .reading import Reader, as_node, comments_in, dotted


def move_from(reader: Reader, node: cst.ImportFrom, to: Mapping[str, tuple[str, str]], changes: Changes) -> None:
    """Takes names of a `from` import from other modules.

    Args:
        node: the statement.
        to: for a name that it imports, the module and the name that it becomes; names that are not in it stay.
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
    kept = modules.pop(None, None)
    new = [cst.ImportFrom(module=as_node(module or ""), names=_plain(aliases)) for module, aliases in modules.items()]
    # What stays comes first: it keeps the statement's brackets and comments.
    replace_statement(reader, node, [_kept(node, kept), *new] if kept else new, changes)


def _plain(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    return [one.with_changes(comma=cst.MaybeSentinel.DEFAULT) for one in aliases]


def _kept(node: cst.ImportFrom, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """The statement with some of its names: the last one ends it as the last one did."""
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
    """Puts several statements in place of one: a line each, if it has a line of its own."""
    line = reader.parent(node)
    if not (isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1):
        plain = [one.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for one in new[:-1]]
        last = new[-1].with_changes(semicolon=node.semicolon)
        changes.edits[node] = lambda old: cst.FlattenSentinel([*plain, last])
        return
    kept = [text for one in new for text in comments_in(one)]
    lost = [text for text in comments_in(node) if text not in kept]
    comments = [cst.EmptyLine(comment=cst.Comment(text)) for text in lost]

    def lines(old: cst.SimpleStatementLine) -> cst.FlattenSentinel[cst.SimpleStatementLine]:
        made = [old.with_changes(body=[new[0]]), *(cst.SimpleStatementLine([one]) for one in new[1:])]
        made[-1] = made[-1].with_changes(leading_lines=[*made[-1].leading_lines, *comments])
        return cst.FlattenSentinel(made)

    changes.edits[line] = lines
