"""Server process of Hugging Face transformers, run by the peer's Python.

    hf_transformers_process.py '{"models": {"name": "folder"}, "resident": 1, "threads": 2}'

Prints the address once it serves; ends with its input. Requests are served one after another, in
order of arrival. A model that is not in memory is loaded from disk; if `resident` models are there,
the least recently used one is dropped. It imports nothing of this project.
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
    """Models in memory, the most recently used one last."""

    def __init__(self, folders: dict[str, str], resident: int) -> None:
        """Store the models' folders; load none."""
        self._folders, self._resident = folders, resident
        self._loaded: OrderedDict[str, Any] = OrderedDict()

    def get(self, name: str) -> tuple[Any, float | None]:
        """Return a model and the seconds of loading it, None if it was in memory."""
        if name in self._loaded:
            self._loaded.move_to_end(name)
            return self._loaded[name], None
        began_s = time.perf_counter()
        while len(self._loaded) >= self._resident:
            self._loaded.popitem(last=False)
        gc.collect()  # a model has reference cycles
        load = import_module("transformers").AutoModelForCausalLM.from_pretrained
        self._loaded[name] = load(self._folders[name], dtype="float32").eval()
        return self._loaded[name], time.perf_counter() - began_s


class Events:
    """Streamer for `generate` that sends tokens as server-sent events."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        """Store the handler to write to."""
        self._handler = handler
        self._prompt = True

    def say(self, event: dict[str, Any]) -> None:
        """Send an event."""
        self._handler.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def put(self, values: Any) -> None:
        """Send tokens; skip the first call, which has the prompt."""
        if not self._prompt:
            self.say({"tokens": values.flatten().tolist()})
        self._prompt = False

    def end(self) -> None:
        """Do nothing: the connection ends with the answer."""


class Handler(BaseHTTPRequestHandler):
    """HTTP handler of one request."""

    models: ClassVar[Models]

    def do_POST(self) -> None:
        """Generate the requested number of tokens, greedily."""
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
        """Log nothing."""


class Server(HTTPServer):
    """HTTP server that answers connections one at a time, in order of arrival."""

    request_queue_size = 1024


def main() -> None:
    """Serve until standard input ends."""
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
