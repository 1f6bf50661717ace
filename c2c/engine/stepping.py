"""The loop's step over its state: interpreted, and compiled once there is machine code.

Both take the same decisions (a test holds all systems to it). Machine code is made once for a
version of the sources and kept on disk; that takes half a minute of a core, which a process of
its own spends while the engine serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import sys
from typing import Any

from c2c.engine.process import settle_memory, started
from c2c.errors import PolicyError
from c2c.serving.compiled_step import CompiledStep, is_compiled
from c2c.serving.loop import step
from c2c.serving.port import Action, Event, Record
from c2c.serving.prepare.memory import remember
from c2c.serving.state import Fleet, Rules, Serving
from c2c.serving.table_growth import grow_models

__all__ = ["Stepping"]

_log = logging.getLogger("c2c.engine")
_MAKER = "c2c.engine.step_maker"


class Stepping:
    """Takes events in.

    Attributes:
      fleet: as arrays.
      state: what the loop knows, likewise.
    """

    def __init__(self, fleet: Fleet, rules: Rules, state: Serving) -> None:
        """Begin, interpreted.

        Args:
          fleet: as arrays.
          rules: who decides.
          state: as arrays; the caller must not use it again.
        """
        self.fleet, self._rules, self.state = fleet, rules, state
        self._compiled: CompiledStep | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._is_closed = False
        self._changing = asyncio.Lock()  # what machine code is for stays the same meanwhile

    @property
    def is_compiled(self) -> bool:
        """True if events are taken by machine code."""
        return self._compiled is not None

    def take(self, event: Event) -> tuple[float, tuple[Action, ...], list[Any]]:
        """Take an event.

        Returns:
          The loop's time, what is to be done, and records of who is over, as rows.

        Raises:
          BackendError: the event cannot follow from what was asked.
        """
        if self._compiled is not None:
            self.state, actions = self._compiled.step(self.state, event)
            now_s, out = self._compiled.time_and_records()
        else:
            self.state, actions = step(self.fleet, self._rules, self.state, event, donate=True)
            now_s, out = float(self.state.count[0].now_s), int(self.state.count[0].out)
        if not out:
            return now_s, actions, []
        self.state.count[0].out = 0
        return now_s, actions, [Record(*row) for row in self.state.records[:out].tolist()]

    async def compile(self) -> None:
        """Go on compiled once there is machine code, which is made if there is none.

        Where it cannot be made, the log says why, and the step stays interpreted.
        """
        async with self._changing:
            await self._compile()

    async def _compile(self) -> None:
        if not is_compiled() and not await self._make():
            return
        try:
            # Reading it takes a second of a core; workers' events are taken in between.
            self._compiled = await asyncio.to_thread(
                CompiledStep, self.fleet, self._rules, self.state
            )
        except PolicyError as error:
            _log.warning("the loop's step stays interpreted: %s", error)
            return
        settle_memory()  # what was read with it stays

    async def adopt(self, fleet: Fleet, rules: Rules) -> None:
        """Go on with a fleet that has more models, or others where nothing knows the old ones.

        Requests, instances and what policies remember stay as they are.

        Args:
          fleet: of the same chip and places.
          rules: the same, with memory of their own for this fleet.
        """
        async with self._changing:
            compiled = None
            if self._compiled is not None:
                like = grow_models(self.state, fleet)
                compiled = await asyncio.to_thread(CompiledStep, fleet, rules, like)
            # No event comes in between from here on.
            remember(rules.own, self._rules.own)
            self.state = grow_models(self.state, fleet)
            self.fleet, self._rules, self._compiled = fleet, rules, compiled

    async def _make(self) -> bool:
        try:
            what = pickle.dumps((self.fleet, self._rules, self.state))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            _log.warning("the loop's step stays interpreted: %s", error)
            return False
        self._process = await started("what makes the loop's machine code", _new_maker)
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(len(what).to_bytes(8, "little") + what)
            await self._process.stdin.drain()
        status = await self._process.wait()
        if status != 0 and not self._is_closed:
            _log.warning("the loop's step stays interpreted: its machine code could not be made")
        return status == 0

    async def close(self) -> None:
        """End the process that makes machine code, if there is one."""
        self._is_closed = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def _new_maker() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", _MAKER,
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the scheduler
    )  # fmt: skip
