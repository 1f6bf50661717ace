"""The view of a search: one live line on a terminal, sparse lines in a log."""

from __future__ import annotations

import sys
import time

import pytest

from experiments.answers.watch import Watch


def test_a_log_has_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Watch(lambda running: 10 - running, lambda: "best so far: none") as watch:
        watch.ask(6)
        for _ in range(6):
            now += 4.0
            watch.run()
    assert capsys.readouterr().err.splitlines() == [
        # ten more are expected beside those under way: 6 + 7 and 6 + 10 runs
        "3 of about 13 runs after 12 s, about 40 s left; best so far: none",
        "6 of about 16 runs after 24 s, about 40 s left; best so far: none",
    ]


def test_a_terminal_has_a_live_line_that_goes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with Watch(lambda _: 3, lambda: "best so far: 2.29 USD/h") as watch:
        watch.ask(1)
        watch.run()
    said = capsys.readouterr().err
    assert "1 of about 4 runs" in said
    assert "best so far: 2.29 USD/h" in said
