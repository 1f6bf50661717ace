"""Adding and removing models while the engine serves, one at a time.

A checkpoint is read and compiled before clients see it. Between two events the loop's fleet is
rebuilt: the model takes the row of a removed one, or a new row in each table of models. Requests,
instances and caches are unaffected.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from c2c.engine import messages as say
from c2c.engine.catalog import Entry, find_models
from c2c.engine.fleet import Pool, check_memory, check_system, fleet_of, pool_with, too_large
from c2c.engine.items import items_of
from c2c.engine.keeper import Keeper
from c2c.engine.settings import EngineSettings
from c2c.engine.store import Store
from c2c.engine.supervisor import Supervisor
from c2c.errors import DataError, SettingError
from c2c.serving import Prepared

__all__ = ["Adding", "Parts"]

_log = logging.getLogger("c2c.engine")
_LOOK_S = 0.02  # between checks for open requests of a model being removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of an engine that depend on its models.

    Attributes:
      settings: engine settings, with the pool size.
      weights: folder of weight files.
      entries: models that clients can see.
      models: fleet rows by model name.
      failed: reasons of models that cannot be served, by name.
      store: host weights.
      keeper: admin commands for weights.
      supervisor: worker processes.
      adopt: switches loop and backend to a new fleet.
      open_of: returns a model's open requests.
      tell: sends the current models to the front.
      answer: sends the result of a command to the front.
    """

    settings: EngineSettings
    weights: Path
    entries: list[Entry]
    models: dict[str, int]
    failed: dict[str, str]
    store: Store
    keeper: Keeper
    supervisor: Supervisor
    adopt: Callable[[Prepared], Awaitable[None]]
    open_of: Callable[[str], list[int]]
    tell: Callable[[], None]
    answer: Callable[[say.Managed], None]


class _NoRoom(Exception):
    """Weights that are in use leave no room."""


class Adding:
    """Adds and removes models.

    Attributes:
      closed: models of the fleet that accept no requests, as they are being added or removed.
    """

    def __init__(self, parts: Parts, pool: Pool) -> None:
        """Create it for a serving engine."""
        self._parts, self._pool = parts, pool
        by_name = {entry.name: entry for entry in parts.entries}
        self._rows = [by_name[name] for name in parts.models]
        self._free: set[int] = set()  # rows of removed models
        self.closed: set[str] = set()
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, wish: say.Add | say.Remove) -> None:
        """Start an addition or removal; commands run and are answered in order."""
        task = asyncio.create_task(self._in_turn(wish))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_turn(self, wish: say.Add | say.Remove) -> None:
        answer = say.Managed(number=wish.number, model=wish.model)
        async with self._turn:
            try:
                if isinstance(wish, say.Remove):
                    await self._remove(wish.model)
                else:
                    answer.model = await self._add(wish)
            except (SettingError, DataError) as error:
                answer.refused, answer.status = str(error), 400
                answer.param = "model" if getattr(error, "field", "") == "model" else "path"
            except _NoRoom as error:
                answer.refused = str(error)
            except Exception:  # noqa: BLE001 (the engine serves on)
                number = f"wish-{uuid.uuid4().hex}"
                _log.exception("%s: %s failed", number, wish)
                answer.refused = f"internal error; see {number} in the server's log"
                answer.status = 500
        self._parts.answer(answer)

    async def _add(self, wish: say.Add) -> str:
        """Add a checkpoint; return its model name."""
        parts = self._parts
        entry = await asyncio.to_thread(self._found, wish)
        pool = pool_with(self._pool, entry, parts.settings.options)
        row = min(self._free, default=len(self._rows))
        rows = [*self._rows[:row], entry, *self._rows[row + 1 :]]
        there = [e for number, e in enumerate(rows) if number not in self._free - {row}]
        check_memory(there, parts.settings.options, pool)
        prepared = await asyncio.to_thread(self._prepared, rows, pool)
        await parts.adopt(prepared)
        self.closed.add(entry.name)
        parts.models[entry.name] = row
        self._rows, self._pool = rows, pool
        self._free.discard(row)
        (item,) = items_of([entry], parts.settings, parts.weights)
        parts.store.add(item)
        refused = await self._manage(entry.name, "pin")
        is_whole = entry.name not in parts.failed
        failed = refused or await parts.supervisor.admit(item)
        if failed:
            await self._drop(entry.name)
            raise _NoRoom(failed) if refused and is_whole else DataError(wish.path, failed)
        await self._manage(entry.name, "unpin")
        self.closed.discard(entry.name)
        parts.entries.append(entry)
        parts.tell()
        return entry.name

    def _found(self, wish: say.Add) -> Entry:
        """Return the checkpoint after all checks that need no weights."""
        settings = self._parts.settings
        assert settings.add_from is not None
        folder = settings.add_from.resolve()
        path = folder / wish.path
        allowed = "a checkpoint's folder (config.json) or GGUF file in the folder add_from"
        if not Path(os.path.realpath(path)).is_relative_to(folder):  # a loop of links, too
            raise SettingError("path", wish.path, allowed)
        try:
            found = find_models(path)
        except SettingError as error:
            raise SettingError("path", wish.path, allowed) from error
        if len(found) != 1:
            raise SettingError("path", wish.path, f"one checkpoint; it has {len(found)}")
        entry = replace(found[0], name=wish.model or found[0].name)
        if entry.name in {e.name for e in self._parts.entries}:
            raise SettingError("model", entry.name, "a name that no other model has")
        if why := entry.failed or too_large(entry, settings.options):
            raise SettingError("path", wish.path, f"a checkpoint that can be served ({why})")
        check_system(settings.system)
        return entry

    def _prepared(self, rows: list[Entry], pool: Pool) -> Prepared:
        settings = self._parts.settings
        slo_s = (settings.ttft_slo_s, settings.tpot_slo_s)
        return fleet_of(
            rows, settings.options, settings.system, settings.constants, slo_s=slo_s, pool=pool
        )

    async def _manage(self, model: str, what: Literal["pin", "unpin", "unload"]) -> str:
        """Run an admin command for a model's weights; return the reason of a refusal, or ""."""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._parts.keeper.manage(model, what, done.set_result)
        return await done

    async def _remove(self, model: str) -> None:
        """Remove a model after its open requests have ended."""
        parts = self._parts
        entry = next((e for e in parts.entries if e.name == model), None)
        if entry is None:
            raise SettingError("model", model, "a model that is served")
        parts.entries.remove(entry)
        if model in parts.models:
            self.closed.add(model)
            parts.tell()
            while parts.open_of(model):
                await asyncio.sleep(_LOOK_S)
            await self._drop(model)
        parts.failed.pop(model, None)
        parts.tell()

    async def _drop(self, model: str) -> None:
        """Unload a closed model everywhere and free its row for another model."""
        parts = self._parts
        wishes: tuple[Literal["unpin", "unload"], ...] = ("unpin", "unload")
        for what in wishes:
            while await self._manage(model, what):  # waits for a load or a last step to end
                await asyncio.sleep(_LOOK_S)
        parts.failed.pop(model, None)
        parts.supervisor.dismiss(model)
        row = parts.models.pop(model)
        self._rows[row] = replace(self._rows[row], name=f"removed {row}")
        self._free.add(row)
        self.closed.discard(model)

    def close(self) -> None:
        """Cancel commands in progress without undoing them."""
        for task in tuple(self._tasks):
            task.cancel()
