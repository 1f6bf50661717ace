"""Blame for a lost process, and the end of attempts to replace it."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from c2c.engine import messages as say
from c2c.engine import process as starting
from c2c.engine import supervisor as supervising
from c2c.engine.others import memory_kills
from c2c.engine.places import Place
from c2c.engine.supervisor import Supervisor
from c2c.errors import DataError
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


def test_a_place_waits_twice_as_long_more_after_each_process_in_vain(tmp_path: Path) -> None:
    async def scenario() -> list[float]:
        place, delays = Place(device=0), []

        async def again(_: Place, delay_s: float) -> None:
            delays.append(delay_s)

        supervisor = Supervisor(
            tmp_path / "socket", [place], hang_s=60.0, patience=9, has_spare=False
        )
        supervisor.watch(Told())
        supervisor._again = again  # type: ignore[method-assign]
        for _ in range(4):
            place.process, place.is_over = ended(killed=False), False
            supervisor._lost(place)
            await asyncio.sleep(0)
        await supervisor.close()
        return delays

    first, *more = asyncio.run(scenario())
    assert first > 0.0
    waits = [later - earlier for earlier, later in itertools.pairwise([0.0, first, *more])]
    assert waits == pytest.approx([first * 2**k for k in range(4)])


def test_closing_ends_the_processes_of_all_places_whoever_has_none(tmp_path: Path) -> None:
    async def scenario() -> int | None:
        places = [Place(device=0), Place(device=1)]
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        places[1].process = process
        supervisor = Supervisor(
            tmp_path / "socket", places, hang_s=60.0, patience=3, has_spare=False
        )
        await supervisor.close()
        return process.poll()

    assert asyncio.run(scenario()) is not None


SETUP = say.Setup(
    models=(), dtype="float32", linear="staged", executables=None, rows=(1,), budgets=(16,),
    width=1, superblocks=1, superblock=64,
)  # fmt: skip


class FakeProcess:
    """A process that does nothing, until it is killed."""

    def __init__(self) -> None:
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status

    def kill(self) -> None:
        self.status = -9 if self.status is None else self.status

    def wait(self, timeout: float | None = None) -> int:
        assert self.status is not None or timeout is not None
        if self.status is None:
            raise subprocess.TimeoutExpired("fake", timeout or 0.0)
        return self.status


class Machine:
    """A machine that starts processes and now and then refuses."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    def __init__(self, refusals: int = 0) -> None:
        self.refusals, self.processes = refusals, []  # type: int, list[FakeProcess]

    def Popen(self, *_: Any, **__: Any) -> FakeProcess:  # noqa: N802
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.processes.append(FakeProcess())
        return self.processes[-1]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(supervising, "subprocess", machine)
    monkeypatch.setattr(supervising, "_SPARE_S", 0.0)
    monkeypatch.setattr(starting, "_BACKOFF_S", 0.0)
    return machine


async def soon(what: Callable[[], object]) -> None:
    async with asyncio.timeout(30.0):
        while not what():
            await asyncio.sleep(0.001)


def end(place: Place) -> None:
    """Have a place's process end, as its connection would tell."""
    assert place.process is not None
    place.process.kill()


def supervisor_of(place: Place, **more: Any) -> Supervisor:
    given = {"hang_s": 60.0, "patience": 1000, "has_spare": False} | more
    return Supervisor(Path("nowhere"), [place], **given)


@pytest.mark.parametrize("has_spare", [False, True])
def test_a_place_gets_a_process_once_the_machine_has_room_for_one(
    machine: Machine, has_spare: bool
) -> None:
    async def scenario() -> None:
        place = Place(device=0, process=FakeProcess())  # type: ignore[arg-type]
        supervisor = supervisor_of(place, has_spare=has_spare)
        supervisor.watch(Told())
        await soon(lambda: len(machine.processes) == has_spare)
        for process in machine.processes:  # the one that stands by is gone, too
            process.kill()
        machine.refusals = 7
        supervisor._lost(place)
        await soon(lambda: len(machine.processes) == 1 + 2 * has_spare)
        assert machine.refusals == 0
        assert place.process in machine.processes
        machine.refusals = 1000
        end(place)
        await soon(lambda: machine.refusals < 998)
        await supervisor.close()  # one that is about to be started is not
        left = machine.refusals
        await asyncio.sleep(0.01)
        assert machine.refusals == left
        assert all(process.status is not None for process in machine.processes)

    asyncio.run(scenario())


