"""Model swapper: a process a model, ended to make room for another, as in llama-swap."""

from __future__ import annotations

import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from c2c.errors import DataError
from experiments.bench.servers.servers import Answer, Request
from experiments.children import cpu_seconds

__all__ = ["Given", "Swapper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Settings that every peer is given.

    Attributes:
      python: path of the peer's Python.
      models: path of each checkpoint, by model name.
      folder: folder for logs and other files.
      slots: requests of one model at the same time.
      context: most tokens of a prompt and its answer.
      threads: threads of each process.
      resident: most models in memory at a time.
    """

    python: Path
    models: dict[str, Path]
    folder: Path
    slots: int
    context: int
    threads: int
    resident: int = 1


@dataclass(eq=False, slots=True)
class _Place:
    """A model's process and its users; no address until the process serves.

    Attributes:
      opened: requests that use the process or wait for it.
      asked: number of the last request.
      failed: the process did not start.
    """

    opened: int = 0
    asked: int = 0
    address: str = ""
    process: subprocess.Popen[bytes] | None = None
    failed: bool = False


@dataclass(slots=True)
class _State:
    """State that the requests' threads share."""

    turn: threading.Condition = field(default_factory=threading.Condition)
    waiting: deque[object] = field(default_factory=deque)
    places: dict[str, _Place] = field(default_factory=dict)
    asked: int = 0


class Swapper(ABC):
    """Server of several models with a process each, at most `Given.resident` at a time.

    Requests get a process in order of arrival. If a request's model has no process, it replaces the
    least recently used one, an idle one first: that process ends after its last request, and the
    model's own is started. Later requests of models with a process do not wait for that.
    """

    name: str

    def __init__(self, given: Given) -> None:
        """Store the settings; start nothing."""
        self._given = given
        self._resident = given.resident
        self._log = given.folder / f"{self.name}.log"
        self._state = _State()
        self._ended_s = 0.0
        self.swaps_s: list[float] = []

    @abstractmethod
    def _launch(self, model: str) -> tuple[subprocess.Popen[bytes], str]:
        """Start a model's process; return it and its address.

        Raises:
          DataError: the process did not start.
        """

    @abstractmethod
    def _answer(self, address: str, request: Request) -> Answer:
        """Send a request to a model's process and return its answer."""

    @abstractmethod
    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End a model's process."""

    def start(self) -> None:
        """Reset the counters; start no process."""
        self._ended_s = 0.0
        self.swaps_s.clear()

    def ask(self, request: Request) -> Answer:
        """Send a request once its model has a process; return its answer."""
        began_s = time.perf_counter()
        place = self._place_of(request.model)
        waited_s = time.perf_counter() - began_s
        try:
            found = self._answer(place.address, request)
        finally:
            self._leave(place)
        return Answer(
            first_s=waited_s + found.first_s, last_s=waited_s + found.last_s, tokens=found.tokens
        )

    def _place_of(self, model: str) -> _Place:
        state, ticket, left = self._state, object(), None

        def is_next() -> bool:
            return state.waiting[0] is ticket and (
                model in state.places
                or len(state.places) < self._resident
                or any(place.address for place in state.places.values())
            )

        with state.turn:
            state.waiting.append(ticket)
            state.turn.wait_for(is_next)
            state.waiting.popleft()
            place = state.places.get(model)
            starts = place is None
            if place is None:
                if len(state.places) >= self._resident:
                    left = state.places.pop(self._longest_ago())
                place = state.places[model] = _Place()
            state.asked += 1
            place.opened, place.asked = place.opened + 1, state.asked
            state.turn.notify_all()
            if left is not None:
                state.turn.wait_for(lambda: not left.opened)
        try:
            if starts:
                began_s = time.perf_counter()
                if left is not None and left.process is not None:
                    # Count now: the kernel does not add unwaited children to a parent's time.
                    self._ended_s += cpu_seconds([left.process.pid])
                    self._end(left.process)
                self._bring(model, place)
                self.swaps_s.append(time.perf_counter() - began_s)
            with state.turn:
                state.turn.wait_for(lambda: place.address or place.failed)
            if place.failed:
                raise DataError(self.name, f"did not load {model}")
        except BaseException:
            self._leave(place)
            raise
        return place

    def _longest_ago(self) -> str:
        up = {name: place for name, place in self._state.places.items() if place.address}
        return min(up, key=lambda name: (up[name].opened > 0, up[name].asked))

    def _leave(self, place: _Place) -> None:
        with self._state.turn:
            place.opened -= 1
            self._state.turn.notify_all()

    def _bring(self, model: str, place: _Place) -> None:
        """Start a model's process and enter it in `place`."""
        try:
            process, address = self._launch(model)
        except BaseException:
            with self._state.turn:
                del self._state.places[model]
                place.failed = True
                self._state.turn.notify_all()
            raise
        with self._state.turn:
            place.process, place.address = process, address
            self._state.turn.notify_all()

    def _preload(self, model: str) -> None:
        """Start a model's process before any request."""
        self._state.places[model] = place = _Place()
        self._bring(model, place)

    def processes(self) -> Sequence[int]:
        """Return the process ids of the loaded models."""
        with self._state.turn:
            places = list(self._state.places.values())
        return [place.process.pid for place in places if place.process is not None]

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes so far, ended ones included."""
        return self._ended_s + cpu_seconds(self.processes())

    def stop(self) -> None:
        """End all processes."""
        for place in self._state.places.values():
            if place.process is not None:
                self._end(place.process)
        self._state = _State()
