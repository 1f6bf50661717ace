"""Models that Hugging Face transformers loads when they are asked for: run by the peer's Python.

    hf_transformers_process.py '{"models": {"name": "folder"}, "resident": 1, "threads": 2}'

Prints the address once it serves; ends with its input. Requests are served one after another, in
order of arrival. A model that is not in memory is loaded from disk; where there are as many as may
be, the one that was asked longest ago goes first. It imports nothing of this project.
"""

import gc
import json
import os
import sys
import threading
import time
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from typing import Any, ClassVar


class Models:
    """Models in memory, the last used one at the end."""

    def __init__(self, folders: dict[str, str], resident: int) -> None:
        """Load none yet."""
        self._folders, self._resident = folders, resident
        self._loaded: OrderedDict[str, Any] = OrderedDict()

    def get(self, name: str) -> tuple[Any, float | None]:
        """Return a model, and the seconds that loading it took, None if it was there."""
        if name in self._loaded:
            self._loaded.move_to_end(name)
            return self._loaded[name], None
        began_s = time.perf_counter()
        while len(self._loaded) >= self._resident:
            self._loaded.popitem(last=False)
        gc.collect()  # its parts refer to each other
        load = import_module("transformers").AutoModelForCausalLM.from_pretrained
        self._loaded[name] = load(self._folders[name], dtype="float32").eval()
        return self._loaded[name], time.perf_counter() - began_s


class Events:
    """Server-sent events with the tokens as they are drawn, as `generate` hands them out."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        self._handler = handler
        self._prompt = True

    def say(self, event: dict[str, Any]) -> None:
        """Send one."""
        self._handler.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def put(self, values: Any) -> None:
        """Send tokens; the first that come are the prompt."""
        if not self._prompt:
            self.say({"tokens": values.flatten().tolist()})
        self._prompt = False

    def end(self) -> None:
        """Nothing: the connection ends with the answer."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    models: ClassVar[Models]

    def do_POST(self) -> None:
        """Answer it: greedy, all tokens that are asked for."""
        torch = import_module("torch")
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            model, loaded_s = self.models.get(asked["model"])
        except (KeyError, OSError, ValueError) as error:
            self.send_error(404, explain=f"{asked['model']} was not loaded: {error}")
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        events, ids = Events(self), torch.tensor([asked["prompt"]])
        if loaded_s is not None:
            events.say({"loaded_s": loaded_s})
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=asked["new"], do_sample=False,
            repetition_penalty=1.0, eos_token_id=None, pad_token_id=0, streamer=events,
        )  # fmt: skip

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Server(HTTPServer):
    """Takes a connection when the one before has its answer; the others wait in their order."""

    request_queue_size = 1024


def main() -> None:
    """Serve."""
    given = json.loads(sys.argv[1])
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(given["threads"])
    os.environ["HF_HUB_OFFLINE"] = "1"
    import_module("torch").set_num_threads(given["threads"])
    logging = import_module("transformers").logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    Handler.models = Models(given["models"], given["resident"])
    server = Server(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
