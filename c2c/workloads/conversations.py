"""Conversations: sessions of turns, prompts with earlier text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from c2c.errors import SettingError
from c2c.ranges import Count, FromZero, In
from c2c.workloads.blocks import RequestBlock
from c2c.workloads.lengths import LengthPool
from c2c.workloads.prefixes import Lists, block_keys
from c2c.workloads.simple import SteadyTrace, zipf_shares
from c2c.workloads.streams import stream_of

__all__ = ["Conversations", "conversations"]

_PLACES = 1 << 24  # most blocks of a session: a block's hash is its session and position


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations(SteadyTrace):
    """Sessions as a Poisson process; later turns wait for the previous answer.

    `requests` counts all turns; the last session may be cut short. A session keeps its model.
    Fields are `WorkloadConfig`'s; turns are geometric, think times exponential.
    """

    turns: Annotated[float, In("[1, 1e6]")] = 4.0
    think_s: FromZero = 10.0
    system_tokens: Annotated[int, In("[0, 2**24)")] = 256
    block_tokens: Count = 64
    max_total_tokens: int = 8192


def conversations(settings: Conversations, pool: LengthPool, seed: int) -> RequestBlock:
    """Return all requests, ordered as if answers took no time.

    A prompt is its session's text and a new one. A turn draws a pair of the pool.

    Raises:
      SettingError: no first turn within `max_total_tokens`.
    """
    session, turn, text, answer = _turns(settings, pool, seed)
    n, begins = len(session), turn == 1
    totals = np.cumsum(text + answer)
    before = totals - text - answer
    prompt = settings.system_tokens + before - before[begins][session] + text
    gaps = stream_of(seed, "sessions").standard_exponential(int(session[-1]) + 1)
    begin_s = np.cumsum(gaps) * settings.turns / settings.rate_rps
    think_s = stream_of(seed, "think").standard_exponential(n) * settings.think_s
    think_s[begins] = 0.0
    waited = np.cumsum(think_s)
    arrival_s = begin_s[session] + waited - waited[begins][session]
    edges = np.cumsum(zipf_shares(settings.models, settings.zipf_exponent))[:-1]
    choices = stream_of(seed, "models").random(int(session[-1]) + 1)
    model = np.searchsorted(edges, choices, side="right").astype(np.int32)
    think_s[begins] = np.nan
    block = RequestBlock(
        arrival_s=arrival_s,
        model=model[session],
        prompt_tokens=prompt.astype(np.int32),
        output_tokens=answer.astype(np.int32),
        keys_answers=True,
        session=session,
        turn=turn.astype(np.int32),
        think_s=think_s,
    )
    counts = (prompt + answer) // settings.block_tokens
    first = np.concatenate([[0], np.cumsum(counts)])
    place = np.arange(first[-1]) - np.repeat(first[:-1], counts)
    is_common = place < settings.system_tokens // settings.block_tokens
    ids = np.repeat(session + 1, counts) * _PLACES + place
    hashes = Lists(first=first, values=np.where(is_common, place, ids).astype(np.uint64))
    keys = Lists(first=first, values=block_keys(hashes, settings.block_tokens))
    return block.hashed(keys, settings.block_tokens).take(np.argsort(arrival_s, kind="stable"))


def _turns(
    settings: Conversations, pool: LengthPool, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    lengths, ends = stream_of(seed, "lengths"), stream_of(seed, "turns")
    parts: list[NDArray[np.int64]] = []
    total, sessions = 0, 0
    while total < settings.requests:
        count = max(64, int((settings.requests - total) / settings.turns))
        counts = ends.geometric(1.0 / settings.turns, count)
        session = np.repeat(np.arange(count), counts)
        starts = np.cumsum(counts) - counts
        turn = np.arange(len(session)) - starts[session] + 1
        text, answer = (x.astype(np.int64) for x in pool.draw(lengths, len(session)))
        totals = np.cumsum(text + answer)
        whole = settings.system_tokens + totals - (totals - text - answer)[starts][session]
        fits = (whole <= settings.max_total_tokens) | (settings.max_total_tokens == 0)
        if not fits[starts].any():
            raise SettingError(
                "workload.max_total_tokens", settings.max_total_tokens,
                f"at least {int(whole[starts].min())}, the tokens of the shortest first turn",
            )  # fmt: skip
        # Sessions whose first turn does not fit are dropped; the others are renumbered.
        number = np.cumsum(fits[starts]) - 1 + sessions
        rows = np.stack([number[session], turn, text, answer])[:, fits]
        parts.append(rows)
        total += rows.shape[1]
        sessions += int(fits[starts].sum())
    session, turn, text, answer = np.concatenate(parts, axis=1)[:, : settings.requests]
    return session, turn, text, answer
