"""Laws of a run: during it, after its last request, and after the engine's end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from c2c.engine import messages as say
from c2c.engine.places import requests_in
from c2c.serving import FAIL_DEADLINE
from tests.vopr.plan import Ask

__all__ = ["Books", "check_after", "check_left", "may_end"]

_ALL: Final = ("stop", "length")  # ends of requests that have all their tokens


class Books:
    """Observations during a run, by request.

    Attributes:
      ends: number of ends sent to the front.
      wire: tokens sent to the front.
      told: reason for the end, by the ledger, and the number of tokens.
      records: failure and number of tokens, by the loop's records.
      at_losses: lost steps with the request since its last token, an upper bound.
      late: number of tokens long after the deadline.
    """

    def __init__(self, world: Any) -> None:
        """Begin to observe a world's engine and front."""
        self._world, engine = world, world.engine
        self.ends: Counter[int] = Counter()
        self.wire: dict[int, list[int]] = {}
        self.told: dict[int, tuple[str, int]] = {}
        self.records: dict[int, tuple[int, int]] = {}
        self.at_losses: Counter[int] = Counter()
        self.late: Counter[int] = Counter()
        ledger, backend, tape, link = engine.ledger, engine._backend, engine._tape, world.link
        for owner, name, watched in (
            (ledger, "open", self._opened),
            (ledger, "_on_end", self._ended),
            (ledger, "deliver", self._delivered),
            (tape, "record", self._recorded),
            (backend, "lost", self._lost),
            (link, "_heard", self._heard),
        ):
            setattr(owner, name, _watched(getattr(owner, name), watched))

    def _opened(self, *_: Any) -> None:
        count = len(self._world.engine.ledger)
        if count >= self._world.plan.max_open:
            self._world.broken(
                f"a request is accepted with {count} open of {self._world.plan.max_open}"
            )

    def _ended(self, request: int, entry: Any, why: str) -> None:
        self.told[request] = why, len(entry.delivered)

    def _recorded(self, row: Any) -> None:
        if int(row.id) in self.records:
            self._world.broken(f"request {row.id} has two records")
        self.records[int(row.id)] = int(row.failure), int(row.output_tokens)

    def _lost(self, place: Any, *, for_good: bool, by_others: bool) -> None:
        if place.doing is not None and not by_others:
            self.at_losses.update(requests_in(place.doing.action))
        self._world.counts["given_up"] += for_good

    def _delivered(self, request: int, *_: Any) -> None:
        plan, engine = self._world.plan, self._world.engine
        entry = engine.ledger.get(request)
        if entry is not None and entry.ask.deadline_s is not None:
            bound_s = 40 * (plan.slow_link + plan.step_s)
            late_s = engine._backend.now_s() - entry.arrived_s - entry.ask.deadline_s
            self.late[request] += late_s > bound_s
        del self.at_losses[request]

    def _heard(self, frame: Any) -> None:
        if isinstance(frame, say.Tokens):
            if self.ends[frame.request]:
                self._world.broken(f"request {frame.request}: tokens after its end")
            self.wire.setdefault(frame.request, []).extend(frame.tokens)
        elif isinstance(frame, say.Ended):
            self.ends[frame.request] += 1


def _watched(real: Any, watched: Any) -> Any:
    def call(*args: Any, **more: Any) -> Any:
        watched(*args, **more)
        return real(*args, **more)

    return call


def may_end(world: Any, why: str, ask: Ask, *, has_left: bool, is_past: bool) -> bool:
    """Return True if the plan has a cause for an end.

    Args:
      world: world of the run.
      why: reason for the request's end.
      ask: the request.
      has_left: True if its client has disconnected.
      is_past: True if its deadline has passed.
    """
    plan, counts = world.plan, world.counts
    contexts = {info.name: info.context for info in world.link.models}
    reasons = {
        "stop": True,
        "length": True,
        # A burst is too much for any client if few answers may wait.
        "cancelled": has_left or plan.most_waiting < 256,
        "deadline": is_past,
        "worker_lost": any(
            (counts["losses"], plan.poison, counts["crash_in_step"], counts["boot_hang"],
             counts["fork_fails"])
        ),
        "model_failed": any(
            (plan.read_fails, plan.disk_full, counts["fork_fails"], counts["reader"],
             contexts.get(ask.model) == 0)
        ),
        "model_gone": ask.model in world.changed or not ask.model.startswith("m"),
        "context_length_exceeded": len(ask.ids) + ask.new > contexts.get(ask.model, 0),
        "overloaded": plan.max_open < 1024,
        "draining": counts["drain"] or plan.ends_s is not None,
        "gone": counts["front"] or plan.ends_s is not None,
    }  # fmt: skip
    return bool(reasons.get(why, False))


def check_after(world: Any) -> None:
    """Check the laws of an idle engine after all requests have ended."""
    engine, broken = world.engine, world.broken
    _check_requests(world)
    for place in engine.places:
        _check_place(world, place)
    for process in world.processes:
        # An idle process gets no frames, so that a frozen one is not noticed.
        if process.status is None and process.residents is not None and not process.is_frozen:
            _check_residents(world, process)
    _check_weights(world)
    live = sum(process.status is None for process in world.processes)
    if live > len(engine.places) + 1:
        broken(f"{live} processes for {len(engine.places)} places")
    if len(engine._supervisor._place_of) > 2 + len(engine.places):
        broken(f"the supervisor knows {len(engine._supervisor._place_of)} processes")


