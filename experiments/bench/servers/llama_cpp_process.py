"""Process of llama.cpp's own server (xllamacpp) with one model, run by the peer's Python.

    llama_cpp_process.py '{"model": "one.gguf", "slots": 4, "context": 2048, "threads": 2}'

Prints the address once it serves; ends with its input. It imports nothing of this project.
"""

import json
import sys
from importlib import import_module


def main() -> None:
    """Serve until standard input ends."""
    xllamacpp = import_module("xllamacpp")
    given = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = given["model"]
    params.n_parallel = given["slots"]
    params.n_ctx = given["slots"] * given["context"]
    params.cpuparams.n_threads = given["threads"]
    # A float32 KV cache, as the other servers have. By default llama.cpp rounds it to 16 bits, and
    # its flash attention always does. Logits then differ by 7e-4, otherwise by 2e-6.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    kinds = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
