"""Judges documents when they are saved, in one thread and with one running worker for each project.

No code of the user's runs in this process. A worker (`command/process.py`) imports the file and judges all of it;
if the worker dies, only the answer that it was working on is lost. Between two saves, the editor moves hints and
diagnostics along with the text.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..command.cache import Cache
from ..command.config import Config, ConfigError, read
from ..command.lines import Checked, Line
from ..command.process import Conversation
from ..command.running import judgement, parts_of
from ..command.units import is_of_weft, unit_of
from ..shapes.notes import Note, Shapes, joined
from ..shapes.notes import from_json as shapes_from_json

# The limits of each proof, below those of `weft check`: a person who waits for an editor waits less long than a CI.
_SECONDS, _TRIALS = 10.0, 300
# Seconds of silence after which a save ends the worker: it may be in an endless loop that the save has just mended.
_SILENT = 2.0


@dataclass
class Document:
    """An open file.

    Attributes:
        path: the absolute path.
        uri: the editor's name for it.
        text, version: the text in the editor, and the number of the last edit.
        judged, judged_version: the text and number at the last judgement.
        parts: the outcome of each contract.
        shapes: the shapes in its functions.
        trouble: errors about the whole file: an unreadable configuration, or a failure of weft's.
    """

    path: str
    uri: str
    text: str
    version: int | None = None
    judged: str = ""
    judged_version: int | None = None
    parts: tuple[Checked, ...] = ()
    shapes: tuple[Shapes, ...] = ()
    trouble: tuple[Line, ...] = ()

    def lines(self) -> list[Line]:
        """The findings, ordered by line."""
        lines = (*self.trouble, *(line for part in self.parts for line in part.lines))
        return sorted(dict.fromkeys(lines), key=lambda line: line.line)

    def notes(self) -> list[Note]:
        """The shapes on lines that did not change since the judgement; a function's own trace goes before others."""
        # A line that was edited may assign another value, and the old shape next to it would be wrong.
        then, now = self.judged.split("\n"), self.text.split("\n")
        notes = (note for shapes in joined(list(self.shapes)) for note in shapes.notes if note.line <= len(then))
        return [note for note in notes if now[note.line - 1 : note.line] == [then[note.line - 1]]]

    def dims(self) -> dict[str, Mapping[str, str]]:
        """For each function, the places where its dims were bound."""
        return {name: dims for shapes in self.shapes for name, dims in shapes.dims.items()}

    def verdicts(self) -> dict[str, str]:
        """The verdict of each function, with its conditions; the methods of a class have entries of their own."""
        return {
            part.name: "; ".join([*part.verdicts, *(text.partition(f"{part.name}: ")[2] for text in part.assumptions)])
            for part in self.parts
            if part.name
        }


