"""Steps of several requests in flight over the GPUs of a placement, event by event.

A step is its kernel groups: each runs on one GPU, in program order there, once what it receives has
come. A link carries one transfer at a time, in the order in which they were sent. Which of the
groups that could run does run is the mode:

    none      one request is in flight
    naive     all share the GPU equally
    priority  the oldest request's goes first, and what it interrupts goes on later
    shortest  the one with the least left goes first, and what it interrupts goes on later

Source: Tessera, section III-C; its streams share SMs, with and without priorities. Ours: shortest.
An older request's long group keeps a younger one from what the other GPU waits for; a short group
is soon over there, and the long one loses little. Pure.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.systems.tessera.work import Gpus, Work
from c2c.systems.workers import MODES, Mode, groups_of

__all__ = ["Pipelined", "Steps", "pipelined", "steps_of"]


@dataclass(frozen=True, slots=True)
class Steps:
    """A placed step.

    Attributes:
      gpu_of: each group's GPU.
      seconds: of each group alone.
      waits: transfers that each group waits for.
      sends: of each group, what its end sends: to which group, and seconds on the link.
      order: of each GPU, its groups in program order.
    """

    gpu_of: tuple[int, ...]
    seconds: tuple[float, ...]
    waits: tuple[int, ...]
    sends: tuple[tuple[tuple[int, float], ...], ...]
    order: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Measured times of running requests.

    Attributes:
      seconds: until the last one ended.
      busy_s: of each GPU.
      steps: that ran.
      ended_s: of each request.
    """

    seconds: float
    busy_s: tuple[float, ...]
    steps: int
    ended_s: tuple[float, ...]


def steps_of(work: Work, gpus: Gpus, gpu_of: Sequence[int]) -> Steps:
    """Return a placement's step as its groups."""
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
        sends=tuple(tuple(each) for each in sends),
        order=tuple(
            tuple(n for n, group in enumerate(groups) if group.gpu == g)
            for g in range(len(gpus.names))
        ),
    )


def pipelined(
    kinds: Sequence[Steps], requests: Sequence[Sequence[int]], mode: Mode, in_flight: int
) -> Pipelined:
    """Run requests, the first ones at once, each next one when one has ended.

    Args:
      kinds: of steps, over the same GPUs.
      requests: the kinds that each runs, one after the other.
      mode: see above.
      in_flight: requests at once; with `none` it is one.

    Raises:
      SettingError: a mode that does not exist, or none in flight.
    """
    if mode not in MODES:
        raise SettingError("mode", mode, f"one of {', '.join(MODES)}")
    if in_flight < 1:
        raise SettingError("in_flight", in_flight, "a whole number above 0")
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
    left: deque[int]  # kinds of steps that are to run, the first one under way
    waits: list[int]
    at: list[int]  # of each GPU, how many of its groups have ended
    groups: int  # that have not ended


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
        """Start a request."""
        self.streams[number] = _Stream(deque(steps), [], [], 0)
        self._next_step(number)

    def advance(self) -> list[int]:
        """Go on to the next event; return the requests that ended at it."""
        first = [self._first(g) for g in range(len(self.ready))]
        until = min(
            (self.now_s + seconds for stream, seconds in first if stream >= 0),
            default=float("inf"),
        )
        if self.coming:
            until = min(until, self.coming[0][0])
        passed = until - self.now_s
        self.now_s = until
        ended = []
        for g, (stream, _) in enumerate(first):
            if stream < 0:
                continue
            self.busy_s[g] += passed
            ready = self.ready[g]
            for each in ready if self.shared else (stream,):
                ready[each] -= passed / (len(ready) if self.shared else 1)
            # rounding leaves a little of a group that has ended
            done = [each for each, left in ready.items() if left <= 1e-12]
            for each in done:
                del ready[each]
                if self._end(each, g):
                    ended.append(each)
        while self.coming and self.coming[0][0] <= self.now_s:
            _, _, stream, group = heapq.heappop(self.coming)
            self.streams[stream].waits[group] -= 1
            self._try(stream, self._kind(stream).gpu_of[group])
        return ended

    def _first(self, g: int) -> tuple[int, float]:
        """Return which stream's group ends next on a GPU if nothing comes, and in how long."""
        ready = self.ready[g]
        if not ready:
            return -1, 0.0
        if self.shared:
            stream = min(ready, key=ready.__getitem__)
            return stream, ready[stream] * len(ready)
        stream = min(ready, key=ready.__getitem__) if self.mode == "shortest" else min(ready)
        return stream, ready[stream]

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
        """Make a stream's next group on a GPU ready, if it is and not yet was."""
        stream, kind = self.streams[number], self._kind(number)
        if number in self.ready[g] or stream.at[g] == len(kind.order[g]):
            return
        group = kind.order[g][stream.at[g]]
        if not stream.waits[group]:
            self.ready[g][number] = kind.seconds[group]

    def _end(self, number: int, g: int) -> bool:
        """End a group; return whether its request has ended."""
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
