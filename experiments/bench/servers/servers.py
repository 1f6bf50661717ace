"""Servers that the trace is sent to: this engine, and llama.cpp behind a swapper of models."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from c2c.errors import DataError

__all__ = ["Answer", "Engine", "Request", "Server", "Swapper", "cpu_seconds", "pss_mb"]

_START_S = 600.0
_PROCESS = Path(__file__).with_name("llama_cpp_process.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt that comes `at_s` after the trace's start."""

    at_s: float
    model: str
    ids: tuple[int, ...]
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of it, in seconds from when it was sent."""

    first_s: float
    last_s: float
    tokens: tuple[int, ...]


class Server(Protocol):
    """One that serves several models, each under its name."""

    name: str

    def start(self) -> None:
        """Come up."""

    def ask(self, request: Request) -> Answer:
        """Answer; from several threads at once."""

    def processes(self) -> Sequence[int]:
        """Return the processes that stand for it now, without their children."""

    def stop(self) -> None:
        """Go away."""


def _streamed(
    address: str, path: str, body: Mapping[str, Any], tokens_in: Callable[[Any], Sequence[int]]
) -> Answer:
    host = address.removeprefix("http://").split("/")[0]
    began_s, first_s = time.perf_counter(), 0.0
    tokens: list[int] = []
    connection = http.client.HTTPConnection(host, timeout=_START_S)
    try:
        head = {"content-type": "application/json"}
        connection.request("POST", path, json.dumps({**body, "stream": True}), head)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise DataError(f"{address}{path}", answer.read().decode(), "It answered so.")
        for event in _events(answer):
            found = tokens_in(event)
            if found and not tokens:
                first_s = time.perf_counter() - began_s
            tokens += found
    finally:
        connection.close()
    return Answer(first_s=first_s, last_s=time.perf_counter() - began_s, tokens=tuple(tokens))


def _events(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[Any]:
    for line in lines:
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


class Engine:
    """`experiments.serve` over a folder of checkpoints."""

    name = "engine"

    def __init__(self, catalog: Path, log: Path, settings: Sequence[str]) -> None:
        """Take the settings of `experiments.serve`; nothing is started."""
        self._catalog, self._log, self._settings = catalog, log, settings
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    def start(self) -> None:
        """Come up with all models in host memory."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 (this Python, our module)
                [
                    sys.executable, "-m", "experiments.serve", f"catalog={self._catalog}",
                    "port=0", *self._settings,
                ],
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        end_s = time.monotonic() + _START_S
        while " at http" not in (said := self._log.read_text()):
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise DataError("experiments.serve", said[-2000:], "It did not come up.")
            time.sleep(0.05)
        self._address = next(word for word in said.split() if word.startswith("http"))

    def ask(self, request: Request) -> Answer:
        """Answer."""
        body = {
            "model": request.model, "prompt": request.ids, "max_tokens": request.new,
            "temperature": 0, "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        return _streamed(
            self._address, "/v1/completions", body, lambda e: e["choices"][0]["token_ids"]
        )

    def processes(self) -> Sequence[int]:
        """Return the scheduler's."""
        return () if self._process is None else (self._process.pid,)

    def stop(self) -> None:
        """Go away."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60.0)
            self._process = None


class Swapper:
    """A process of llama.cpp's server for one model at a time, as llama-swap has it.

    Requests are served in order of arrival. Those of the model that is loaded are served at the
    same time, as many as there are slots; one of another model waits until they have ended, that
    model's process is ended, and its own has started.
    """

    name = "llama.cpp"

    def __init__(
        self,
        python: Path,
        models: Mapping[str, Path],
        log: Path,
        *,
        slots: int,
        context: int,
        threads: int,
    ) -> None:
        """Take the models' GGUF files by name; nothing is started."""
        self._python, self._models, self._log = python, models, log
        self._given = {"slots": slots, "context": context, "threads": threads}
        self._slots = slots
        self._turn = threading.Condition()
        self._waiting: deque[object] = deque()
        self._open = 0
        self._model = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""
        self.swaps_s: list[float] = []

    def start(self) -> None:
        """Come up without a model."""
        self.swaps_s.clear()

    def ask(self, request: Request) -> Answer:
        """Answer, once it is its turn."""
        began_s, ticket = time.perf_counter(), object()

        def is_next() -> bool:
            if self._waiting[0] is not ticket:
                return False
            return self._open == 0 or (self._model == request.model and self._open < self._slots)

        with self._turn:
            self._waiting.append(ticket)
            self._turn.wait_for(is_next)
            if self._model != request.model:
                self._swap(request.model)
            self._waiting.popleft()
            self._open += 1
            self._turn.notify_all()
        waited_s = time.perf_counter() - began_s
        body = {
            "prompt": request.ids, "n_predict": request.new, "temperature": 0, "ignore_eos": True,
            "return_tokens": True, "cache_prompt": False,
        }  # fmt: skip
        try:
            found = _streamed(self._address, "/completion", body, lambda e: e.get("tokens", ()))
        finally:
            with self._turn:
                self._open -= 1
                self._turn.notify_all()
        return Answer(
            first_s=waited_s + found.first_s, last_s=waited_s + found.last_s, tokens=found.tokens
        )

    def _swap(self, model: str) -> None:
        began_s = time.perf_counter()
        self.stop()
        given = json.dumps({"model": str(self._models[model]), **self._given})
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (the user's Python, our script)
                [str(self._python), str(_PROCESS), given],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._process.stdout is not None
        for line in self._process.stdout:  # beside what the library says
            if line.startswith(b"http"):
                self._address, self._model = line.decode().strip(), model
                break
        else:
            raise DataError("llama.cpp", self._log.read_text()[-2000:], f"It did not load {model}.")
        self.swaps_s.append(time.perf_counter() - began_s)

    def processes(self) -> Sequence[int]:
        """Return that of the model that is loaded."""
        return () if self._process is None else (self._process.pid,)

    def stop(self) -> None:
        """End the process that there is; a swapper asks for no last word either."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process, self._model = None, ""


def _tree(of: Sequence[int]) -> list[int]:
    """Return processes and their descendants."""
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            children.setdefault(parent, []).append(int(each.name))
    found = list(of)
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(of: Sequence[int]) -> float:
    """Return what processes, their descendants, and children that ended have used."""
    ticks = 0
    for pid in _tree(of):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_mb(of: Sequence[int]) -> float:
    """Return the memory of processes and their descendants, what they share counted once."""
    found = 0
    for pid in _tree(of):
        try:
            said = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        line = next((line for line in said.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
        found += int(line.split()[1])
    return found / 1e3