def test_starts_that_fail_are_tried_again_later_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    async def start() -> str:
        if len(waits) < 9:
            raise OSError(12, "Cannot allocate memory")
        return "started"

    monkeypatch.setattr(starting.asyncio, "sleep", wait)
    assert asyncio.run(starting.started("a process", start)) == "started"
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_a_process_that_is_silent_before_it_is_ready_is_ended(machine: Machine) -> None:
    async def scenario() -> None:
        place, told = Place(device=0, process=FakeProcess()), Told()  # type: ignore[arg-type]
        supervisor = supervisor_of(place, hang_s=0.01, start_s=0.03, patience=3)
        supervisor.watch(told)
        supervisor._lost(place)
        await soon(lambda: place.is_quarantined)
        assert told.losses == [False, False, True]
        assert [process.status for process in machine.processes] == [-9, -9]
        await supervisor.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("was_ready", [True, False])
def test_a_standby_that_was_ready_has_no_time_to_start(machine: Machine, was_ready: bool) -> None:
    class Silent(FakeLink):
        async def each(self, take: Any) -> None:
            await asyncio.Event().wait()

    async def scenario() -> None:
        place = Place(device=0, process=FakeProcess())  # type: ignore[arg-type]
        supervisor = supervisor_of(place, hang_s=0.02, start_s=1000.0, has_spare=True)
        supervisor._setup = SETUP
        supervisor.watch(Told())
        await soon(lambda: supervisor._spare is not None)
        standby, connected = machine.processes[0], None
        if was_ready:
            hello = say.WorkerHello(place=say.SPARE, generation=1)
            connected = asyncio.create_task(
                supervisor.serve(hello, Silent())  # type: ignore[arg-type]
            )
            await asyncio.sleep(0.0)
        supervisor._lost(place)
        await soon(lambda: place.process is standby)
        if was_ready:
            await soon(lambda: standby.status == -9)
        else:
            await asyncio.sleep(0.2)
            assert standby.status is None
        if connected is not None:
            connected.cancel()
        await supervisor.close()

    asyncio.run(scenario())


def test_a_start_ends_where_the_first_process_says_nothing(machine: Machine) -> None:
    async def scenario() -> None:
        supervisor = supervisor_of(Place(device=0), start_s=0.03)
        with pytest.raises(DataError, match="worker 0: sent nothing for"):
            await supervisor.start(None, lambda *_: None, lambda *_: None)  # type: ignore[arg-type]
        await supervisor.close()

    asyncio.run(scenario())


def test_processes_that_are_gone_are_forgotten(machine: Machine) -> None:
    async def scenario() -> None:
        place = Place(device=0)
        supervisor = supervisor_of(place, has_spare=True)
        supervisor.watch(Told())
        for losses in range(12):
            await soon(lambda: supervisor._spare is not None)
            if losses % 3 == 0:  # the one that stands by is gone, too
                machine.processes[-1].kill()
            supervisor._spawn(place)
        await soon(lambda: supervisor._spare is not None)
        assert len(supervisor._place_of) <= 2
        late = say.WorkerHello(place=say.SPARE, generation=1)
        await supervisor.serve(late, FakeLink())  # type: ignore[arg-type]
        await supervisor.close()

    asyncio.run(scenario())


def test_what_a_lost_process_had_said_is_no_other_ones(machine: Machine) -> None:
    """Its hello comes after its end was seen, and before another has its place."""

    class Late(FakeLink):
        async def each(self, take: Any) -> None:
            supervisor._lost(place)
            take(say.Hello(failed={}, compiled=0, loaded=0, ready_s=1.0))

        def close(self) -> None:
            closed.append(True)

    async def scenario() -> None:
        hello = say.WorkerHello(place=0, generation=place.generation)
        supervisor.watch(Told())
        supervisor._setup = SETUP
        end(place)
        await supervisor.serve(hello, Late())  # type: ignore[arg-type]
        assert closed
        assert place.link is None
        await soon(lambda: machine.processes)
        await supervisor.close()

    closed: list[bool] = []
    place = Place(device=0, process=FakeProcess())  # type: ignore[arg-type]
    supervisor = supervisor_of(place)
    asyncio.run(scenario())
