"""Opens a page in QtWebEngine without a screen and prints what a reader would meet, as JSON.

    .venv-browser/bin/python .ci/look_at.py page.html 1280 420

For each width: how far the page can be scrolled sideways, images that did not load, headings; and
the lines of the console. Needs PySide6 only, so it runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["QT_QPA_PLATFORM"] = "offscreen"
os.environ["QTWEBENGINE_DISABLE_SANDBOX"] = "1"  # root has none, and the page is our own
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--disable-gpu")

from PySide6.QtCore import QEventLoop, QTimer, QUrl
from PySide6.QtWebEngineCore import QWebEnginePage
from PySide6.QtWebEngineWidgets import QWebEngineView
from PySide6.QtWidgets import QApplication

LONGEST_MS, SETTLING_MS = 60_000, 500
QUESTION = """(() => { const root = document.documentElement; return JSON.stringify({
  width: window.innerWidth, sideways: root.scrollWidth - root.clientWidth,
  images: document.images.length,
  broken: [...document.images].filter(i => !i.complete || !i.naturalWidth).length,
  titles: [...document.querySelectorAll("h1,h2")].map(h => h.textContent)}) })()"""


class Page(QWebEnginePage):
    """Keeps what the page says on its console."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: str, *_: Any) -> None:  # noqa: N802
        """Take a line, as Qt calls it."""
        self.said.append(f"{level}: {message}")


def waited(start: Callable[[Callable[[Any], None]], Any]) -> Any:
    """Start something and return what it calls back with; None after a minute."""
    loop, found = QEventLoop(), []

    def take(value: Any = None) -> None:
        found.append(value)
        loop.quit()

    start(take)
    QTimer.singleShot(LONGEST_MS, loop.quit)
    if not found:
        loop.exec()
    return found[0] if found else None


def seen(view: QWebEngineView, page: Page, address: QUrl, width: int) -> dict[str, Any]:
    """Return what a window of this width shows."""
    view.resize(width, 900)
    view.show()

    def load(take: Callable[[Any], None]) -> None:
        page.loadFinished.connect(take)
        page.load(address)

    waited(load)
    waited(lambda take: QTimer.singleShot(SETTLING_MS, lambda: take(None)))
    answer: dict[str, Any] = json.loads(waited(lambda take: page.runJavaScript(QUESTION, take)))
    return answer


def main(path: str, widths: list[int]) -> None:
    """Print what each width shows."""
    app = QApplication(sys.argv[:1])
    view, page = QWebEngineView(), Page()
    view.setPage(page)
    address = QUrl.fromLocalFile(str(Path(path).resolve()))
    found = [seen(view, page, address, width) for width in widths]
    print(json.dumps({"widths": found, "console": page.said}), flush=True)
    del app
    os._exit(0)  # taking Chromium down in order is not what is tested


if __name__ == "__main__":
    main(sys.argv[1], [int(width) for width in sys.argv[2:]])
