"""Engine: the loop's pure step between workers and the front."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from c2c.engine import messages as say
from c2c.engine.answers import FAILED, Answers
from c2c.engine.backend import LiveBackend
from c2c.engine.between import Between
from c2c.engine.block_keys import block_keys
from c2c.engine.catalog import Entry as CatalogEntry
from c2c.engine.fleet import (
    Options,
    check_memory,
    check_system,
    fleet_of,
    pool_of,
    too_large,
    with_pool,
)
from c2c.engine.folder import OwnFolder
from c2c.engine.frames import Connection
from c2c.engine.items import infos_of, items_of, setup_of
from c2c.engine.ledger import Entry, Ledger
from c2c.engine.loop_step import Stepping
from c2c.engine.models import Models
from c2c.engine.now import requests_now, weights_now, work_done, workers_now
from c2c.engine.others import note_others
from c2c.engine.places import Place, note_instances
from c2c.engine.record import Tape
from c2c.engine.settings import EngineSettings
from c2c.engine.store import Store
from c2c.engine.supervisor import Supervisor
from c2c.engine.variants import check_layout
from c2c.errors import DataError
from c2c.serving import (
    FAIL_NONE,
    Prepared,
)
from c2c.serving.loop import is_compiled
from c2c.serving.prepare.prefixes import with_blocks
from c2c.serving.tables.port import Arrival, Cancelled, Event
from c2c.transformer.layers.pages import PAGE_TOKENS

__all__ = ["Engine"]

_log = logging.getLogger("c2c.engine")
_FRONT = 1 << 40  # numbers of a front's messages
_LOOKS = 100_000  # CPU readings that are kept: eleven days
_ENDS = 64  # last ended requests, for the estimate of the next end


class Engine:
    """Scheduler process, owner of the serving loop's state."""

    def __init__(self, entries: Sequence[CatalogEntry], settings: EngineSettings) -> None:
        """Create an engine, not started."""
        self._entries = list(entries)
        self._settings = settings
        self._folder = OwnFolder()
        self.socket = self._folder.path / "socket"
        width, gpus = settings.options.devices, settings.gpus
        self.places = [
            Place(device=k, gpus=gpus[k * width : (k + 1) * width])
            for k in range(settings.options.workers)
        ]
        self._supervisor = Supervisor(
            self.socket,
            self.places,
            hang_s=settings.hang_s,
            start_s=settings.start_s,
            patience=settings.patience,
            devices=width,
            has_spare=settings.has_spare,
            worker=settings.worker,
        )
        self._between = Between(looks=settings.busy_poll)
        self._answers = Answers(self._between, self._say)
        self.ledger = Ledger(
            self._answers.token, self._ended, self._answers.prompt, self._answers.found
        )
        self._tape = Tape(is_kept=settings.is_recorded)
        self._ends_s: deque[float] = deque(maxlen=_ENDS)
        self.prepared: Prepared | None = None
        self._backend: LiveBackend | None = None
        self._server: asyncio.Server | None = None
        self._front: Connection | None = None
        self._fronts = 0  # so far
        self._connections: set[asyncio.Task[None]] = set()
        self.failure: Exception | None = None  # error that ended the loop
        self._looking: asyncio.Task[None] | None = None
        self.stepping: Stepping | None = None
        self._compiling: asyncio.Task[None] | None = None
        self.others: deque[float] = deque(maxlen=_LOOKS)  # recent CPU shares of other processes
        self._failed: dict[str, str] = {
            e.name: why for e in entries if (why := e.failed or too_large(e, settings.options))
        }
        self._store: Store | None = None
        self._models: Models | None = None
        self.is_draining = False
        self._begun_s = time.time()
        self._beginning = "starting"  # progress of the start; "": complete

    async def listen(self) -> None:
        """Open the socket, before the start."""
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self._connect), str(self.socket)
        )

    async def start(
        self,
        note: Callable[[str], None] = lambda _: None,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """Start the workers and the loop.

        Args:
          note: gets lines about the start.
          progress: gets ready and all shapes.

        Raises:
          DataError: no model to serve, or a worker did not start.
          SettingError: contradictory settings, or too little memory.
        """
        if self._server is None:
            await self.listen()
        good = [e for e in self._entries if e.name not in self._failed]
        if not good:
            raise self._nothing()
        check_system(self._settings.system)
        check_layout(self._settings.system.layout, self._settings.options.workers)
        items = items_of(good, self._settings, self._folder.path / "weights")
        options, line = with_pool(good, self._settings.options, self._settings.gpus)
        if line:
            note(line)
        self._settings = replace(self._settings, options=options)
        pool = pool_of(good, options)
        check_memory(good, options, pool)
        setup = setup_of(items, self._settings, pool, self._folder.path)

        def done(place: Place, hello: say.Hello) -> None:
            self._failed |= hello.failed
            note(
                f"worker {place.device} is ready after {hello.ready_s:.1f} s: "
                f"{hello.loaded} executables loaded, {hello.compiled} compiled"
            )

        def opening(place: Place, frame: say.Opening) -> None:
            if place.device == 0:  # the others load what it has compiled
                progress(frame.ready, frame.of)
                phase = "compiling" if frame.compiled else "loading"
                self._begin(f"{phase} {frame.ready} of {frame.of} (now {frame.model})")

        await self._supervisor.start(setup, done, opening)
        served = [e for e in good if e.name not in self._failed]
        if not served:
            raise self._nothing()
        self.prepared = fleet_of(
            served,
            options,
            self._settings.system,
            self._settings.constants,
            slo_s=(self._settings.ttft_slo_s, self._settings.tpot_slo_s),
        )
        rows = {e.name: number for number, e in enumerate(served)}
        await self._begin_store(setup, rows.keys())
        self._backend = LiveBackend(
            self.prepared,
            self.places,
            self.ledger,
            retries=self._settings.retries,
            on_step=self._tape.step,
            between=self._between,
            store=self._store,
        )
        self._models = Models(
            settings=self._settings, weights=self._folder.path / "weights", pool=pool,
            entries=self._entries, rows=rows, failed=self._failed, store=self._store,
            backend=self._backend, supervisor=self._supervisor, ledger=self.ledger,
            adopt=self._adopt, abort=self.abort, send=self._say,
            tell=lambda: self._say(self._hello()),
        )  # fmt: skip
        rules = self.prepared.new_rules()
        state = self.prepared.new_serving(buffer=1, rules=rules)
        if self.prepared.fleet.caches_prefixes:
            state = with_blocks(self.prepared, state, PAGE_TOKENS, setup.width, tells=True)
        note_instances(self.places, state.instance, list(rows))
        for place in self.places:
            self._backend.started(place)
        self._supervisor.watch(self._backend)
        await self._begin_serving(Stepping(self.prepared.fleet, rules, state))
        self._looking = asyncio.create_task(note_others(self.others))
        self._begin("")

    def _begin(self, stage: str) -> None:
        self._beginning = stage
        self._say(self._hello())

    def _hello(self) -> say.Starting | say.Models:
        if self._beginning:
            return say.Starting(what=self._beginning)
        adds = self._models is not None and self._models.takes_more
        most = self._settings.max_open
        first = (self._fronts - 1) * _FRONT + 1
        return say.Models(models=self.models(), max_open=most, adds=adds, first=first)

    async def _begin_store(self, setup: say.Setup, names: Collection[str]) -> None:
        if self._settings.options.linear == "reference":
            return
        here = {i.name for i in setup.models if i.is_kept and i.name in names}
        self._store = Store(
            {item.name: item for item in setup.models},
            here,
            dtype=setup.dtype,
            linear=setup.linear,
            owns_files=setup.owns_files,
            report=self._fetched,
        )
        if here != set(names):
            await self._store.stand_by()

    async def _adopt(self, prepared: Prepared) -> None:
        assert self._backend is not None
        assert self.stepping is not None
        await self.stepping.adopt(prepared.fleet, prepared.new_rules())
        self.prepared = prepared
        self._backend.adopt(prepared)

    def _fetched(self, model: str, failed: str) -> None:
        self._served_models.fetched(model, failed)

    @property
    def _served_models(self) -> Models:
        assert self._models is not None  # after the start
        return self._models

    def _nothing(self) -> DataError:
        why = "; ".join(f"{name}: {reason}" for name, reason in self._failed.items())
        return DataError("catalog", f"no model can be served ({why})")

    @property
    def options(self) -> Options:
        """Settings of the workers; started, with the pool size."""
        return self._settings.options

    async def _begin_serving(self, stepping: Stepping) -> None:
        backend = self._backend
        assert backend is not None

        def take(event: Event) -> None:
            if self.failure is not None:
                return
            self._tape.event(event, backend.names)
            try:
                now_s, actions, ended = stepping.take(event)
                for row in ended:
                    self._between.later(self._tape.record, row)
                    if row.failure != FAIL_NONE:
                        self.ledger.end(int(row.id), FAILED[int(row.failure)])
                backend.submit(now_s, actions)
            except Exception as error:  # noqa: BLE001 (kept in `failure`)
                _log.exception("the serving loop failed at %s", event)
                self.failure = error
                return
            self._served_models.taken(event, stepping.fleet, stepping.state)

        self.stepping = stepping
        if self._settings.compiled and is_compiled():
            await stepping.compile()
        elif self._settings.compiled:
            self._compiling = asyncio.create_task(stepping.compile())
        backend.serve(take)

    def _connect(self, link: Connection) -> None:
        task = asyncio.create_task(self._connected(link))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connected(self, link: Connection) -> None:
        hello = await link.next()
        if isinstance(hello, say.WorkerHello):
            await self._supervisor.serve(hello, link)
        elif isinstance(hello, say.FrontHello):
            await self._serve_front(link)
        link.close()

    async def _serve_front(self, link: Connection) -> None:
        self._front, self._fronts = link, self._fronts + 1
        link.send(self._hello())
        await link.each(self._heard)
        self._front = None
        for request in self.ledger:  # no client is left
            self.abort(request, "cancelled")

    def _heard(self, frame: say.AnyFrame) -> None:
        if isinstance(frame, say.Ask):
            self.ask(frame)
        elif isinstance(frame, say.Abort):
            self.abort(frame.request, "stop" if frame.is_done else "cancelled")
        elif isinstance(frame, say.Manage | say.Add | say.Remove):
            self._served_models.begin(frame)
        elif isinstance(frame, say.Drain):
            self.is_draining = frame.is_on
        elif isinstance(frame, say.Watch):
            self._say(say.Live(number=frame.number, state=msgspec.json.encode(self.live())))

    def _say(self, *frames: say.Frame) -> None:
        if self._front is not None:
            self._front.send(*frames)

    def models(self) -> tuple[say.ModelInfo, ...]:
        """Return served models, and failed ones with reasons."""
        assert self.prepared is not None
        rows = self._served_models.rows
        return infos_of(self._entries, rows, self._failed, self.prepared)

    def ask(self, ask: say.Ask) -> None:
        """Accept or refuse a request."""
        assert self._backend is not None
        assert self.prepared is not None
        is_full = len(self.ledger) >= self._settings.max_open
        if self.is_draining or is_full or ask.model in self._failed:
            why = "draining" if self.is_draining else "overloaded" if is_full else "model_failed"
            self._answers.end(ask.request, why, self._next_end_s())
            return
        models = self._served_models
        if not models.is_open(ask.model):
            self._answers.end(ask.request, "model_gone")
            return
        now_s, model = self._backend.now_s(), models.rows[ask.model]
        is_keyed = self.prepared.fleet.caches_prefixes and ask.prompt_scores is None
        blocks = block_keys(ask.model, ask.ids) if is_keyed else ()
        self.ledger.open(ask, model, now_s, blocks)
        self._backend.put(
            Arrival(
                at_s=now_s,
                request_id=ask.request,
                model=model,
                prompt_tokens=len(ask.ids),
                max_output_tokens=ask.new,
                priority=ask.priority,
                deadline_s=float("inf") if ask.deadline_s is None else ask.deadline_s,
                blocks=blocks,
                calls_tool=ask.calls_tool,
            )
        )

    def _next_end_s(self) -> float:
        if len(self._ends_s) < 2:
            return 1.0
        return (time.monotonic() - self._ends_s[0]) / len(self._ends_s)

    def abort(self, request: int, why: str) -> None:
        """End a request; its KV blocks are freed within a step."""
        assert self._backend is not None
        if self.ledger.end(request, why):
            self._backend.put(Cancelled(at_s=self._backend.now_s(), request_id=request))

    def _ended(self, request: int, entry: Entry, why: str) -> None:
        self._ends_s.append(time.monotonic())
        self._answers.end(request, why)
        if self._store is not None and entry.ask.model in self._store.coming:
            # The loop must handle the end first.
            stop = self._served_models.stop_vain_load
            asyncio.get_running_loop().call_soon(stop, entry.ask.model)

    @property
    def tape(self) -> Tape:
        """Records of the run up to now."""
        self._between.catch_up()
        return self._tape

    def live(self) -> dict[str, Any]:
        """Return the current state as plain data."""
        return {
            "uptime_s": time.time() - self._begun_s,
            "is_draining": self.is_draining,
            "is_compiled": self.stepping is not None and self.stepping.is_compiled,
            **requests_now(self.ledger),
            **work_done(self.tape, self.places),
            "weights": weights_now(self._settings.options.weights_bytes, self._models),
            "others_cpu": self.others[-1] if self.others else None,
            "workers": workers_now(self.places, self.stepping),
        }

    @property
    def served(self) -> tuple[CatalogEntry, ...]:
        """Served models, in the order of the catalog."""
        return tuple(e for e in self._entries if e.name in self._served_models.rows)

    async def drain(self, limit_s: float) -> None:
        """Refuse new requests; end those still open after `limit_s`."""
        self.is_draining = True
        end_s = time.monotonic() + limit_s
        while len(self.ledger) and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        for request in self.ledger:
            self.abort(request, "draining")

    async def close(self) -> None:
        """End all processes and remove temporary files."""
        self._between.catch_up()  # send ends of requests before the front disconnects
        if self._front is not None:
            self._front.close()
        if self._looking is not None:
            self._looking.cancel()
        if self._models is not None:
            self._models.close()
        if self.stepping is not None:
            await self.stepping.close()
        await self._supervisor.close()
        if self._store is not None:
            await self._store.close()
        if self._server is not None:
            self._server.close()
        if self._connections:  # connections end with the processes
            await asyncio.wait(self._connections, timeout=5.0)
        self._folder.remove()
