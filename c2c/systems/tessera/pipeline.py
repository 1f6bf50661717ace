"""Event simulation of pipelined requests over a placement's GPUs."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from c2c.ranges import Count, check_value
from c2c.systems.tessera.groups import groups_of
from c2c.systems.tessera.work import Gpus, Work

__all__ = ["MODES", "Mode", "Pipelined", "Steps", "pipelined", "steps_of"]

Mode = Literal["none", "naive", "priority", "shortest"]
_REST_S: Final = 1e-12  # rounding may leave it of a group that has ended
MODES: Final[tuple[Mode, ...]] = ("none", "naive", "priority", "shortest")


@dataclass(frozen=True, slots=True)
class Steps:
    """A placed step.

    Attributes:
      waits: [group], transfers waited for.
      sends: [group], (target group, link seconds) at its end.
      order: [GPU], its groups in program order.
    """

    gpu_of: tuple[int, ...]
    seconds: tuple[float, ...]
    waits: tuple[int, ...]
    sends: tuple[tuple[tuple[int, float], ...], ...]
    order: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Simulated times of pipelined requests.

    Attributes:
      ended_s: end of each request.
    """

    seconds: float
    busy_s: tuple[float, ...]
    steps: int
    ended_s: tuple[float, ...]


def steps_of(work: Work, gpus: Gpus, gpu_of: Sequence[int]) -> Steps:
    """Return a placed step's kernel groups."""
    groups = groups_of(gpu_of, work.transfers)
    group_of = {kernel: n for n, group in enumerate(groups) for kernel in group.kernels}
    waits = [0] * len(groups)
    sends: list[list[tuple[int, float]]] = [[] for _ in groups]
    for edge in work.transfers:
        u, g = gpu_of[edge.source], gpu_of[edge.target]
        if u != g:
            target = group_of[edge.target]
            waits[target] += 1
            sends[group_of[edge.source]].append((target, gpus.seconds(edge.nbytes, u, g)))
    return Steps(
        gpu_of=tuple(group.gpu for group in groups),
        seconds=tuple(sum(work.times_s[k][group.gpu] for k in group.kernels) for group in groups),
        waits=tuple(waits),
        sends=tuple(tuple(row) for row in sends),
        order=tuple(
            tuple(n for n, group in enumerate(groups) if group.gpu == g)
            for g in range(len(gpus.names))
        ),
    )


def pipelined(
    kinds: Sequence[Steps], requests: Sequence[Sequence[int]], mode: Mode, in_flight: int
) -> Pipelined:
    """Run requests: `in_flight` at time 0, a further one at each end.

    The mode chooses among ready groups:

        none      one request is in flight
        naive     all share the GPU equally
        priority  the oldest request's first; it preempts others, which resume later
        shortest  the one with the least time left first, likewise

    Raises:
      SettingError: an unknown mode, or `in_flight` below 1.

    Source: Tessera, section III-C; its streams share SMs. Ours: shortest.
    """
    check_value(mode, Mode, "mode")
    check_value(in_flight, Count, "in_flight")
    run = _Run(kinds, mode)
    waiting = deque(enumerate(requests))
    ended = [0.0] * len(requests)
    while waiting or run.streams:
        while waiting and len(run.streams) < (1 if mode == "none" else in_flight):
            number, steps = waiting.popleft()
            if steps:
                run.begin(number, steps)
        for number in run.advance():
            ended[number] = run.now_s
    return Pipelined(run.now_s, tuple(run.busy_s), run.steps, tuple(ended))


@dataclass(slots=True)
class _Stream:
    left: deque[int]  # kinds of the remaining steps, the first one under way
    waits: list[int]
    at: list[int]  # [GPU], number of its groups that have ended
    groups: int  # number of groups that have not ended


class _Run:
    def __init__(self, kinds: Sequence[Steps], mode: Mode) -> None:
        self.kinds, self.mode, self.shared = kinds, mode, mode == "naive"
        count = len(kinds[0].order)
        self.now_s = 0.0
        self.steps = 0
        self.busy_s = [0.0] * count
        self.streams: dict[int, _Stream] = {}
        self.ready: list[dict[int, float]] = [{} for _ in range(count)]  # stream -> seconds left
        self.free_s: dict[tuple[int, int], float] = {}
        self.coming: list[tuple[float, int, int, int]] = []
        self.order = itertools.count()

    def begin(self, number: int, steps: Sequence[int]) -> None:
        self.streams[number] = _Stream(deque(steps), [], [], 0)
        self._next_step(number)

    def advance(self) -> list[int]:
        until = self.coming[0][0] if self.coming else math.inf
        running = []
        for g, ready in enumerate(self.ready):
            if ready:
                first = self._first(ready)
                streams = list(ready) if self.shared else [first]
                running.append((g, streams))
                until = min(until, self.now_s + ready[first] * len(streams))
        passed = until - self.now_s
        self.now_s = until
        ended = []
        for g, streams in running:
            self.busy_s[g] += passed
            ready = self.ready[g]
            for key in streams:
                ready[key] -= passed / len(streams)
            for key in streams:
                if ready[key] <= _REST_S:
                    del ready[key]
                    if self._end(key, g):
                        ended.append(key)
        while self.coming and self.coming[0][0] <= self.now_s:
            _, _, stream, group = heapq.heappop(self.coming)
            self.streams[stream].waits[group] -= 1
            self._try(stream, self._kind(stream).gpu_of[group])
        return ended

    def _first(self, ready: dict[int, float]) -> int:
        if len(ready) > 1 and self.mode in ("naive", "shortest"):
            return min(ready, key=ready.__getitem__)
        return min(ready)

    def _kind(self, stream: int) -> Steps:
        return self.kinds[self.streams[stream].left[0]]

    def _next_step(self, number: int) -> None:
        kind = self._kind(number)
        stream = self.streams[number]
        stream.waits, stream.at = list(kind.waits), [0] * len(kind.order)
        stream.groups = len(kind.gpu_of)
        self.steps += 1
        for g in range(len(kind.order)):
            self._try(number, g)

    def _try(self, number: int, g: int) -> None:
        stream, kind = self.streams[number], self._kind(number)
        if number in self.ready[g] or stream.at[g] == len(kind.order[g]):
            return
        group = kind.order[g][stream.at[g]]
        if not stream.waits[group]:
            self.ready[g][number] = kind.seconds[group]

    def _end(self, number: int, g: int) -> bool:
        stream, kind = self.streams[number], self._kind(number)
        group = kind.order[g][stream.at[g]]
        stream.at[g] += 1
        stream.groups -= 1
        for target, seconds in kind.sends[group]:
            link = (g, kind.gpu_of[target])
            self.free_s[link] = max(self.now_s, self.free_s.get(link, 0.0)) + seconds
            heapq.heappush(self.coming, (self.free_s[link], next(self.order), number, target))
        if stream.groups:
            self._try(number, g)
            return False
        stream.left.popleft()
        if stream.left:
            self._next_step(number)
            return False
        del self.streams[number]
        return True
