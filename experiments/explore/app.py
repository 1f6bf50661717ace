"""Web application of the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from importlib import resources
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from c2c.errors import DataError, SettingError
from experiments.explore.answers import Answers, Asked
from experiments.explore.controls import controls

__all__ = ["make_app"]

MOST_BYTES: Final = 100_000_000  # of a trace, and of all traces together
_MOST_ASKED: Final = 100_000  # bytes of a question
_HERE: Final = ["127.0.0.1", "localhost"]


def make_app(most: int) -> Starlette:
    """Return the application, for at most so many requests."""
    page = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    answers, folder = Answers(most), TemporaryDirectory(prefix="c2c-explore-")
    one_at_a_time = asyncio.Lock()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        with folder:
            yield

    async def index(_request: Request) -> Response:
        data = json.dumps(controls(most)).replace("<", "\\u003c")
        return HTMLResponse(page.replace("CONTROLS", data))

    async def answer(request: Request) -> Response:
        if request.headers.get("content-type") != "application/json":
            return _fault("content-type: expected application/json.", 415)
        request_body = msgspec.json.decode(await _body(request, _MOST_ASKED), type=Asked)
        async with one_at_a_time:
            return JSONResponse(await asyncio.to_thread(answers.answer, request_body))

    async def trace(request: Request) -> Response:
        name = PurePath(unquote(request.headers.get("x-name", ""))).name
        if not name:
            return _fault("x-name: expected the name of the trace.", 415)
        content = await _body(request, MOST_BYTES - _size(Path(folder.name)))
        file = Path(folder.name) / sha256(content).hexdigest()[:16] / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        return JSONResponse({"path": str(file)})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/answer", answer, methods=["POST"]),
            Route("/trace", trace, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=_HERE)],
        exception_handlers=dict.fromkeys((SettingError, DataError, msgspec.DecodeError), _refused),
        lifespan=lifespan,
    )


async def _body(request: Request, most: int) -> bytes:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise DataError("the file", f"is longer than {most:,} bytes", "Use c2c simulate.")
    return bytes(content)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def _refused(_request: Request, error: Exception) -> Response:
    return _fault(str(error), 422)


def _fault(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status)
