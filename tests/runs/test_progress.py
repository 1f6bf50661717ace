"""Progress where there is no terminal."""

from __future__ import annotations

import pytest

from c2c.runs import Weighed, progress_bar


def test_a_log_gets_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("c2c.runs.progress.time.monotonic", lambda: now[0])
    with progress_bar("simulating", 4000) as update:
        for second in range(35):
            now[0] = 100.0 + second
            update(100.0 * second)
    assert capsys.readouterr().err.splitlines() == [
        "simulating: 1,000 of 4,000 (25%) after 10 s, about 30 s left",
        "simulating: 2,000 of 4,000 (50%) after 20 s, about 20 s left",
        "simulating: 3,000 of 4,000 (75%) after 30 s, about 10 s left",
    ]


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("work") as update:
        update(1)
    assert capsys.readouterr().err == ""


def test_weighed_work_is_a_share_with_the_names_of_what_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("c2c.runs.progress.time.monotonic", lambda: now[0])
    with progress_bar("figures") as update:
        now[0] = 10.0
        update(30.0, Weighed(120.0, "fig4, worth", 42.0))
        now[0] = 20.0
        update(120.0, Weighed(120.0, "", None))
    assert capsys.readouterr().err.splitlines() == [
        "figures: 25% after 10 s, about 42 s left, fig4, worth",
        "figures: 100% after 20 s",
    ]
