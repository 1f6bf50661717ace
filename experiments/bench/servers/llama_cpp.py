"""llama.cpp's server behind a model swapper."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from experiments.bench.servers.servers import Answer, Request, launched, streamed
from experiments.bench.servers.swapper import Swapper

__all__ = ["LlamaCpp"]

_PROCESS = Path(__file__).with_name("llama_cpp_process.py")


class LlamaCpp(Swapper):
    """Processes of llama.cpp's own server, with models as GGUF files."""

    name = "llama.cpp"

    def _launch(self, model: str) -> tuple[subprocess.Popen[bytes], str]:
        said = json.dumps({
            "model": str(self._given.models[model]), "slots": self._given.slots,
            "context": -(-self._given.context // 256) * 256, "threads": self._given.threads,
        })  # fmt: skip
        command = [str(self._given.python), str(_PROCESS), said]
        return launched(self.name, command, self._log, f"It did not load {model}.")

    def _answer(self, address: str, request: Request) -> Answer:
        body = {
            "prompt": request.ids, "n_predict": request.new, "temperature": 0, "ignore_eos": True,
            "return_tokens": True, "cache_prompt": False,
        }  # fmt: skip
        return streamed(address, "/completion", body, lambda event: event.get("tokens", ()))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()  # it has no state to save
        process.communicate()
