"""Requests and operator wishes of a plan, and checks of their answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from c2c.engine import messages as say
from c2c.engine.front.failures import ApiError
from tests.vopr.clients import Client, called
from tests.vopr.device import score, undisturbed
from tests.vopr.laws import may_end
from tests.vopr.plan import EOS, Ask, Wish

__all__ = ["ask_for", "unpin", "wish_for"]


@dataclass(slots=True)
class _Asked:
    k: int
    at_s: float
    got: list[int] = field(default_factory=list)
    scores: list[tuple[Any, ...]] = field(default_factory=list)
    prompt: list[tuple[Any, ...]] = field(default_factory=list)
    why: str = ""
    has_left: bool = False


async def ask_for(world: Any, k: int, ask: Ask) -> None:
    """Send a request of the plan at its time, follow it and check its answer."""
    await asyncio.sleep(ask.at_s)
    await (_over_http if world.plan.http else _over_link)(world, k, ask)


async def _over_link(world: Any, k: int, ask: Ask) -> None:
    loop, link = world.loop, world.link
    number, answers = link.ask(
        model=ask.model, ids=ask.ids, new=ask.new, stop=ask.stop, least=ask.least,
        deadline_s=ask.deadline_s, priority=ask.priority, temperature=0.0, seed=0,
        scores=ask.scores, prompt_scores=ask.prompt_scores,
    )  # fmt: skip
    if k in world.plan.poison:
        world.poisoned.add(number)
    mine = world.asked[number] = _Asked(k=k, at_s=loop.now_s)

    def leave() -> None:
        mine.has_left = True
        link.abort(number)
        if ask.cancel == "twice":
            link.abort(number)

    if ask.cancel in ("time", "twice"):
        loop.call_later(ask.cancel_at, leave)
    while True:
        frame = await answers.get()
        if isinstance(frame, say.Ended):
            mine.why = frame.why
            break
        mine.got += frame.tokens
        mine.scores += [(told.logprob, told.top) for told in frame.scores]
        mine.prompt += [(told.logprob, told.top) for told in frame.prompt]
        if ask.cancel == "tokens" and len(mine.got) >= ask.cancel_at and not mine.has_left:
            leave()
        if ask.slow_s:
            await asyncio.sleep(ask.slow_s)
    link.forget(number)
    loop.note(f"client {number} {mine.why} {len(mine.got)}")
    world.counts["end_" + mine.why] += 1
    _judge(world, number, ask, mine)


def _right(world: Any, ask: Ask) -> tuple[list[int], str]:
    spec, number = world.specs[ask.model], world.number_of(ask.model)
    return undisturbed(ask.ids, ask.new, ask.stop, ask.least, number, spec.vocab)


def _judge(world: Any, number: int, ask: Ask, mine: _Asked) -> None:
    right, end = _right(world, ask)
    wire, who = world.books.wire.get(number, []), f"request {number} (ask {mine.k})"
    if number in world.poisoned and wire:
        world.broken(f"{who}: {len(wire)} tokens of a poisoned request, which ends every worker")
    if wire != right[: len(wire)]:
        world.broken(f"{who}: wrong tokens from the engine {wire[-3:]} at {len(wire)}")
    if mine.why in ("stop", "length"):
        if mine.got != right or mine.why != end:
            world.broken(f"{who}: {mine.why} with {len(mine.got)} tokens of {len(right)} ({end})")
    elif mine.got != right[: len(mine.got)]:
        world.broken(f"{who}: {mine.why}; its {len(mine.got)} tokens are wrong or have a gap")
    _judge_scores(world, who, ask, mine)
    _allow(world, who, mine.why, ask, mine.at_s, has_left=mine.has_left)


def _judge_scores(world: Any, who: str, ask: Ask, mine: _Asked) -> None:
    def right(ids: Sequence[int], first: int, count: int | None) -> list[tuple[Any, ...]]:
        if count is None:
            return []
        tokens = np.asarray(ids, np.int32)
        return [score(tokens[:at].tobytes(), ids[at], count) for at in range(first, len(ids))]

    ids = [*ask.ids, *mine.got]
    if mine.scores != right(ids, len(ask.ids), ask.scores):
        world.broken(f"{who}: wrong scores of {len(mine.got)} tokens, {mine.why}")
    prompt = right(ask.ids, 1, ask.prompt_scores)
    if mine.prompt != (prompt if mine.got else prompt[: len(mine.prompt)]):
        world.broken(f"{who}: wrong scores of its prompt, {len(mine.prompt)}, {mine.why}")


def _allow(world: Any, who: str, why: str, ask: Ask, at_s: float, *, has_left: bool) -> None:
    past_s = world.loop.now_s - at_s
    is_past = ask.deadline_s is not None and past_s >= ask.deadline_s - 1e-6
    if not may_end(world, why, ask, has_left=has_left, is_past=is_past):
        world.broken(f"{who}: ended {why}, without a cause in the plan")


async def _over_http(world: Any, k: int, ask: Ask) -> None:
    client, at_s, who = Client(ask), world.loop.now_s, f"http ask {k}"
    if ask.cancel in ("time", "twice"):
        world.loop.call_later(ask.cancel_at, client.gone.set)
    try:
        await client.run(world.app)
    except Exception as error:  # noqa: BLE001 (the law is that there is none)
        world.broken(f"{who}: the application raised {error!r}")
        return
    has_left, why = client.gone.is_set(), client.why
    got = [len(answer.tokens) for answer in client.answers]
    world.loop.note(f"{who} {client.status} {why} {got}")
    world.counts["http_" + why] += 1
    right, end = _right(world, ask)
    shown = [token for token in right if not ask.stop or token not in EOS]
    for answer in client.answers:
        if answer.tokens != shown[: len(answer.tokens)]:
            world.broken(f"{who}: wrong tokens or a gap, {got} of {len(shown)}, {why}")
        is_whole = answer.tokens == shown and answer.finish == end and client.is_done
        if client.error is None and not has_left and not is_whole:
            world.broken(f"{who}: {answer.finish} with {got} tokens of {len(shown)} ({end})")
    if why not in ("stop", "length"):
        _allow(world, who, why, ask, at_s, has_left=has_left)


async def wish_for(world: Any, wish: Wish) -> None:
    """Send an operator's wish at its time and wait for the answer."""
    await asyncio.sleep(wish.at_s)
    link = world.link
    if wish.what in ("add", "remove"):
        world.changed.add(wish.model)
    with contextlib.suppress(ApiError, asyncio.CancelledError):  # the front is gone
        if wish.what == "watch":
            await _watch(world, wish)
            return
        if wish.what in ("add", "remove"):
            refused = await _change(world, wish)
        else:
            refused = bool(
                (await link.command(say.Manage, model=wish.model, what=wish.what)).refused
            )
        world.loop.note(f"wish {wish.what} {wish.model} {refused}")
        world.counts[wish.what + ("_refused" if refused else "")] += 1


