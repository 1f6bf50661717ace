"""Interface of the benchmark's servers, and this engine as one of them."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from c2c.errors import DataError
from experiments.children import cpu_seconds

__all__ = ["START_S", "Answer", "Engine", "Request", "Server", "launched", "streamed"]

START_S = 600.0
"""Longest start of a server, and longest pause in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt of token ids that arrives `at_s` after the trace's start, and its `new` tokens."""

    at_s: float
    model: str
    ids: tuple[int, ...]
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tokens of an answer; times of the first and the last in seconds since the request."""

    first_s: float
    last_s: float
    tokens: tuple[int, ...]
    head: Mapping[str, str] = field(default_factory=dict)
    """Fields of the HTTP header, names in small letters."""


class Server(Protocol):
    """A server of several models by name."""

    name: str

    @property
    def swaps_s(self) -> Sequence[float]:
        """Seconds of each model load since the start, with the unload of another for it."""

    def start(self) -> None:
        """Start the server; return when it serves."""

    def ask(self, request: Request) -> Answer:
        """Send a request and return its answer; called from several threads at once."""

    def processes(self) -> Sequence[int]:
        """Return the ids of the server's present processes, without their children."""

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its processes so far, ended ones included."""

    def stop(self) -> None:
        """Go away."""


def streamed(
    address: str,
    path: str,
    body: Mapping[str, Any],
    tokens_in: Callable[[Any], Sequence[int]],
    key: str = "none",
) -> Answer:
    """Request a stream of events; return the tokens in them.

    Args:
      address: HTTP address of the server.
      path: path of the endpoint.
      body: JSON body of the request.
      tokens_in: function that returns the tokens of an event's JSON; many events have none.
      key: API key, for servers that need one.

    Raises:
      DataError: the server answers with an error.
    """
    host = address.removeprefix("http://").split("/")[0]
    began_s, first_s = time.perf_counter(), 0.0
    tokens: list[int] = []
    connection = http.client.HTTPConnection(host, timeout=START_S)
    try:
        head = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        connection.request("POST", path, json.dumps({**body, "stream": True}), head)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise DataError(
                f"{address}{path}", answer.read().decode(), "The server sent this error."
            )
        for event in _events(answer):
            found = tokens_in(event)
            if found and not tokens:
                first_s = time.perf_counter() - began_s
            tokens += found
    finally:
        connection.close()
    last_s = time.perf_counter() - began_s
    fields = {name.lower(): value for name, value in answer.getheaders()}
    return Answer(first_s=first_s, last_s=last_s, tokens=tuple(tokens), head=fields)


def _events(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[Any]:
    for line in lines:
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


def launched(
    name: str, command: Sequence[str], log: Path, failed: str
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a process that serves until its input ends; return it and the address that it prints.

    Args:
      name: name of the server.
      command: command to run.
      log: file to which standard error is appended.
      failed: message if the process ends before it serves.

    Raises:
      DataError: the process ended before it served.
    """
    with log.open("ab") as said:
        process = subprocess.Popen(  # noqa: S603 (the user's Python, our script)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:  # a library may print lines too
        if line.startswith(b"http"):
            return process, line.decode().strip()
    process.communicate()
    raise DataError(name, log.read_text(errors="replace")[-2000:], failed)


class Engine:
    """`experiments.serve` over a folder of checkpoints."""

    name = "engine"
    swaps_s: Sequence[float] = ()

    def __init__(self, catalog: Path | str, log: Path, settings: Sequence[str]) -> None:
        """Store the settings of `experiments.serve`; start nothing."""
        self._catalog, self._log, self._settings = catalog, log, settings
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> None:
        """Start the engine with all models in host memory."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 (this Python, our module)
                [
                    sys.executable, "-m", "experiments.serve", f"catalog={self._catalog}",
                    "port=0", *self._settings,
                ],
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        end_s = time.monotonic() + START_S
        while " at http" not in (said := self._log.read_text()):
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise DataError("experiments.serve", said[-2000:], "It did not start.")
            time.sleep(0.05)
        self.address = next(word for word in said.split() if word.startswith("http"))

    def ask(self, request: Request) -> Answer:
        """Send a request and return its answer."""
        body = {
            "model": request.model, "prompt": request.ids, "max_tokens": request.new,
            "temperature": 0, "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        return streamed(
            self.address, "/v1/completions", body, lambda e: e["choices"][0]["token_ids"]
        )

    def processes(self) -> Sequence[int]:
        """Return the id of the scheduler's process."""
        return () if self._process is None else (self._process.pid,)

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its processes so far."""
        return cpu_seconds(self.processes())

    def stop(self) -> None:
        """Go away."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60.0)
            self._process = None
