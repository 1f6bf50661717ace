"""Hot and cold process of a woven pair."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax

from c2c.models import ModelSpec
from c2c.systems.weaver.live.links import SlotInbox, SlotLink
from c2c.systems.weaver.live.polling_model import InPieces
from c2c.systems.weaver.live.receiver import KvHost, Polls
from c2c.systems.weaver.live.woven import Woven
from c2c.transformer import (
    KvPool,
    Model,
    OnDevice,
    Request,
    Runner,
    Served,
    Shapes,
    load,
    serve,
)
from pallas_kernels.woven import Slot, SlotShape

__all__ = ["Ended", "Side", "Together", "cold_process", "hot_process"]

_jax: Any = jax  # parts of it are untyped


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One model's process.

    Attributes:
      checkpoint: of the model.
      asked: requests.
      shapes: of its runner.
    """

    checkpoint: str
    asked: Sequence[Request]
    shapes: Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """State that both processes share.

    Attributes:
      cold: the receiver; idle without requests.
      dtype: of weights, keys and values.
      superblocks: of each pool.
      superblock: elements of one.
      reserve: superblocks never taken by hot sequences.
      limit_s: for the receiver's answer.
      columns: of the receiver's pieces, a value a round; see `InPieces`.
    """

    hot: Side
    cold: Side
    hot_spec: ModelSpec
    dtype: str
    ratio: float
    seed: int
    superblocks: int
    superblock: int
    reserve: int
    slot: Path
    slot_shape: SlotShape
    limit_s: float
    columns: tuple[int, ...]
    executables: Path


@dataclass(slots=True, kw_only=True)
class Ended:
    """A process's report at its end.

    Attributes:
      equal: answers equal to the model's alone.
      once: whether each request was answered once.
      steps: of the sender, with remote rows.
      brought: moved requests.
      fallbacks: recomputed requests, by reason.
      polls: of the receiver.
      columns: of the receiver's pieces during each task.
      left: superblocks still held.
      compiled: stages compiled after the warm-up.
    """

    equal: int
    answers: int
    once: bool
    tasks: int
    left: int
    compiled: int
    steps: int = 0
    brought: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    times: list[tuple[float, float, float]] = field(default_factory=list)
    polls: Polls = field(default_factory=Polls)
    columns: list[int] = field(default_factory=list)


def hot_process(together: Together, control: Connection, parent: Connection) -> None:
    """Serve alone, then woven; report turns and result to the parent."""
    side = together.hot
    model, pool, alone = _begun(together, side)
    slot = Slot.open(together.slot, together.slot_shape)
    link = SlotLink(slot, control, together.slot_shape, limit_s=together.limit_s)
    woven = Woven(model.executor(pool), link, side.shapes, ratio=together.ratio, seed=together.seed)
    woven.times = []
    runner = Runner(woven, side.shapes)
    runner.warm(draws=(False,), scores=False)
    parent.send("ready")
    parent.recv()  # the receiver is ready too
    before, served, turn = _made(model), alone, 0
    for served in serve(runner, side.asked):  # noqa: B007 (the last)
        parent.send(turn := turn + 1)
    link.close()
    parent.send(
        Ended(
            equal=_equal(served, alone), answers=len(side.asked), once=_once(served),
            tasks=woven.sent, steps=woven.steps, brought=woven.brought,
            fallbacks=dict(woven.fallbacks), times=woven.times,
            left=pool.superblocks - len(pool.free), compiled=_made(model) - before,
        )
    )  # fmt: skip
    parent.recv()  # the parent has read the report


def cold_process(together: Together, control: Connection, parent: Connection) -> None:
    """Serve and poll until a round after the sender's end; report."""
    side = together.cold
    model, pool, alone = _begun(together, side)
    slot = Slot.open(together.slot, together.slot_shape)
    host = KvHost(
        pool, together.hot_spec, SlotInbox(slot, control), together.hot.shapes,
        reserve=together.reserve, executables=model.executables,
    )  # fmt: skip
    ways: list[OnDevice] = [
        InPieces(
            model.params, model.spec, model.linear, pool, columns=columns,
            executables=model.executables,
        )
        for columns in together.columns
    ] or [model.executor(pool)]  # fmt: skip
    runners = [Runner(path, side.shapes) for path in ways]
    for way, runner in zip(ways, runners, strict=True):
        way.poll = host.poll  # before the executables are chosen, as it is called after each layer
        runner.warm(draws=(False,), scores=False)
        if together.columns:  # pieces are compiled at their first run
            for _ in serve(runner, side.asked):
                pass
    host.ready()
    parent.send("ready")
    parent.recv()  # the sender is ready too
    host.poll()
    host.polls = Polls(tasks=[])  # the first poll includes the start
    before, rounds, is_last = _made(model), 0, False
    equal, is_once = 0, True
    modes: list[int] = []
    while not is_last:
        is_last = host.is_over  # one whole round follows the sender's end
        if side.asked:
            *_, served = serve(runners[rounds % len(runners)], side.asked)
            done = host.done - len(modes)
            modes += [together.columns[rounds % len(runners)]] * done if together.columns else []
            rounds, equal = rounds + 1, equal + _equal(served, alone)
            is_once &= _once(served)
        elif not host.poll():
            time.sleep(0)
    parent.send(
        Ended(
            equal=equal, answers=rounds * len(side.asked), once=is_once, tasks=host.done,
            polls=host.polls, columns=modes, left=pool.superblocks - len(pool.free),
            compiled=_made(model) - before,
        )
    )  # fmt: skip
    parent.recv()


def _begun(together: Together, side: Side) -> tuple[Model, KvPool, Served]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    logging.basicConfig(format="%(processName)s: %(message)s")
    _jax.config.update("jax_platforms", "cpu")
    model = load(side.checkpoint, together.dtype, executables=str(together.executables))
    pool = KvPool(
        together.superblocks, together.superblock, dtype=model.params.dtype,
        executables=model.executables,
    )  # fmt: skip
    runner = Runner(model.executor(pool), side.shapes)
    alone = Served(texts=[], ended=[])
    for alone in serve(runner, side.asked):  # noqa: B007 (the last)
        pass
    return model, pool, alone


def _made(model: Model) -> int:
    assert model.executables is not None
    return model.executables.compiled + model.executables.loaded


def _equal(served: Served, alone: Served) -> int:
    return sum(a == b for a, b in zip(served.texts, alone.texts, strict=True))


def _once(served: Served) -> bool:
    return served.ended == [1] * len(served.ended)
