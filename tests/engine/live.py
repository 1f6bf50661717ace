"""An engine as a user starts it, and what a client does with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from c2c.serving.loop import Step
from c2c.serving.tables.state import Loop
from tests.contracts.systems import prepared

__all__ = ["Live", "make_step", "served"]

START_S = 900.0  # compiling on a machine that others use, too


class Live:
    """A running `c2c serve`."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.client = httpx.Client(base_url=url, timeout=600.0)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/v1/{path}", json=body)

    def tokens(self, model: str, ids: list[int], new: int, **more: Any) -> list[int]:
        """Greedy tokens of a prompt, whatever they are."""
        body = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}
        answer = self.post("completions", model=model, prompt=ids, max_tokens=new, **body)
        assert answer.status_code == 200, answer.text
        result: list[int] = answer.json()["choices"][0]["token_ids"]
        return result

    def events(
        self, path: str, headers: dict[str, str] | None = None, /, **body: Any
    ) -> Iterator[dict[str, Any]]:
        body["stream"] = True
        with self.client.stream("POST", f"/v1/{path}", json=body, headers=headers) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))
                elif line:
                    assert line == "data: [DONE]"

    def state(self) -> dict[str, Any]:
        with self.client.stream("GET", "/live") as answer:
            line = next(answer.iter_lines())
        result: dict[str, Any] = json.loads(line.removeprefix("data: "))
        return result

    def until(self, holds: Callable[[dict[str, Any]], bool], limit_s: float = 60.0) -> Any:
        """Wait until the engine's state is so; return it."""
        end_s = time.monotonic() + limit_s
        while not holds(state := self.state()):
            assert time.monotonic() < end_s, state
            time.sleep(0.05)
        return state

    def kill_worker(self, device: int) -> bool:
        """Kill a worker's process; return False where it is gone, or not up since the last time."""
        worker = self.state()["workers"][device]
        if worker["pid"] is None or worker["state"] == "starting":  # else none ever works
            return False
        try:
            os.kill(worker["pid"], signal.SIGKILL)
        except ProcessLookupError:  # it went, and the engine has not said so yet
            return False
        return True


def make_step() -> None:
    """Have machine code of the loop's step on disk, so that an engine begins with it.

    It is made once for a version of the sources, and the contract suite needs it, too. An engine
    that makes its own yields to whatever else wants the cores, which among tests may be for long.
    """
    what = prepared("engine", "roomy")
    rules = what.new_rules()
    Step(Loop(what.fleet, rules, what.new_serving(rules=rules)), compiled=True)


@contextmanager
def served(*settings: str, log: Path) -> Iterator[Live]:
    """Serve with these settings; end by SIGTERM."""
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "c2c", "serve", "port=0", *settings],
            stderr=stderr, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            end_s = time.monotonic() + START_S
            while " at http" not in (said := log.read_text()):
                assert process.poll() is None, said
                assert time.monotonic() < end_s, said
                time.sleep(0.1)
            url = next(word for word in said.split() if word.startswith("http"))
            live = Live(process, url.removesuffix("/v1"))
            try:
                yield live
            finally:
                live.client.close()
        finally:
            process.terminate()
            try:
                process.wait(30.0)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
