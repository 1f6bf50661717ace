"""Clients of the API, which call the front's application in the same loop, without a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.vopr.plan import Ask

__all__ = ["Answer", "Client", "called"]


async def called(app: Any, method: str, path: str, fields: Any, client: Any) -> None:
    """Send a request to an ASGI application.

    Args:
      app: the application.
      method: HTTP method.
      path: path of the URL.
      fields: fields of the JSON body.
      client: client with `receive`, `send` and `headers`; its `content` is set to the body.
    """
    client.content = json.dumps(fields).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(client.content)).encode()),
        *client.headers,
    ]
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": method, "path": path, "raw_path": path.encode(), "root_path": "",
        "scheme": "http", "query_string": b"", "headers": headers, "client": ("sim", 1),
        "server": ("sim", 80), "state": {}, "app": app,
    }  # fmt: skip
    await app(scope, client.receive, client.send)


class Answer:
    """One of several answers to a prompt."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.finish: str | None = None


class Client:
    """One request over ASGI, whose client may read slowly or disconnect.

    Attributes:
      gone: set once the client has disconnected.
      status: HTTP status; 0 before a response.
      answers: answers as received so far.
      error: error that came in place of the rest; None for none.
      is_done: True once the answer has ended.
    """

    def __init__(self, ask: Ask | None = None) -> None:
        self._ask = ask
        self.gone = asyncio.Event()
        self.status, self.body = 0, b""
        self.answers = [Answer() for _ in range(1 if ask is None else ask.choices)]
        self.error: dict[str, Any] | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.content = b""
        self.is_done = self._has_begun = False

    async def run(self, app: Any) -> None:
        """Send the request as a completion and read the response."""
        ask = self._ask
        assert ask is not None
        for name, value in ((b"x-deadline-s", ask.deadline_s), (b"x-priority", ask.priority)):
            if value is not None:
                self.headers.append((name, str(value).encode()))
        fields = {
            "model": ask.model, "prompt": ask.ids, "max_tokens": ask.new, "temperature": 0,
            "stream": ask.stream, "return_token_ids": True, "min_tokens": ask.least,
            "ignore_eos": not ask.stop, "seed": 0, "n": ask.choices,
        }  # fmt: skip
        await called(app, "POST", "/v1/completions", fields, self)
        if self.status == 200 and not ask.stream and not self.gone.is_set():
            for choice in json.loads(self.body)["choices"]:
                answer = self.answers[choice["index"]]
                answer.tokens, answer.finish = choice["token_ids"], choice["finish_reason"]
            self.is_done = True
        elif self.status != 200 and self.body:
            self.error = json.loads(self.body)["error"]

    async def receive(self) -> dict[str, Any]:
        """Return the request, then the client's disconnect."""
        if not self._has_begun:
            self._has_begun = True
            return {"type": "http.request", "body": self.content, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Receive a piece of the response."""
        if self.gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        data = message.get("body", b"")
        if not data.startswith(b"data: "):
            self.body += data
            return
        if data == b"data: [DONE]\n\n":
            self.is_done = True
            return
        found = json.loads(data[6:])
        if "error" in found:
            self.error = found["error"]
            return
        for choice in found["choices"]:
            answer = self.answers[choice["index"]]
            answer.tokens += choice["token_ids"]
            answer.finish = choice["finish_reason"] or answer.finish
        ask = self._ask
        assert ask is not None
        got = sum(len(answer.tokens) for answer in self.answers)
        if ask.cancel == "tokens" and got >= ask.cancel_at:
            self.gone.set()
        if ask.slow_s:
            await asyncio.sleep(ask.slow_s)

    @property
    def why(self) -> str:
        """Reason for the end of the request; of several answers, that of the first."""
        if self.error is None:
            return self.answers[0].finish or ("cancelled" if self.gone.is_set() else "nothing")
        code, text = self.error.get("code"), str(self.error["message"])
        if code:
            return {"engine_gone": "gone", "model_not_found": "model_gone"}.get(code, str(code))
        if "deadline" in text:
            return "deadline"
        return "cancelled" if "cancel" in text or "went away" in text else text
