"""Workers that run a placement: a thread for each device, values sent to their readers.

A worker runs its device's pieces, each request's in program order. A piece runs once its inputs
have arrived; its results are sent to every device that reads them. Several requests may be in
flight; the mode chooses the next one of those that are ready:

    none      a request begins when the one before has ended
    naive     requests take turns
    priority  the oldest request first
    shortest  the request with the least time left in its kernel group first (ours)

If a worker fails, or all workers wait for a value that no device sends, all stop with an error that
names the piece.

Source: Tessera, section III-C. Its streams and their priorities are this choice of the next piece.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final, Literal, NamedTuple

from c2c.errors import SettingError
from c2c.ranges import Count, OneOf, check_value
from c2c.systems.workers.groups import groups_of
from c2c.systems.workers.pieces import Pieces, routes_of
from c2c.systems.workers.replicas import Replicas
from c2c.systems.workers.virtual_clock import VirtualClock

__all__ = ["MODES", "Mode", "Ran", "Sent", "WorkerError", "run_placed"]

Mode = Literal["none", "naive", "priority", "shortest"]
MODES: Final[tuple[Mode, ...]] = ("none", "naive", "priority", "shortest")


class WorkerError(RuntimeError):
    """A worker failed or waits for ever; the message names the piece, the value and the device."""


class Sent(NamedTuple):
    """A transfer between devices: a whole value, or an update of the target's older copy."""

    request: int
    value: int
    source: int
    target: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Ran:
    """Results of requests.

    Attributes:
      results: arrays that the function returns, by request; each on a device that has it.
      sent: transfers between devices, in the order of arrival.
      order: (device, request, piece) in the order of execution.
    """

    results: tuple[tuple[Any, ...], ...]
    sent: tuple[Sent, ...]
    order: tuple[tuple[int, int, int], ...]