class Judge(threading.Thread):
    """Judges open documents in the state in which they were last saved.

    Args:
        told: called in this thread with a document, when it has new findings (False) or new shapes (True).
    """

    def __init__(self, told: Callable[[Document, bool], None]):
        super().__init__(daemon=True)
        self.told = told
        self.documents: dict[str, Document] = {}
        # The paths to judge, in order; a folder stands for a project whose worker is to be started.
        self._due: dict[str, None] = {}
        self._changed = threading.Condition()
        self._conversations: dict[Path, tuple[Config, Conversation]] = {}
        # The path that is being judged, and the worker that does it.
        self._judging: tuple[str, Conversation] | None = None
        self._stopped = False

    def edit(self, path: str, text: str, version: int | None, uri: str = "") -> None:
        """Stores a new text of a document, which is judged when the document is saved."""
        with self._changed:
            document = self.documents.setdefault(path, Document(path, uri, text))
            document.text, document.version = text, version

    def saved(self, path: str) -> None:
        """Queues a document that was opened or saved, and the documents whose text contains the module's name."""
        parent, module = Path(path).parent.name, Path(path).stem
        name = re.compile(rf"\b{re.escape(parent if module == '__init__' else module)}\b")
        with self._changed:
            # The text of an importer contains the name; following imports exactly would mean to parse every open file
            # at each save.
            importers = [document.path for document in self.documents.values() if name.search(document.text)]
            self._due |= dict.fromkeys([path, *importers])
            self._changed.notify()
            if self._judging is not None:
                judged, conversation = self._judging
                if judged in self._due:
                    conversation.abandon(_SILENT)

    def close_document(self, path: str) -> None:
        """Removes a document."""
        with self._changed:
            self.documents.pop(path, None)
            self._due.pop(path, None)

    def warm(self, folder: str) -> None:
        """Starts the worker of a project ahead of the first save, because importing JAX takes seconds."""
        with self._changed:
            self._due.setdefault(folder)
            self._changed.notify()

    def stop(self) -> None:
        """Stops the thread and ends the workers."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        for _, conversation in self._conversations.values():
            conversation.close()

    def run(self) -> None:
        """Judges documents one after the other, until the thread is stopped."""
        while (path := self._next()) is not None:
            document = self.documents.get(path)
            try:
                if document is None:
                    self._conversation(Path(path))[0].start()
                else:
                    self._judge(document)
            except ConfigError as error:
                self._say(document, "unusable", str(error), "usage")
            except Exception as error:  # the thread must go on: if it died, the editor would wait without a reason
                message = f"weft failed: {type(error).__name__}: {error}; please report it"
                self._say(document, "crash", message, "internal")

    def _say(self, document: Document | None, level: str, message: str, rule: str) -> None:
        """Shows an error about a whole document."""
        if document is not None and not self._stopped:
            document.trouble = (Line(level, document.path, 1, "weft", message, rule),)
            self.told(document, False)

    def _next(self) -> str | None:
        with self._changed:
            self._judging = None
            self._changed.wait_for(lambda: self._stopped or self._due)
            if self._stopped:
                return None
            path = next(iter(self._due))
            del self._due[path]
            return path

    def _conversation(self, folder: Path) -> tuple[Conversation, Cache]:
        """The worker of the project that a folder is in, and its stored verdicts as of now."""
        config = read(folder)
        budget = {"seconds": min(config.seconds, _SECONDS), "trials": min(config.trials, _TRIALS)}
        config = dataclasses.replace(config, **budget)
        known, conversation = self._conversations.get(config.root, (None, None))
        # The configuration may have changed since the last save in this project.
        if conversation is None or known != config:
            if conversation is not None:
                conversation.close()
            conversation = Conversation(config.settings, config.memory)
            self._conversations[config.root] = config, conversation
        return conversation, Cache(config.root, config.settings)

    def _judge(self, document: Document) -> None:
        """Judges a document with stored verdicts and its worker: findings first, then shapes."""
        conversation, cache = self._conversation(Path(document.path).parent)
        # Copied now: the text may be edited while the worker judges the saved one.
        with self._changed:
            document.judged, document.judged_version = document.text, document.version
            self._judging = document.path, conversation
        # The running worker has imported the old text of a part of weft, as a part of the checker.
        if is_of_weft(Path(os.path.realpath(document.path))):
            conversation.restart()
        unit = unit_of(Path(document.path))
        groups, is_whole = cache.find(unit)
        if not is_whole:
            groups, reads, carried = judgement(conversation, unit, groups)
            cache.store(unit, groups, reads, carried)
        with self._changed:
            if document.path in self._due:  # saved again meanwhile: the new text's verdicts replace these in a moment
                return
        document.parts = tuple(parts_of(groups))
        document.trouble = ()
        self.told(document, False)  # findings are shown at once, since the shapes take as long again
        answers = [*conversation.ask(unit, {"shapes": None})]
        document.shapes = tuple(shapes_from_json(answer["shapes"]) for answer in answers if "shapes" in answer)
        for answer in answers:
            if "ran" in answer:
                cache.carry(unit, answer["ran"], conversation.carried)
        self.told(document, True)
