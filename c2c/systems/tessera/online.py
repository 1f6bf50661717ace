"""Requests that arrive at a pair of GPUs, served with continuous batching: what each has to wait.

A *lane* is a batch on its way: prompts first, one after another, then decode steps of all its rows.
What a step does to each GPU and each link is a table over rows or tokens. Lanes share them by rank,
the one that has been busy longest first: one that takes a share of the pair's time at full speed
leaves the rest to the next. Between two events all lanes go on evenly, so a run of equal steps is
one event. One GPU is a lane; two GPUs apart are two lanes on unlike tables; a placement over both
is one lane under the latency policy, which does not pipeline, and several under the other.

Source: Tessera, sections III-C and III-D. Rank stands for the streams' priorities; against groups
and transfers one by one (`pipeline`) it is tested. Pure.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from c2c.errors import SettingError
from c2c.systems.tessera.monitor import Monitor, MonitorState, finish, tick
from c2c.systems.tessera.plan import Policy

__all__ = ["Arrival", "Costs", "Done", "Lane", "Server", "decode_only", "serve"]

_AT_ONCE = 1e6  # prompts a second that come computed
_ENDED_S = 1e-9  # rounding leaves as much of a prompt or a token that has ended


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request."""

    at_s: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a request.

    Attributes:
      arrival: what was asked.
      first_s: when its first token was there.
      ended_s: when its last one was.
      execution_s: of it, without what it waited for others.
    """

    arrival: Arrival
    first_s: float
    ended_s: float
    execution_s: float

    @property
    def per_token_s(self) -> float:
        """Latency over tokens generated, the paper's normalised latency."""
        return (self.ended_s - self.arrival.at_s) / self.arrival.output


@dataclass(frozen=True, slots=True)
class Costs:
    """A step over a size, by linear interpolation, and in proportion beyond.

    Attributes:
      sizes: rows of a decode step, or tokens of a prefill step; ascending.
      busy_s: [size][resource], what a step takes of each GPU and link.
      alone_s: of each size, a step's latency with nothing beside it.
    """

    sizes: tuple[float, ...]
    busy_s: tuple[tuple[float, ...], ...]
    alone_s: tuple[float, ...]
    known: dict[float, tuple[tuple[float, ...], float]] = field(default_factory=dict)

    def at(self, size: float) -> tuple[tuple[float, ...], float]:
        """Return a step's shares of each resource while it runs alone, and its latency."""
        found = self.known.get(size)
        if found is None:
            top = self.sizes[-1]
            more = max(1.0, size / top)
            held = min(size, top)
            alone = more * float(np.interp(held, self.sizes, self.alone_s))
            table = np.array(self.busy_s)
            busy = [more * float(np.interp(held, self.sizes, column)) for column in table.T]
            found = self.known[size] = (
                (tuple(b / alone for b in busy), alone) if alone else ((0.0,) * len(busy), 0.0)
            )
        return found


@dataclass(frozen=True, slots=True)
class Lane:
    """What a batch costs: prompts by their tokens, decode steps by their rows."""

    prefill: Costs
    decode: Costs
    rows: int  # at most


def decode_only(lane: Lane) -> Lane:
    """Return a lane whose prompts come computed."""
    none = tuple((0.0,) * len(row) for row in lane.prefill.busy_s)
    prefill = Costs(lane.prefill.sizes, none, (0.0,) * len(lane.prefill.sizes))
    return Lane(prefill, lane.decode, lane.rows)


@dataclass(frozen=True, slots=True)
class Server:
    """Lanes under each policy; without a monitor the first policy stays."""

    lanes: dict[Policy, tuple[Lane, ...]]
    monitor: Monitor | None = None
    policy: Policy = "latency"


@dataclass(slots=True)
class _Row:
    number: int
    left: float  # tokens, when it joined its batch
    begun_s: float = 0.0  # its batch's clock of execution then
    execution_s: float = 0.0  # before
    first_s: float = 0.0


