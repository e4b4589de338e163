"""The language server on standard input and output: takes documents, returns diagnostics, hints, hovers and actions.

pygls, from the extra `lsp`, implements the protocol; `judging` judges documents in a thread of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..command.lines import Fix, Line
from ..command.units import installed_roots
from .hovers import hover
from .judging import Document, Judge

_MISSING = "weft lsp: the language server needs pygls, which is not installed: pip install 'weft-jax[lsp]' (pygls)"


def serve(options: argparse.Namespace) -> int:
    """Answers the editor until it disconnects, and returns the exit code."""
    try:
        import pygls.lsp.server
    except ImportError:
        print(_MISSING, file=sys.stderr)
        return 2
    del pygls
    server = Server(undecided=options.undecided)
    try:
        server.pygls.start_io()
    finally:
        server.judge.stop()
    return 0


class Server:
    """The server and its open documents.

    Args:
        undecided: whether undecided and uncheckable contracts are diagnostics as well, with the severity "information".
    """

    def __init__(self, *, undecided: bool):
        # Imported here, because weft does not depend on pygls.
        from lsprotocol import types
        from pygls.lsp.server import LanguageServer

        self.types: Any = types
        severity = types.DiagnosticSeverity
        self.severities = {"error": severity.Error, "unusable": severity.Error, "warning": severity.Warning}
        if undecided:
            told = ("undecided", "unbuilt", "crash")
            self.severities |= dict.fromkeys(told, severity.Information)
        self.pygls: Any = LanguageServer("weft", "1", text_document_sync_kind=types.TextDocumentSyncKind.Incremental)
        self.judge = Judge(self._told)
        # With a separator at the end: a user's folder `site-packages-of-mine` is not installed.
        self._installed = tuple(os.path.join(root, "") for root in installed_roots())
        self._loop: asyncio.AbstractEventLoop | None = None
        for name, answer in self._features().items():
            self.pygls.feature(name)(answer)

    def _features(self) -> dict[str, Callable[..., Any]]:
        """What answers each message of the protocol."""
        types = self.types

        # pygls looks at the names of the parameters, and runs coroutine functions in its event loop.
        async def started(params: Any) -> None:
            self._loop = asyncio.get_running_loop()
            self.judge.start()
            self.judge.warm(self.pygls.workspace.root_path or str(Path.cwd()))

        async def opened(params: Any) -> None:
            self._edited(params.text_document.uri)
            self._save(params.text_document.uri)

        async def changed(params: Any) -> None:
            self._edited(params.text_document.uri)

        async def saved(params: Any) -> None:
            self._save(params.text_document.uri)

        async def closed(params: Any) -> None:
            path = self._path(params.text_document.uri)
            if path is not None:
                self.judge.close_document(path)
            # Without this the editor would go on showing the diagnostics of a file that is closed.
            self._publish(params.text_document.uri, None, [])

        def about(answer: Callable[[Any, Document], Any]) -> Callable[..., Any]:
            async def asked(params: Any) -> Any:
                document = self.judge.documents.get(self._path(params.text_document.uri) or "")
                # None says that weft does not know the file; an empty list would say that it has no shapes.
                return None if document is None else answer(params, document)

            return asked

        return {
            types.INITIALIZED: started,
            types.TEXT_DOCUMENT_DID_OPEN: opened,
            types.TEXT_DOCUMENT_DID_CHANGE: changed,
            types.TEXT_DOCUMENT_DID_SAVE: saved,
            types.TEXT_DOCUMENT_DID_CLOSE: closed,
            types.TEXT_DOCUMENT_INLAY_HINT: about(self._hints),
            types.TEXT_DOCUMENT_HOVER: about(self._hover),
            types.TEXT_DOCUMENT_CODE_ACTION: about(self._actions),
        }

    def _path(self, uri: str) -> str | None:
        """The absolute path of a document, if it is a Python file outside of installed packages; else None."""
        document = self.pygls.workspace.get_text_document(uri)
        if not uri.startswith("file:") or not document.path.endswith(".py"):
            return None
        path = str(Path(document.path).resolve())
        return None if path.startswith(self._installed) else path

    def _save(self, uri: str) -> None:
        path = self._path(uri)
        if path is not None:
            self.judge.saved(path)

    def _edited(self, uri: str) -> None:
        path = self._path(uri)
        if path is not None:
            document = self.pygls.workspace.get_text_document(uri)
            self.judge.edit(path, document.source, document.version, uri)

    def _told(self, document: Document, shapes: bool) -> None:
        """Called in the judge's thread; messages to the editor are sent from the event loop's thread."""
        version, uri = document.judged_version, document.uri
        # Built now, because the document may be judged again before the loop runs `send`.
        diagnostics = [] if shapes else [self._diagnostic(document, line) for line in document.lines()]

        def send() -> None:
            if not shapes:
                self._publish(uri, version, [diagnostic for diagnostic in diagnostics if diagnostic is not None])
                return
            workspace = self.pygls.client_capabilities.workspace
            # Not every editor can be asked to fetch its hints again.
            if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
                self.pygls.workspace_inlay_hint_refresh(None)

        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(send)

    def _publish(self, uri: str, version: int | None, diagnostics: list[Any]) -> None:
        told = self.types.PublishDiagnosticsParams(uri=uri, diagnostics=diagnostics, version=version)
        self.pygls.text_document_publish_diagnostics(told)

    def _diagnostic(self, document: Document, line: Line) -> Any:
        """A finding as a diagnostic; None if its level is not shown."""
        types = self.types
        severity = self.severities.get(line.level)
        if severity is None:
            return None
        lines = document.judged.split("\n")
        here = Path(line.file).resolve() == Path(document.path)
        # A finding in another file, such as a helper's, is shown at the `def` of the function whose proof reached it.
        begins = re.compile(rf"\s*(async\s+def|def|class)\s+{re.escape(line.name.rpartition('.')[2])}\b")
        head = next((row for row, text in enumerate(lines) if begins.match(text)), 0)
        row = min(max(line.line - 1, 0), len(lines) - 1) if here else head
        elsewhere = "" if here else f"{line.file}:{line.line}: "
        text = lines[row].rstrip("\r")
        return types.Diagnostic(
            range=types.Range(
                start=types.Position(row, self._units(text[: len(text) - len(text.lstrip())])),
                end=types.Position(row, self._units(text)),
            ),
            message=f"{elsewhere}{line.name}: {line.message}" + (f"\nfix: {line.fix.text}" if line.fix else ""),
            severity=severity,
            source="weft",
            code=line.rule,
        )

    def _units(self, text: str) -> int:
        """The length of a text in the units of the editor, which are often UTF-16 code units."""
        return self.pygls.workspace.position_codec.client_num_units(text)

    def _hints(self, params: Any, document: Document) -> list[Any]:
        """The shapes on the lines of a range, as hints behind the names."""
        types = self.types
        lines = document.judged.split("\n")
        hints: list[Any] = []
        for note in sorted(document.notes(), key=lambda note: (note.line, note.column)):
            if params.range.start.line <= note.line - 1 <= params.range.end.line:
                # Columns of Python's syntax tree count bytes, and those of the editor do not.
                before = lines[note.line - 1].encode()[: note.column].decode(errors="ignore")
                label = f"-> {note.shape}" if note.name in ("return", "yield") else note.shape
                place = types.Position(note.line - 1, self._units(before))
                hints.append(types.InlayHint(place, label, kind=types.InlayHintKind.Type, padding_left=True))
        return hints

    def _actions(self, params: Any, document: Document) -> list[Any]:
        """The fixes of findings in a range, where their source text is known, and comments that accept the findings."""
        lines, actions = document.text.split("\n"), list[Any]()
        for line in document.lines():
            row = line.line - 1
            here = Path(line.file).resolve() == Path(document.path) and row < len(lines)
            if not here or not params.range.start.line <= row <= params.range.end.line:
                continue
            if line.fix is not None and line.fix.old:
                actions += self._action(params, lines, line.fix)
            # An undecided contract may be accepted as well, with its reason in the source.
            if line.level in ("error", "warning", "undecided"):
                text = lines[row].rstrip()
                marker = Fix(
                    f"accept this finding of {line.name}", line.file, line.line, text, f"{text}  # weft: ignore[reason]"
                )
                actions += self._action(params, lines, marker)
        return actions

    def _action(self, params: Any, lines: list[str], fix: Fix) -> Iterator[Any]:
        """The code action for a fix; nothing if the line has been edited and lacks the text to replace."""
        types, row = self.types, fix.line - 1
        before, is_there, _ = lines[row].partition(fix.old) if row < len(lines) else ("", "", "")
        if is_there:
            start, end = (types.Position(row, self._units(text)) for text in (before, before + fix.old))
            edits = {params.text_document.uri: [types.TextEdit(types.Range(start, end), fix.new)]}
            yield types.CodeAction(
                fix.text,
                kind=types.CodeActionKind.QuickFix,
                diagnostics=params.context.diagnostics,
                edit=types.WorkspaceEdit(changes=edits),
            )

    def _hover(self, params: Any, document: Document) -> Any:
        types = self.types
        lines = document.judged.split("\n")
        at = self.pygls.workspace.position_codec.position_from_client_units(lines, params.position)
        text = hover(document, at.line + 1, at.character)
        return None if text is None else types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))
