"""Judging documents as they are typed: one thread, one warm worker a project, and verdicts that are kept.

Nothing of the user's runs here. What a document says is sent to a worker (`command/conversation.py`), which imports it
in place of the file; a worker that dies costs the answer that it was at. Only what an edit reaches is judged again.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..command.config import Config, ConfigError, Settings, read
from ..command.conversation import Conversation
from ..command.kept import files_beside
from ..command.lines import Line, from_json
from ..command.recorded import calls_in
from ..command.units import WEFT, unit_of
from ..shapes.notes import Note
from ..shapes.notes import from_json as shapes_from_json
from .definitions import Anchor, Definition, anchor, definitions_of

# How long typing has to pause, in seconds.
DEBOUNCE = 0.05
# Of each proof, at most: whoever types waits for less than whoever runs `weft check`.
_SECONDS, _TRIALS = 10.0, 300


@dataclass(frozen=True)
class Known:
    """What is known of one definition; it is replaced, not changed, for another thread reads it.

    Attributes:
        key: for what source of it.
        lines: what the check said, each with where it stands.
        notes: the shapes on its lines and on those of what it calls.
        dims: where each dim was bound, by function.
        shaped: whether shapes were asked for.
    """

    key: str
    lines: tuple[tuple[Anchor, Line], ...] = ()
    notes: tuple[tuple[Anchor, Note], ...] = ()
    dims: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shaped: bool = False


@dataclass
class Document:
    """A file that is open.

    Attributes:
        path: whole.
        uri: as the editor calls it.
        text, version: as it is in the editor, and the number of the edit.
        judged, judged_version: the same of what was judged last.
        definitions: of the last text that could be parsed.
        known: by definition.
        trouble: what is wrong with the whole: no syntax, no import.
        is_stale: whether nothing that is known holds any more, for what it imports has changed.
    """

    path: str
    uri: str
    text: str
    version: int | None = None
    judged: str = ""
    judged_version: int | None = None
    definitions: dict[str, Definition] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    trouble: list[Line] = field(default_factory=list)
    is_stale: bool = False

    def lines(self) -> list[tuple[int, Line]]:
        """What there is to say, at the lines where it stands now."""
        found = [(one.line, one) for one in self.trouble]
        for known in self.known.values():
            placed = ((place.line(self.definitions), line) for place, line in known.lines)
            found += [(number, line) for number, line in placed if number is not None]
        return sorted(dict.fromkeys(found), key=lambda one: one[0])

    def notes(self) -> dict[tuple[int, int, str], Note]:
        """The shapes, by line, column and name; a function's own trace before those of who calls it."""
        own: dict[tuple[int, int, str], Note] = {}
        others: dict[tuple[int, int, str], Note] = {}
        for name, known in self.known.items():
            for place, note in known.notes:
                number = place.line(self.definitions)
                if number is not None:
                    (own if place.name == name else others).setdefault((number, note.column, note.name), note)
        return others | own

    def dims(self) -> dict[str, Mapping[str, str]]:
        """Where dims were bound, by function."""
        return {name: dims for known in self.known.values() for name, dims in known.dims.items()}


