"""Scheduler of a simulated endpoint."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import numpy as np

from c2c.config import RunSetup
from c2c.engine import messages as say
from c2c.engine.answers import FAILED
from c2c.engine.block_keys import block_keys
from c2c.engine.fleet import context_of
from c2c.engine.folder import OwnFolder
from c2c.engine.frames import Connection
from c2c.engine.ledger import Entry, Ledger
from c2c.engine.now import requests_now
from c2c.engine.record import Totals
from c2c.serving import FAIL_NONE
from c2c.serving.tables.state import IN_SERVICE
from c2c.simulator import Simulation, build_machine
from c2c.simulator.progress import progress
from c2c.transformer.layers.pages import PAGE_TOKENS
from c2c.workloads import OF_MODEL, RequestBlock, concatenate

__all__ = ["Answers", "Endpoint"]

_AT_ONCE_S = 0.05  # between two polls of the socket, if the simulation is behind
_PHASES = 65_536  # in that time
_NOBODY = concatenate([])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Lengths and tokens of answers.

    Attributes:
      tokens: median; None: as long as allowed.
      spread: standard deviation of the logarithm.
    """

    tokens: int | None
    spread: float
    words: tuple[int, ...]
    seed: int

    def draw(self, request: int, most: int) -> random.Random:
        """Return a request's random stream."""
        return random.Random(f"{self.seed}/{request}/{most}")  # noqa: S311 (no secret)

    def length(self, stream: random.Random, most: int, least: int) -> int:
        """Count a request's tokens, from `least` to `most`."""
        if self.tokens is None:
            return most
        drawn = self.tokens * math.exp(self.spread * stream.gauss(0.0, 1.0))
        return max(1, least, min(most, round(drawn)))


