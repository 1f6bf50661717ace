"""The live page as somebody meets it who leaves it open: in Chromium, over a kill and a restart."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.checkpoints import make_catalog
from tests.engine.live import served

ROOT = Path(__file__).parents[2]
BROWSER = ROOT / ".venv-browser" / "bin" / "python"
SEEN = """(() => {
  if (!document.getElementById("state")) return null;  // the browser's own page: nothing answers
  const rows = id => [...document.querySelectorAll(`#${id} tr`)].map(
    row => [...row.cells].map(cell => cell.textContent));
  return {state: document.getElementById("state").textContent,
          workers: rows("workers"), models: rows("models")}; })()"""


class Watch:
    """The present view of a browser."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.last: dict[str, Any] = {}
        self._process = process
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last = json.loads(line)

    def until(self, holds: Callable[[dict[str, Any]], bool], limit_s: float) -> dict[str, Any]:
        end_s = time.monotonic() + limit_s
        while not (self.last and self.last["seen"] and holds(self.last["seen"])):
            assert time.monotonic() < end_s, self.last
            time.sleep(0.05)
        result: dict[str, Any] = self.last["seen"]
        return result


@contextmanager
def watched(address: str, expression: str = SEEN) -> Iterator[Watch]:
    process = subprocess.Popen(
        [BROWSER, ROOT / ".ci" / "watch_page.py", address, expression],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:  # its ends of the pipes are closed
        watch = Watch(process)
        try:
            yield watch
        finally:
            process.kill()
            watch.reader.join(10.0)


@pytest.mark.soak
def test_the_page_goes_on_over_a_kill_and_a_restart(tmp_path: Path) -> None:
    if not BROWSER.exists():
        pytest.skip("there is no browser: make browser")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = (
        f"catalog={make_catalog(tmp_path / 'models')}", f"port={port}", "rows=[4]", "budgets=[32]",
        "context=320", "pool_bytes=16000000", "weights_bytes=400000",
        "compiled=false",
    )  # fmt: skip
    page_at = f"http://127.0.0.1:{port}/"
    with served(*settings, log=tmp_path / "log") as live, watched(page_at) as page:
        first = page.until(lambda seen: seen["state"].startswith("up"), 60.0)
        page.until(lambda seen: seen["state"] != first["state"], 2.0)  # it moves by itself
        live.tokens("one", [1, 2], 4)
        shown = page.until(lambda s: any(r[:2] == ["one", "in memory"] for r in s["models"]), 2.0)
        assert any(row[1] == "on disk" for row in shown["models"]) or len(shown["models"]) < 4
        assert shown["workers"][0][5] == "0"  # restarts
        live.kill_worker(0)
        page.until(lambda seen: seen["workers"][0][5] == "1", 2.0)
        live.process.terminate()
        live.process.wait(30.0)
        page.until(lambda seen: "connecting" in seen["state"], 10.0)
        with served(*settings, log=tmp_path / "again"):
            page.until(
                lambda seen: seen["state"].startswith("up") and seen["workers"][0][5] == "0", 30.0
            )
            said = [line for line in page.last["console"] if "ERR_" not in line]
            assert said == []  # beside connections that could not be made meanwhile