async def _watch(world: Any, wish: Wish) -> None:
    await world.link.live()
    for path in ("/metrics", "/ready", "/v1/models") if world.plan.http else ():
        client = Client()
        await called(world.app, "GET", path, {}, client)
        if client.status not in (200, 503):
            world.broken(f"{wish}: {client.status} {client.body!r}")


async def _change(world: Any, wish: Wish) -> bool:
    """Add or remove a model; return True if that was refused."""
    if not world.plan.http:
        if wish.what == "add":
            path = f"sim/{wish.model}"
            return bool((await world.link.command(say.Add, path=path, model=wish.model)).refused)
        return bool((await world.link.command(say.Remove, model=wish.model)).refused)
    client = Client()
    if wish.what == "add":
        fields = {"path": f"sim/{wish.model}", "model": wish.model}
        await called(world.app, "POST", "/v1/models", fields, client)
    else:
        await called(world.app, "DELETE", f"/v1/models/{wish.model}", {}, client)
    answer = json.loads(client.body)
    if client.status == 500:
        world.broken(f"{wish}: {answer}")
    return client.status != 200


async def unpin(world: Any) -> None:
    """Unpin all models after 20 s, since pinned ones may keep others out for ever."""
    await asyncio.sleep(20.0)
    models = world.engine._models
    while world.link.is_up and models.pinned:
        for name in sorted(models.pinned):
            with contextlib.suppress(ApiError, asyncio.CancelledError):
                await world.link.command(say.Manage, model=name, what="unpin")
        await asyncio.sleep(1.0)
