"""Coding agents: sessions with tools and sub-agents, in growing contexts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from c2c.errors import SettingError
from c2c.ranges import AboveZero, Count, FromZero, In, Share
from c2c.workloads.blocks import RequestBlock
from c2c.workloads.lengths import LengthPool
from c2c.workloads.prefixes import Lists, block_keys
from c2c.workloads.simple import SteadyTrace, zipf_shares
from c2c.workloads.streams import stream_of

__all__ = ["Agents", "agents"]

_PLACES = 1 << 24  # most blocks of a context: a block's hash is its context and position
_DRAWN = 4096  # length pairs at a time
_MOST_EMPTY = 1000  # sessions in a row whose first prompt is too long


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents(SteadyTrace):
    """Sessions of agents, a Poisson process or one after another.

    `requests` counts all turns; the last session may be cut short. A session keeps its model.
    Fields are `WorkloadConfig`'s; turns and sub-agents are geometric, tool times log-normal. A turn
    waits for the last answers of sub-agents, with own contexts.
    """

    requests: Annotated[int, In("[1, 5000000]")] = 10_000
    turns: Annotated[float, In("[1, 1e6]")] = 20.0
    tool_s: FromZero = 5.0
    tool_cv: Annotated[float, In("[0, 10]")] = 2.0
    subagent_share: Share = 0.1
    subagents: Annotated[float, In("[1, 1000]")] = 2.0
    subagent_turns: Annotated[float, In("[1, 1e6]")] = 6.0
    system_tokens: Annotated[int, In("[0, 2**24)")] = 8192
    block_tokens: Count = 64
    max_total_tokens: int = 131_072
    rate_rps: AboveZero = 1.0


@dataclass(slots=True)
class _Rows:
    context: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    think_s: list[float] = field(default_factory=list)
    parents: list[list[int]] = field(default_factory=list)  # turns, from 1
    at_s: list[float] = field(default_factory=list)  # if answers took no time

    def add(
        self, context: int, prompt: int, answer: int, think_s: float, parents: list[int]
    ) -> int:  # fmt: skip
        ready_s = max((self.at_s[turn - 1] for turn in parents), default=0.0)
        self.at_s.append(ready_s + (think_s if parents else 0.0))
        self.context.append(context)
        self.prompt.append(prompt)
        self.answer.append(answer)
        self.think_s.append(think_s if parents else np.nan)
        self.parents.append(parents)
        return len(self.prompt)


class _Draws:
    def __init__(self, settings: Agents, pool: LengthPool, seed: int) -> None:
        self._settings = settings
        self._tools = stream_of(seed, "tools")
        self._counts = stream_of(seed, "turns")
        self.pairs = self._pairs(pool, stream_of(seed, "lengths"))
        self._sigma = float(np.sqrt(np.log1p(settings.tool_cv**2)))

    @staticmethod
    def _pairs(pool: LengthPool, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        while True:
            text, answer = pool.draw(rng, _DRAWN)
            yield from zip(text.tolist(), answer.tolist(), strict=True)

    def count(self, mean: float) -> int:
        return int(self._counts.geometric(1.0 / mean))

    def starts_subagents(self) -> bool:
        return bool(self._counts.random() < self._settings.subagent_share)

    def tool_s(self) -> float:
        return self._settings.tool_s * float(
            self._tools.lognormal(-0.5 * self._sigma**2, self._sigma)
        )


def agents(settings: Agents, pool: LengthPool, seed: int) -> RequestBlock:
    """Return all requests, ordered as if answers took no time.

    A prompt is its context's text, sub-agents' answers and a new text. A turn draws a pair of the
    pool.

    Raises:
      SettingError: no first turn within `max_total_tokens`.
    """
    draws = _Draws(settings, pool, seed)
    sessions: list[_Rows] = []
    total = contexts = empty = 0
    while total < settings.requests:
        rows = _session(settings, draws, contexts)
        if not rows.prompt:
            empty += 1
            if empty == _MOST_EMPTY:
                raise SettingError(
                    "workload.max_total_tokens", settings.max_total_tokens,
                    "as many as the tokens of a first turn with the system prompt",
                )  # fmt: skip
            continue
        empty = 0
        sessions.append(rows)
        total += len(rows.prompt)
        contexts = max(rows.context) + 1
    return _block(settings, sessions, seed)


def _session(settings: Agents, draws: _Draws, contexts: int) -> _Rows:
    rows = _Rows()
    context, next_context = contexts, contexts + 1
    tokens, waits_for, think_s = settings.system_tokens, list[int](), 0.0
    for _ in range(draws.count(settings.turns)):
        if not (turn := _turn(settings, draws, rows, context, tokens, think_s, waits_for)):
            break
        tokens, waits_for = rows.prompt[-1] + rows.answer[-1], [turn]
        think_s = draws.tool_s()
        if draws.starts_subagents():
            think_s = 0.0
            for _ in range(draws.count(settings.subagents)):
                last = _subagent(settings, draws, rows, next_context, turn)
                if last:
                    next_context += 1
                    tokens += rows.answer[last - 1]
                    waits_for.append(last)
    return rows


def _subagent(settings: Agents, draws: _Draws, rows: _Rows, context: int, after: int) -> int:
    tokens, think_s, last = settings.system_tokens, 0.0, 0
    for _ in range(draws.count(settings.subagent_turns)):
        turn = _turn(settings, draws, rows, context, tokens, think_s, [last or after])
        if not turn:
            break
        last, tokens = turn, rows.prompt[-1] + rows.answer[-1]
        think_s = draws.tool_s()
    return last


def _turn(
    settings: Agents, draws: _Draws, rows: _Rows, context: int, context_tokens: int, think_s: float,
    waits_for: list[int],
) -> int:  # fmt: skip
    text, answer = next(draws.pairs)
    if settings.max_total_tokens and context_tokens + text + answer > settings.max_total_tokens:
        return 0
    return rows.add(context, context_tokens + text, answer, think_s, waits_for)


def _block(settings: Agents, sessions: list[_Rows], seed: int) -> RequestBlock:
    def column(name: str, kind: Any) -> Any:
        return np.array([one for rows in sessions for one in getattr(rows, name)], kind)[:n]

    n, sizes = settings.requests, np.array([len(rows.prompt) for rows in sessions])
    count = len(sessions)
    session = np.repeat(np.arange(count), sizes)[:n]
    gaps = stream_of(seed, "sessions").standard_exponential(count)
    begin_s = np.cumsum(gaps) * (n / count) / settings.rate_rps
    edges = np.cumsum(zipf_shares(settings.models, settings.zipf_exponent))[:-1]
    model = np.searchsorted(edges, stream_of(seed, "models").random(count), side="right")
    parents = [turns for rows in sessions for turns in rows.parents][:n]
    context, prompt, answer = (
        column("context", np.int64),
        column("prompt", np.int32),
        column("answer", np.int32),
    )
    _, last = np.unique(context[::-1], return_index=True)
    calls_tool = np.ones(n, bool)
    calls_tool[n - 1 - last] = False
    arrival_s = begin_s[session] + column("at_s", np.float64)
    turn = np.arange(n) - (np.cumsum(sizes) - sizes)[session] + 1
    block = RequestBlock(
        arrival_s=arrival_s,
        model=model.astype(np.int32)[session],
        prompt_tokens=prompt,
        output_tokens=answer,
        keys_answers=True,
        session=session,
        turn=turn.astype(np.int32),
        think_s=column("think_s", np.float64),
        calls_tool=calls_tool,
    ).waiting(
        Lists(
            first=np.concatenate([[0], np.cumsum([*map(len, parents)])]),
            values=np.array([turn for turns in parents for turn in turns], np.int32),
        )
    )
    keys = _keys(settings, context, (prompt.astype(np.int64) + answer) // settings.block_tokens)
    return block.hashed(keys, settings.block_tokens).take(np.argsort(arrival_s, kind="stable"))


def _keys(settings: Agents, context: Any, counts: Any) -> Lists:
    first = np.concatenate([[0], np.cumsum(counts)])
    place = np.arange(first[-1]) - np.repeat(first[:-1], counts)
    ids = np.repeat(context + 1, counts) * _PLACES + place
    is_common = place < settings.system_tokens // settings.block_tokens
    hashes = Lists(first=first, values=np.where(is_common, place, ids).astype(np.uint64))
    return Lists(first=first, values=block_keys(hashes, settings.block_tokens))
