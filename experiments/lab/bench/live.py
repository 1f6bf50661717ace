"""Open-loop traffic to a live engine."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from c2c.errors import DataError, SettingError
from experiments.children import cpu_seconds
from experiments.lab.bench.checkpoints import END

__all__ = [
    "Answer",
    "Engine",
    "Mix",
    "Request",
    "check_span",
    "send",
    "streamed",
    "trace",
]

_START_S = 600.0
"""Longest start of a server, and longest pause in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt `at_s` after the trace's start, and its `new` tokens."""

    at_s: float
    model: str
    ids: tuple[int, ...]
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer's tokens, and seconds of first and last since the request."""

    first_s: float
    last_s: float
    tokens: tuple[int, ...]


def streamed(
    address: str, path: str, body: Mapping[str, Any], tokens_in: Callable[[Any], Sequence[int]]
) -> Answer:
    """Request a stream of events; return the tokens in them."""
    host = address.removeprefix("http://").split("/")[0]
    began_s, first_s = time.perf_counter(), 0.0
    tokens: list[int] = []
    connection = http.client.HTTPConnection(host, timeout=_START_S)
    try:
        head = {"content-type": "application/json"}
        connection.request("POST", path, json.dumps({**body, "stream": True}), head)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise DataError(
                f"{address}{path}", answer.read().decode(), "The server sent this error."
            )
        for event in _events(answer):
            new_tokens = tokens_in(event)
            if new_tokens and not tokens:
                first_s = time.perf_counter() - began_s
            tokens += new_tokens
    finally:
        connection.close()
    last_s = time.perf_counter() - began_s
    return Answer(first_s=first_s, last_s=last_s, tokens=tuple(tokens))


def _events(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[Any]:
    for line in lines:
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


class Engine:
    """`c2c serve` over a folder of checkpoints."""

    name = "engine"

    def __init__(self, catalog: Path | str, log: Path, settings: Sequence[str]) -> None:
        """Store the settings of `c2c serve`; start nothing."""
        self._catalog, self._log, self._settings = catalog, log, settings
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> None:
        """Start the engine with all models in host memory."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 (this Python, our module)
                [
                    sys.executable, "-m", "c2c", "serve", f"catalog={self._catalog}",
                    "port=0", *self._settings,
                ],
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        end_s = time.monotonic() + _START_S
        while " at http" not in (log_text := self._log.read_text()):
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise DataError("c2c serve", log_text[-2000:], "It did not start.")
            time.sleep(0.05)
        self.address = next(word for word in log_text.split() if word.startswith("http"))
        while not self._live()["is_compiled"]:
            if time.monotonic() > end_s:
                raise DataError("c2c serve", "is_compiled is false", "The log has the reason.")
            time.sleep(0.2)

    def _live(self) -> dict[str, Any]:
        host = self.address.removeprefix("http://").split("/")[0]
        connection = http.client.HTTPConnection(host, timeout=_START_S)
        try:
            connection.request("GET", "/live")
            line = connection.getresponse().readline()
        finally:
            connection.close()
        state: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        return state

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
        """Return CPU seconds of all its processes."""
        return cpu_seconds(self.processes())

    def stop(self) -> None:
        """Go away."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60.0)
            self._process = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Distribution of the requests.

    Attributes:
      zipf: exponent of the models' popularity; 0: uniform.
      prompt: least and most tokens.
      new: least and most tokens of an answer.
      vocab: size that all models have.
    """

    models: tuple[str, ...]
    zipf: float
    prompt: tuple[int, int]
    new: tuple[int, int]
    vocab: int


def trace(mix: Mix, requests: int, rate: float, seed: int) -> list[Request]:
    """Return requests of a Poisson process, in order of arrival."""
    rng = np.random.default_rng(seed)
    shares = np.arange(1, len(mix.models) + 1) ** -mix.zipf
    at_s, result = 0.0, []
    for _ in range(requests):
        at_s += rng.exponential(1.0 / rate)
        model = mix.models[rng.choice(len(mix.models), p=shares / shares.sum())]
        ids = rng.integers(END + 1, mix.vocab, rng.integers(mix.prompt[0], mix.prompt[1] + 1))
        new = int(rng.integers(mix.new[0], mix.new[1] + 1))
        result.append(Request(at_s=at_s, model=model, ids=tuple(ids.tolist()), new=new))
    return result


def send[A](ask_one: Callable[[Request], A], requests: Sequence[Request]) -> tuple[list[A], float]:
    """Send requests in time; return answers and total seconds."""
    answers: dict[int, A] = {}
    errors: list[BaseException] = []
    began_s = time.perf_counter()

    def ask(k: int) -> None:
        try:
            answers[k] = ask_one(requests[k])
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)

    threads = []
    for k, request in enumerate(requests):
        time.sleep(max(0.0, began_s + request.at_s - time.perf_counter()))
        threads.append(threading.Thread(target=ask, args=(k,), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [answers[k] for k in range(len(requests))], time.perf_counter() - began_s


def check_span(name: str, span: Sequence[int]) -> None:
    """Check that a setting is a span, [least, most]."""
    if len(span) != 2 or not 1 <= span[0] <= span[1]:
        raise SettingError(name, list(span), "[least, most], tokens above 0")
