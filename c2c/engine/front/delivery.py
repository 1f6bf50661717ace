"""Delivery of answers: whole, or as a stream; both end with their client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from fastapi import Request

from c2c.engine.front.answers import Shape
from c2c.engine.front.blocks import Blocks
from c2c.engine.front.choices import Choice, Piece
from c2c.engine.front.failures import ApiError
from c2c.engine.front.parser import Parts

__all__ = ["complete", "events_of", "first_event"]

_MOST_CHUNKS = 64  # chunks of a stream that wait for the client, besides those in the link


async def complete(request: Request, choices: Sequence[Choice], over: Callable[[], None]) -> None:
    """Complete all choices; a disconnect of the client cancels them."""

    async def follow(choice: Choice) -> None:
        async for _ in choice.pieces():
            pass

    tasks = [asyncio.create_task(follow(choice)) for choice in choices]
    work = asyncio.gather(*tasks)
    gone = asyncio.create_task(_gone(request))
    first: tuple[asyncio.Future[Any], ...] = (work, gone)
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ApiError(499, "the client disconnected")
        await work
    finally:
        gone.cancel()
        for task in tasks:  # if one failed, the others end, too
            task.cancel()
        await asyncio.gather(*tasks, work, return_exceptions=True)
        for choice in choices:  # some may not have started
            choice.close()
        over()


async def events_of(
    shape: Shape | Blocks, choices: Sequence[Choice], over: Callable[[], None]
) -> AsyncGenerator[bytes, None]:
    """Yield a stream's events, from all choices as they arrive."""
    ready: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_MOST_CHUNKS)

    async def follow(choice: Choice) -> None:
        is_first = True
        try:
            async for piece in choice.pieces():
                await ready.put(shape.chunk(choice, piece, is_first=is_first, is_last=False))
                is_first = False
            end = Piece(Parts())
            await ready.put(shape.chunk(choice, end, is_first=is_first, is_last=True))
        except Exception as error:  # noqa: BLE001 (raised by the stream's reader)
            await ready.put(error)
        await ready.put(None)

    tasks = [asyncio.create_task(follow(choice)) for choice in choices]
    try:
        left, has_begun = len(tasks), False
        while left:
            one = await ready.get()
            if one is None:
                left -= 1
                continue
            if isinstance(one, Exception):
                if not has_begun or not isinstance(one, ApiError):
                    raise one
                one = shape.failed(one)
            has_begun = True
            yield one
        yield shape.last()
    finally:
        for task in tasks:
            task.cancel()
        for choice in choices:
            choice.close()
        over()


async def first_event(request: Request, events: AsyncGenerator[bytes, None]) -> bytes:
    """Return a stream's first event, which decides the HTTP status."""
    coming = asyncio.create_task(anext(events))
    gone = asyncio.create_task(_gone(request))
    first: tuple[asyncio.Future[Any], ...] = (coming, gone)
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if coming.done():
            return await coming
        raise ApiError(499, "the client disconnected")
    finally:
        for task in first:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ApiError):
            await coming  # frees its resources


async def _gone(request: Request) -> None:
    """Return once the client has disconnected; its request must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
