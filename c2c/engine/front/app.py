"""Application of the front: its endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from c2c.engine.front.answers import Shape, Stream, event
from c2c.engine.front.blocks import Blocks, MessageBlocks, ResponseBlocks
from c2c.engine.front.body import BodyRoute, extra_headers
from c2c.engine.front.choices import Choice
from c2c.engine.front.conversions import MessagesRequest, ResponsesRequest
from c2c.engine.front.delivery import complete, events_of, unless_gone
from c2c.engine.front.embeddings import EmbeddingsRequest
from c2c.engine.front.failures import ApiError, invalid, without_paths
from c2c.engine.front.guard import Guard
from c2c.engine.front.job import Job, chat_job, text_job
from c2c.engine.front.link import Link
from c2c.engine.front.metrics import Metrics
from c2c.engine.front.models import Models
from c2c.engine.front.openapi import ERRORS, STREAM
from c2c.engine.front.parameters import check, unknown
from c2c.engine.front.protocol import ChatRequest, CompletionRequest
from c2c.engine.front.served_model import Served, served_models
from c2c.engine.front.texts import Texts
from c2c.engine.front.trials import Trials
from c2c.engine.messages import ModelInfo

__all__ = ["make_app"]

_log = logging.getLogger("c2c.engine.front")
_LIVE_S = 0.5  # between states of the live page
_MOST_NAME = 64  # characters of a client's field name that are logged
_MOST_IGNORED = 32  # unknown fields that are logged


def make_app(
    link: Link,
    *,
    key: str | None,
    most_choices: int = 2048,
    at_once: int = 64,
    read: Callable[[Sequence[ModelInfo]], dict[str, Served]] = served_models,
    origins: Sequence[str] = (),
) -> FastAPI:
    """Return the application."""
    front = Front(link, most_choices, at_once, read)
    app = FastAPI(
        title="c2c", lifespan=front.lifespan, docs_url=None, redoc_url=None, responses=ERRORS
    )
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_middleware(Guard, key=key, starting=front.starting)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", "x-should-retry"],
        )  # fmt: skip
    app.router.route_class = BodyRoute
    models, texts = front.models, Texts(front.find)
    app.get("/v1/models")(models.all)
    app.get("/v1/models/{model:path}")(models.one)
    app.post("/v1/models")(models.add)
    app.delete("/v1/models/{model:path}")(models.remove)
    app.post("/v1/completions", responses=STREAM)(front.completions)
    app.post("/v1/embeddings")(front.embeddings)
    app.post("/v1/chat/completions", responses=STREAM)(front.chat)
    app.post("/v1/responses", responses=STREAM)(front.responses)
    app.post("/v1/messages", responses=STREAM)(front.messages)
    app.post("/v1/messages/count_tokens")(front.message_tokens)
    app.post("/tokenize")(texts.tokenize)
    app.post("/detokenize")(texts.detokenize)
    app.get("/version")(texts.version)
    app.get("/health")(front.health)
    app.get("/ready")(front.ready)
    app.get("/live", responses=STREAM)(front.live)
    app.post("/admin/drain")(front.drain)
    app.post("/admin/resume")(front.resume)
    for verb in ("load", "unload", "pin", "unpin"):
        app.post(f"/admin/{verb}", name=verb)(models.managing(verb))
    app.get("/metrics", include_in_schema=False)(front.metrics_text)
    app.get("/", include_in_schema=False)(front.page)
    return app


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # A field of several types has an error for each; report the one of the matching type.
    same = [e for e in error.errors() if e["loc"][:2] == first["loc"][:2]]
    first = next((e for e in same if not e["type"].endswith("_type")), first)
    names = [str(part) for part in first["loc"][1:2]]
    param = names[0] if names else None
    return ApiError(400, f"{param or 'body'}: {first['msg']}", param=param).response()


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        return error.response()
    answer = ApiError(error.status_code, str(error.detail)).response()
    answer.headers.update(error.headers or {})
    return answer


class Front:
    """State that the endpoints share."""

    def __init__(
        self,
        link: Link,
        most_choices: int,
        at_once: int,
        read: Callable[[Sequence[ModelInfo]], dict[str, Served]],
    ) -> None:
        self._link, self._read = link, read
        self._most_choices, self._at_once = most_choices, at_once
        self._served: dict[str, Served] | None = None  # None: not known yet
        self._metrics, self._trials = Metrics(), Trials()
        self.models = Models(link, self.read)
        self._ignored: set[str] = set()

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """Connect to the scheduler; models may follow later."""
        await self._link.connect()
        beginning = asyncio.create_task(self._begin())
        if self._link.has_models.is_set():
            await beginning
        yield
        beginning.cancel()
        await self._trials.close()
        self._link.close()

    async def _begin(self) -> None:
        await self._link.has_models.wait()
        try:
            self._served = await asyncio.to_thread(self._read, self._link.models)
        except Exception:  # noqa: BLE001 (the engine notices the front's end)
            _log.exception("the models' tokenizers cannot be loaded")
            self._link.close()

    def read(self, models: Sequence[ModelInfo]) -> None:
        """Load the tokenizers of added models."""
        self._served = (self._served or {}) | self._read(models)

    def starting(self) -> str:
        """Return the start's progress; "" if complete."""
        return "" if self._served is not None else self._link.starting or "loading tokenizers"

    async def completions(self, request: Request, body: CompletionRequest) -> Response:
        """Complete one prompt or several."""
        check(body)
        self._check_count("n", body)
        job = await asyncio.to_thread(text_job, self.find(body.model), body)
        return await self._answer(request, job, job.shape())

    async def embeddings(self, request: Request, body: EmbeddingsRequest) -> Response:
        """Return the embedding of one text or several."""
        text = body.completion()
        self._check_count("input", text)
        job = await asyncio.to_thread(text_job, self.find(body.model), text, "input")
        choices, over = await self._choices(request, job, embeds=True)
        await complete(request, choices, over)
        return JSONResponse(body.answer(choices, sum(map(len, job.prompts))))

    def _check_count(self, field: str, body: CompletionRequest) -> None:
        if len(body.prompts) * body.n > self._most_choices:
            why = f"{body.n} choices for each of {len(body.prompts)} prompts"
            raise invalid(field, f"{why}, expected at most {self._most_choices} in all")

    async def chat(self, request: Request, body: ChatRequest) -> Response:
        """Answer a chat."""
        return await self._chat(request, body, None)

    async def messages(self, request: Request, body: MessagesRequest) -> Response:
        """Answer a chat in Anthropic's form."""
        if body.max_tokens is None:
            raise invalid("max_tokens", "expected a number")
        return await self._chat(request, body.chat(), MessageBlocks(body.model))

    async def message_tokens(self, body: MessagesRequest) -> dict[str, int]:
        """Count a chat's tokens, in Anthropic's form."""
        job = await asyncio.to_thread(chat_job, self.find(body.model), body.chat())
        return {"input_tokens": len(job.prompts[0])}

    async def responses(self, request: Request, body: ResponsesRequest) -> Response:
        """Answer in the form of OpenAI's responses; none is stored."""
        return await self._chat(request, body.chat(), ResponseBlocks(body.shown()))

    async def _chat(self, request: Request, body: ChatRequest, shape: Blocks | None) -> Response:
        check(body)
        job = await asyncio.to_thread(chat_job, self.find(body.model), body)
        return await self._answer(request, job, shape or job.shape())

    def find(self, model: str) -> Served:
        """Return a served model."""
        info = self.models.info(model)
        if info.failed:
            why = without_paths(info.failed, info.path)
            raise ApiError(503, f"{model} cannot be served: {why}", code="model_failed")
        served = (self._served or {}).get(model)
        if served is None or served.info.path != info.path:  # its tokenizer is being read
            raise ApiError(503, f"{model} is being added", code="starting", retry_s=1.0)
        return served

    async def _answer(self, request: Request, job: Job, shape: Shape | Blocks) -> Response:
        choices, over = await self._choices(request, job)
        shape.begin(choices, sum(map(len, job.prompts)))
        if job.asked.stream:
            events = events_of(shape, choices, over)
            first = await unless_gone(request, anext(events))  # decides the HTTP status
            return Stream(first, events)
        await complete(request, choices, over)
        return JSONResponse(shape.whole())

    async def _choices(
        self, request: Request, job: Job, **more: Any
    ) -> tuple[list[Choice], Callable[[], None]]:
        body = job.asked
        self._tell_ignored([*unknown(body), *(job.chat.unused if job.chat else ())])
        job.check(self._link.max_open)
        more |= extra_headers(request)
        grammar, field = await asyncio.to_thread(job.grammar)
        if grammar:
            await self._trials.check(grammar, field)
        choices = job.choices(self._link, asyncio.Semaphore(self._at_once), grammar, more)
        self._metrics.prompt.labels(body.model).inc(sum(map(len, job.prompts)))
        return choices, partial(self._over, body.model, choices)

    def _tell_ignored(self, fields: Sequence[str]) -> None:
        names = {name[:_MOST_NAME] for name in fields[:_MOST_IGNORED]} - self._ignored
        for name in sorted(names)[: _MOST_IGNORED - len(self._ignored)]:
            self._ignored.add(name)
            _log.warning("the request field %s is ignored", name)
            if len(self._ignored) == _MOST_IGNORED:
                _log.warning("further ignored request fields are not logged")

    def _over(self, model: str, choices: Sequence[Choice]) -> None:
        for choice in choices:
            self._metrics.requests.labels(model, choice.outcome).inc()
            self._metrics.tokens.labels(model).inc(choice.drawn)
            if choice.times_s:
                first, last = choice.times_s
                self._metrics.ttft.labels(model).observe(first - choice.begun_s)
                if choice.drawn > 1:
                    self._metrics.tpot.labels(model).observe((last - first) / (choice.drawn - 1))

    async def health(self) -> dict[str, str]:
        """Report that the front's process is alive."""
        return {"status": "ok"}

    async def ready(self) -> Response:
        """Report readiness: 200 if accepting with a living worker, else 503."""
        is_up = self._link.is_up and bool(self._served)
        if is_up:
            now = await self._link.live()
            workers = [w for w in now["workers"] if w["state"] != "given up"]
            is_up = bool(workers) and not now["is_draining"]
        return JSONResponse({"status": "ok" if is_up else "unavailable"}, 200 if is_up else 503)

    async def metrics_text(self) -> Response:
        """Return metrics in Prometheus' text format."""
        self._metrics.seen(await self._link.live())
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def drain(self) -> dict[str, str]:
        """Refuse new requests until `/admin/resume`."""
        return await self._admit(is_draining=True)

    async def resume(self) -> dict[str, str]:
        """Accept requests again."""
        return await self._admit(is_draining=False)

    async def _admit(self, *, is_draining: bool) -> dict[str, str]:
        self._link.drain(is_on=is_draining)
        now = await self._link.live()  # frames are handled in order, so the change is included
        return {"status": "draining" if now["is_draining"] else "ok"}

    async def live(self) -> Response:
        """Stream the engine's state, twice a second."""

        async def states() -> AsyncIterator[bytes]:
            with contextlib.suppress(ApiError):  # the engine ends
                while self._link.is_up:
                    yield event(await self._link.live())
                    await asyncio.sleep(_LIVE_S)

        return StreamingResponse(states(), media_type="text/event-stream")

    async def page(self) -> Response:
        """Return the live page."""
        page = resources.files("c2c.engine.front") / "page.html"
        return HTMLResponse(page.read_text("utf-8"))
