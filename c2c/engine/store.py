"""Host weights on demand, and their loading process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from c2c.engine.messages import Item
from c2c.engine.process import started
from pallas_kernels.host_memory import remove_partial

__all__ = ["Fetch", "Fetched", "Store"]

_log = logging.getLogger("c2c.engine")
_TRIES = 3  # reader processes that may die while reading a model, before it has failed


class Fetch(msgspec.Struct, kw_only=True):
    """Order to the reader to fill a file."""

    item: Item
    dtype: str
    linear: str


class Fetched(msgspec.Struct, kw_only=True):
    """Reply of the reader: success or a reason."""

    failed: str = ""


# One process reads checkpoints into the weight files that workers map, one model at a time, in the
# order of the demands. Killing the process cancels a load.
class Store:
    """Host weights of an engine; `here`: models in memory."""

    def __init__(
        self,
        items: Mapping[str, Item],
        here: Collection[str],
        *,
        dtype: str,
        linear: str,
        owns_files: bool,
        report: Callable[[str, str], None],
    ) -> None:
        """Create a store; nothing is started."""
        self._items = dict(items)
        self.here = set(here)
        self._dtype, self._linear, self._owns_files = dtype, linear, owns_files
        self._told = report
        self._queue: list[str] = []
        self._reader: asyncio.subprocess.Process | None = None
        self._work: asyncio.Task[None] | None = None

    @property
    def coming(self) -> tuple[str, ...]:
        """Models that are being loaded or wait for it."""
        return tuple(self._queue)

    def add(self, item: Item) -> None:
        """Add a model, not in memory."""
        self._items[item.name] = item

    def fetch(self, model: str) -> None:
        """Queue a load unless needless."""
        if model in self.here or model in self._queue:
            return
        self._queue.append(model)
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._fetch_all())

    def stop(self, model: str) -> None:
        """Cancel a model's load; `told` is not called."""
        if model not in self._queue:
            return
        is_under_way = self._queue[0] == model
        self._queue.remove(model)
        if is_under_way:
            self._kill()

    def drop(self, model: str) -> None:
        """Drop weights that no process may need."""
        self.stop(model)
        self.here.discard(model)
        self._remove(model)

    def _remove(self, model: str) -> None:
        """Remove a model's file, even a partial one, unless another model uses it."""
        path = self._items[model].pool
        others = (self.here | set(self._queue)) - {model}
        if any(self._items[other].pool == path for other in others):
            return
        if path is not None and self._owns_files:
            Path(path + ".partial").unlink(missing_ok=True)
            Path(path).unlink(missing_ok=True)
        elif path is not None:  # a complete file is kept for the next engine
            remove_partial(Path(path))

    def _kill(self) -> None:
        if self._reader is not None and self._reader.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._reader.kill()

    async def stand_by(self) -> asyncio.subprocess.Process:
        """Start the reader if none; imports take seconds."""
        if self._reader is None or self._reader.returncode is not None:
            self._reader = await started("the weight reader", self._new_reader)
        return self._reader

    async def _new_reader(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "c2c.engine.reader",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches only the scheduler
        )  # fmt: skip

    async def _fetch_all(self) -> None:
        tries = 0
        try:
            while self._queue:
                model = self._queue[0]
                fetched = await self._fetch(model)
                if model not in self._queue[:1]:
                    tries = 0  # it was stopped
                    self._remove(model)
                    continue
                tries += 1
                if fetched is None and tries < _TRIES:
                    _log.warning("the weight reader ended while loading %s: retrying", model)
                    continue
                tries = 0
                self._queue.pop(0)
                failed = f"{_TRIES} processes ended while reading it"
                if fetched is not None:
                    failed = fetched.failed
                if failed:
                    self._remove(model)
                else:
                    self.here.add(model)
                self._told(model, failed)
        finally:
            self._work = None

    async def _fetch(self, model: str) -> Fetched | None:
        reader = await self.stand_by()
        assert reader.stdin is not None
        assert reader.stdout is not None
        if model not in self._queue[:1]:
            return None  # cancelled while the process started
        request = Fetch(item=self._items[model], dtype=self._dtype, linear=self._linear)
        with contextlib.suppress(ConnectionError):
            reader.stdin.write(msgspec.json.encode(request) + b"\n")
            await reader.stdin.drain()
            line = await reader.stdout.readline()
            if line and model in self._queue[:1]:
                return msgspec.json.decode(line, type=Fetched)
        self._kill()
        await reader.wait()  # it writes nothing more
        return None

    async def close(self) -> None:
        """Cancel all loads and end the reader process."""
        coming, self._queue = self._queue, []
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        self._kill()
        if self._reader is not None:
            await self._reader.wait()
        for model in coming:
            self._remove(model)
