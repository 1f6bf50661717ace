"""`c2c.serving.loop.step` with frequent events handled by machine code, over record arrays."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from c2c.compiling.machine_code import compiled, is_kept
from c2c.serving import loop
from c2c.serving.actions import ACT_INTERRUPT, ACT_RUN
from c2c.serving.live_step import ARRIVES, ENDS, EVENT_DTYPE, IS_READY, LEFT, Told, take
from c2c.serving.port import Action, Arrival, Event, Interrupt, Plan, Ready, RunSteps, StepEnd
from c2c.serving.state import PLAN_DTYPE, REPORT_DTYPE, Fleet, Loop, Rules, Serving

__all__ = ["CompiledStep", "is_compiled"]


def _struct(dtype: np.dtype[Any]) -> struct.Struct:
    # Through NumPy a row of twenty fields takes ten times as long to write.
    codes = {"i": "q", "f": "d"}
    made = struct.Struct("".join(codes[dtype[name].kind] for name in dtype.names or ()))
    assert made.size == dtype.itemsize, dtype
    return made


_EVENT: Final = _struct(EVENT_DTYPE)
_PLAN: Final = _struct(PLAN_DTYPE)
_NOTHING: Final = (0,) * len(REPORT_DTYPE.names or ())
_AVAILABLE: Final = (REPORT_DTYPE.names or ()).index("available_gbps")


def is_compiled() -> bool:
    """Return True if machine code of the step is on disk; a policy's own compiles in a moment."""
    return is_kept(take)


class CompiledStep:
    """The compiled step of one fleet, with its own state."""

    def __init__(self, fleet: Fleet, rules: Rules, state: Serving) -> None:
        """Load the machine code, or compile it, which takes tens of seconds.

        Args:
          fleet: the fleet as arrays.
          rules: rules of the run; policies' own arrays are shared with the interpreted step.
          state: state as arrays; `step` must be called with the same array types.

        Raises:
          PolicyError: a user's policy cannot be compiled; names it, the line and the reason.
        """
        self._fleet, self._rules = fleet, rules
        self._code = compiled(take, (Loop(fleet, rules, state), self._new_told(state)))
        self._state: Serving | None = None

    def _new_told(self, state: Serving) -> Told:
        most = self._fleet.max_batch
        # Each device may be told of a run, of a whole batch.
        asked = np.zeros(1 + 2 * len(state.actions) + len(state.device) * (2 + 4 * most), np.int64)
        return Told(
            np.zeros(1, EVENT_DTYPE).view(np.recarray),
            np.zeros(most, np.int64),
            np.zeros(state.blocks.keys.shape[1], np.int64),
            asked,
        )

    def _hold(self, state: Serving) -> None:
        """Take the tables whose addresses machine code gets from now on."""
        told = self._new_told(state)
        self._take = self._code.bound(Loop(self._fleet, self._rules, state), told)
        self._state, self._finished, self._asked = state, told.finished, told.asked
        self._blocks, self._gone = told.blocks, state.blocks.table.gone.view(np.ndarray)
        self._event = memoryview(told.event.view(np.uint8))
        self._plans = memoryview(state.plan.view(np.uint8))
        self._models = state.instance.model.view(np.ndarray)
        self._now_s, self._out = (state.count[name].view(np.ndarray) for name in ("now_s", "out"))

    def step(self, state: Serving, event: Event) -> tuple[Serving, tuple[Action, ...]]:
        """Return the state after an event, in the arrays of `state`, and the actions.

        Args:
          state: state as arrays; the caller must not use it again.

        Raises:
          BackendError: as for `loop.step`.
        """
        if state is not self._state:
            self._hold(state)
        n = self._take() if self._write(event) else LEFT
        if n == LEFT:
            state, actions = loop.step(self._fleet, self._rules, state, event, donate=True)
            if state is not self._state:  # some tables have grown
                self._hold(state)
            return state, actions
        asked = self._asked[:n].tolist()
        has_dropped = asked[0] > 0
        done = self._actions(state, asked)
        if has_dropped:
            loop.tell_absent(self._fleet, state, done)
        if self._gone[0]:
            loop.tell_forgotten(state, done)
        if isinstance(event, Arrival):
            done += loop.timer_of(state, event)
        return state, tuple(done)

    def time_and_records(self) -> tuple[float, int]:
        """Return the loop's time and the number of records of ended requests."""
        return float(self._now_s[0]), int(self._out[0])

    def _write(self, event: Event) -> bool:
        """Encode an event for `take`; return False if `take` does not handle it."""
        if isinstance(event, StepEnd):
            ended = len(event.finished)
            if ended > len(self._finished):
                return False
            if ended:
                self._finished[:ended] = event.finished
            _EVENT.pack_into(
                self._event, 0,
                ENDS, event.at_s, event.device, 0, 0, 0, 0, 0, 0.0, ended, 0,
                *event.report,
            )  # fmt: skip
            return True
        if isinstance(event, Ready):
            only: list[float] = [*_NOTHING]
            only[_AVAILABLE] = event.available_gbps
            _EVENT.pack_into(
                self._event, 0,
                IS_READY, event.at_s, event.device, 0, 0, 0, 0, 0, 0.0, 0, 0, *only,
            )  # fmt: skip
            return True
        if not isinstance(event, Arrival) or (count := len(event.blocks)) > len(self._blocks):
            return False
        loop.check_arrival(self._fleet, event)
        if count:
            self._blocks[:count] = event.blocks
        _EVENT.pack_into(
            self._event, 0,
            ARRIVES, event.at_s, 0, event.request_id, event.model, event.prompt_tokens,
            event.max_output_tokens, loop.priority_of(self._fleet, event), event.deadline_s, 0,
            count, *_NOTHING,
        )  # fmt: skip
        return True

    def _actions(self, s: Serving, asked: list[int]) -> list[Action]:
        actions: list[Action] = []
        at, past = 1, len(asked)
        while at < past:
            code, where = asked[at], asked[at + 1]
            at += 2
            if code == ACT_RUN:
                action, at = self._run(where, asked, at)
                if self._fleet.opens_all:  # a lane's step has its size by home, too
                    actions.append(loop.action_of(self._fleet, s, code, where))
                else:
                    actions.append(action)
            elif code == ACT_INTERRUPT:
                actions.append(Interrupt(device=where))
            else:
                actions.append(loop.action_of(self._fleet, s, code, where))
        return actions

    def _run(self, d: int, asked: list[int], at: int) -> tuple[RunSteps, int]:
        """Decode a run from `asked` at an index; return it and the index after it."""
        plan = Plan(*_PLAN.unpack_from(self._plans, d * _PLAN.size))
        decodes_at = at + 2 + 3 * asked[at]
        past = decodes_at + asked[at + 1]
        prompts = iter(asked[at + 2 : decodes_at])
        run = RunSteps(
            device=d,
            instance=plan.instance,
            model=int(self._models[plan.instance]),
            plan=plan,
            prefills=tuple(zip(prompts, prompts, prompts, strict=True)),
            decodes=tuple(asked[decodes_at:past]),
        )
        return run, past
