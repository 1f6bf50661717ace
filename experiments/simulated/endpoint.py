"""Scheduler of a simulated endpoint, between the front and the simulated world."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

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
from c2c.engine.stepping import Stepping
from c2c.serving import FAIL_NONE
from c2c.serving.port import Cancelled, DeviceLost, Event, Load, Ready, RunSteps, StepEnd
from c2c.serving.prepare.prefixes import with_blocks
from c2c.serving.state import IN_SERVICE
from c2c.simulator import build_machine
from c2c.simulator.open_world import OpenWorld
from c2c.transformer.pages import PAGE_TOKENS

__all__ = ["Answers", "Endpoint"]

_AT_ONCE_S = 0.05  # of work between two polls of the socket, if the world is behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Lengths and tokens of answers.

    Attributes:
      tokens: median length; None: as long as a request allows.
      spread: standard deviation of the length's logarithm.
      words: tokens that answers are drawn from.
      seed: seed of lengths and tokens.
    """

    tokens: int | None
    spread: float
    words: tuple[int, ...]
    seed: int

    def draw(self, request: int, most: int) -> random.Random:
        """Return the random stream of a request."""
        return random.Random(f"{self.seed}/{request}/{most}")  # noqa: S311 (no secret)

    def length(self, stream: random.Random, most: int, least: int) -> int:
        """Return the number of tokens that a request gets, from `least` to `most`."""
        if self.tokens is None:
            return most
        drawn = self.tokens * math.exp(self.spread * stream.gauss(0.0, 1.0))
        return max(1, least, min(most, round(drawn)))