@dataclass(slots=True)
class _Batch:
    prompts: deque[_Row] = field(default_factory=deque)
    part: float = 0.0  # of the first prompt that is computed
    rows: list[tuple[float, int, _Row]] = field(default_factory=list)  # a heap by what it ends at
    steps: float = 0.0  # clock: decode steps so far
    execution_s: float = 0.0  # clock: what they took without waiting
    since: int = -1  # the request with which it last began

    @property
    def count(self) -> int:
        return len(self.prompts) + len(self.rows)

    def join(self, row: _Row) -> None:
        """Let a row take part in decode steps."""
        row.begun_s = self.execution_s
        heapq.heappush(self.rows, (self.steps + row.left, row.number, row))

    def leave(self) -> list[_Row]:
        """Take all rows out, as they are now."""
        for ends, _, row in self.rows:
            row.left = ends - self.steps
            row.execution_s += self.execution_s - row.begun_s
        found = [row for _, _, row in self.rows]
        self.rows = []
        return found


def serve(server: Server, arrivals: Sequence[Arrival]) -> tuple[tuple[Done, ...], int]:
    """Return what became of each request, in the order of arrival, and the policy's switches.

    Args:
      server: lanes, and perhaps a monitor.
      arrivals: in order of time.

    Raises:
      SettingError: they are not in order, or a policy has no lanes.
    """
    if any(b.at_s < a.at_s for a, b in pairwise(arrivals)):
        raise SettingError("arrivals", "times", "requests in the order of their arrival")
    if not server.lanes.get(server.policy) or not all(server.lanes.values()):
        raise SettingError("server.lanes", sorted(server.lanes), "at least one for each policy")
    run = _Serving(server, arrivals)
    while run.is_busy:
        run.advance()
    return tuple(run.done[k] for k in range(len(arrivals))), run.switches


