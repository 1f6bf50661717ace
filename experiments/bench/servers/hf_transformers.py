"""Hugging Face transformers as a server that loads models on request."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.servers.servers import Answer, Request, launched, streamed
from experiments.bench.servers.swapper import Given
from experiments.children import cpu_seconds

__all__ = ["Transformers"]

_PROCESS = Path(__file__).with_name("hf_transformers_process.py")


class Transformers:
    """One process that holds several models and serves requests one at a time, in order."""

    name = "transformers"

    def __init__(self, given: Given) -> None:
        """Store the settings; start nothing."""
        self._given = given
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""
        self.swaps_s: list[float] = []

    def start(self) -> None:
        """Start the process, without a model."""
        self.swaps_s.clear()
        said = json.dumps({
            "models": {name: str(folder) for name, folder in self._given.models.items()},
            "resident": self._given.resident, "threads": self._given.threads,
        })  # fmt: skip
        command = [str(self._given.python), str(_PROCESS), said]
        log = self._given.folder / f"{self.name}.log"
        self._process, self._address = launched(self.name, command, log, "It did not start.")

    def ask(self, request: Request) -> Answer:
        """Send a request and return its answer."""

        def tokens_in(event: Any) -> Sequence[int]:
            if "loaded_s" in event:
                self.swaps_s.append(event["loaded_s"])
            tokens: Sequence[int] = event.get("tokens", ())
            return tokens

        body = {"model": request.model, "prompt": request.ids, "new": request.new}
        return streamed(self._address, "/", body, tokens_in)

    def processes(self) -> Sequence[int]:
        """Return the id of the process, if it runs."""
        return () if self._process is None else (self._process.pid,)

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process so far."""
        return cpu_seconds(self.processes())

    def stop(self) -> None:
        """Stop the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
