"""Opens pages in a real browser: Chromium without a screen, by way of Qt.

Qt wants a process and a main thread of its own, so this is a program: it reads visits as JSON from its standard input,
and writes what each gave. The fixture `visit` of the tests runs it; it needs the extra `browser`.

A visit has the keys `url`; `script`, an expression in JavaScript whose value it gives; `size`, of the window; `until`,
an expression that is true when the page is ready, which may do something first; and `picture`, where to save what is
seen.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# Of one visit, in milliseconds; a page of this project is there in a tenth of a second.
PATIENCE = 60_000
# Until what was laid out has been drawn too.
PAINTED = 500


def main() -> None:
    from PyQt6.QtCore import QTimer, QUrl
    from PyQt6.QtWebEngineCore import QWebEnginePage
    from PyQt6.QtWebEngineWidgets import QWebEngineView
    from PyQt6.QtWidgets import QApplication

    waiting: list[dict[str, Any]] = json.load(sys.stdin)
    values: list[Any] = []
    complaints: list[str] = []

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level: Any, message: str | None, line: int, source: str | None) -> None:
            if level == QWebEnginePage.JavaScriptConsoleMessageLevel.ErrorMessageLevel:
                complaints.append(f"{source}:{line}: {message}")

    app = QApplication(sys.argv)
    view = QWebEngineView()
    view.setPage(Page(view))
    late = QTimer(singleShot=True)
    late.timeout.connect(lambda: leave(f"{waiting[0]['url']} was not ready in time"))

    def leave(problem: str) -> None:
        print(problem, *complaints, sep="\n", file=sys.stderr)
        app.exit(1)

    def next_one() -> None:
        if not waiting:
            app.exit(0)
            return
        late.start(PATIENCE)
        view.resize(*waiting[0]["size"])
        view.show()
        view.load(QUrl(waiting[0]["url"]))

    def loaded(fine: bool) -> None:
        if fine:
            look()
        else:
            leave(f"{waiting[0]['url']} did not load")

    def look() -> None:
        view.page().runJavaScript(waiting[0]["until"], lambda ready: ask() if ready else QTimer.singleShot(50, look))

    def ask() -> None:
        view.page().runJavaScript(f"JSON.stringify({waiting[0]['script']})", answered)

    def answered(value: str | None) -> None:
        late.stop()
        request = waiting.pop(0)
        if complaints or not value:
            leave(f"{request['url']}: {'errors of the page' if complaints else 'the script has no value'}")
            return
        values.append(json.loads(value))
        if request["picture"] is None:
            QTimer.singleShot(0, next_one)
        else:
            QTimer.singleShot(PAINTED, lambda: (view.grab().save(request["picture"]), next_one()))

    view.loadFinished.connect(loaded)
    QTimer.singleShot(0, next_one)
    status = app.exec()
    # Qt complains of a page that outlives its profile; the process ends here.
    print(json.dumps(values), flush=True)
    os._exit(status)


if __name__ == "__main__":
    main()
