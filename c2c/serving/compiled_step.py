"""`c2c.serving.loop.step` with its frequent events taken by machine code, over records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import numpy as np

from c2c.serving import loop
from c2c.serving.actions import ACT_INTERRUPT, ACT_RUN
from c2c.serving.machine_code import compiled, is_kept
from c2c.serving.port import Action, Arrival, Event, Load, Ready, RunSteps, StepEnd
from c2c.serving.rows import as_records, row_type
from c2c.serving.state import (
    COUNT_DTYPE,
    INSTANCE_DTYPE,
    PLAN_DTYPE,
    REPORT_DTYPE,
    Fleet,
    Rules,
    Serving,
)
from c2c.serving.taking import ARRIVES, ENDS, EVENT_DTYPE, IS_READY, TAKEN, take

__all__ = ["CompiledStep", "is_compiled"]

_NOTHING: Final = (0,) * len(REPORT_DTYPE.names or ())
_BEFORE: Final = tuple((COUNT_DTYPE.names or ()).index(n) for n in ("free_slots", "out", "dropped"))
_AFTER: Final = tuple((COUNT_DTYPE.names or ()).index(n) for n in ("actions", "dropped"))
_MODEL: Final = (INSTANCE_DTYPE.names or ()).index("model")


def is_compiled() -> bool:
    """Return whether machine code of the step is on disk; that of a policy takes a moment."""
    return is_kept(take)


class CompiledStep:
    """The step of one fleet, ready to be called."""

    def __init__(self, fleet: Fleet, rules: Rules, state: Serving) -> None:
        """Read the machine code, or make it, which takes tens of seconds.

        Args:
          fleet: as arrays.
          rules: whose own arrays this shares with the interpreted step.
          state: as arrays or rows, of which nothing is changed; see `step`.

        Raises:
          PolicyError: a user's policy cannot be compiled; names it, the line and the reason.
        """
        self._fleet, self._rules = fleet, rules
        self._event = np.zeros(1, EVENT_DTYPE).view(np.recarray)
        self._told = np.zeros(0, np.int64)
        self._plan = row_type(PLAN_DTYPE)
        s = as_records(state)
        self._make_room(s)
        self._take = compiled(take, (fleet, rules, s, self._event, self._told, self._told))

    def _make_room(self, s: Serving) -> None:
        # Each action may be a run, of a whole batch.
        most = len(s.actions) * 2 + len(s.device) * 4 * self._fleet.max_batch
        if len(self._told) < most:
            self._told = np.zeros(most, np.int64)
        self._finished = np.zeros(self._fleet.max_batch, np.int64)

    def step(self, state: Serving, event: Event) -> tuple[Serving, tuple[Action, ...]]:
        """Return the state after an event, which is `state` or has its arrays, and the actions.

        Args:
          state: as arrays; the caller must not use it again.

        Raises:
          BackendError: as `loop.step`.
        """
        counts = state.count.item()
        free, out, dropped = (counts[k] for k in _BEFORE)
        has_room = free > 0 and out + len(state.request) <= len(state.records)
        if not has_room or not self._write(event):
            return self._otherwise(state, event)
        ended = event.finished if type(event) is StepEnd else ()
        finished = self._finished[: len(ended)]
        finished[:] = ended
        if self._take(self._fleet, self._rules, state, self._event, finished, self._told) != TAKEN:
            return self._otherwise(state, event)
        counts = state.count.item()
        asked = state.actions[: counts[_AFTER[0]]].tolist()
        state.count[0].actions = 0
        actions = self._actions(state, asked)
        if counts[_AFTER[1]] != dropped:
            first = next((n for n, a in enumerate(actions) if isinstance(a, Load)), len(actions))
            actions[first:first] = loop.absent(self._fleet, state)
        if type(event) is Arrival:
            return state, (*actions, *loop.timer_of(state, event))
        return state, tuple(actions)

    def _otherwise(self, state: Serving, event: Event) -> tuple[Serving, tuple[Action, ...]]:
        return loop.step(self._fleet, self._rules, state, event, donate=True)

    def _write(self, event: Event) -> bool:
        """Write an event for `take`; False: it is none of those."""
        kind = type(event)
        if kind is StepEnd:
            if len(event.finished) > len(self._finished):
                return False
            self._event[0] = (ENDS, event.at_s, event.device, 0, 0, 0, 0, 0, 0.0, *event.report)
            return True
        if kind is Ready:
            self._event[0] = (IS_READY, event.at_s, event.device, 0, 0, 0, 0, 0, 0.0, *_NOTHING)
            self._event[0].available_gbps = event.available_gbps
            return True
        if kind is not Arrival:
            return False
        loop.check_arrival(self._fleet, event)
        priority = event.priority
        if priority is None:
            priority = self._fleet.deployment[event.model].priority
        self._event[0] = (
            ARRIVES, event.at_s, 0, event.request_id, event.model, event.prompt_tokens,
            event.max_output_tokens, priority, event.deadline_s, *_NOTHING,
        )  # fmt: skip
        return True

    def _actions(self, s: Serving, asked: list[list[int]]) -> list[Action]:
        once = dict.fromkeys(map(tuple, asked))
        told = iter(self._told.tolist()) if any(c == ACT_RUN for c, _ in once) else iter(())
        actions: list[Action] = []
        for code, where in once:
            if code == ACT_RUN:
                actions.append(self._run(s, where, told))
            elif code != ACT_INTERRUPT or loop.still_runs(s, where, once):
                actions.append(loop.action_of(s, code, where))
        return actions

    def _run(self, s: Serving, d: int, told: Iterator[int]) -> RunSteps:
        plan = self._plan(*s.plan.item(d))
        prompts, decodes = next(told), next(told)
        return RunSteps(
            device=d,
            instance=plan.instance,
            model=s.instance.item(plan.instance)[_MODEL],
            plan=plan,
            prefills=tuple((next(told), next(told), next(told)) for _ in range(prompts)),
            decodes=tuple(islice(told, decodes)),
        )
