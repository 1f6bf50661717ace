"""ServerlessLLM's public router and scheduler on one GPU, as their code runs them.

Source: github.com/ServerlessLLM/ServerlessLLM commit 9f50241 (Apache-2.0): `roundrobin_router.py`,
`fcfs_scheduler.py`, `sllm/cli/default_config.json`. A model has a balancer, which waits a second
before it looks for an instance, and a scaler, which looks once a second. A scheduler gives the GPU
to a start once a second. By default an instance has one request at a time (target 1) and goes as
soon as there are more instances than requests (keep-alive 0), whichever is there first; the GPU is
free when its request has ended.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from c2c.ranges import AboveZero, Count, FromZero, check_fields

__all__ = ["Router", "first_tokens"]

Seconds = npt.NDArray[np.float64]

_ROUNDING: Final = 1e-6  # of a period: a look is never twice at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """Settings of the router, with the public code's defaults.

    Attributes:
      poll_s: wait before each look for an instance, and period of the scaler and the scheduler.
      target: requests of an instance at once.
      keep_alive_s: time that an instance stays without need.
      most: instances of a model at most.
    """

    poll_s: AboveZero = 1.0
    target: Count = 1
    keep_alive_s: FromZero = 0.0
    most: Count = 10

    def __post_init__(self) -> None:
        check_fields(self, "router")


@dataclass(slots=True)
class _Instance:
    model: int
    requests: int = 0
    stops: bool = False


@dataclass(slots=True)
class _Model:
    phase_s: float  # of its scaler
    queue: deque[int] = field(default_factory=deque)
    ready: list[_Instance] = field(default_factory=list)
    starting: int = 0
    outstanding: int = 0
    turn: int = 0  # of the round robin
    idle_s: float = 0.0
    balances: bool = False
    looked_s: float = math.nan  # last look of a balancer that waits for an instance
    scales: bool = False
    must_stop: bool = False  # the scaler waits for an instance to stop


def first_tokens(
    arrival_s: Seconds,
    model: Sequence[int],
    load_s: Sequence[float],
    prompt_s: Seconds,
    answer_s: Seconds,
    router: Router,
    seed: int = 0,
) -> tuple[Seconds, Seconds]:
    """Return the times of first tokens and of whole answers."""
    return _Run(arrival_s, model, load_s, prompt_s, answer_s, router, seed).ended()


class _Run:
    def __init__(
        self, arrival_s: Seconds, model: Sequence[int], load_s: Sequence[float], prompt_s: Seconds,
        answer_s: Seconds, router: Router, seed: int,
    ) -> None:  # fmt: skip
        phases = np.random.default_rng(seed).uniform(0.0, router.poll_s, len(load_s) + 1)
        self.models = [_Model(float(p)) for p in phases[:-1]]
        self.phase_s, self.router, self.load_s = float(phases[-1]), router, load_s
        self.arrival_s, self.model = arrival_s, model
        self.prompt_s, self.answer_s = prompt_s, answer_s
        self.first_s, self.last_s = np.full((2, len(arrival_s)), math.inf)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.count = 0
        self.is_free, self.grants = True, False
        self.starts: list[tuple[int, int]] = []  # waiting starts: place in the model's, model

    def ended(self) -> tuple[Seconds, Seconds]:
        for request, at_s in enumerate(self.arrival_s):
            while self.events and self.events[0][0] <= at_s:
                self._next()
            self._arrives(float(at_s), request)
        while self.events:
            self._next()
        return self.first_s, self.last_s

    def _next(self) -> None:
        at_s, _, act = heapq.heappop(self.events)
        act(at_s)

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (at_s, self.count, act))

    def _tick_s(self, now_s: float, phase_s: float) -> float:
        """Return the first time of a periodic look after now."""
        periods = math.floor((now_s - phase_s) / self.router.poll_s + _ROUNDING) + 1
        return phase_s + periods * self.router.poll_s

    def _arrives(self, now_s: float, request: int) -> None:
        one = self.models[self.model[request]]
        one.outstanding += 1
        one.idle_s = 0.0
        one.queue.append(request)
        if not one.balances:
            one.balances = True
            self._at(now_s + self.router.poll_s, lambda t: self._balance(t, one))
        self._rescale(now_s, one)

    def _balance(self, now_s: float, one: _Model) -> None:
        wait_s = self.router.poll_s
        if not one.ready:  # its looks go on in vain until an instance has started
            one.looked_s = now_s
            return
        found = one.ready[one.turn % len(one.ready)]
        one.turn += 1
        if found.requests < self.router.target:
            self._serve(now_s, one, found, one.queue.popleft())
        else:
            wait_s *= 2.0
        one.balances = bool(one.queue)
        if one.balances:
            self._at(now_s + wait_s, lambda t: self._balance(t, one))

    def _serve(self, now_s: float, one: _Model, instance: _Instance, request: int) -> None:
        instance.requests += 1
        self.first_s[request] = now_s + self.prompt_s[request]
        self.last_s[request] = now_s + self.answer_s[request]

        def done(at_s: float) -> None:
            instance.requests -= 1
            one.outstanding -= 1
            if instance.stops and not instance.requests:
                self._frees(at_s)
            self._rescale(at_s, one)

        self._at(float(self.last_s[request]), done)

    def _rescale(self, now_s: float, one: _Model) -> None:
        if not one.scales:
            one.scales = True
            self._at(self._tick_s(now_s, one.phase_s), lambda t: self._scale(t, one))

    def _scale(self, now_s: float, one: _Model) -> None:
        running = one.starting + len(one.ready)
        wanted = min(self.router.most, -(-one.outstanding // self.router.target))
        if one.must_stop or wanted < running:
            self._reduce(now_s, one)
        elif wanted > running:
            one.starting += 1
            number = self.models.index(one)
            self.starts.append((sum(m == number for _, m in self.starts), number))
            self._grant_later(now_s)
        running = one.starting + len(one.ready)
        one.scales = False
        if one.must_stop or running != min(
            self.router.most, -(-one.outstanding // self.router.target)
        ):
            self._rescale(now_s, one)

    def _reduce(self, now_s: float, one: _Model) -> None:
        if not one.must_stop and one.idle_s < self.router.keep_alive_s:
            one.idle_s += self.router.poll_s
            return
        one.must_stop = not one.ready
        if one.ready:
            instance = one.ready.pop()
            instance.stops, one.idle_s = True, 0.0
            if not instance.requests:
                self._frees(now_s)

    def _frees(self, now_s: float) -> None:
        self.is_free = True
        self._grant_later(now_s)

    def _grant_later(self, now_s: float) -> None:
        if self.starts and self.is_free and not self.grants:
            self.grants = True
            self._at(self._tick_s(now_s, self.phase_s), self._grant)

    def _grant(self, now_s: float) -> None:
        self.grants = False
        if not self.starts or not self.is_free:
            return
        self.starts.sort(key=lambda start: start[0])  # by the place in a model's queue, as the code
        _, number = self.starts.pop(0)
        self.starts = [(p - (m == number), m) for p, m in self.starts]
        self.is_free = False
        one = self.models[number]

        def starts(at_s: float) -> None:
            one.starting -= 1
            one.ready.append(_Instance(number))
            if not math.isnan(one.looked_s):
                next_s, one.looked_s = self._tick_s(at_s, one.looked_s), math.nan
                self._at(next_s, lambda t: self._balance(t, one))
            self._rescale(at_s, one)

        self._at(now_s + self.load_s[number], starts)
