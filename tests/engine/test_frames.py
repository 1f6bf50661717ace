"""Frames in an event loop: whole ones are passed on as they come, however the bytes are cut."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.engine import messages as say
from c2c.engine.frames import Connection, SocketFrames, frames_in, packed

FRAMES = [say.Stop(), say.Free(requests=(1, 2, 300)), say.Drop(model="m" * 300), say.Stop()]


@given(cuts=st.lists(st.integers(0, len(packed(*FRAMES))), max_size=6))
def test_frames_come_whole_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    data = packed(*FRAMES)
    bounds = [0, *sorted(cuts), len(data)]
    held, found = bytearray(), []
    for first, past in itertools.pairwise(bounds):
        held += data[first:past]
        found += frames_in(held)
    assert found == FRAMES
    assert not held


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="a frame of 4294967295 bytes"):
        frames_in(bytearray(b"\xff" * 8))


async def _pair(take: Any) -> tuple[Connection, asyncio.Task[None], socket.socket]:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(Connection, sock=ours)
    return link, asyncio.create_task(link.each(take)), theirs


def test_a_frame_that_cannot_be_taken_ends_its_connection_alone() -> None:
    taken: list[Any] = []

    def take(frame: Any) -> None:
        if isinstance(frame, say.Drop):
            raise KeyError(frame.model)
        taken.append(frame)

    async def scenario() -> None:
        link, bad, theirs = await _pair(take)
        other, good, kept = await _pair(taken.append)
        theirs.sendall(packed(*FRAMES))
        kept.sendall(packed(say.Stop()))
        await bad
        link.send(say.Stop())  # to nobody
        theirs.close()
        kept.close()
        await good
        other.close()

    asyncio.run(scenario())
    assert taken.count(say.Stop()) == 2
    assert taken.count(FRAMES[1]) == 1


def test_frames_before_the_first_wish_are_kept() -> None:
    taken: list[Any] = []

    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(Connection, sock=ours)
        theirs.sendall(packed(*FRAMES))
        assert await link.next() == FRAMES[0]
        theirs.close()
        await link.each(taken.append)
        link.close()

    asyncio.run(scenario())
    assert taken == FRAMES[1:]


@given(
    cut=st.integers(1, len(packed(*FRAMES)) - 1),
    # at once, while a process still looks, and once it sleeps
    late_s=st.sampled_from([0.0, 0.0001, 0.003]),
)
def test_a_process_gets_what_comes_at_once_or_late_and_hears_of_the_end(
    cut: int, late_s: float
) -> None:
    ours, theirs = socket.socketpair()
    data, found = packed(*FRAMES), []

    def send() -> None:
        for part in (data[:cut], data[cut:]):
            time.sleep(late_s)
            theirs.sendall(part)
        time.sleep(late_s)
        theirs.close()

    frames = SocketFrames(ours)
    assert frames.receive(waits=False) == []
    sender = threading.Thread(target=send)
    sender.start()
    while (some := frames.receive(waits=True)) is not None:
        found += some
    sender.join()
    assert found == FRAMES
    assert frames.receive(waits=False) is None
    ours.close()
