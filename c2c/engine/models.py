"""Models of an engine: clients' view, rows, weights, commands."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from c2c.engine import messages as say
from c2c.engine.backend import LiveBackend
from c2c.engine.catalog import Entry, find_models
from c2c.engine.fleet import Pool, check_memory, check_system, fleet_of, pool_with, too_large
from c2c.engine.items import items_of
from c2c.engine.ledger import Ledger
from c2c.engine.settings import EngineSettings
from c2c.engine.store import Store
from c2c.engine.supervisor import Supervisor
from c2c.errors import DataError, SettingError
from c2c.serving import Prepared
from c2c.serving.tables.pools import entry_of
from c2c.serving.tables.port import (
    DeviceLost,
    DropWeights,
    Event,
    KeepWeights,
    ReleaseWeights,
    WeightsHere,
)
from c2c.serving.tables.state import ABSENT

__all__ = ["Models"]

type What = Literal["load", "unload", "pin", "unpin"]

_log = logging.getLogger("c2c.engine")
_LOOK_S = 0.02  # between checks for open requests of a model being removed


class _Wish(NamedTuple):
    model: str
    what: What
    answer: Callable[[str], None]  # gets the reason of a refusal, or ""


class _NoRoom(Exception):
    pass


# Commands for weights become events of the loop, whose outcomes become answers. Additions and
# removals run one at a time: a checkpoint is read and compiled before clients see it, and between
# two events the loop's fleet is rebuilt. The model takes the row of a removed one, or a new row.
@dataclass(kw_only=True)
class Models:
    """State of an engine's models, and its changes.

    Attributes:
      entries: visible models.
      rows: fleet rows by model name.
      failed: reasons against models, by name.
      adopt: switches loop and backend to a new fleet.
      closed: models without requests, being added or removed.
    """

    settings: EngineSettings
    weights: Path
    pool: Pool
    entries: list[Entry]
    rows: dict[str, int]
    failed: dict[str, str]
    store: Store | None
    backend: LiveBackend
    supervisor: Supervisor
    ledger: Ledger
    adopt: Callable[[Prepared], Awaitable[None]]
    abort: Callable[[int, str], None]
    send: Callable[[say.Frame], None]
    tell: Callable[[], None]
    pinned: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    _decided: dict[int, list[_Wish]] = field(default_factory=dict)  # by event not taken yet
    _loading: dict[str, list[tuple[_Wish, bool]]] = field(default_factory=dict)
    """Commands that wait for a load, and whether their pin ends with it."""
    _free: set[int] = field(default_factory=set)  # rows of removed models
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        by_name = {entry.name: entry for entry in self.entries}
        self._all = [by_name[name] for name in self.rows]  # by row

    @property
    def takes_more(self) -> bool:
        """True if models can be added and removed."""
        return self.settings.add_from is not None and self.store is not None

    def is_open(self, model: str) -> bool:
        """Return whether a model accepts requests."""
        return model in self.rows and model not in self.closed

    # Commands for weights.

    def begin(self, command: say.Manage | say.Add | say.Remove) -> None:
        """Start a front's command, which gets its outcome."""
        if isinstance(command, say.Manage):
            number = command.number
            self._manage(
                command.model, command.what, command.model in self.closed,
                lambda refused: self.send(say.Managed(number=number, refused=refused)),
            )  # fmt: skip
        elif self.takes_more:
            task = asyncio.create_task(self._in_turn(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _manage(
        self, name: str, action: What, is_closed: bool, answer: Callable[[str], None]
    ) -> None:
        wish, at_s = _Wish(name, action, answer), self.backend.now_s()
        if is_closed or name not in self.rows:
            answer(self.failed.get(name, "it is not served now"))
        elif self.store is None:
            answer("each worker has its own weights (linear=reference)")
        elif action == "unload" and name in self.pinned:
            answer("it is pinned")
        elif action == "unload":
            self._put(DropWeights(at_s=at_s, model=self.rows[name]), wish)
        elif name in self.pinned and name in self._loading:
            if action == "unpin":
                answer("it is being loaded")
            else:
                self._loading[name].append((wish, False))
        elif action == "unpin" and name in self.pinned:
            self.pinned.discard(name)
            self._put(ReleaseWeights(at_s=at_s, model=self.rows[name]), wish)
        elif action == "unpin" or name in self.pinned:
            answer("")  # already done
        else:
            self._put(KeepWeights(at_s=at_s, model=self.rows[name]), wish)

    def _put(self, event: Event, wish: _Wish) -> None:
        self._decided.setdefault(id(event), []).append(wish)
        self.backend.put(event)

    def taken(self, event: Event, fleet: Any, state: Any) -> None:
        """Continue commands after an event's actions."""
        if isinstance(event, DeviceLost) and self.store is not None:
            for name in self._loading:  # loads that this device waited for were stopped
                self.store.fetch(name)
        for wish in self._decided.pop(id(event), ()):
            entry = state.hold[entry_of(fleet, self.rows[wish.model], 0)]
            if isinstance(event, ReleaseWeights):
                wish.answer("")
            elif isinstance(event, DropWeights):
                wish.answer("" if entry.state == ABSENT else "it has open requests")
            elif entry.state == ABSENT:
                wish.answer("memory has no room: all other weights are in use or pinned")
            else:
                self._keep(wish)

    def _keep(self, wish: _Wish) -> None:
        assert self.store is not None
        is_brief = wish.what == "load" or wish.model in self.pinned  # by a command just before
        if wish.what == "pin":
            self.pinned.add(wish.model)
        self._loading.setdefault(wish.model, []).append((wish, is_brief))
        if wish.model in self.store.here:
            self._answer(wish.model, "")
        else:
            self.store.fetch(wish.model)

    def fetched(self, model: str, failed: str) -> None:
        """Handle the end of a load; `failed` is a reason or ""."""
        if failed:
            _log.error("%s cannot be loaded: %s", model, failed)
            for request in self.ledger.of_model(model):
                self.abort(request, "model_failed")
        was_failed = self.failed.pop(model, None) is not None
        if failed:
            self.failed[model] = failed
        if failed or was_failed:
            self.tell()
        self._answer(model, failed)
        self.backend.fetched(model, failed=bool(failed))

    def _answer(self, model: str, failed: str) -> None:
        wishes, at_s = self._loading.pop(model, []), self.backend.now_s()
        if wishes and not failed:
            self.backend.put(WeightsHere(at_s=at_s, model=self.rows[model]))
        for wish, is_brief in wishes:
            if is_brief or (failed and model in self.pinned):
                self.backend.put(ReleaseWeights(at_s=at_s, model=self.rows[model]))
            if failed and not is_brief:
                self.pinned.discard(model)
            wish.answer(failed)

    def stop_vain_load(self, model: str) -> None:
        """Stop a load that nothing needs."""
        is_needed = model in self._loading or model in self.pinned
        if not is_needed and not self.ledger.of_model(model):
            self.backend.stop_loading(model)

    # Additions and removals.

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
        self.send(answer)

    async def _add(self, wish: say.Add) -> str:
        assert self.store is not None
        settings = self.settings
        entry = await asyncio.to_thread(self._checked, wish)
        pool = pool_with(self.pool, entry, settings.options)
        row = min(self._free, default=len(self._all))
        rows = [*self._all[:row], entry, *self._all[row + 1 :]]
        there = [e for number, e in enumerate(rows) if number not in self._free - {row}]
        check_memory(there, settings.options, pool)
        slo_s = (settings.ttft_slo_s, settings.tpot_slo_s)
        prepared = await asyncio.to_thread(
            fleet_of, rows, settings.options, settings.system, settings.constants,
            slo_s=slo_s, pool=pool,
        )  # fmt: skip
        await self.adopt(prepared)
        self.closed.add(entry.name)
        self.rows[entry.name] = row
        self._all, self.pool = rows, pool
        self._free.discard(row)
        (item,) = items_of([entry], settings, self.weights)
        self.store.add(item)
        refused = await self._managed(entry.name, "pin")
        is_whole = entry.name not in self.failed
        failed = refused or await self.supervisor.admit(item)
        if failed:
            await self._drop(entry.name)
            raise _NoRoom(failed) if refused and is_whole else DataError(wish.path, failed)
        await self._managed(entry.name, "unpin")
        self.closed.discard(entry.name)
        self.entries.append(entry)
        self.tell()
        return entry.name

    def _checked(self, wish: say.Add) -> Entry:
        settings = self.settings
        assert settings.add_from is not None
        folder = settings.add_from.resolve()
        path = folder / wish.path
        allowed = "a checkpoint's folder (config.json) or GGUF file in the folder add_from"
        if not Path(os.path.realpath(path)).is_relative_to(folder):  # a loop of links, too
            raise SettingError("path", wish.path, allowed)
        try:
            entries = find_models(path)
        except SettingError as error:
            raise SettingError("path", wish.path, allowed) from error
        if len(entries) != 1:
            raise SettingError("path", wish.path, f"one checkpoint; it has {len(entries)}")
        entry = replace(entries[0], name=wish.model or entries[0].name)
        if entry.name in {e.name for e in self.entries}:
            raise SettingError("model", entry.name, "a name that no other model has")
        if why := entry.failed or too_large(entry, settings.options):
            raise SettingError("path", wish.path, f"a checkpoint that can be served ({why})")
        check_system(settings.system)
        return entry

    async def _managed(self, model: str, action: What) -> str:
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._manage(model, action, is_closed=False, answer=done.set_result)
        return await done

    async def _remove(self, model: str) -> None:
        entry = next((e for e in self.entries if e.name == model), None)
        if entry is None:
            raise SettingError("model", model, "a model that is served")
        self.entries.remove(entry)
        if model in self.rows:
            self.closed.add(model)
            self.tell()
            while self.ledger.of_model(model):
                await asyncio.sleep(_LOOK_S)
            await self._drop(model)
        self.failed.pop(model, None)
        self.tell()

    async def _drop(self, model: str) -> None:
        wishes: tuple[What, ...] = ("unpin", "unload")
        for wish in wishes:
            while await self._managed(model, wish):  # waits for a load or a last step to end
                await asyncio.sleep(_LOOK_S)
        self.failed.pop(model, None)
        self.supervisor.dismiss(model)
        row = self.rows.pop(model)
        self._all[row] = replace(self._all[row], name=f"removed {row}")
        self._free.add(row)
        self.closed.discard(model)

    def close(self) -> None:
        """Cancel additions and removals without undoing them."""
        for task in tuple(self._tasks):
            task.cancel()