class Endpoint:
    """Serves the front over a Unix socket from a simulated fleet."""

    def __init__(self, setup: RunSetup, answers: Answers, *, speed: float, most: int) -> None:
        prepared = setup.prepared
        self._prepared, self._answers, self._speed, self._most = prepared, answers, speed, most
        self.names = [d.name for d in prepared.setup.deployments]
        self._models = {name: number for number, name in enumerate(self.names)}
        self._totals = {name: Totals() for name in self.names}
        self._simulation = Simulation.start(
            prepared,
            build_machine(prepared)._replace(cuts_runs=True, most_steps=1),  # token by token
            timeline_rows=_PHASES,
        )
        self._folder = OwnFolder()  # last, so that an error above leaves no folder
        self.socket = self._folder.path / "socket"
        self.ledger = Ledger(self._tell, self._ended, on_reuse=self._found)
        self._streams: dict[int, random.Random] = {}
        self._last_model: dict[int, int] = {}  # of a device, in its last step
        self._front: Connection | None = None
        self._server: asyncio.Server | None = None
        self._woken = asyncio.Event()
        self._begun_s = time.monotonic()
        self._at_s = 0.0  # simulated so far
        self._is_draining = False

    async def listen(self) -> None:
        """Compile the event loop if needed, and open the socket."""
        self._advance(0.0, _NOBODY)
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self._connect), str(self.socket)
        )
        self._begun_s = time.monotonic()

    def now_s(self) -> float:
        """Return the simulated time in seconds."""
        return (time.monotonic() - self._begun_s) * self._speed

    async def serve(self, over: Callable[[], bool]) -> None:
        """Serve until `over()`, checked five times a second."""
        while not over():
            self._woken.clear()
            wait_s = self._catch_up()
            try:
                await asyncio.wait_for(self._woken.wait(), min(wait_s, 0.2))
            except TimeoutError:
                continue

    def _catch_up(self) -> float:
        """Simulate up to now; return clock seconds until the next event."""
        end_s = time.monotonic() + _AT_ONCE_S
        while (next_s := self._simulation.next_s) <= self.now_s():
            self._advance(min(self.now_s(), next_s + _AT_ONCE_S * self._speed), _NOBODY)
            if time.monotonic() > end_s:
                return 0.0
        return max(0.0, (next_s - self.now_s()) / self._speed)

    def _advance(self, until_s: float, block: RequestBlock) -> None:
        self._at_s = max(self._at_s, until_s)
        self._simulation.feed(block, self._end, until_s=self._at_s)
        self._deliver()

    def _end(self, records: Any) -> None:
        for row in records:
            number = int(row.id)
            if (entry := self.ledger.get(number)) is not None:
                self._give(number, entry, int(row.output_tokens))
                why = FAILED[int(row.failure)] if row.failure != FAIL_NONE else ""
                self.ledger.end(number, why or ("stop" if entry.left else "length"))
            del self._streams[number]

    def _deliver(self) -> None:
        for row in progress(self._simulation.state):
            number = int(row["id"])
            if (entry := self.ledger.get(number)) is None:  # cancelled, to end with its step
                continue
            if entry.begun_s is None:
                self.ledger.begin(number, float(row["begun_s"]))
                if row["reused"]:
                    self.ledger.find(number, int(row["reused"]))
            self._give(number, entry, int(row["tokens"]))
        self._count()

    def _give(self, number: int, entry: Entry, tokens: int) -> None:
        for _ in range(tokens - len(entry.delivered)):
            self.ledger.deliver(number, self._streams[number].choice(self._answers.words))

    def _count(self) -> None:
        for row in self._simulation.take_timeline():
            device, model = int(row.instance), int(row.model)
            total = self._totals[self.names[model]]
            if row.is_load:
                total.loads += 1
                total.load_s += float(row.end_s - row.start_s)
                continue
            total.steps += int(row.steps)
            total.device_s += float(row.end_s - row.start_s)
            total.prompt_tokens += int(row.prefill_tokens)
            total.decode_tokens += int(row.decode_seqs * row.steps)
            total.turns += self._last_model.get(device, model) != model
            self._last_model[device] = model

    def _connect(self, link: Connection) -> None:
        self._serving = asyncio.create_task(self._connected(link))

    async def _connected(self, link: Connection) -> None:
        if isinstance(await link.next(), say.FrontHello):
            self._front = link
            vocab = max(self._answers.words) + 1
            models = tuple(
                say.ModelInfo(
                    name=name, path="", context=context_of(self._prepared, number), vocab=vocab
                )
                for name, number in self._models.items()
            )
            link.send(say.Models(models=models, max_open=self._most))
            await link.each(self._heard)
            self._front = None
            for request in self.ledger:
                self.abort(request, "cancelled")
        link.close()

    def _say(self, *frames: say.Frame) -> None:
        if self._front is not None:
            self._front.send(*frames)

    def _heard(self, frame: say.AnyFrame) -> None:
        if isinstance(frame, say.Ask):
            self.ask(frame)
        elif isinstance(frame, say.Abort):
            self.abort(frame.request, "stop" if frame.is_done else "cancelled")
        elif isinstance(frame, say.Drain):
            self._is_draining = frame.is_on
        elif isinstance(frame, say.Manage):
            refused = "the policies of a simulated fleet manage its memory"
            self._say(say.Managed(number=frame.number, refused=refused))
        elif isinstance(frame, say.Watch):
            self._say(say.Live(number=frame.number, state=msgspec.json.encode(self.live())))
        self._woken.set()

    def ask(self, ask: say.Ask) -> None:
        """Accept or refuse a request; its tokens go to the front."""
        is_full = len(self.ledger) >= self._most
        is_real = ask.scores is not None or ask.prompt_scores is not None or ask.grammar
        if self._is_draining or is_full or is_real:
            why = "draining" if self._is_draining else "overloaded" if is_full else "not_simulated"
            self._say(say.Ended(request=ask.request, why=why))
            return
        now_s, model = max(self.now_s(), self._at_s), self._models[ask.model]
        stream = self._answers.draw(ask.request, ask.new)
        blocks = block_keys(ask.model, ask.ids) if self._prepared.fleet.caches_prefixes else ()
        self._streams[ask.request] = stream
        self.ledger.open(ask, model, now_s, blocks)
        deadline_s = math.inf if ask.deadline_s is None else ask.deadline_s * self._speed
        length = self._answers.length(stream, ask.new, ask.least)
        block = RequestBlock(
            arrival_s=np.array([now_s]),
            model=np.array([model], np.int32),
            prompt_tokens=np.array([len(ask.ids)], np.int32),
            output_tokens=np.array([length], np.int32),
            ids=np.array([ask.request]),
            max_output_tokens=np.array([ask.new]),
            priority=np.array([OF_MODEL if ask.priority is None else ask.priority]),
            deadline_s=np.array([deadline_s]),
        )
        if blocks:
            first = np.array([0, len(blocks)])
            keys = np.array(blocks, np.int64).view(np.uint64)
            block = replace(block, block_tokens=PAGE_TOKENS, block_first=first, block_keys=keys)
        self._advance(now_s, block)

    def abort(self, request: int, why: str) -> None:
        """End a request; its memory is freed within a step."""
        if self.ledger.end(request, why):
            self._at_s = max(self.now_s(), self._at_s)
            self._simulation.cancel(request, self._at_s, self._end)
            self._deliver()

    def _tell(self, request: int, token: int, _: Any) -> None:
        self._say(say.Tokens(request=request, tokens=(token,)))

    def _found(self, request: int, tokens: int) -> None:
        self._say(say.Tokens(request=request, tokens=(), found=tokens))

    def _ended(self, request: int, _: Entry, why: str) -> None:
        self._say(say.Ended(request=request, why=why))

    def live(self) -> Mapping[str, Any]:
        """Return the present state in the form of `/live`."""
        workers = [self._device_now(d) for d in range(len(self._simulation.state.device))]
        return {
            "uptime_s": time.monotonic() - self._begun_s,
            "is_draining": self._is_draining,
            "is_compiled": True,
            "simulated_s": self.now_s(),
            "behind_s": self._behind_s(),
            **requests_now(self.ledger),
            "steps": sum(total.steps for total in self._totals.values()),
            "models": {name: asdict(total) for name, total in self._totals.items()},
            "compiled_after_start": 0,
            "outside_s": None,
            "weights": {"budget_bytes": None, "here": self.names, "coming": [], "pinned": []},
            "others_cpu": None,
            "workers": workers,
        }

    def _device_now(self, d: int) -> dict[str, Any]:
        state, world = self._simulation.state, self._simulation.world
        device, is_busy = state.device[d], bool(world.busy[d])
        model = int(state.instance[state.plan[d].instance].model) if is_busy else -1
        first = int(device.first)
        instances = state.instance[first : first + int(self._prepared.fleet.residents)]
        residents = sorted(self.names[m] for m in instances["model"].tolist() if m >= 0)
        is_lost = device.service != IN_SERVICE
        return {
            "device": d,
            "pid": None,
            "state": "lost" if is_lost else _state(is_busy, bool(world.phase[d].is_load)),
            "generation": 1,
            "restarts": 0,
            "residents": residents,
            "held": int((instances["n_decode"] + instances["n_prefill"]).sum()),
            "kv_bytes": float(device.kv_bytes),
            "kv_capacity_bytes": float(device.capacity_bytes - device.weight_bytes),
            "model": self.names[model] if is_busy else None,
            "layout": {"variant": 0, "is_changing": False},
        }

    def _behind_s(self) -> float:
        """Return due events' lateness in clock seconds."""
        return max(0.0, self.now_s() - self._simulation.next_s) / self._speed

    async def close(self) -> None:
        """Close the connections and remove the socket's folder."""
        if self._front is not None:
            self._front.close()
        if self._server is not None:
            self._server.close()
        self._folder.remove()


def _state(is_busy: bool, is_load: bool) -> str:
    if not is_busy:
        return "idle"
    return "loading" if is_load else "busy"
