"""Transformations of a request stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from c2c.workloads.blocks import RequestBlock, concatenate
from c2c.workloads.lengths import LengthPool
from c2c.workloads.prefixes import root_of
from c2c.workloads.streams import stream_of

__all__ = [
    "Source",
    "compressed",
    "copied",
    "held",
    "limited",
    "merged",
    "rotated",
    "windowed",
    "with_lengths",
]

type Source = Callable[[], Iterator[RequestBlock]]

_BLOCK_ROWS = 65_536
_HELD_ROWS = 8_192  # a merge holds one such block of each stream


def _moved(block: RequestBlock, shift_s: float) -> RequestBlock:
    return replace(block, arrival_s=block.arrival_s + shift_s)


def _in_order(parts: Sequence[RequestBlock]) -> RequestBlock:
    block = concatenate(parts)
    return block.take(np.argsort(block.arrival_s, kind="stable"))


def held(source: Source) -> Source:
    """Read a stream once; replay it from memory (20 bytes a request)."""
    everything = concatenate(source())

    def start() -> Iterator[RequestBlock]:
        for first in range(0, len(everything), _HELD_ROWS):
            yield everything.take(slice(first, first + _HELD_ROWS))

    return start


def copied(source: Source, number: int, copies: int) -> Source:
    """Return copy `number` (0: the stream) with own sessions and prompt keys."""
    root = root_of(number)

    def start() -> Iterator[RequestBlock]:
        for block in source():
            copy = block
            if copy.session is not None:
                session = np.where(copy.session < 0, -1, copy.session * copies + number)
                copy = replace(copy, session=session)
            yield copy.apart(root) if number else copy

    return start


# A transformation takes a function that starts a stream and returns another; memory is bounded by a
# few blocks.
def windowed(source: Source, start_s: float, end_s: float) -> Source:
    """Keep arrivals in [start_s, end_s), start_s as time 0."""

    def start() -> Iterator[RequestBlock]:
        for block in source():
            first, last = np.searchsorted(block.arrival_s, (start_s, end_s), side="left")
            if last > first:
                yield _moved(block.take(slice(first, last)), -start_s)
            if last < len(block):
                return

    return start


def rotated(source: Source, offset_s: float, period_s: float) -> Source:
    """Rotate a stream in time, to start at `offset_s`."""

    def start() -> Iterator[RequestBlock]:
        for block in source():
            cut = int(np.searchsorted(block.arrival_s, offset_s, side="left"))
            if cut < len(block):
                yield _moved(block.take(slice(cut, None)), -offset_s)
        for block in source():
            cut = int(np.searchsorted(block.arrival_s, offset_s, side="left"))
            if cut:
                yield _moved(block.take(slice(0, cut)), period_s - offset_s)
            if cut < len(block):
                return

    return start


def merged(sources: Sequence[Source]) -> Source:
    """Merge ascending streams; equal arrivals in the sources' order."""

    def start() -> Iterator[RequestBlock]:
        streams = [source() for source in sources]
        heads = [next(stream, None) for stream in streams]
        flags = [head is not None for head in heads]  # streams that may yield more
        while any(flags):
            # No unread block has a row before the earliest end of a head. Rows at exactly that
            # time wait, as the next block may have more of them.
            ends = [
                head.arrival_s[-1] for head, more in zip(heads, flags, strict=True) if head and more
            ]
            frontier = min(ends)
            ready = []
            for i, head in enumerate(heads):
                if head is None:
                    continue
                cut = int(np.searchsorted(head.arrival_s, frontier, side="left"))
                ready.append(head.take(slice(0, cut)))
                rest = head.take(slice(cut, None))
                if flags[i] and head.arrival_s[-1] == frontier:
                    following = next(streams[i], None)
                    flags[i] = following is not None
                    rest = concatenate([rest, following]) if following is not None else rest
                heads[i] = rest if len(rest) else None
            yield _in_order(ready)
        yield _in_order([head for head in heads if head is not None])

    return start


def compressed(source: Source, factor: float) -> Source:
    """Divide every arrival by `factor`."""

    def start() -> Iterator[RequestBlock]:
        for block in source():
            yield replace(block, arrival_s=block.arrival_s / factor)

    return start


def limited(source: Source, max_requests: int) -> Source:
    """Keep the first `max_requests` requests."""

    def start() -> Iterator[RequestBlock]:
        rest = max_requests
        for block in source():
            for first in range(0, min(rest, len(block)), _BLOCK_ROWS):
                yield block.take(slice(first, min(first + _BLOCK_ROWS, rest, len(block))))
            rest -= len(block)
            if rest <= 0:
                return

    return start


def with_lengths(source: Source, pool: LengthPool, seed: int) -> Source:
    """Give requests length pairs, whatever the division into blocks."""

    def start() -> Iterator[RequestBlock]:
        rng = stream_of(seed, "lengths")
        for block in source():
            prompt, output = pool.draw(rng, len(block))
            drawn = replace(
                block, prompt_tokens=prompt, output_tokens=output,
                measured_ttft_s=None, measured_tpot_s=None, max_output_tokens=None,
            )  # fmt: skip
            yield drawn.hashed(None, 0)  # hashes belong to the replaced prompts

    return start