def _check_requests(world: Any) -> None:
    engine, books, broken = world.engine, world.books, world.broken
    if engine.failure is not None:
        broken(f"the loop ended: {engine.failure!r}")
    if len(engine.ledger):
        broken(f"the ledger holds {list(engine.ledger)}")
    for request, count in books.ends.items():
        if count != 1:
            broken(f"request {request} ended {count} times")
    for request in world.asked:
        if not books.ends[request] and not world.counts["front"]:
            broken(f"request {request} never ended")
    if world.link._answers or world.link._waiting:
        broken(f"the front waits for {list(world.link._answers)} {list(world.link._waiting)}")
    if engine.failure is None and not len(engine.ledger):
        count = engine.stepping.state.count[0]
        if int(count.arrived) != int(count.finished) + int(count.failed):
            broken(f"the loop: {count.arrived} arrived, {count.finished} + {count.failed} ended")
    for request, count in world.ended_alone.items():
        if count > world.plan.retries + 1:
            broken(f"request {request} ended {count} workers, with {world.plan.retries} retries")
    for request, (why, tokens) in books.told.items():
        _check_record(world, request, why, tokens)


def _check_record(world: Any, request: int, why: str, tokens: int) -> None:
    books, broken = world.books, world.broken
    failure, said = books.records.get(request, (-1, -1))
    if why == "worker_lost" and not world.counts["given_up"]:
        losses = books.at_losses[request]
        if losses <= world.plan.retries:
            broken(f"request {request}: worker_lost at {losses} losses")
    if books.late[request] > 3 and not world.counts["pause"] + world.counts["stall"]:
        broken(f"request {request}: {books.late[request]} tokens after its deadline")
    if why in _ALL and failure == FAIL_DEADLINE:
        world.counts["whole_but_late"] += 1  # the deadline passed in the last step
    elif (why in _ALL) != (failure == 0):
        broken(f"request {request}: {why} in the ledger, failure {failure} in the loop")
    elif failure == 0 and said != tokens:
        broken(f"request {request}: {tokens} tokens delivered, {said} in the loop")


def _check_place(world: Any, place: Any) -> None:
    who, broken = f"w{place.device}", world.broken
    if place.held:
        broken(f"{who} holds {sorted(place.held)} by the engine's books")
    if place.doing is not None:
        broken(f"{who} is still at plan {place.doing.plan}")
    if place.link is None and not place.is_quarantined:
        broken(f"{who} has no process, and none is started: {world.state()}")


def _check_residents(world: Any, process: Any) -> None:
    residents, name, broken = process.residents, process.name, world.broken
    pool, store = residents._pool, world.engine._store
    for instance, runner in residents._runners.items():
        if runner.requests:
            broken(f"{name} holds requests {runner.requests} of instance {instance}")
    kept: Counter[int] = Counter(id(lease) for lease, _ in pool.kept.values())
    for model, lease in residents._leases.items():
        if lease.held != kept[id(lease)]:
            broken(f"{name}: {lease.held} blocks of {model} are held, {kept[id(lease)]} are kept")
        if lease._more:
            broken(f"{name}: blocks of {model} have several users: {lease._more}")
    held = sum(len(lease._open) for lease in residents._leases.values())
    if len(pool.free) + held != pool.superblocks:
        broken(f"{name}: {len(pool.free)} superblocks are free of {pool.superblocks}, {held} open")
    if not world.plan.caches and held:
        broken(f"{name}: {held} superblocks are not free")
    _check_kept(world, process)
    if mapped := {*residents._models} - store.here:
        broken(f"{name} still maps {sorted(mapped)}, which the store does not have")


def _check_kept(world: Any, process: Any) -> None:
    """Check that the loop knows every block that a worker keeps; workers may evict some."""
    engine = world.engine
    blocks = engine.stepping.state.blocks
    rows = blocks.entry[: blocks.table[0].begun]
    if (rows.pins[rows.pool >= 0]).any():
        world.broken("the loop holds blocks of prompts for requests")
    for place in engine.places:
        if place.process is process:
            known = set(rows.key[rows.pool == place.device].tolist())
            kept = set(process.residents._pool.kept)
            if not kept <= known:
                world.broken(
                    f"{process.name} keeps {len(kept - known)} blocks that the loop forgot"
                )


def _check_weights(world: Any) -> None:
    store, broken = world.engine._store, world.broken
    if store.coming:
        broken(f"the store still loads {store.coming}")
    here = {store._items[name].pool for name in store.here}
    if world.files != here:
        broken(f"files {sorted(world.files ^ here)} are missing or unknown to the store")


def check_left(world: Any, mine: Sequence[asyncio.Task[Any]]) -> None:
    """Check that an engine leaves nothing after its end.

    Args:
      world: world of the run.
      mine: tasks of the world itself.
    """
    broken = world.broken
    if not world.counts["front"] and hasattr(world, "books"):
        ended, heard = world.books.told.keys() & world.asked.keys(), world.books.ends
        unheard = sorted(number for number in ended if not heard[number])
        if unheard:
            broken(f"requests {unheard} ended, and the front was not told")
    left = [process.name for process in world.processes if process.status is None]
    left += [reader.name for reader in world.readers if reader.returncode is None]
    if left:
        broken(f"processes are left: {left}")
    if world.folders or world.files:
        broken("files are left")
    if world.loop.servers:
        broken("a socket is left")
    me = asyncio.current_task()
    tasks = [t for t in asyncio.all_tasks() if t is not me and t not in mine and not t.done()]
    if tasks:
        names = [getattr(task.get_coro(), "__qualname__", str(task)) for task in tasks]
        broken(f"tasks are left: {names}")
