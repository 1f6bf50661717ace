"""Step of the serving loop, interpreted until machine code exists."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import sys
from functools import partial
from typing import Any

from c2c.engine.process import settle_memory, started
from c2c.errors import PolicyError
from c2c.serving.loop import Step, is_compiled
from c2c.serving.prepare.memory import remember
from c2c.serving.tables.port import Action, Event, Record
from c2c.serving.tables.state import Fleet, Loop, Rules, Serving
from c2c.serving.tables.table_growth import grow_models

__all__ = ["Stepping"]

_log = logging.getLogger("c2c.engine")
_MAKER = "c2c.engine.step_maker"


class Stepping:
    """Application of events to the loop's state, as arrays."""

    def __init__(self, fleet: Fleet, rules: Rules, state: Serving) -> None:
        """Create an interpreted step."""
        self.fleet, self._rules, self.state = fleet, rules, state
        self._step = Step(Loop(fleet, rules, state), compiled=False)
        self._is_compiled = False
        self._process: asyncio.subprocess.Process | None = None
        self._is_closed = False
        self._changing = asyncio.Lock()  # the fleet stays the same during compilation

    @property
    def is_compiled(self) -> bool:
        """True if machine code handles events."""
        return self._is_compiled

    def take(self, event: Event) -> tuple[float, tuple[Action, ...], list[Any]]:
        """Handle an event."""
        self.state, actions = self._step(self.state, event)
        now_s, out = self._step.time_and_records()
        if not out:
            return now_s, actions, []
        self.state.count[0].out = 0
        return now_s, actions, [Record(*row) for row in self.state.records[:out].tolist()]

    async def compile(self) -> None:
        """Switch to machine code; a failure leaves the step interpreted."""
        async with self._changing:
            await self._compile()

    async def _compile(self) -> None:
        if not is_compiled() and not await self._make():
            return
        try:
            # Loading takes a second of a core; a thread keeps the event loop free.
            self._step = await asyncio.to_thread(
                partial(Step, Loop(self.fleet, self._rules, self.state), compiled=True)
            )
        except PolicyError as error:
            _log.warning("the loop's step stays interpreted: %s", error)
            return
        self._is_compiled = True
        settle_memory()  # loaded code is permanent

    async def adopt(self, fleet: Fleet, rules: Rules) -> None:
        """Switch to another fleet; requests, instances and policies' memory stay."""
        async with self._changing:
            like = Loop(fleet, rules, grow_models(self.state, fleet))
            step = await asyncio.to_thread(partial(Step, like, compiled=self._is_compiled))
            # No event is handled from here to the end.
            remember(rules.own, self._rules.own)
            self.state = grow_models(self.state, fleet)
            self.fleet, self._rules, self._step = fleet, rules, step

    async def _make(self) -> bool:
        try:
            payload = pickle.dumps((self.fleet, self._rules, self.state))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            _log.warning("the loop's step stays interpreted: %s", error)
            return False
        self._process = await started("the compiler of the loop's step", _new_maker)
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(len(payload).to_bytes(8, "little") + payload)
            await self._process.stdin.drain()
        status = await self._process.wait()
        if status != 0 and not self._is_closed:
            _log.warning("the loop's step stays interpreted: its compilation failed")
        return status == 0

    async def close(self) -> None:
        """End the process that makes machine code."""
        self._is_closed = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def _new_maker() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", _MAKER,
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches only the scheduler
    )  # fmt: skip
