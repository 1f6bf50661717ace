"""Delivery of answers, whole or streamed, until the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request

from c2c.engine.front.answers import Shape
from c2c.engine.front.blocks import Blocks
from c2c.engine.front.choices import Choice, Piece
from c2c.engine.front.failures import ApiError
from c2c.engine.front.parser import Parts

__all__ = ["complete", "events_of", "unless_gone"]

_MOST_CHUNKS = 64  # chunks of a stream that wait for the client, besides those in the link


async def complete(request: Request, choices: Sequence[Choice], over: Callable[[], None]) -> None:
    """Complete all choices; a disconnect cancels them."""

    async def follow() -> None:
        async with contextlib.aclosing(_all(choices, lambda *_: b"", over)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Exception):
                    raise piece

    await unless_gone(request, follow())


async def events_of(
    shape: Shape | Blocks, choices: Sequence[Choice], over: Callable[[], None]
) -> AsyncGenerator[bytes, None]:
    """Yield a stream's events as they arrive."""
    has_begun = False

    def chunk(choice: Choice, piece: Piece, is_first: bool, is_last: bool) -> bytes:
        return shape.chunk(choice, piece, is_first=is_first, is_last=is_last)

    async with contextlib.aclosing(_all(choices, chunk, over)) as pieces:
        async for piece in pieces:
            if not isinstance(piece, Exception):
                yield piece
            elif not has_begun or not isinstance(piece, ApiError):
                raise piece
            else:
                yield shape.failed(piece)
            has_begun = True
    yield shape.last()


async def _all(
    choices: Sequence[Choice],
    chunk: Callable[[Choice, Piece, bool, bool], bytes],
    over: Callable[[], None],
) -> AsyncGenerator[bytes | Exception, None]:
    ready: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_MOST_CHUNKS)

    async def follow(choice: Choice) -> None:
        is_first = True
        try:
            async for piece in choice.pieces():
                await ready.put(chunk(choice, piece, is_first, False))
                is_first = False
            await ready.put(chunk(choice, Piece(Parts()), is_first, True))
        except Exception as error:  # noqa: BLE001 (raised by the reader)
            await ready.put(error)
        await ready.put(None)

    tasks = [asyncio.create_task(follow(choice)) for choice in choices]
    try:
        rest = len(tasks)
        while rest:
            one = await ready.get()
            if one is None:
                rest -= 1
            else:
                yield one
    finally:
        for task in tasks:
            task.cancel()
        for choice in choices:  # some may not have started
            choice.close()
        over()


async def unless_gone[T](request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work; a disconnect cancels it."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    first: tuple[asyncio.Future[Any], ...] = (task, gone)
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return await task
        raise ApiError(499, "the client disconnected")
    finally:
        for one in first:
            one.cancel()
        await asyncio.gather(task, return_exceptions=True)  # frees its resources


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