class _Serving:
    def __init__(self, server: Server, arrivals: Sequence[Arrival]) -> None:
        self.server, self.arrivals = server, arrivals
        self.policy = server.policy
        self.lanes = server.lanes[self.policy]
        self.batches = [_Batch() for _ in self.lanes]
        self.queue: deque[_Row] = deque()
        self.now_s = 0.0
        self.next = 0
        self.stalled_until_s = 0.0
        self.done: dict[int, Done] = {}
        self.switches = 0
        monitor = server.monitor
        self.state = (
            None if monitor is None else MonitorState(policy=self.policy, ends_s=monitor.window_s)
        )

    @property
    def is_busy(self) -> bool:
        return len(self.done) < len(self.arrivals)

    def advance(self) -> None:
        """Go on to the next event: an arrival, the end of a prompt or a row, or of a window."""
        speeds = self._speeds() if self.now_s >= self.stalled_until_s else None
        until = self.arrivals[self.next].at_s if self.next < len(self.arrivals) else float("inf")
        if speeds is None:
            until = min(until, self.stalled_until_s)
        else:
            for batch, speed in zip(self.batches, speeds, strict=True):
                if speed:
                    left = 1 - batch.part if batch.prompts else batch.rows[0][0] - batch.steps
                    until = min(until, self.now_s + left / speed)
        if self.state is not None and self.state.requests:
            until = min(until, max(self.now_s, self.state.ends_s))
        passed = until - self.now_s
        self.now_s = until
        if speeds is not None:
            for lane, batch, speed in zip(self.lanes, self.batches, speeds, strict=True):
                if batch.count:
                    self._go_on(lane, batch, speed, passed)
        while self.next < len(self.arrivals) and self.arrivals[self.next].at_s <= self.now_s:
            self._place(_Row(self.next, float(self.arrivals[self.next].output)))
            self.next += 1
        self._watch()

    def _speeds(self) -> list[float]:
        """Return how much of a prompt or of a step each lane does a second."""
        speeds = [0.0] * len(self.lanes)
        free: list[float] | None = None
        busy = [k for k, batch in enumerate(self.batches) if batch.count]
        for k in sorted(busy, key=lambda k: self.batches[k].since):
            lane, batch = self.lanes[k], self.batches[k]
            if batch.prompts:
                size = self.arrivals[batch.prompts[0].number].prompt
                shares, alone = lane.prefill.at(size)
            else:
                shares, alone = lane.decode.at(len(batch.rows))
            if free is None:  # the first: no step takes more of a resource than all of its time
                share = 1.0
                free = [1.0 - s for s in shares] if len(busy) > 1 else []
            else:
                least = min(
                    (f / s for f, s in zip(free, shares, strict=True) if s > 0), default=1.0
                )
                share = max(0.0, min(1.0, least))
                free = [max(0.0, f - share * s) for f, s in zip(free, shares, strict=True)]
            speeds[k] = share / alone if alone else _AT_ONCE
        return speeds

    def _go_on(self, lane: Lane, batch: _Batch, speed: float, passed: float) -> None:
        steps, rest = speed * passed, speed * _ENDED_S
        if batch.prompts:
            row = batch.prompts[0]
            alone = lane.prefill.at(self.arrivals[row.number].prompt)[1]
            row.execution_s += steps * alone
            batch.part += steps
            if batch.part >= 1 - rest:
                batch.prompts.popleft()
                batch.part = 0.0
                row.first_s = self.now_s
                row.left -= 1
                if row.left > 0:
                    batch.join(row)
                else:
                    self._end(row)
        else:
            batch.steps += steps
            batch.execution_s += steps * lane.decode.at(len(batch.rows))[1]
            while batch.rows and batch.rows[0][0] <= batch.steps + rest:
                row = heapq.heappop(batch.rows)[2]
                row.execution_s += batch.execution_s - row.begun_s
                self._end(row)
        while self.queue and batch.count < lane.rows:
            batch.prompts.append(self.queue.popleft())

    def _place(self, row: _Row) -> None:
        """Give a request to the lane that would end it first; if all are full it waits."""
        found = None
        for k, (lane, batch) in enumerate(zip(self.lanes, self.batches, strict=True)):
            if batch.count >= lane.rows:
                continue
            asked = self.arrivals[row.number]
            ahead = sum(lane.prefill.at(self.arrivals[p.number].prompt)[1] for p in batch.prompts)
            step = lane.decode.at(batch.count + 1)[1]
            seconds = ahead + lane.prefill.at(asked.prompt)[1] + step * asked.output
            if found is None or seconds < found[0]:
                found = (seconds, k)
        if found is None or self.queue:
            self.queue.append(row)
        else:
            batch = self.batches[found[1]]
            if not batch.count:
                batch.since = row.number
            batch.prompts.append(row)

    def _end(self, row: _Row) -> None:
        asked = self.arrivals[row.number]
        self.done[row.number] = Done(asked, row.first_s, self.now_s, row.execution_s)
        if self.state is not None:
            latency = self.now_s - asked.at_s
            self.state = finish(self.state, latency, min(row.execution_s, latency))

    def _watch(self) -> None:
        monitor = self.server.monitor
        if monitor is None or self.state is None or not self.state.requests:
            return
        waiting = len(self.queue) + sum(len(batch.prompts) for batch in self.batches)
        self.state = tick(self.state, monitor, self.now_s, waiting)
        if self.state.policy == self.policy:
            return
        self.policy = self.state.policy
        self.switches += 1
        self.stalled_until_s = self.now_s + monitor.switch_s
        rows = sorted((r for b in self.batches for r in b.leave()), key=lambda r: r.number)
        prompts = sorted((r for b in self.batches for r in b.prompts), key=lambda r: r.number)
        # a prompt that is partly computed is computed to its end where its batch now is
        parts = {b.prompts[0].number: b.part for b in self.batches if b.prompts}
        self.lanes = self.server.lanes[self.policy]
        self.batches = [_Batch(since=k) for k in range(len(self.lanes))]
        for k, row in enumerate(rows):
            self.batches[k % len(self.lanes)].join(row)
        for k, row in enumerate(prompts):
            batch = self.batches[k % len(self.lanes)]
            if not batch.prompts:
                batch.part = parts.get(row.number, 0.0)
            batch.prompts.append(row)
