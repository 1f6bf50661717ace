"""Process of vLLM's own server with one model, run by the peer's Python.

    vllm_process.py '{"model": "folder", "slots": 4, "context": 256, "threads": 2,
                      "kv_bytes": 67108864, "cache": "folder"}'

Prints the address once it serves; ends with its input. It imports nothing of this project.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import time

_PAUSE_S = 0.1


def answers(port: int, path: str) -> bool:
    """Return whether a local server answers GET `path` with status 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()


def main() -> int:
    """Serve until standard input ends; return the exit status."""
    given = json.loads(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # vLLM's own binding gives every process the same cores and keeps one of them free.
    environment = {
        **os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(given["threads"]), "VLLM_CACHE_ROOT": given["cache"],
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    }  # fmt: skip
    server = subprocess.Popen(  # noqa: S603 (this Python, its module)
        [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", given["model"], "--served-model-name", "model",
            "--host", "127.0.0.1", "--port", str(port),
            "--dtype", "float32", "--skip-tokenizer-init", "--generation-config", "vllm",
            "--max-model-len", str(given["context"]), "--max-num-seqs", str(given["slots"]),
            "--kv-cache-memory-bytes", str(given["kv_bytes"]),
        ],
        env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr,
    )  # fmt: skip
    try:
        while not answers(port, "/health"):
            if server.poll() is not None:
                return 1
            time.sleep(_PAUSE_S)
        print(f"http://127.0.0.1:{port}", flush=True)
        sys.stdin.read()
    finally:  # also if the parent died
        server.terminate()
        server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
