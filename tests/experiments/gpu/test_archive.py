"""Summary and archive: as new as the results, whole, and no reason to lose a run."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from experiments.gpu.archive import SHARE, Keeper
from experiments.gpu.files import pack, unpack


class Summary:
    """Takes a second to write, by the test's clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.written = folder, 0.0, 0
        folder.mkdir()

    def __call__(self) -> str:
        self.now += 1.0
        self.written += 1
        (self.folder / "summary.md").write_text(f"{self.written}")
        return f"{self.written}"

    def clock(self) -> float:
        return self.now


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    return Summary(tmp_path / "device")


def packed(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as found:
        return {m.name: found.extractfile(m).read() for m in found.getmembers()}  # type: ignore[union-attr]


def test_it_takes_its_share_of_the_time_and_the_last_word_is_never_lost(
    tmp_path: Path, summary: Summary
) -> None:
    archive = tmp_path / "back" / "gpu.tar.gz"
    keeper = Keeper(summary.folder, archive, summary, summary.clock)
    for _ in range(50):
        keeper.refresh()
    assert summary.written == 1
    keeper.catch_up()  # a case takes longer: there is time now
    assert packed(archive)["device/summary.md"] == b"2"
    assert keeper.summary.read_text() == "2"
    keeper.catch_up()
    assert summary.written == 2  # nothing is new
    summary.now += 1.0 / SHARE + 1.0
    keeper.refresh()
    assert summary.written == 3
    assert keeper.refresh(now=True) == "4"


def test_a_summary_that_fails_keeps_no_rows_from_coming_home(
    tmp_path: Path, summary: Summary, capsys: pytest.CaptureFixture[str]
) -> None:
    (summary.folder / "rows").write_text("rows")

    def fails() -> str:
        raise KeyError("a column that nobody expected")

    keeper = Keeper(summary.folder, tmp_path / "gpu.tar.gz", fails)
    assert "nobody expected" in keeper.refresh()
    assert packed(tmp_path / "gpu.tar.gz") == {"device/rows": b"rows"}
    keeper.refresh(now=True)
    assert capsys.readouterr().err.count("There is no summary") == 1


def test_without_room_the_last_archive_stays(
    tmp_path: Path, summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "gpu.tar.gz"
    keeper = Keeper(summary.folder, archive, summary)
    keeper.refresh(now=True)
    before = archive.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert keeper.refresh(now=True) == "2"
    assert archive.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["device", "gpu.md", "gpu.tar.gz"]


def test_what_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "device"
    (folder / "tune" / "tuned").mkdir(parents=True)
    for name in ("tune/tuned/a.json", "tune/tuned/ab12.part", "tune/.parts.jsonl.7"):
        (folder / name).write_text(name)
    pack(folder, tmp_path / "a.tar.gz")
    assert list(packed(tmp_path / "a.tar.gz")) == ["device/tune/tuned/a.json"]
    unpack(tmp_path / "a.tar.gz", tmp_path / "elsewhere")
    kept = tmp_path / "elsewhere/device/tune/tuned/a.json"
    assert kept.read_text() == "tune/tuned/a.json"
