"""Workers that compute nothing: they keep strict books of what they are told, and get lost."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from c2c.engine import messages as say
from c2c.engine.backend import LiveBackend
from c2c.engine.frames import frames_in, packed
from c2c.engine.places import Place
from c2c.serving.port import SetTimer, Timer

__all__ = ["Clocked", "FakeWorker", "token_of"]


def token_of(request: int, position: int) -> int:
    """The token that a request draws at a position, whoever computes it."""
    return (request * 7919 + position * 104729) % 50021


@dataclass
class Stay:
    ids: tuple[int, ...]
    new: int
    drawn: int
    is_scored: bool = False
    home: int = 0
    blocks: tuple[int, ...] = ()
    filled: int = 0
    got: int = 0

    @property
    def held(self) -> tuple[set[int], int]:
        """Blocks that others find, and how many of its own."""
        shared = set(self.blocks[: self.filled // 64])
        return shared, -(-(self.filled + self.got) // 64) - len(shared)


@dataclass
class FakeLink:
    """A place's link: frames are kept for the worker."""

    frames: list[Any] = field(default_factory=list)

    def send(self, *frames: say.Frame) -> None:
        self.frames += frames_in(bytearray(packed(*frames)))


class FakeWorker:
    """One place's process. It holds the engine to what a real worker needs."""

    def __init__(
        self,
        place: Place,
        backend: LiveBackend,
        rng: random.Random,
        rows: int,
        here: Collection[str],
        told: Mapping[str, Any],
    ) -> None:
        self.place, self.backend, self.rng, self.rows = place, backend, rng, rows
        self.here = here
        self.homes, self.variants = told.get("homes", ()), told.get("variants", ())
        self.changes = 0
        self.poison: set[int] = set()  # requests that end the process that computes them
        self.losses, self.has_been_lost = 0, False
        self.is_gone = False
        self.restart()

    def restart(self) -> None:
        self.variant, self.moved = 0, {}
        self.asked: list[say.Relayout] = []
        self.instances: dict[int, str] = {}
        self.stays: dict[int, Stay] = {}
        self.kept: set[int] = set()
        self.run: say.Run | None = None
        self.step = 0
        self.is_interrupted = False
        self.out: list[Any] = []
        self.link = FakeLink()
        self.place.link = self.link  # type: ignore[assignment]

    @property
    def is_up(self) -> bool:
        return self.place.link is not None

    def lose(self, *, for_good: bool = False, by_others: bool = False) -> None:
        """Go with everything, what was not heard included."""
        self.is_gone = for_good
        self.losses, self.has_been_lost = self.losses + 1, True
        self.backend.lost(self.place, for_good=for_good, by_others=by_others)

    def work(self) -> bool:
        """Do one thing; say whether there was any."""
        if self.out:  # said, and not heard yet
            self.backend.heard(self.place, self.out.pop(0))
            return True
        if self.asked and self.rng.random() < 0.2:
            self._change(self.asked.pop(0))
            return True
        if self.run is not None:
            self._step()
            return True
        if not self.link.frames:
            return bool(self.asked)
        frame = self.link.frames.pop(0)
        if isinstance(frame, say.Load):
            assert frame.model in self.here, "weights come before the model that needs them"
            self.instances[frame.instance] = frame.model
            self.variant, self.moved = frame.variant, dict(frame.moved)
            self.out.append(say.Loaded(plan=frame.plan, seconds=0.0))
        elif isinstance(frame, say.Unload):
            del self.instances[frame.instance]
        elif isinstance(frame, say.Relayout):
            assert frame.instance in self.instances
            self.asked.append(frame)
        elif isinstance(frame, say.Drop):
            assert frame.model not in self.instances.values(), "nothing needs what goes"
        elif isinstance(frame, say.Free):
            for request in frame.requests:
                self.stays.pop(request, None)
        elif isinstance(frame, say.ForgetBlocks):
            for stay in self.stays.values():
                assert not stay.held[0] & set(frame.keys), "what somebody uses stays"
            assert self.has_been_lost or self.kept >= set(frame.keys), "what is not there"
            self.kept -= set(frame.keys)
        elif isinstance(frame, say.Interrupt):
            pass  # of a run that is over
        else:
            self._begin(frame)
        return True

    def _is_held(self, home: int) -> bool:
        layers = self.variants[self.variant].copies
        return all(d in held for d, held in zip(self.homes[home], layers, strict=True))

    def _change(self, change: say.Relayout) -> None:
        self.variant, self.moved = change.variant, dict(change.moved)
        self.changes += 1
        for request, stay in self.stays.items():
            stay.home = self.moved.get(request, stay.home)
            assert self._is_held(stay.home), "its layers are where its keys and values are"
        self.out.append(
            say.Relaid(
                instance=change.instance, variant=change.variant, weight_bytes=1, kv_bytes=1,
                pieces=1, longest_s=0.001, compiled=0,
            )
        )  # fmt: skip

    def _begin(self, run: say.Run) -> None:
        assert run.instance in self.instances
        if self.poison & {*run.decodes, *(fill.request for fill in run.fills)}:
            self.lose()
            return
        for submit in run.submits:
            assert submit.request not in self.stays, "a request is submitted once"
            assert submit.ids[len(submit.ids) - submit.drawn :] == tuple(
                token_of(submit.request, k) for k in range(submit.drawn)
            ), "what was delivered is what it goes on from"
            is_scored = submit.prompt_scores is not None
            assert not (is_scored and submit.drawn), "a prompt is scored before any token"
            home = submit.home
            if self.homes and not self._is_held(home):
                home = self.moved[submit.request]  # the scheduler has not heard of the change yet
            assert not self.homes or self._is_held(home)
            self.stays[submit.request] = Stay(
                submit.ids, submit.new, submit.drawn, is_scored, home, submit.blocks
            )
            assert 64 * len(submit.blocks) < len(submit.ids)
        assert len(self.stays) <= self.rows * len(self.instances)
        self.run, self.step, self.is_interrupted = run, 0, False

    def _step(self) -> None:
        run = self.run
        assert run is not None
        for frame in [f for f in self.link.frames if isinstance(f, say.Interrupt)]:
            self.link.frames.remove(frame)
            self.is_interrupted |= frame.plan == run.plan
        drawing = list(run.decodes)
        prompts, found = [], []
        if self.step == 0:
            for fill in run.fills:
                stay = self.stays[fill.request]
                whole = stay.filled // 64
                most = stay.blocks[whole : (stay.filled + fill.tokens - 1) // 64]
                there = next((k for k, key in enumerate(most) if key not in self.kept), len(most))
                if there:
                    found.append((fill.request, 64 * (whole + there) - stay.filled))
                if stay.is_scored:
                    places = range(stay.filled, min(stay.filled + fill.tokens, len(stay.ids) - 1))
                    scores = tuple(
                        say.Scored(request=fill.request, logprob=-float(at), top=())
                        for at in places
                    )
                    prompts.append(
                        say.Prompted(request=fill.request, first=stay.filled + 1, scores=scores)
                    )
                stay.filled += fill.tokens
                assert stay.filled <= len(stay.ids)
                self.kept |= stay.held[0]
                if stay.filled == len(stay.ids):
                    drawing.append(fill.request)
        else:
            drawing += [fill.request for fill in run.fills]
        tokens = []
        for request in drawing:
            stay = self.stays[request]
            assert stay.filled == len(stay.ids), "it decodes what it holds"
            token = token_of(request, stay.drawn + stay.got)
            stay.got += 1
            assert stay.got <= stay.new
            why = None
            if token % 11 == 0:
                why = "stop"
            elif stay.got == stay.new:
                why = "length"
            if why is not None:
                del self.stays[request]
            tokens.append((request, token, why))
        is_last = (
            self.step + 1 == run.steps or self.is_interrupted or any(why for *_, why in tokens)
        )
        self.out.append(
            say.Stepped(
                plan=run.plan, number=self.step, is_last=is_last, tokens=tuple(tokens),
                seconds=0.001, host_s=0.0, calls=((64, 4),), kv_tokens=0, compiled=0,
                prompts=tuple(prompts), found=tuple(found),
            )
        )  # fmt: skip
        self.step += 1
        if is_last:
            self.run = None


class Clocked(LiveBackend):
    """The clock advances by 50 ms at each reading."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.looks, self.due = 0, {}

    def now_s(self) -> float:
        self.looks += 1
        return self.looks * 0.05

    def _set_timer(self, timer: SetTimer) -> None:
        self.due[timer.number] = timer.at_s

    def go_off(self) -> None:
        """Have the timers go off whose time has come."""
        now_s = self.now_s()
        for number in [n for n, at_s in self.due.items() if at_s <= now_s]:
            del self.due[number]
            self.put(Timer(at_s=now_s, number=number))