class Judge(threading.Thread):
    """Judges open documents, those that were edited last first.

    Args:
        told: is called, in this thread, with a document that there is something new about, and whether it is shapes.
    """

    def __init__(self, told: Callable[[Document, bool], None]):
        super().__init__(daemon=True)
        self.told = told
        self.documents: dict[str, Document] = {}
        self._due: dict[str, float] = {}
        self._changed = threading.Condition()
        self._conversations: dict[Path, tuple[Config, Settings, Conversation]] = {}
        self._stopped = False

    def edit(self, path: str, text: str, version: int | None, uri: str = "", *, at_once: bool = False) -> None:
        """Takes a new text of a document."""
        with self._changed:
            document = self.documents.setdefault(path, Document(path, uri, text))
            document.text, document.version = text, version
            if _is_weft(path) and not at_once:
                return  # seen when it is saved
            self._due[path] = time.monotonic() + (0 if at_once else DEBOUNCE)
            self._changed.notify()

    def saved(self, path: str) -> None:
        """Judges again what imports a file that was saved; itself only if it is a part of weft."""
        with self._changed:
            for other in self.documents.values():
                if other.path == path and not _is_weft(path):
                    continue
                if other.path == path or path in files_beside(unit_of(Path(other.path))):
                    other.is_stale = True
                    self._due[other.path] = time.monotonic()
            self._changed.notify()

    def close_document(self, path: str) -> None:
        """Forgets a document."""
        with self._changed:
            self.documents.pop(path, None)
            self._due.pop(path, None)

    def warm(self, folder: str) -> None:
        """Starts the worker of a project before there is anything to do."""
        with self._changed:
            self._due.setdefault(folder, 0.0)
            self._changed.notify()

    def stop(self) -> None:
        """Ends the workers."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        for _, _, conversation in self._conversations.values():
            conversation.close()

    def run(self) -> None:
        while (path := self._next()) is not None:
            document = self.documents.get(path)
            try:
                if document is None:
                    self._conversation(Path(path)).start()
                else:
                    self._judge(document)
            except ConfigError as error:
                self._say(document, "unusable", str(error), "usage")
            except Exception as error:  # what fails here must not end the answers to come
                message = f"weft failed: {type(error).__name__}: {error}; please report it"
                self._say(document, "crash", message, "internal")

    def _say(self, document: Document | None, level: str, message: str, rule: str) -> None:
        if document is not None and not self._stopped:
            document.trouble = [Line(level, document.path, 1, "weft", message, rule)]
            self.told(document, False)

    def _next(self) -> str | None:
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                ready = [path for path, due in self._due.items() if due <= now]
                if ready:
                    path = max(ready, key=lambda one: self._due[one])
                    del self._due[path]
                    return path
                self._changed.wait(min(self._due.values()) - now if self._due else None)
            return None

    def _conversation(self, folder: Path) -> Conversation:
        config = read(folder)
        seconds, trials = min(config.seconds, _SECONDS), min(config.trials, _TRIALS)
        calls, digest = calls_in(None, config.root)
        settings = Settings(None, config.strict, trials, seconds, config.dims, config.args, calls, digest)
        known = self._conversations.get(config.root)
        if known is not None and known[:2] == (config, settings):
            return known[2]
        if known is not None:
            known[2].close()
            # What was configured or recorded anew may decide otherwise.
            for document in self.documents.values():
                document.is_stale = True
        self._conversations[config.root] = config, settings, Conversation(settings, config.memory)
        return self._conversations[config.root][2]

    def _judge(self, document: Document) -> None:
        conversation = self._conversation(Path(document.path).parent)
        with self._changed:
            text = document.judged = document.text
            document.judged_version = document.version
            if document.is_stale:
                document.known, document.is_stale = {}, False
            # What else is not saved may be imported by it.
            texts = {path: one.text for path, one in self.documents.items() if not _is_weft(path)}
        try:
            definitions = definitions_of(text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            document.trouble = [Line("unusable", document.path, line, "", f"SyntaxError: {error.args[0]}", "import")]
            self.told(document, False)
            return
        known = {name: one for name, one in document.known.items() if _holds(one, definitions.get(name))}
        ahead = [name for name in definitions if name not in known]
        document.definitions, document.known = definitions, known
        if _is_weft(document.path):
            conversation.restart()
        if ahead or document.trouble:
            self._check(document, conversation, texts, ahead or [*definitions])
        else:
            self.told(document, False)  # what is known has moved
        unshaped = [name for name in definitions if name in document.known and not document.known[name].shaped]
        if unshaped and document.text == text:
            self._read(document, conversation, texts, unshaped)
        elif not unshaped:
            self.told(document, True)

    def _check(
        self, document: Document, conversation: Conversation, texts: Mapping[str, str], names: list[str]
    ) -> None:
        found: dict[str, list[tuple[Anchor, Line]]] = {name: [] for name in names}
        trouble: list[Line] = []
        asked = {"texts": texts, "only": f"^({'|'.join(map(re.escape, names))})$"}
        for message in conversation.ask(unit_of(Path(document.path)), asked):
            lines: tuple[Line, ...] = ()
            if "part" in message:
                lines = from_json(message["part"]).lines
            elif "died" in message:
                step = message["step"]
                level, rule = ("unusable", "import") if step["at"] == 1 else ("undecided", "undecided")
                words = f"undecided: {message['died']}"
                lines = (Line(level, step["file"], step["line"], step["name"], words, rule),)
            for line in lines:
                known = found.get(line.name.partition(".")[0])
                if known is None or line.rule == "import":
                    trouble.append(line)
                else:
                    known.append((self._anchored(document, line), line))
        document.trouble = trouble
        if not any(line.rule == "import" for line in trouble):
            new = {name: Known(document.definitions[name].key, tuple(lines)) for name, lines in found.items()}
            document.known = {**document.known, **new}
        self.told(document, False)

    def _anchored(self, document: Document, line: Line) -> Anchor:
        here = os.path.realpath(line.file) == os.path.realpath(document.path)
        if here and line.line:
            return anchor(line.line, document.definitions)
        return Anchor(line.name.partition(".")[0], 0)

    def _read(self, document: Document, conversation: Conversation, texts: Mapping[str, str], names: list[str]) -> None:
        places = [document.definitions[name] for name in names]
        asked = {"texts": texts, "shapes": {"lines": [[one.first, one.last] for one in places]}}
        found = [
            shapes_from_json(message["shapes"])
            for message in conversation.ask(unit_of(Path(document.path)), asked)
            if "shapes" in message
        ]
        known = {name: dataclasses.replace(document.known[name], shaped=True) for name in names}
        for one in found:
            name = anchor(one.line, document.definitions).name
            if name in known:
                notes = tuple((anchor(note.line, document.definitions), note) for note in one.notes)
                old = known[name]
                known[name] = dataclasses.replace(old, notes=old.notes + notes, dims={**old.dims, **one.dims})
        document.known = {**document.known, **known}
        self.told(document, True)


def _holds(known: Known, definition: Definition | None) -> bool:
    return definition is not None and known.key == definition.key


def _is_weft(path: str) -> bool:
    """Whether a file is a part of weft, which a worker has imported before it could be told another text."""
    whole = Path(os.path.realpath(path))
    return whole.is_relative_to(WEFT) and whole.relative_to(WEFT).parts[0] not in ("tests", "examples")
