"""Whose fault a lost process is, and when a place is given up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from c2c.engine import supervisor as supervising
from c2c.engine.others import memory_kills
from c2c.engine.places import Place
from c2c.engine.supervisor import Supervisor
from tests.engine.fake_workers import FakeLink


class Told:
    """Whoever is told of workers."""

    def __init__(self) -> None:
        self.losses: list[bool] = []
        self.by_others: list[bool] = []

    def started(self, place: Place) -> None: ...

    def heard(self, place: Place, frame: object) -> None: ...

    def lost(self, place: Place, *, for_good: bool, by_others: bool) -> None:
        self.losses.append(for_good)
        self.by_others.append(by_others)


def ended(*, killed: bool) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"] if killed
                               else [sys.executable, "-c", "raise SystemExit(3)"])  # fmt: skip
    if killed:
        process.kill()
    process.wait()
    return process


def test_a_place_is_given_up_for_crashes_in_a_row_and_never_for_kills(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, Place]:
        place, told = Place(device=0), Told()
        supervisor = Supervisor(
            tmp_path / "socket", [place], hang_s=60.0, patience=3, has_spare=False
        )
        supervisor.watch(told)
        supervisor._again = lambda *_: asyncio.sleep(0)  # type: ignore[method-assign,assignment]

        def lose(*, killed: bool, worked: bool = False) -> None:
            place.process, place.is_over, place.has_worked = ended(killed=killed), False, worked
            place.link = object() if worked else None  # type: ignore[assignment]
            supervisor._lost(place)
            supervisor._lost(place)  # its end and its connection's both tell

        for _ in range(5):
            lose(killed=True)
        lose(killed=False)
        lose(killed=False)
        lose(killed=False, worked=True)  # it did something: they begin anew
        lose(killed=False)
        lose(killed=True)
        lose(killed=False)
        assert not place.is_quarantined
        lose(killed=False)
        await supervisor.close()
        return told.losses, place

    losses, place = asyncio.run(scenario())
    assert losses == [False] * 11 + [True]
    assert place.is_quarantined
    assert place.restarts == len(losses) - 1


def test_what_others_end_is_nobodys_fault_unless_the_kernel_kills_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = 3

    async def scenario(kills: Iterator[int | None]) -> list[bool]:
        monkeypatch.setattr(supervising, "memory_kills", lambda: next(kills))
        place, told = Place(device=0), Told()
        supervisor = Supervisor(
            tmp_path / "socket", [place], hang_s=60.0, patience=patience, has_spare=False
        )
        supervisor.watch(told)
        supervisor._again = lambda *_: asyncio.sleep(0)  # type: ignore[method-assign,assignment]
        for killed, hung in ((True, False), (False, False), (True, True), *[(True, False)] * 5):
            place.process, place.is_over, place.is_hung = ended(killed=killed), False, hung
            place.link, place.has_worked = FakeLink(), False  # type: ignore[assignment]
            place.doing = object()  # type: ignore[assignment]
            supervisor._lost(place)
        await supervisor.close()
        return told.by_others

    # Killed, crashed, silent, then killed again and again; none did anything: three are borne with.
    quiet = asyncio.run(scenario(iter([7] * 9)))
    assert quiet == [True, False, False, True, True, False, False, False]
    busy = asyncio.run(scenario(iter([7, 8, 8, 8, 8, 9, 9, 9, 9])))
    assert busy == [False, False, False, True, False, False, False, False]
    assert not any(asyncio.run(scenario(iter([None] * 9))))


def test_what_the_kernel_has_killed_for_memory(tmp_path: Path) -> None:
    assert memory_kills(tmp_path) is None
    (tmp_path / "vmstat").write_text("nr_free_pages 5\noom_kill 12\nswap_ra 0\n")
    assert memory_kills(tmp_path) == 12
    (tmp_path / "vmstat").write_text("nr_free_pages 5\n")
    assert memory_kills(tmp_path) is None
