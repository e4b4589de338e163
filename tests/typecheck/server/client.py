"""A client of a language server: JSON-RPC over a process's pipes, as an editor speaks it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
_LAUNCH = f"""
import sys; sys.path.insert(0, {str(_ROOT / "typecheck")!r}); sys.argv[0] = "weft"
from launcher import main
sys.exit(main())
"""


class Client:
    """Starts `weft lsp` and talks to it.

    Args:
        folder: where it is started, and its workspace.
        options: of the command.
    """

    def __init__(self, folder: Path, *options: str):
        self.folder = folder
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, "lsp", *options],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._number = 0
        self._version = 0
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        refreshing = {"workspace": {"inlayHint": {"refreshSupport": True}}}
        self.capabilities = self.request(
            "initialize", {"processId": None, "rootUri": folder.as_uri(), "capabilities": refreshing}
        )["capabilities"]
        self.notify("initialized", {})

    def _listen(self) -> None:
        stream = self.process.stdout
        while True:
            length = 0
            while (line := stream.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
            if not line:
                return
            self.heard.put(json.loads(stream.read(length)))

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._send({"method": method, "params": params})

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """The answer; what else is heard until then is left out."""
        self._number += 1
        number = self._number
        self._send({"id": number, "method": method, "params": params})
        answer = self.until(lambda message: message.get("id") == number and "method" not in message)
        assert "error" not in answer, answer
        return answer["result"]

    def until(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            message = self.heard.get(timeout=240)
            if "id" in message and "method" in message:
                self._send({"id": message["id"], "result": None})
            if is_it(message):
                return message

    def open(self, name: str, text: str) -> list[dict[str, Any]]:
        """Writes a file and opens it, and waits for its diagnostics."""
        (self.folder / name).write_text(text, encoding="utf-8")
        self._version += 1
        item = {"uri": self.uri(name), "languageId": "python", "version": self._version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return self.diagnostics()

    def change(self, name: str, text: str) -> list[dict[str, Any]]:
        """Edits a document and saves it, and waits for its diagnostics."""
        self.edit(name, text)
        (self.folder / name).write_text(text, encoding="utf-8")
        self.notify("textDocument/didSave", {"textDocument": {"uri": self.uri(name)}})
        return self.diagnostics()

    def edit(self, name: str, text: str) -> None:
        """Edits a document, without saving it."""
        self._version += 1
        document = {"uri": self.uri(name), "version": self._version}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})

    def diagnostics(self) -> list[dict[str, Any]]:
        """Those of the last edit."""
        told = self.until(
            lambda message: (
                message.get("method") == "textDocument/publishDiagnostics"
                and message["params"].get("version") == self._version
            )
        )
        return told["params"]["diagnostics"]

    def shapes(self) -> None:
        """Waits until there are new shapes."""
        self.until(lambda message: message.get("method") == "workspace/inlayHint/refresh")

    def hints(self, name: str) -> list[tuple[int, str]]:
        """All inlay hints, by line from 1."""
        everything = {"start": {"line": 0, "character": 0}, "end": {"line": 10_000, "character": 0}}
        hints = self.request("textDocument/inlayHint", {"textDocument": {"uri": self.uri(name)}, "range": everything})
        return [(one["position"]["line"] + 1, one["label"]) for one in hints]

    def hover(self, name: str, line: int, character: int) -> str | None:
        place = {"line": line - 1, "character": character}
        text = self.request("textDocument/hover", {"textDocument": {"uri": self.uri(name)}, "position": place})
        return None if text is None else text["contents"]["value"]

    def actions(self, name: str, line: int) -> dict[str, str]:
        """The code actions of a line, each with the text that it puts there."""
        place = {"line": line - 1, "character": 0}
        params = {"range": {"start": place, "end": place}, "context": {"diagnostics": []}}
        actions = self.request("textDocument/codeAction", {"textDocument": {"uri": self.uri(name)}, **params})
        return {one["title"]: one["edit"]["changes"][self.uri(name)][0]["newText"] for one in actions}

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def close(self) -> int:
        self.request("shutdown", {})
        self.notify("exit", {})
        self.process.stdin.close()
        code = self.process.wait(timeout=30)
        self._listener.join(timeout=30)
        self.process.stdout.close()
        return code
