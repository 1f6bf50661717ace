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

__all__ = ["Live", "served"]

START_S = 900.0  # compiling on a machine that others use, too


class Live:
    """A running `experiments.serve`."""

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
        found: list[int] = answer.json()["choices"][0]["token_ids"]
        return found

    def events(self, path: str, **body: Any) -> Iterator[dict[str, Any]]:
        with self.client.stream("POST", f"/v1/{path}", json={**body, "stream": True}) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))
                elif line:
                    assert line == "data: [DONE]"

    def state(self) -> dict[str, Any]:
        with self.client.stream("GET", "/live") as answer:
            line = next(answer.iter_lines())
        found: dict[str, Any] = json.loads(line.removeprefix("data: "))
        return found

    def until(self, holds: Callable[[dict[str, Any]], bool], limit_s: float = 60.0) -> Any:
        """Wait until the engine's state is so; return it."""
        end_s = time.monotonic() + limit_s
        while not holds(state := self.state()):
            assert time.monotonic() < end_s, state
            time.sleep(0.05)
        return state

    def kill_worker(self, device: int) -> bool:
        """Kill a worker's process; return False where it has not come up since the last time."""
        worker = self.state()["workers"][device]
        if worker["pid"] is None or worker["state"] == "starting":  # else none ever works
            return False
        os.kill(worker["pid"], signal.SIGKILL)
        return True


@contextmanager
def served(*settings: str, log: Path) -> Iterator[Live]:
    """Serve with these settings; end by SIGTERM.

    The loop's step is interpreted: making machine code of it would take a core from the rest, and
    the contract suite holds both to the same decisions.
    """
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "experiments.serve", "port=0", "compiled=false", *settings],
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
