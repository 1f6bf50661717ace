"""Keeps a page open in QtWebEngine without a screen; a line of JSON four times a second.

    .venv-browser/bin/python .ci/watch_page.py http://127.0.0.1:8123/ '({title: document.title})'

Each line is what the expression says in the page, and what its console has said so far. Ends with
its input. Needs PySide6 only.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

os.environ["QT_QPA_PLATFORM"] = "offscreen"
os.environ["QTWEBENGINE_DISABLE_SANDBOX"] = "1"  # root has none, and the page is our own
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--disable-gpu")

from PySide6.QtCore import QTimer, QUrl
from PySide6.QtWebEngineCore import QWebEnginePage
from PySide6.QtWebEngineWidgets import QWebEngineView
from PySide6.QtWidgets import QApplication

EVERY_MS = 250


class Page(QWebEnginePage):
    """Keeps what the page says on its console."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: str, *_: Any) -> None:  # noqa: N802
        """Take a line, as Qt calls it."""
        self.said.append(f"{level}: {message}")


def main(address: str, expression: str) -> None:
    """Look until the input ends."""
    app = QApplication(sys.argv[:1])
    view, page = QWebEngineView(), Page()
    view.setPage(page)
    page.load(QUrl(address))
    view.show()

    def tell(answer: Any) -> None:
        print(json.dumps({"seen": json.loads(answer or "null"), "console": page.said}), flush=True)

    timer = QTimer()
    timer.timeout.connect(lambda: page.runJavaScript(f"JSON.stringify({expression})", tell))
    timer.start(EVERY_MS)

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)  # taking Chromium down in order is not what is tested

    threading.Thread(target=wait, daemon=True).start()
    app.exec()


if __name__ == "__main__":
    main(*sys.argv[1:])
