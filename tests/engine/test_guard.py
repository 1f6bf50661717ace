"""Every request passes the key first, and the limit of its body."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from c2c.engine.front.guard import Guard


def asked(path: str, key: str | None, **request: Any) -> httpx.Response:
    app = FastAPI()

    async def echo(request: Request) -> int:
        return len(await request.body())

    app.post("/v1/echo")(echo)
    app.get("/health")(lambda: "ok")
    transport = httpx.ASGITransport(app=Guard(app, key))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://c2c") as client:
            return await client.request(request.pop("method", "POST"), path, **request)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "sent", [None, "Bearer other", "Bearer ", "sesame!", "sesame", "Basic sesame", "Bearersesame"]
)
def test_without_the_key_nothing_but_health_is_told(sent: str | None) -> None:
    headers = {} if sent is None else {"authorization": sent}
    answer = asked("/v1/echo", "sesame", headers=headers, content=b"x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert asked("/health", "sesame", method="GET", headers=headers).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER  "])
def test_with_the_key_or_where_there_is_none_it_is_served(scheme: str) -> None:
    headers = {"authorization": f"{scheme}sesame"}
    assert asked("/v1/echo", "sesame", headers=headers, content=b"four").json() == 4
    assert asked("/v1/echo", None, content=b"four").json() == 4


def test_a_body_of_no_length_is_counted_as_it_comes() -> None:
    async def pieces(count: int) -> Any:
        for _ in range(count):
            yield b"x" * (1 << 20)

    assert asked("/v1/echo", None, content=pieces(3)).json() == 3 << 20
    assert asked("/v1/echo", None, content=pieces(33)).status_code == 413
    length = {"content-length": "9" * 5000}
    assert asked("/v1/echo", None, content=b"x", headers=length).status_code == 413
