"""The front without an engine behind it: every request is answered with the same few tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from c2c.engine import messages as say
from c2c.engine.front.app import make_app
from c2c.engine.front.link import Link

__all__ = ["FakeLink", "begun", "front_of"]


class FakeLink(Link):
    """Sender to a scheduler that does not exist."""

    def __init__(self, *models: say.ModelInfo, why: str = "length") -> None:
        super().__init__("nowhere")
        self.hello = say.Models(models=models, max_open=16)
        self.why = why
        self.state: dict[str, Any] = {
            "is_draining": False, "open": {}, "waiting": {}, "queued": {},
            "steps": 0, "compiled_after_start": 0,
            "uptime_s": 1.0, "others_cpu": None, "models": {}, "workers": [{
                "device": 0, "state": "idle", "restarts": 0, "held": 0, "residents": [],
                "kv_bytes": 0.0, "kv_capacity_bytes": 1.0,
                "generation": 1,
            }],
        }  # fmt: skip

    async def connect(self) -> None:
        self.is_up = True
        self._heard(self.hello)

    def ask(self, **fields: Any) -> tuple[int, asyncio.Queue[say.Answered]]:
        answers: asyncio.Queue[say.Answered] = asyncio.Queue()
        scores = tuple(
            say.Scored(request=1, logprob=-0.5, top=((1, -0.5),) * fields["scores"])
            for _ in range(fields["new"]) if fields["scores"] is not None
        )  # fmt: skip
        answers.put_nowait(say.Tokens(request=1, tokens=(1,) * fields["new"], scores=scores))
        answers.put_nowait(say.Ended(request=1, why=self.why))
        return 1, answers

    async def live(self) -> dict[str, Any]:
        return self.state

    async def command(self, kind: Any, **fields: Any) -> say.Managed:
        refused = "" if fields["what"] == "load" else f"/data/{fields['model']}/x.json is pinned"
        return say.Managed(number=1, model=fields["model"], refused=refused)


def front_of(*models: Path, **more: Any) -> FastAPI:
    """The application over checkpoints, and one that failed."""
    infos = [say.ModelInfo(name=p.name, path=str(p), context=64, vocab=96) for p in models]
    return make_app(FakeLink(*infos, **more), key=None)


@contextmanager
def begun(app: FastAPI) -> Iterator[Callable[..., httpx.Response]]:
    """Start an application; yield what sends it a request, as httpx's `request` does."""

    async def enter() -> tuple[AsyncExitStack, httpx.AsyncClient]:
        stack = AsyncExitStack()
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(app=app)
        return stack, await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://c2c")
        )

    with asyncio.Runner() as runner:
        stack, client = runner.run(enter())
        try:
            yield lambda *args, **more: runner.run(client.request(*args, **more))
        finally:
            runner.run(stack.aclose())
