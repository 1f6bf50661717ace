"""Opens a page in QtWebEngine without a screen and prints what a reader would meet, as JSON.

    .venv-browser/bin/python .ci/look_at.py page.html 1280 420

For each width: how far the page can be scrolled sideways, elements that end beyond the window,
cells whose words are broken, links to nowhere, images that did not load, headings; and the lines of
the console. All folds are opened first. Needs PySide6 only: it runs in an environment of its own.
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
QUESTION = """(() => {
  const root = document.documentElement;
  const all = (what) => [...document.querySelectorAll(what)];
  const named = (found) => found.map((what) => what.outerHTML.slice(0, 120));
  const ends = (what) => what.getBoundingClientRect().right;
  all("details").forEach((fold) => { fold.open = true; });
  const lines = (text) => {
    const range = document.createRange();
    range.selectNodeContents(text);
    return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
  };
  const isBroken = (cell) => [...cell.childNodes].some((part) => part.nodeType === Node.TEXT_NODE &&
    lines(part) > part.data.trim().split(/[^A-Za-z0-9]+|(?=[A-Z])/).length);
  return JSON.stringify({
    width: window.innerWidth, sideways: root.scrollWidth - root.clientWidth,
    wide: named(all("body *").filter((e) => ends(e) > root.clientWidth + 1)),
    broken_words: named(all("td, td *, th, dt, .strip *").filter(isBroken)),
    nowhere: named(all("a[href^='#']").filter((a) => !document.getElementById(a.hash.slice(1)))),
    images: document.images.length,
    broken: [...document.images].filter((i) => !i.complete || !i.naturalWidth).length,
    titles: all("h1, h2, h3").map((h) => h.textContent)});
})()"""


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