class Endpoint:
    """Serves the front over a Unix socket as `c2c.engine.Engine` does, from a simulated fleet.

    Simulated time runs `speed` times as fast as the clock. If the loop cannot keep up with its
    events, the world is behind: answers come late, and `/live` reports the delay.

    Args:
      setup: the run; layouts and policies were planned for its workload.
      answers: lengths and tokens of answers.
      speed: simulated seconds a second.
      most: requests at the same time; further ones get 429.
    """

    def __init__(self, setup: RunSetup, answers: Answers, *, speed: float, most: int) -> None:
        prepared = setup.prepared
        self._prepared, self._answers, self._speed, self._most = prepared, answers, speed, most
        self.names = [d.name for d in prepared.setup.deployments]
        self._models = {name: number for number, name in enumerate(self.names)}
        self._totals = {name: Totals() for name in self.names}
        rules = prepared.new_rules()
        state = prepared.new_serving(buffer=1, rules=rules)
        if prepared.fleet.caches_prefixes:
            state = with_blocks(prepared, state, PAGE_TOKENS, 1)
        self._stepping = Stepping(prepared.fleet, rules, state)
        self._world = OpenWorld(prepared, build_machine(prepared), most)
        self._folder = OwnFolder()  # last, so that an error above leaves no folder
        self.socket = self._folder.path / "socket"
        self.ledger = Ledger(self._tell, self._ended, found=self._found)
        self._asked: dict[int, int] = {}  # the front's number of a request, by the loop's
        self._slots: dict[int, int] = {}  # the loop's number, by the front's
        self._streams: dict[int, random.Random] = {}
        self._doing: dict[int, Load | RunSteps] = {}
        self._front: Connection | None = None
        self._server: asyncio.Server | None = None
        self._woken = asyncio.Event()
        self._begun_s = time.monotonic()
        self._behind_s = 0.0
        self._is_draining = False

    async def listen(self) -> None:
        """Open the socket, and start compiling the loop if its machine code is missing."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: Connection(self._connect), str(self.socket)
        )
        self._compiling = asyncio.create_task(self._stepping.compile())
        self._begun_s = time.monotonic()

    def now_s(self) -> float:
        """Return the simulated time in seconds."""
        return (time.monotonic() - self._begun_s) * self._speed

    async def serve(self, over: Callable[[], bool]) -> None:
        """Serve until `over()` is true, which is checked five times a second.

        Raises:
          Exception: a fault of a policy; open answers end with 503.
        """
        while not over():
            self._woken.clear()
            wait_s = self._catch_up()
            try:
                await asyncio.wait_for(self._woken.wait(), min(wait_s, 0.2))
            except TimeoutError:
                continue

    def _catch_up(self) -> float:
        """Process the events that are due; return the clock's seconds until the next one."""
        end_s = time.monotonic() + _AT_ONCE_S
        while (event := self._world.next_event(self.now_s())) is not None:
            self._behind_s = self.now_s() - event.at_s
            self._take(event)
            if time.monotonic() > end_s:
                return 0.0
        self._behind_s = 0.0
        return max(0.0, (self._world.next_s - self.now_s()) / self._speed)

    def _take(self, event: Event) -> None:
        """Let the loop process an event, carry out its actions and send its answers."""
        self._count(event)
        now_s, actions, ended = self._stepping.take(event)
        for action in actions:
            if isinstance(action, Load | RunSteps):
                self._doing[action.device] = action
            if isinstance(action, RunSteps):
                self._begin(action, now_s)
        if isinstance(event, StepEnd):
            self._deliver(event)
        for row in ended:
            number = self._asked.pop(int(row.id))
            self._world.close(int(row.id))
            del self._slots[number], self._streams[number]
            if row.failure != FAIL_NONE:
                self.ledger.end(number, FAILED[int(row.failure)])
        self._world.submit(now_s, actions)

    def _begin(self, run: RunSteps, now_s: float) -> None:
        """Record the requests whose first step begins."""
        for slot, first, _ in run.prefills:
            if (entry := self.ledger.get(self._asked[slot])) and entry.begun_s is None:
                self.ledger.begin(self._asked[slot], now_s)
                if first:
                    self.ledger.find(self._asked[slot], first)

    def _deliver(self, event: StepEnd) -> None:
        for slot, tokens in self._world.got.items():
            number = self._asked.get(slot)
            if number is None:  # it was cancelled
                continue
            for _ in range(tokens):
                self.ledger.deliver(number, self._streams[number].choice(self._answers.words))
            if slot in event.finished and (entry := self.ledger.get(number)):
                self.ledger.end(number, "stop" if entry.left else "length")

    def _count(self, event: Event) -> None:
        """Add an event of a device to the totals of its model."""
        if not isinstance(event, StepEnd | Ready | DeviceLost):
            return
        did = self._doing.pop(event.device, None)
        if did is None or isinstance(event, DeviceLost):
            return
        total = self._totals[self.names[did.model]]
        if isinstance(event, Ready):
            total.loads += 1
        elif isinstance(did, RunSteps):
            total.steps += int(event.report.steps)
            total.device_s += float(event.report.steps * event.report.latency_s)
            total.prompt_tokens += sum(tokens for _, _, tokens in did.prefills)
            total.decode_tokens += len(did.decodes) * int(event.report.steps)
            total.turns += int(did.plan.is_turn)

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
        """Accept or refuse a request; its tokens and its end go to the front."""
        is_full = len(self._asked) >= self._most
        is_real = ask.scores is not None or ask.prompt_scores is not None or ask.grammar
        if self._is_draining or is_full or is_real:
            why = "draining" if self._is_draining else "overloaded" if is_full else "not_simulated"
            self._say(say.Ended(request=ask.request, why=why))
            return
        self._catch_up()
        now_s, model = self.now_s(), self._models[ask.model]
        stream = self._answers.draw(ask.request, ask.new)
        keyed = self._prepared.fleet.caches_prefixes
        blocks = block_keys(ask.model, ask.ids) if keyed else ()
        event = self._world.open(
            at_s=now_s,
            model=model,
            prompt_tokens=len(ask.ids),
            output_tokens=self._answers.length(stream, ask.new, ask.least),
            priority=ask.priority,
            deadline_s=math.inf if ask.deadline_s is None else ask.deadline_s * self._speed,
            blocks=blocks,
        )
        self._asked[event.request_id], self._slots[ask.request] = ask.request, event.request_id
        self._streams[ask.request] = stream
        self.ledger.open(ask, model, now_s, blocks)
        self._take(event)

    def abort(self, request: int, why: str) -> None:
        """End a request; its memory is freed within a step."""
        if self.ledger.end(request, why):
            self._take(Cancelled(at_s=self.now_s(), request_id=self._slots[request]))

    def _tell(self, request: int, token: int, _: Any) -> None:
        self._say(say.Tokens(request=request, tokens=(token,)))

    def _found(self, request: int, tokens: int) -> None:
        self._say(say.Tokens(request=request, tokens=(), found=tokens))

    def _ended(self, request: int, _: Entry, why: str) -> None:
        self._say(say.Ended(request=request, why=why))

    def live(self) -> Mapping[str, Any]:
        """Return the present state, in the form of a live engine's `/live`."""
        state = self._stepping.state
        workers = [self._device_now(d) for d in range(len(state.device))]
        return {
            "uptime_s": time.monotonic() - self._begun_s,
            "is_draining": self._is_draining,
            "is_compiled": self._stepping.is_compiled,
            "simulated_s": self.now_s(),
            "behind_s": self._behind_s / self._speed,
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
        state, doing = self._stepping.state, self._doing.get(d)
        device = state.device[d]
        first = int(device.first)
        instances = state.instance[first : first + int(self._prepared.fleet.residents)]
        residents = sorted(self.names[m] for m in instances["model"].tolist() if m >= 0)
        is_lost = device.service != IN_SERVICE
        return {
            "device": d,
            "pid": None,
            "state": "lost" if is_lost else _state(doing),
            "generation": 1,
            "restarts": 0,
            "residents": residents,
            "held": int((instances["n_decode"] + instances["n_prefill"]).sum()),
            "kv_bytes": float(device.kv_bytes),
            "kv_capacity_bytes": float(device.capacity_bytes - device.weight_bytes),
            "model": None if doing is None else self.names[doing.model],
            "layout": {"variant": 0, "is_changing": False},
        }

    async def close(self) -> None:
        """Stop the loop, close the connections and remove the socket's folder."""
        self._compiling.cancel()
        await self._stepping.close()
        if self._front is not None:
            self._front.close()
        if self._server is not None:
            self._server.close()
        self._folder.remove()


def _state(doing: Load | RunSteps | None) -> str:
    if doing is None:
        return "idle"
    return "loading" if isinstance(doing, Load) else "busy"
