"""Runner of one model's scheduled steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from c2c.errors import SettingError
from c2c.transformer.layers.pages import PAGE_TOKENS, OutOfPages
from c2c.transformer.running.executor import Executor, bound
from c2c.transformer.running.sampling import Sampling, sampling_rows
from c2c.transformer.running.sampling_stages import (
    BIASED,
    DRAW,
    FEED,
    MASK,
    SCORE,
    SEAT,
    Score,
    Seats,
    new_seats,
    words,
)
from c2c.transformer.running.shapes import Shapes
from c2c.transformer.running.stays import Constraint, Ended, Laid, Stay, Step
from c2c.transformer.running.step_results import Drawn, Prompt, prompt_scores, score_of, tokens_of

__all__ = ["Result", "Resumable", "Runner", "Step", "Ticket"]

_NEUTRAL = Sampling()
_NO_TOKEN = np.iinfo(np.int32).max
_ANY = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumable:
    """State to resume a preempted request."""

    ids: tuple[int, ...]  # prompt and earlier draws
    drawn: int  # number of these draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Results of a step.

    Attributes:
      tokens: request, token and reason of its end (None: goes on).
      seconds: since the step's start or the previous reading, the later.
      dropped: of ended requests.
      scores: by request, on demand.
      prompts: request, first position and scores of prompts.
      hidden: prompts' last outputs before the final norm, float32 [hidden], on demand.
    """

    tokens: tuple[tuple[int, int, Ended | None], ...]
    seconds: float
    dropped: int
    scores: Mapping[int, Score] = field(default_factory=dict)
    prompts: tuple[tuple[int, int, tuple[Score, ...]], ...] = ()
    hidden: Mapping[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A step under way."""

    drawn: tuple[Drawn, ...]
    begun_s: float


# A step is at most one prompt chunk, and one token each for some decoding requests. Drawn tokens
# stay on the device and feed the next step, which can start before they are read; tokens of
# requests that have ended by then are dropped. A request's draws depend only on its prompt,
# settings, seed and earlier draws.
class Runner:
    """Requests of one model, run by an executor."""

    def __init__(self, executor: Executor, shapes: Shapes) -> None:
        """Create a runner without requests; `shapes` are all its calls'."""
        self.executor, self.spec, self.shapes = executor, executor.spec, shapes
        self._stays: dict[int, Stay] = {}
        self._free_seats = list(range(self.seats))[::-1]
        self._seated: Seats | None = None  # created at the first step
        self._read_s = 0.0
        self._early: Drawn | None = None  # started ahead of its request
        self._compiled = bound(executor.executables)

    @property
    def seats(self) -> int:
        """Maximum number of concurrent requests."""
        return self.shapes.rows[-1]

    @property
    def requests(self) -> tuple[int, ...]:
        """Ids of the current requests."""
        return tuple(self._stays)

    def submit(
        self,
        request: int,
        ids: Sequence[int],
        *,
        new: int,
        sampling: Sampling,
        stop: Collection[int] = (),
        drawn: int = 0,
        least: int = 0,
        scores: int | None = None,
        prompt_scores: int | None = None,
        embeds: bool = False,
        constraint: Constraint | None = None,
        keys: Sequence[int] = (),
    ) -> None:
        """Add a request; later steps compute its prompt.

        Args:
          request: unique id.
          ids: prompt, then earlier draws of a preempted request.
          new: most further tokens.
          drawn: earlier draws at the end of `ids`.
          least: draws without stop tokens, with earlier ones.
          scores: likeliest tokens in results, beside the drawn one.
          prompt_scores: likewise for the prompt.
          embeds: whether the first result has the prompt's last hidden state, with layers and
            logits apart.
          constraint: the answer's grammar, past earlier draws.
          keys: of the prompt's first whole blocks, without its last token.

        Raises:
          SettingError: a request that never fits.
        """
        if request in self._stays or not self._free_seats:
            raise ValueError(f"request {request} is already present, or no seat is free")
        if not ids or new < 1 or len(ids) + new - 1 > self.shapes.context:
            raise SettingError(
                "request", f"{len(ids)} + {new} tokens",
                f"at least one of each, at most {self.shapes.context + 1} together",
            )  # fmt: skip
        stay = Stay(
            request=request, ids=ids, new=new, before=drawn, sampling=sampling, stop=stop,
            seat=self._free_seats[-1], least=least, scores=scores, prompt_scores=prompt_scores,
            embeds=embeds, constraint=constraint, keys=keys,
        )  # fmt: skip
        bias = stay.biases()
        if len(bias) > BIASED:
            raise SettingError(
                "sampling.logit_bias", f"{len(bias)} tokens", f"at most {BIASED} with barred ones"
            )
        tokens, values = np.full(BIASED, _NO_TOKEN, np.int32), np.zeros(BIASED, np.float32)
        for place, (token, value) in enumerate(bias):
            tokens[place], values[place] = token, value
        self._seated = self._compiled(SEAT)(
            self._seated or self._fresh(), np.int32(stay.seat), stay.held(self.spec.vocab),
            tokens, values,
        )  # fmt: skip
        self._free_seats.pop()
        self._stays[request] = stay

    def reuse(self, request: int, tokens: int) -> int:
        """Attach kept blocks to a prompt; return their tokens, always fewer than given."""
        stay = self._stays[request]
        before = stay.filled
        if stay.keys:
            shared = self.executor.reuse(stay, (before + tokens - 1) // PAGE_TOKENS)
            stay.filled = max(before, PAGE_TOKENS * shared)
        return stay.filled - before

    def cancel(self, request: int) -> None:
        """Free a request's blocks; tokens under way are dropped."""
        stay = self._stays.pop(request)
        self.executor.give(stay)
        self._free_seats.append(stay.seat)

    def preempt(self, request: int) -> Resumable:
        """Free a request's blocks; return `submit`'s arguments to resume."""
        stay = self._stays[request]
        self.cancel(request)
        return Resumable(ids=(*stay.ids, *stay.got), drawn=stay.before + len(stay.got))

    def missing(self, step: Step) -> int:
        """Return the blocks that a step lacks."""
        return self.executor.lacks(self._stored(self._without_early(step)))

    def shape_of(self, step: Step) -> tuple[int, int]:
        """Return a step's padded chunk size and one-token rows.

        Raises:
          ValueError: no such shapes.
        """
        tokens = 0 if step.fill is None else step.fill[1]
        call = self.shapes.call_for(tokens, len(step.decode))
        if call is None:
            raise ValueError(f"{step}: expected a step that fits {self.shapes}")
        return call

    def attended(self, step: Step) -> int:
        """Return the positions that a step's decodes attend to."""
        stays = [self._stays[request] for request in step.decode]
        early = len(step.decode) - len(self._without_early(step).decode)
        return sum(len(stay.ids) + stay.started for stay in stays) - early

    def start(self, step: Step) -> Ticket:
        """Start a step asynchronously, unless `run_ahead` has.

        Raises:
          OutOfPages: too few free blocks; nothing was started.
          ValueError: no such requests or shapes.
        """
        begun_s = time.perf_counter()
        if missing := self.missing(step):
            free = self.executor.available
            raise OutOfPages("step", missing + free, free)
        rest = self._without_early(step)
        drawn = [self._begin(rest)] if rest.fill is not None or rest.decode else []
        if len(rest.decode) < len(step.decode):
            drawn.append(self._take_early(step))
        return Ticket(drawn=tuple(drawn), begun_s=begun_s)

    def run_ahead(self, step: Step) -> bool:
        """Start a future step of decodes; return whether it was started.

        Its tokens are returned after its `start`, or dropped. False: a request has ended, has all
        tokens or follows a grammar; blocks lack; or an earlier step ahead is unused.
        """
        stays = [self._stays.get(request) for request in step.decode]
        if self._early_stays() or any(
            s is None or s.started >= s.new or s.constraint is not None for s in stays
        ):
            return False
        if step.fill is not None or self.missing(step):
            return False
        self._early = self._begin(step)
        return True

    def _early_stays(self) -> dict[int, Stay]:
        if self._early is None:
            return {}
        there = {stay.request: stay for stay, _ in self._early.rows}
        return {n: stay for n, stay in there.items() if self._stays.get(n) is stay}

    def _without_early(self, step: Step) -> Step:
        early = self._early_stays()
        if not early:
            return step
        return Step(fill=step.fill, decode=tuple(n for n in step.decode if n not in early))

    def _take_early(self, step: Step) -> Drawn:
        early = self._early
        assert early is not None
        later = self._early_stays().keys() - set(step.decode)
        rows = tuple((stay, row) for stay, row in early.rows if stay.request not in later)
        rest = tuple((stay, row) for stay, row in early.rows if stay.request in later)
        self._early = Drawn(rest, early.tokens, early.scores) if rest else None
        return Drawn(rows, early.tokens, early.scores)

    def _begin(self, step: Step) -> Drawn:
        executor = self.executor
        executor.grow(self._stored(step))
        laid = self._laid_out(step)
        assert self._seated is not None  # a step has requests, and they were submitted
        tokens = self._compiled(FEED)(laid.given, self._seated.drawn, laid.source)
        filling = None if step.fill is None else self._stays[step.fill[0]]
        x = prompt = None
        embeds = step.fill is not None and filling is not None and filling.ends_with(step.fill[1])
        if filling is None or not (embeds or filling.prompt_scores is not None):
            logits = executor.compute(laid, tokens, laid.wanted, has_logits=any(laid.drawing))
        else:
            logits_of: Callable[[np.ndarray], Any] = partial(executor.compute, laid, tokens)
            if executor.ends_apart:
                x = executor.compute(laid, tokens, laid.wanted, has_logits=False)
                logits_of = partial(executor.end, x)
            if filling.prompt_scores is not None:
                prompt = self._prompt(filling, step, len(laid.wanted), logits_of)
            logits = logits_of(laid.wanted)
        if step.fill is not None and filling is not None:
            filling.filled += step.fill[1]
            if filling.keys:
                executor.share(filling)
        if not any(laid.drawing):
            return Drawn((), logits, None, prompt)  # of a prompt that goes on: only waited for
        nobody = 0, self.seats, 0, 0
        token, self._seated = self._compiled(DRAW)(
            self._allowed(logits, laid.drawing),
            self._seated,
            sampling_rows([_NEUTRAL if s is None else s.sampling for s in laid.drawing]),
            np.asarray([nobody if s is None else s.stands for s in laid.drawing], np.int32),
            hot=any(s is not None and s.sampling.temperature > 0 for s in laid.drawing),
        )
        rows = tuple((stay, row) for row, stay in enumerate(laid.drawing) if stay is not None)
        for stay, _ in rows:
            stay.started += 1
        scores = None
        if any(stay.scores is not None for stay, _ in rows):
            scores = self._compiled(SCORE)(logits, token)
        hidden = None if x is None or step.fill is None or not embeds else (x, step.fill[1] - 1)
        return Drawn(rows, token, scores, prompt, hidden)

    def _allowed(self, logits: Any, drawing: Sequence[Stay | None]) -> Any:
        bound = [(k, s) for k, s in enumerate(drawing) if s is not None and s.constraint]
        if not bound:
            return logits
        allowed = np.full((len(drawing), words(self.spec.vocab)), _ANY, np.uint32)
        for row, stay in bound:
            assert stay.constraint is not None
            allowed[row] = stay.constraint.mask(stay.stop)
        return self._compiled(MASK)(logits, allowed)

    def _prompt(
        self, stay: Stay, step: Step, rows: int, logits_of: Callable[[np.ndarray], Any]
    ) -> Prompt:
        assert step.fill is not None
        follow = stay.ids[stay.filled + 1 : stay.filled + step.fill[1] + 1]
        counts, parts = [], []
        for first in range(0, len(follow), rows):
            count = min(rows, len(follow) - first)
            places, token = np.zeros((2, rows), np.int32)
            places[:count] = np.arange(first, first + count)
            token[:count] = follow[first : first + count]
            counts.append(count)
            parts.append(self._compiled(SCORE)(logits_of(places), token))
        return Prompt(stay, stay.filled + 1, tuple(counts), tuple(parts))

    def finish(self, ticket: Ticket) -> Result:
        """Wait for a step; ended requests are removed."""
        token_rows = [tokens_of(drawn) for drawn in ticket.drawn]
        now_s = time.perf_counter()
        seconds = now_s - max(ticket.begun_s, self._read_s)
        self._read_s = now_s
        outcomes: list[tuple[int, int, Ended | None]] = []
        scores: dict[int, Score] = {}
        hidden: dict[int, np.ndarray] = {}
        prompts = []
        dropped = 0
        for drawn, tokens in zip(ticket.drawn, token_rows, strict=True):
            if drawn.prompt is not None and self._stays.get(drawn.prompt.stay.request) is (
                drawn.prompt.stay
            ):
                prompts.append(prompt_scores(drawn.prompt))
            arrays = None if drawn.scores is None else tuple(map(np.asarray, drawn.scores))
            for stay, row in drawn.rows:
                if self._stays.get(stay.request) is not stay:
                    dropped += 1
                    continue
                token = int(tokens[row])
                outcomes.append((stay.request, token, self._give(stay, token)))
                if arrays is not None and stay.scores is not None:
                    scores[stay.request] = score_of(arrays, row, stay.scores)
                if stay.embeds and drawn.hidden is not None:
                    x, index = drawn.hidden
                    hidden[stay.request] = np.asarray(x)[index].astype(np.float32)
        return Result(
            tokens=tuple(outcomes), seconds=seconds, dropped=dropped, scores=scores,
            prompts=tuple(prompts), hidden=hidden,
        )  # fmt: skip

    def _give(self, stay: Stay, token: int) -> Ended | None:
        stay.got.append(token)
        ended: Ended | None = None
        grammar = stay.constraint
        if token < 0:
            ended = "not_finite"
        elif token in stay.stop:
            ended = "stop"
        elif grammar is not None and grammar.take(token):
            ended = "grammar" if grammar.has_failed else "stop"
        elif len(stay.got) == stay.new:
            ended = "length"
        if ended is not None:
            self.cancel(stay.request)
        return ended

    def warm(
        self,
        *,
        decodes: bool = True,
        draws: Sequence[bool] = (False, True),
        scores: bool = True,
        masks: bool = False,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the executables of steps of these shapes; nothing is computed.

        Args:
          decodes: whether to include steps without a prompt.
          draws: whether temperatures are above 0; by default both.

        Raises:
          SettingError: loaded without executables.
        """
        executables = self.executor.executables
        if executables is None:
            raise SettingError("executables", None, '"auto" or a folder, to load the model with')
        ahead = executables.bind_ahead
        seats = self._seated or self._fresh()
        ahead(SEAT)(
            seats, np.int32(0), np.zeros(self.spec.vocab, np.int16),
            np.zeros(BIASED, np.int32), np.zeros(BIASED, np.float32),
        )  # fmt: skip
        for chunk, rows in self.shapes.calls:
            if not chunk and not decodes:
                continue
            laid = self._empty(chunk, rows)
            shape = laid.wanted
            tokens = ahead(FEED)(laid.given, seats.drawn, laid.source)
            logits = self.executor.ready(laid, tokens)
            for hot in draws:
                settings = sampling_rows([_NEUTRAL] * len(shape))
                stands = np.zeros((len(shape), 4), np.int32)
                token, _ = ahead(DRAW)(logits, seats, settings, stands, hot=hot)
            if scores:
                ahead(SCORE)(logits, token)
            if masks:
                ahead(MASK)(logits, np.zeros((len(shape), words(self.spec.vocab)), np.uint32))
            done()

    def _fresh(self) -> Seats:
        seats = new_seats(self.seats, self.spec.vocab)
        self._seated = jax.tree.map(lambda x: jax.device_put(x, self.executor.device), seats)
        return self._seated

    def _stored(self, step: Step) -> list[tuple[Stay, int]]:
        who = [] if step.fill is None else [step.fill[0]]
        stays = [self._stays[request] for request in (*who, *step.decode)]
        return [(stay, stay.stored(step)) for stay in stays]

    def _laid_out(self, step: Step) -> Laid:
        laid = self._empty(*self.shape_of(step))
        if step.fill is not None:
            laid.fill(self._stays[step.fill[0]], step.fill[1])
        for row, request in enumerate(step.decode):
            laid.decode(self._stays[request], row)
        return laid

    def _empty(self, chunk: int, rows: int) -> Laid:
        draws = self.shapes.draws(chunk, rows)
        return Laid(chunk=chunk, decode_rows=rows, width=self.shapes.width, draws=draws)
