"""Windows, rotation, merging, compression, limits: what they keep and what they change."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c2c.workloads import RequestBlock, concatenate
from c2c.workloads.lengths import LengthFilter, synthetic_lengths
from c2c.workloads.transformations import (
    Source,
    compressed,
    held,
    limited,
    merged,
    rotated,
    windowed,
    with_lengths,
)

times = st.lists(st.integers(0, 40), max_size=30).map(sorted)


def source(arrivals: list[int], size: int = 4, tag: int = 0) -> Source:
    """Return a stream in blocks of `size`; prompt_tokens numbers the requests."""

    def start() -> Iterator[RequestBlock]:
        for at in range(0, len(arrivals), size):
            part = arrivals[at : at + size]
            yield RequestBlock(
                arrival_s=np.array(part, np.float64),
                model=np.full(len(part), tag, np.int32),
                prompt_tokens=np.arange(at, at + len(part), dtype=np.int32),
                output_tokens=np.ones(len(part), np.int32),
            )

    return start


def rows(stream: Source) -> list[tuple[float, int, int]]:
    block = concatenate(stream())
    columns = (block.arrival_s, block.model, block.prompt_tokens)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(streams=st.lists(times, min_size=1, max_size=4), size=st.integers(1, 7))
def test_merging_sorts_and_settles_ties_by_source(streams: list[list[int]], size: int) -> None:
    got = rows(merged([source(s, size, tag) for tag, s in enumerate(streams)]))
    wanted = [(float(t), tag, i) for tag, s in enumerate(streams) for i, t in enumerate(s)]
    # Python's sort is stable: equal arrivals stay in the order of the sources.
    assert got == sorted(wanted, key=lambda row: row[0])


@given(arrivals=times, size=st.integers(1, 7), offset=st.integers(0, 40))
def test_rotation_moves_everything_round(arrivals: list[int], size: int, offset: int) -> None:
    got = rows(rotated(source(arrivals, size), float(offset), 41.0))
    assert [t for t, _, _ in got] == sorted(float((t - offset) % 41) for t in arrivals)
    assert sorted(i for _, _, i in got) == list(range(len(arrivals)))


@given(arrivals=times, size=st.integers(1, 7), start=st.integers(0, 40), length=st.integers(1, 40))
def test_a_window_keeps_what_is_inside(
    arrivals: list[int], size: int, start: int, length: int
) -> None:
    got = rows(windowed(source(arrivals, size), start, start + length))
    inside = [(i, t) for i, t in enumerate(arrivals) if start <= t < start + length]
    assert got == [(float(t - start), 0, i) for i, t in inside]


@given(arrivals=times, size=st.integers(1, 7), keep=st.integers(1, 40))
def test_a_limit_keeps_the_first(arrivals: list[int], size: int, keep: int) -> None:
    assert rows(limited(source(arrivals, size), keep)) == rows(source(arrivals))[:keep]


@given(arrivals=times, size=st.integers(1, 7))
def test_holding_changes_nothing(arrivals: list[int], size: int) -> None:
    assert rows(held(source(arrivals, size))) == rows(source(arrivals))


def test_compression_divides_times_only() -> None:
    assert rows(compressed(source([0, 10, 30]), 10)) == [(0.0, 0, 0), (1.0, 0, 1), (3.0, 0, 2)]


@given(arrivals=times, sizes=st.tuples(st.integers(1, 7), st.integers(1, 7)))
def test_block_borders_do_not_change_lengths(arrivals: list[int], sizes: tuple[int, int]) -> None:
    pool = synthetic_lengths(LengthFilter())
    one, two = (rows(with_lengths(source(arrivals, size), pool, 5)) for size in sizes)
    assert one == two
