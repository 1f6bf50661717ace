"""Whose fault a lost process is, and when a place is given up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from c2c.engine.places import Place
from c2c.engine.supervisor import Supervisor


class Told:
    """Whoever is told of workers."""

    def __init__(self) -> None:
        self.losses: list[bool] = []

    def started(self, place: Place) -> None: ...

    def heard(self, place: Place, frame: object) -> None: ...

    def lost(self, place: Place, *, for_good: bool) -> None:
        self.losses.append(for_good)


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
