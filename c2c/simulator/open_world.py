"""Simulated backend for requests that outside clients send while it runs."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from c2c.errors import SettingError
from c2c.serving import Prepared
from c2c.serving.port import Arrival, DeviceBack, DeviceLost, Event, RunSteps
from c2c.simulator.failures import FailureSchedule
from c2c.simulator.port import SimulatorBackend
from c2c.simulator.world import Machine
from c2c.workloads import RequestBlock

__all__ = ["OpenWorld"]


class OpenWorld(SimulatorBackend):
    """A `SimulatorBackend` without a workload; `open` adds requests.

    Each run is one step, so that tokens are produced one by one. Chips fail by the run's settings.

    Args:
      most: maximum concurrent requests. Their numbers are reused, so there are more of them.
    """

    def __init__(self, prepared: Prepared, machine: Machine, most: int) -> None:
        # Requests that are over may be computed in one more step of each device.
        most += len(prepared.kind_of) * int(prepared.fleet.max_batch) + 1
        none = RequestBlock(
            arrival_s=np.zeros(most),
            model=np.zeros(most, np.int32),
            prompt_tokens=np.ones(most, np.int32),
            output_tokens=np.ones(most, np.int32),
        )
        super().__init__(prepared, machine, none)
        self._next = most
        self._free = deque(range(most))
        if (size := prepared.setup.failures.host_chips) > 0:
            raise SettingError("failures.host_chips", size, "0 where requests come from outside")
        chips = len(self._mirror.chip)
        self._failures = FailureSchedule(prepared, np.arange(chips))

    def open(
        self,
        *,
        at_s: float,
        model: int,
        prompt_tokens: int,
        output_tokens: int,
        priority: int | None = None,
        deadline_s: float = math.inf,
        blocks: tuple[int, ...] = (),
    ) -> Arrival:
        """Return the arrival of a request; only this backend knows its length.

        Args:
          at_s: current time.
          model: index in `Fleet.deployment`.
          prompt_tokens: length of the prompt, at least 1.
          output_tokens: length of the answer, at least 1.
          priority: priority, higher is more urgent; None: the model's.
          deadline_s: deadline from now on.
          blocks: keys of the prompt's blocks.
        """
        while self._is_computed(k := self._free.popleft()):
            self._free.append(k)
        self._arrivals.model[k] = model
        self._arrivals.prompt_tokens[k] = prompt_tokens
        self._arrivals.output_tokens[k] = output_tokens
        self._came_s[k], self._made[k] = at_s, 0
        return Arrival(
            at_s=at_s,
            request_id=k,
            model=model,
            prompt_tokens=prompt_tokens,
            max_output_tokens=output_tokens,
            priority=priority,
            deadline_s=deadline_s,
            blocks=blocks,
        )

    def close(self, request: int) -> None:
        """Free the number of a request that the loop has ended."""
        self._free.append(request)

    def _is_computed(self, request: int) -> bool:
        """Return True if an unfinished run has a request that had this number before."""
        runs = (run for d, run in self._runs.items() if self._world.busy[d])
        return any(request in (*run.decodes, *(r for r, _, _ in run.prefills)) for run in runs)

    @property
    def next_s(self) -> float:
        """Time of the next event without a further request; inf: none."""
        self._fail()
        _, ends_s = self._next_end()
        others_s = min(float(self._timer_s[0]), self._happens_s(), ends_s)
        return min(others_s, float(self._timer_s.min())) if others_s < math.inf else math.inf

    def next_event(self, until_s: float = math.inf) -> Event | None:
        """Return the next event due by `until_s`, or None."""
        self._fail()
        return super().next_event(until_s)

    def _steps(self, run: RunSteps) -> int:
        del run  # however long it may be
        return 1

    def _fail(self) -> None:
        """Apply the next failure or return of a chip to its devices, one after another."""
        while not self._incidents and self._failures.next_s < math.inf:
            at_s = self._failures.next_s
            if (event := self._failures.next_event()) is None:
                continue
            (chip,), returns = event
            first, last = (int(self._mirror.chip[chip][n]) for n in ("first", "last"))
            kind = DeviceBack if returns else DeviceLost
            self._incidents += [kind(at_s=at_s, device=d) for d in range(first, last)]
