"""vLLM on the CPU, one process a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from c2c.models import kv_bytes_per_token, load_spec
from experiments.bench.servers.servers import Answer, Request, launched, streamed
from experiments.bench.servers.swapper import Swapper
from experiments.children import pss_mb

__all__ = ["Vllm"]

_PROCESS = Path(__file__).with_name("vllm_process.py")
_PAGE = 128
"""Tokens of a block of vLLM's KV cache on a CPU."""
_ROOM = 1.5
"""Memory that a further process needs, over the largest so far, since it compiles."""
_END_S = 60.0


def _available_mb() -> float:
    said = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in said if line.startswith("MemAvailable:")).split()[1]) / 1e3


class Vllm(Swapper):
    """Processes of vLLM's own server, as many at a time as fit into memory."""

    name = "vllm"

    def start(self) -> None:
        """Start processes of the first models, as many as fit into memory."""
        super().start()
        self._resident, largest_mb = len(self._given.models), 0.0
        for number, model in enumerate(self._given.models):
            if number and _available_mb() < _ROOM * largest_mb:
                self._resident = number
                break
            self._preload(model)
            largest_mb = max(largest_mb, pss_mb(self.processes()[-1:]))

    def _launch(self, model: str) -> tuple[subprocess.Popen[bytes], str]:
        given, folder = self._given, self._given.models[model]
        pages = 1 + given.slots * -(-given.context // _PAGE)  # vLLM never uses the first page
        said = json.dumps({
            "model": str(folder), "slots": given.slots, "context": given.context,
            "threads": given.threads, "cache": str(given.folder / "vllm"),
            "kv_bytes": pages * _PAGE * kv_bytes_per_token(load_spec(folder)),
        })  # fmt: skip
        command = [str(given.python), str(_PROCESS), said]
        return launched(self.name, command, self._log, f"It did not load {model}.")

    def _answer(self, address: str, request: Request) -> Answer:
        body = {
            "model": "model", "prompt": request.ids, "max_tokens": request.new, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        return streamed(
            address, "/v1/completions", body,
            lambda event: event["choices"][0]["token_ids"] if event["choices"] else (),
        )  # fmt: skip

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.communicate(timeout=_END_S)  # end of input ends it and its children
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