def run_placed(
    pieces: Pieces,
    gpu_of: Sequence[int],
    devices: Sequence[Any],
    requests: Sequence[Sequence[Any]],
    *,
    mode: Mode = "priority",
    in_flight: int = 4,
    piece_s: Sequence[float] | None = None,
    routes: Mapping[int, frozenset[int]] | None = None,
    replicas: Sequence[Replicas | None] = (),
    clock: VirtualClock | None = None,
) -> Ran:
    """Run requests through a placement.

    Args:
      pieces: pieces of a function.
      gpu_of: number of each piece's device.
      devices: devices of jax.
      requests: leaves of the arguments, by request; on any device, since each is copied to the
        devices that read it.
      mode: rule that chooses the next request; see above.
      in_flight: requests at a time; 1 with mode none.
      piece_s: seconds of each piece on its device, for the mode shortest only.
      routes: devices that each value is sent to; None: all that read it.
      replicas: copies of carried arguments, by request, which are updated in place of a whole copy;
        None or absent for a request: its arguments are copied whole.
      clock: clock of simulated times, which ends at the last piece's end; None: real time.

    Raises:
      SettingError: an invalid placement, mode or number.
      WorkerError: a piece failed, or one of its inputs is never sent.
    """
    if len(gpu_of) != len(pieces.pieces) or not all(0 <= g < len(devices) for g in gpu_of):
        raise SettingError(
            "gpu_of", list(gpu_of), f"{len(pieces.pieces)} numbers from 0 to {len(devices) - 1}"
        )
    check_value(mode, Annotated[str, OneOf(*MODES)], "mode")
    check_value(in_flight, Count, "in_flight")
    if mode == "shortest" and (piece_s is None or len(piece_s) != len(pieces.pieces)):
        have = None if piece_s is None else len(piece_s)
        raise SettingError("piece_s", have, f"{len(pieces.pieces)} numbers with mode='shortest'")
    for leaves in requests:
        if len(leaves) != len(pieces.given):
            raise SettingError("requests", len(leaves), f"{len(pieces.given)} arrays a request")
    copies = (*replicas, *(None for _ in requests[len(replicas) :]))
    for kept, leaves in zip(copies, requests, strict=True):
        if kept is not None:
            kept.begin(dict(zip(pieces.given, leaves, strict=True)))
    board = _Board(
        pieces, tuple(gpu_of), tuple(devices), mode, 1 if mode == "none" else in_flight,
        routes_of(pieces, gpu_of) if routes is None else routes,
        [{**dict(zip(pieces.given, leaves, strict=True)), **pieces.constants}
         for leaves in requests],
        copies, clock,
        () if mode != "shortest" or piece_s is None else _left_s(pieces, gpu_of, piece_s),
    )  # fmt: skip
    threads = [
        threading.Thread(target=board.work, args=(gpu,), name=f"device-{gpu}", daemon=True)
        for gpu in range(len(devices))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if board.error is not None:
        raise board.error
    results = tuple(
        tuple(board.value_of(request, value) for value in pieces.results)
        for request in range(len(requests))
    )
    for kept, result in zip(copies, results, strict=True):
        if kept is not None:
            kept.end(dict(zip(pieces.results, result, strict=True)))
    return Ran(results, tuple(board.sent), tuple(board.order))


def _left_s(pieces: Pieces, gpu_of: Sequence[int], piece_s: Sequence[float]) -> tuple[float, ...]:
    """Return the seconds of each piece and of those after it in its kernel group."""
    left = list(piece_s)
    for group in groups_of(gpu_of, pieces.transfers()):
        for piece, after in zip(group.kernels[-2::-1], group.kernels[:0:-1], strict=True):
            left[piece] += left[after]
    return tuple(left)


@dataclass(slots=True)
class _Board:
    """State that the workers share, under one lock."""

    pieces: Pieces
    gpu_of: tuple[int, ...]
    devices: tuple[Any, ...]
    mode: Mode
    in_flight: int
    routes: Mapping[int, frozenset[int]]
    given: list[dict[int, Any]]
    replicas: tuple[Replicas | None, ...]
    clock: VirtualClock | None
    left_s: tuple[float, ...]  # by piece, until its kernel group ends; for the mode shortest
    values: dict[tuple[int, int, int], Any] = field(default_factory=dict)  # request, value, gpu
    sent: list[Sent] = field(default_factory=list)
    order: list[tuple[int, int, int]] = field(default_factory=list)
    error: WorkerError | None = None
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _mine: dict[int, list[int]] = field(default_factory=dict)
    _next: dict[tuple[int, int], int] = field(default_factory=dict)  # gpu, request -> its piece
    _left: list[int] = field(default_factory=list)  # pieces of each request that have not ended
    _first: int = 0  # the oldest request that has not ended
    _idle: set[int] = field(default_factory=set)  # devices without a ready piece since the last one
    _turn: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for piece, gpu in enumerate(self.gpu_of):
            self._mine.setdefault(gpu, []).append(piece)
        self._left = [len(self.pieces.pieces)] * len(self.given)

    def work(self, gpu: int) -> None:
        """Run a device's pieces until all requests have ended or a worker failed."""
        while (chosen := self._choose(gpu)) is not None:
            request, piece, arrays = chosen
            try:
                self._run(gpu, request, piece, arrays)
            except Exception as problem:  # noqa: BLE001 - whatever it is, the others must stop
                name = self.pieces.pieces[piece].name
                self._fail(f"piece {name} of request {request} on device {gpu}: {problem}", problem)

    def value_of(self, request: int, value: int) -> Any:
        """Return a result from the first device that has it."""
        return next(
            self.values[request, value, gpu]
            for gpu in range(len(self.devices))
            if (request, value, gpu) in self.values
        )

    def _run(self, gpu: int, request: int, piece: int, arrays: list[Any]) -> None:
        jax: Any = import_module("jax")  # some of its functions are untyped
        made = self.pieces.pieces[piece]
        sent: list[Sent] = []
        here = [
            self._bring(request, value, array, gpu, sent)
            for value, array in zip(made.takes, arrays, strict=True)
        ]
        results = jax.block_until_ready(made.run(*here))
        parts = dict(zip((*made.takes, *made.gives), (*here, *results), strict=True))
        kept = self.replicas[request]
        posts = []
        for value, array in zip(made.gives, results, strict=True):
            posts.append((value, gpu, array))
            if kept is not None and kept.holds(value):
                kept.wrote(value, array, parts, gpu)
            for target in sorted(self.routes.get(value, ())):
                copy = self._bring(request, value, array, target, sent, gpu)
                posts.append((value, target, jax.block_until_ready(copy)))
        with self._condition:
            self.sent += sent
            self.order.append((gpu, request, piece))
            self._next[gpu, request] = self._next.get((gpu, request), 0) + 1
            if self.clock is None:
                for post in posts:
                    self._post(request, *post)
                self._end(request)
                self._go_on()
            else:
                self._pretend(self.clock, gpu, request, piece, posts)

    def _pretend(
        self,
        clock: VirtualClock,
        gpu: int,
        request: int,
        piece: int,
        posts: Sequence[tuple[int, int, Any]],
    ) -> None:
        """Publish a piece's end and its results at their simulated times."""

        def ended() -> None:
            for post in posts:
                if post[1] == gpu:
                    self._post(request, *post)
            self._end(request)

        clock.ran(gpu, piece, ended)
        for value, target, array in posts:
            if target != gpu:
                arrived = partial(self._post, request, value, target, array)
                clock.sent(self.pieces.nbytes[value], gpu, target, arrived)

    def _post(self, request: int, value: int, gpu: int, array: Any) -> None:
        self.values[request, value, gpu] = array

    def _end(self, request: int) -> None:
        self._left[request] -= 1
        while self._first < len(self._left) and not self._left[self._first]:
            self._first += 1

    def _go_on(self) -> None:
        self._idle.clear()
        self._condition.notify_all()

    def _bring(
        self, request: int, value: int, array: Any, target: int, sent: list[Sent], source: int = -1
    ) -> Any:
        """Return a value on a device and record the transfer; a source below 0: an argument."""
        jax: Any = import_module("jax")

        def place(part: Any, device: int) -> Any:
            return jax.device_put(part, self.devices[device])

        kept = self.replicas[request]
        if kept is None or not kept.holds(value):
            if source >= 0:
                sent.append(Sent(request, value, source, target, self.pieces.nbytes[value]))
            return place(array, target)
        copy, came = kept.bring(value, array, target, place)
        sent += [Sent(request, value, origin, target, nbytes) for origin, nbytes in came]
        return copy

    def _choose(self, gpu: int) -> tuple[int, int, list[Any]] | None:
        """Wait for a piece that can run; return None if there will be none."""
        with self._condition:
            while True:
                if self.error is not None or self._first == len(self.given):
                    return None
                is_busy = self.clock is not None and self.clock.is_busy(gpu)
                for request in () if is_busy else self._candidates(gpu):
                    piece = self._piece(gpu, request)
                    if piece is None:
                        continue
                    arrays = self._arrays(gpu, request, piece)
                    if arrays is not None:
                        self._turn[gpu] = request + 1
                        return request, piece, arrays
                self._idle.add(gpu)
                if len(self._idle) < len(self.devices):
                    self._condition.wait()
                elif self.clock is not None and self.clock.advance():
                    self._go_on()
                else:
                    self._say_who_waits()

    def _candidates(self, gpu: int) -> list[int]:
        """Return the requests in flight, in the order of choice."""
        flying = list(range(self._first, min(self._first + self.in_flight, len(self.given))))
        if self.mode == "shortest":
            return sorted(flying, key=partial(self._group_left_s, gpu))
        if self.mode != "naive" or not flying:
            return flying
        turn = self._turn.get(gpu, 0)
        return [r for r in flying if r >= turn] + [r for r in flying if r < turn]

    def _group_left_s(self, gpu: int, request: int) -> float:
        piece = self._piece(gpu, request)
        return math.inf if piece is None else self.left_s[piece]

    def _piece(self, gpu: int, request: int) -> int | None:
        mine, at = self._mine.get(gpu, []), self._next.get((gpu, request), 0)
        return mine[at] if at < len(mine) else None

    def _arrays(self, gpu: int, request: int, piece: int) -> list[Any] | None:
        found = []
        for value in self.pieces.pieces[piece].takes:
            array = self.given[request].get(value)
            if array is None:
                array = self.values.get((request, value, gpu))
            if array is None:
                return None
            found.append(array)
        return found

    def _say_who_waits(self) -> None:
        """Fail with the first missing value, since all workers wait."""
        maker = {v: k for k, piece in enumerate(self.pieces.pieces) for v in piece.gives}
        for gpu in range(len(self.devices)):
            for request in self._candidates(gpu):
                piece = self._piece(gpu, request)
                if piece is None:
                    continue
                lacks = next(
                    v for v in self.pieces.pieces[piece].takes
                    if v not in self.given[request] and (request, v, gpu) not in self.values
                )  # fmt: skip
                peer = self.gpu_of[maker[lacks]]
                if (request, lacks, peer) not in self.values:
                    continue  # its maker waits as well
                name = self.pieces.pieces[piece].name
                self._fail(
                    f"piece {name} of request {request} on device {gpu} waits for value {lacks}, "
                    f"which device {peer} has but does not send"
                )
                return
        self._fail("all devices wait for values that no device has computed")

    def _fail(self, what: str, cause: BaseException | None = None) -> None:
        with self._condition:
            if self.error is None:
                self.error = WorkerError(what)
                self.error.__cause__ = cause
            self._condition.notify_all()
