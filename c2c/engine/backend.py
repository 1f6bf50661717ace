"""Backend of the serving loop: worker processes behind its port."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from c2c.engine import messages as say
from c2c.engine.between import Between
from c2c.engine.ledger import Ledger
from c2c.engine.places import (
    Doing,
    Place,
    kind_of,
    load_of,
    load_row,
    note_relaid,
    relayout_of,
    requests_in,
    run_of,
)
from c2c.engine.record import StepRow
from c2c.engine.store import Store
from c2c.serving import Prepared
from c2c.serving.tables.costs import step_bytes
from c2c.serving.tables.port import (
    Absent,
    Action,
    BlocksLost,
    Cancelled,
    DeviceLost,
    Event,
    Forget,
    ForgetBlocks,
    Interrupt,
    Load,
    Ready,
    Relaid,
    Relayout,
    RunSteps,
    SetAside,
    SetTimer,
    StepEnd,
    Timer,
    Unload,
    new_report,
)

__all__ = ["LiveBackend"]

_log = logging.getLogger("c2c.engine")


class LiveBackend:
    """A `c2c.serving.tables.port.Backend` whose events come from worker processes."""

    def __init__(
        self,
        prepared: Prepared,
        places: Sequence[Place],
        ledger: Ledger,
        *,
        retries: int,
        on_step: Callable[[StepRow], None],
        between: Between,
        store: Store | None = None,
    ) -> None:
        """Create a backend over ready workers."""
        self._places, self._ledger = places, ledger
        self._retries, self._on_step, self._store = retries, on_step, store
        self._between = between
        self._outgoing: dict[int, list[say.Frame]] = {}  # by device, during `submit`
        self._is_submitting, self._is_taking = False, False
        self._has_variants = prepared.setup.system.layout is not None
        self.adopt(prepared)
        self._gbps = prepared.link_capacity_gbps / len(places)
        self._events: deque[Event] = deque()
        self._take: Callable[[Event], None] | None = None
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._start_s, self._plans = time.monotonic(), 0
        self._last: dict[int, tuple[str, float]] = {}  # device: model and end of its last step

    def adopt(self, prepared: Prepared) -> None:
        """Switch to a fleet of the same devices."""
        self._prepared, self._fleet = prepared, prepared.fleet
        self.names = [d.name for d in prepared.setup.deployments]

    def now_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start_s

    def serve(self, take: Callable[[Event], None]) -> None:
        """Pass each event to `take`; those during one wait."""
        self._take = take
        self._take_all()

    def put(self, event: Event) -> None:
        """Queue an event, taken once no other is handled."""
        self._events.append(event)
        if not self._is_taking:
            self._take_all()

    def _take_all(self) -> None:
        if self._take is None:
            return
        self._is_taking = True
        try:
            while self._events:
                self._take(self._events.popleft())
        finally:
            self._is_taking = False

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        """Execute actions in order, a write per worker."""
        self._is_submitting = True
        try:
            for action in actions:
                self._do(action, at_s)
        finally:
            self._is_submitting = False
            outgoing, self._outgoing = self._outgoing, {}
            for device, frames in outgoing.items():
                self._send(self._places[device], *frames)

    def _do(self, action: Action, at_s: float) -> None:
        if isinstance(action, RunSteps):
            self._begin(action, at_s)
        elif isinstance(action, SetTimer):
            self._set_timer(action)
        elif isinstance(action, Forget | SetAside):
            self._free(action.request_id)
        elif isinstance(action, ForgetBlocks):
            self._send(self._places[action.device], say.ForgetBlocks(keys=action.keys))
        elif isinstance(action, Interrupt):
            place = self._places[action.device]
            if place.doing is not None:
                place.doing.is_interrupted = True
                self._send(place, say.Interrupt(plan=place.doing.plan))
        elif isinstance(action, Unload):
            place = self._places[action.device]
            place.instances.pop(action.instance, None)
            if place.relayout is not None:  # nothing is left to change
                self._relaid(place, place.relayout)
            if action.instance in place.opened:
                place.opened.discard(action.instance)
                self._send(place, say.Unload(instance=action.instance))
        elif isinstance(action, Absent):
            for model in action.models:
                self._drop(self.names[model])
        elif isinstance(action, Relayout):
            place = self._places[action.device]
            place.relayout = action
            self._send(place, *(relayout_of(name, action) for name in place.opened))
        else:
            # Settings that cause other actions are refused at the start.
            assert isinstance(action, Load), action
            self._begin(action, at_s)

    def _drop(self, model: str) -> None:
        if self._store is not None and model in {*self._store.here, *self._store.coming}:
            self._store.drop(model)
            for place in self._places:
                self._send(place, say.Drop(model=model))

    def fetched(self, model: str, *, failed: bool) -> None:
        """Resume or drop the work that waits for weights."""
        for place in self._places:
            doing = place.doing if place.is_waiting else None
            if doing is None or self.names[doing.action.model] != model:
                continue
            place.is_waiting = False
            if not failed:
                self._resume(place)
            elif isinstance(doing.action, Load):
                place.doing = None
                self._put_ready(place, self.now_s())
            else:
                doing.done, doing.seconds = 1, 0.0
                self._end_run(place, self.now_s())

    def stop_loading(self, model: str) -> None:
        """Stop loading a model's weights."""
        if self._store is not None:
            self._store.stop(model)
            self.fetched(model, failed=True)

    def _put_ready(self, place: Place, at_s: float) -> None:
        self.put(Ready(at_s=at_s, device=place.device, available_gbps=self._gbps))

    def _set_timer(self, timer: SetTimer) -> None:
        if timer.number in self._timers:
            self._timers[timer.number].cancel()
        loop = asyncio.get_running_loop()

        def go_off() -> None:
            self.put(Timer(at_s=max(timer.at_s, self.now_s()), number=timer.number))

        in_s = max(0.0, timer.at_s - self.now_s())
        self._timers[timer.number] = loop.call_later(in_s, go_off)

    def _free(self, request: int) -> None:
        for place in self._places:
            if request in place.held:
                place.held.discard(request)
                self._send(place, say.Free(requests=(request,)))

    def _begin(self, action: Load | RunSteps, at_s: float) -> None:
        place = self._places[action.device]
        self._plans += 1
        place.doing = Doing(plan=self._plans, action=action, begun_s=at_s)
        if isinstance(action, Load):
            place.instances[action.instance] = self.names[action.model]
        elif self._has_variants and place.variant != int(action.plan.alpha):
            self._vary(place, action.instance, int(action.plan.alpha))
        self._resume(place)

    def _vary(self, place: Place, instance: int, variant: int) -> None:
        place.variant, place.moved = variant, ()
        if instance in place.opened:
            self._send(place, say.Relayout(instance=instance, variant=variant, moved=()))

    def _send(self, place: Place, *frames: say.Frame) -> None:
        if place.link is None:
            return
        if self._is_submitting:
            self._outgoing.setdefault(place.device, []).extend(frames)
        else:
            place.link.send(*frames)

    def _send_plan(self, place: Place, plan: say.Run | say.Load) -> None:
        if place.link is not None:
            place.link.send(*self._outgoing.pop(place.device, ()), plan)

    def started(self, place: Place) -> None:
        """Resume a slot's work on its restarted worker."""
        for instance, model in place.instances.items() if place.relayout else ():
            if self._store is None or model in self._store.here:
                self._open(place, instance, model)
        self._resume(place)

    def _open(self, place: Place, instance: int, model: str) -> None:
        place.opened.add(instance)
        self._send(place, load_of(place, -1, instance, model))
        if place.relayout is not None:
            self._send(place, relayout_of(instance, place.relayout))

    def _relaid(self, place: Place, relayout: Relayout) -> None:
        place.relayout, place.variant, place.moved = None, relayout.version, relayout.kv_homes
        self.put(Relaid(at_s=self.now_s(), device=place.device))

    def _resume(self, place: Place) -> None:
        doing = place.doing
        if doing is None:
            return
        model = self.names[doing.action.model]
        if self._store is not None and model not in self._store.here:
            place.is_waiting = doing.is_cold = True
            self._store.fetch(model)
            return
        place.is_waiting = False
        if place.link is None:
            return
        doing.sent_s = place.heard_s = time.monotonic()
        instance = doing.action.instance
        if isinstance(doing.action, Load):
            place.opened.add(instance)
            self._send_plan(place, load_of(place, doing.plan, instance, model))
            return
        run, freed = run_of(place, doing, self._ledger, self.now_s())
        if freed:
            self._send(place, say.Free(requests=tuple(freed)))
        if run is not None:
            if instance not in place.opened:  # a new process has no instances
                self._open(place, instance, model)
            tokens_of = {request: tokens for request, _, tokens in doing.action.prefills}
            doing.again = sum(f.tokens - tokens_of.get(f.request, 0) for f in run.fills)
            self._send_plan(place, run)
            self._between.expect(place.device, kind_of(doing))
            self._between.later(self._count_bytes, doing)  # while the worker computes
        else:
            doing.done = max(1, doing.done)
            self._end_run(place, self.now_s())

    def heard(self, place: Place, frame: object) -> None:
        """Handle a message from a slot's process."""
        place.heard_s = time.monotonic()
        if isinstance(frame, say.Relaid):
            note_relaid(place, frame)
            if place.relayout is not None and place.relayout.version == frame.variant:
                self._relaid(place, place.relayout)
            return
        doing = place.doing
        if doing is None or getattr(frame, "plan", None) != doing.plan:
            return
        place.has_worked = True
        self._between.heard(place.device)
        if isinstance(frame, say.Loaded):
            place.doing = None
            now_s = self.now_s()
            self._between.later(self._record_load, place, doing, frame, now_s)
            self._put_ready(place, now_s)
        elif isinstance(frame, say.Stepped):
            self._stepped(place, doing, frame)

    def _stepped(self, place: Place, doing: Doing, frame: say.Stepped) -> None:
        now_s = self.now_s()
        doing.seconds += frame.seconds
        place.compiled += frame.compiled
        place.relaid["tasks"] += frame.tasks
        over = {request: why for request, _, why in frame.tokens if why is not None}
        doing.finished |= over
        place.held.difference_update(over)
        if doing.alone is not None:
            doing.kept.append(frame)
            self._between.catch_up()  # rows are in the order of the steps
            self._record(place, doing, frame, now_s)
            doing.alone = doing.alone[1:]
            self._resume(place)  # ends the run if no request is left
            return
        doing.done += 1
        self._deliver(frame)
        # The worker waits for the loop; nothing waits for the record.
        self._between.later(self._record, place, doing, frame, now_s)
        if frame.is_last:
            self._end_run(place, now_s)
        else:
            self._between.expect(place.device, kind_of(doing))

    def _deliver(self, frame: say.Stepped) -> None:
        scores = {score.request: score for score in frame.scores} if frame.scores else {}
        for request, tokens in frame.found:
            self._ledger.find(request, tokens)
        for prompt in frame.prompts:
            self._ledger.score(prompt.request, prompt.first, prompt.scores)
        for request, token, why in frame.tokens:
            if why != "not_finite":
                self._ledger.deliver(request, token, scores.get(request))

    def _end_run(self, place: Place, at_s: float) -> None:
        """Report a run's end to the loop, then end its finished requests.

        Deadlines come first. Tokens of requests computed alone are delivered only here.
        """
        doing = place.doing
        assert doing is not None
        place.doing = None
        for frame in doing.kept:
            self._deliver(frame)
        steps = doing.done
        link, hbm, growth = doing.moved or self._count_bytes(doing)
        link, hbm = steps * link, steps * hbm + growth * steps * (steps - 1) / 2
        seconds = max(doing.seconds, 1e-9)
        kind = self._prepared.slice_kinds[self._prepared.kind_of[place.device]]
        report = new_report(
            steps=steps,
            latency_s=seconds / steps,
            c2c=min(1.0, link / seconds / (self._prepared.link_capacity_gbps * 1e9)),
            hbm=min(1.0, hbm / seconds / (kind.hbm_gbps * 1e9)),
            available_gbps=self._gbps,
            link_bytes=link,
            hbm_bytes=hbm,
        )
        finished = tuple(doing.finished)
        self.put(StepEnd(at_s=at_s, device=place.device, report=report, finished=finished))
        for request, why in doing.finished.items():
            self._ledger.end(request, why)

    def _count_bytes(self, doing: Doing) -> tuple[float, float, float]:
        if doing.moved is None:
            fleet, action = self._fleet, doing.action
            assert isinstance(action, RunSteps)
            arch = int(fleet.deployment[action.model].arch)
            pair = arch * fleet.costs.kinds + int(self._prepared.kind_of[action.device])
            plan = action.plan
            doing.moved = step_bytes(
                fleet.costs, pair, plan, int(fleet.layers[arch]), int(plan.alpha)
            )
        return doing.moved

    def _record(self, place: Place, doing: Doing, frame: say.Stepped, now_s: float) -> None:
        action = doing.action
        assert isinstance(action, RunSteps)
        name = self.names[action.model]
        was, last_s = self._last.get(place.device, (name, 0.0))
        sent_s = doing.sent_s - self._start_s
        spent = frame.seconds + frame.host_s
        first = frame.number == 0
        who = set(requests_in(action) if doing.alone is None else doing.alone[:1])
        prompt = sum(n for request, _, n in action.prefills if request in who) if first else 0
        hit_tokens = sum(tokens for _, tokens in frame.found)
        computed = prompt + doing.again * first - hit_tokens
        self._last[place.device] = name, now_s
        self._on_step(
            StepRow(
                plan=frame.plan,
                number=frame.number,
                device=place.device,
                model=name,
                chunk=sum(chunk for chunk, _ in frame.calls),
                rows=sum(rows for _, rows in frame.calls),
                calls=[chunk for chunk, _ in frame.calls],
                prompt_tokens=min(prompt, computed),
                decodes=sum(request in who for request in action.decodes),
                kv_tokens=frame.kv_tokens,
                seconds=frame.seconds,
                host_s=frame.host_s,
                begun_s=doing.begun_s,
                sent_s=sent_s,
                heard_s=now_s,
                outside_s=now_s - max(last_s, doing.begun_s) - spent,
                is_turn=was != name,
                is_cold=False,
                again=max(0, computed - prompt),
                found=hit_tokens,
            )
        )

    def _record_load(self, place: Place, doing: Doing, frame: say.Loaded, now_s: float) -> None:
        name, sent_s = self.names[doing.action.model], doing.sent_s - self._start_s
        self._on_step(load_row(place, doing, frame, name, sent_s, now_s))

    def lost(self, place: Place, *, for_good: bool, by_others: bool) -> None:
        """Handle the loss of a process and its state."""
        was_told = place.link is not None  # else the process was never ready
        self._between.heard(place.device)
        self._between.catch_up()  # records refer to the old process
        place.link = None
        place.held.clear()
        place.opened.clear()
        doing = place.doing
        if doing is not None and isinstance(doing.action, RunSteps):
            if was_told and not place.is_waiting:
                self._find_blame(doing, is_blamed=not by_others)
            if doing.done:
                self._end_run(place, self.now_s())
        if self._fleet.caches_prefixes and not for_good:
            self.put(BlocksLost(at_s=self.now_s(), device=place.device))
        if for_good:
            self._abandon(place)
            place.instances.clear()
            place.relayout = None
            self.put(DeviceLost(at_s=self.now_s(), device=place.device))

    def _abandon(self, place: Place) -> None:
        doing, place.doing = place.doing, None
        if place.is_waiting and doing is not None and self._store is not None:
            place.is_waiting = False
            model = doing.action.model
            others = [p.doing.action.model for p in self._places if p.is_waiting and p.doing]
            if model not in others:
                self._store.stop(self.names[model])

    def _find_blame(self, doing: Doing, *, is_blamed: bool) -> None:
        """Count a loss against a request alone in the step, else compute each alone.

        A loss with an external cause counts against none.
        """
        requests = requests_in(doing.action) if doing.alone is None else doing.alone[:1]
        entries = {request: self._ledger.get(request) for request in requests}
        there = {request: entry for request, entry in entries.items() if entry is not None}
        if len(there) > 1:
            doing.alone = sorted(there, key=lambda request: there[request].losses)
            return
        if doing.alone is not None:  # the others go first before it is tried again
            doing.alone = [*doing.alone[1:], *doing.alone[:1]]
        for request, entry in there.items():
            entry.losses += is_blamed
            if entry.losses > self._retries:
                _log.error(
                    "request %d failed: computed alone, it lost %d workers", request, entry.losses
                )
                self._ledger.end(request, "worker_lost")
                self.put(Cancelled(at_s=self.now_s(), request_id=request))
