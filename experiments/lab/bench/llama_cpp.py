"""This engine beside llama.cpp's server, over one trace on the same cores.

    make peer-server
    c2c bench llama_cpp

Takes minutes. Models have random float32 weights, with the same bits for both. Prints seconds to
the first and last token, tokens a second, CPU seconds, memory and equal texts. Writes JSON with
provenance to a folder in runs/bench.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.errors import DataError, SettingError
from c2c.runs import RunDir, progress_bar
from experiments.benchmark import MeasurementSettings, benchmark
from experiments.children import cpu_seconds, pss_mb
from experiments.lab.bench.checkpoints import END, SERVED_SHAPES, config_of, write_models
from experiments.lab.bench.live import (
    Answer,
    Engine,
    Mix,
    Request,
    check_span,
    send,
    streamed,
    trace,
)

__all__ = ["LlamaCpp", "LlamaCppSettings", "main", "write_gguf"]

PACKAGE = "xllamacpp"

# Run by the peer's Python: serves one model until its input ends, and prints the address. Its KV
# cache is float32, as the engine's is. By default llama.cpp rounds it to 16 bits, and its flash
# attention always does: logits then differ by 7e-4, otherwise by 2e-6.
_PROCESS = """
import json, sys, xllamacpp
given = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path = given["model"]
params.n_parallel = given["slots"]
params.n_ctx = given["slots"] * given["context"]
params.cpuparams.n_threads = given["threads"]
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@dataclass
class LlamaCppSettings(MeasurementSettings):
    """Settings of the benchmark, as key=value on the command line.

    Attributes:
      shapes: shapes of the models, in turn.
      models: number of models.
      requests: requests of the trace.
      rate: requests a second.
      zipf: exponent of the models' popularity; 0: uniform.
      prompt: least and most tokens.
      new: least and most tokens of an answer.
      slots: requests of one model at the same time.
      cores: workers of this engine, and threads of each process of llama.cpp.
      repeats: runs of the trace on each server, in turns.
      peer: Python with xllamacpp.
      seed: of weights and requests.
    """

    shapes: list[str] = field(default_factory=lambda: ["llama-18m"])
    models: int = 1
    requests: int = 30
    rate: float = 0.5
    zipf: float = 1.0
    prompt: list[int] = field(default_factory=lambda: [16, 200])
    new: list[int] = field(default_factory=lambda: [8, 48])
    slots: int = 4
    cores: int = 1
    repeats: int = 5
    peer: str = ".venv-peer-server/bin/python"
    seed: int = 0


class LlamaCpp:
    """llama.cpp's server, a process a model, all from the start."""

    name = "llama.cpp"

    def __init__(
        self, python: str, models: Mapping[str, Path], log: Path, *,
        slots: int, context: int, threads: int,
    ) -> None:  # fmt: skip
        self._command = [python, "-c", _PROCESS]
        self._models, self._log = models, log
        context = -(-context // 256) * 256
        self._given = {"slots": slots, "context": context, "threads": threads}
        self._running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def start(self) -> None:
        """Start all processes; return when they serve."""
        for name, path in self._models.items():
            self._running[name] = self._launched(name, path)

    def _launched(self, name: str, path: Path) -> tuple[subprocess.Popen[bytes], str]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 (the user's Python, our script)
                [*self._command, json.dumps({"model": str(path), **self._given})],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:  # a library may print lines too
            if line.startswith(b"http"):
                return process, line.decode().strip()
        process.communicate()
        log_text = self._log.read_text(errors="replace")[-2000:]
        raise DataError(self.name, log_text, f"It did not load {name}.")

    def ask(self, request: Request) -> Answer:
        """Send a request and return its answer."""
        body = {
            "prompt": request.ids, "n_predict": request.new, "temperature": 0, "ignore_eos": True,
            "return_tokens": True, "cache_prompt": False,
        }  # fmt: skip
        _, address = self._running[request.model]
        return streamed(address, "/completion", body, lambda event: event.get("tokens", ()))

    def processes(self) -> Sequence[int]:
        """Return the processes' ids."""
        return [process.pid for process, _ in self._running.values()]

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes so far."""
        return cpu_seconds(self.processes())

    def stop(self) -> None:
        """End all processes."""
        for process, _ in self._running.values():
            process.kill()  # it has no state to save
            process.communicate()
        self._running.clear()


def _measure(
    server: Engine | LlamaCpp, requests: Sequence[Request]
) -> tuple[dict[str, Any], list[Answer]]:
    began_s = time.perf_counter()
    try:
        server.start()
        ready_s, cpu_s = time.perf_counter() - began_s, server.cpu_s()
        answers, span_s = send(server.ask, requests)
        cpu_s, memory = server.cpu_s() - cpu_s, pss_mb(server.processes())
    finally:
        server.stop()
    first, last = ([getattr(a, moment) for a in answers] for moment in ("first_s", "last_s"))
    return {
        "server": server.name,
        "ready_s": ready_s,
        "first_p50_s": statistics.median(first),
        "first_p95_s": float(np.percentile(first, 95)),
        "last_p50_s": statistics.median(last),
        "last_p95_s": float(np.percentile(last, 95)),
        "tokens_per_s": sum(len(a.tokens) for a in answers) / span_s,
        "cpu_s": cpu_s,
        "memory_mb": memory,
        "load": os.getloadavg()[0],
    }, answers


def _run(settings: LlamaCppSettings, folder: RunDir, out: Console) -> None:
    mix = Mix(
        models=tuple(f"model{k}" for k in range(settings.models)),
        zipf=settings.zipf,
        prompt=(settings.prompt[0], settings.prompt[1]),
        new=(settings.new[0], settings.new[1]),
        vocab=min(config_of(name)["vocab_size"] for name in settings.shapes),
    )
    requests = trace(mix, settings.requests, settings.rate, settings.seed)
    rows: list[dict[str, Any]] = []
    record = {"settings": asdict(settings), "version": _version(settings.peer), "rows": rows}
    context = settings.prompt[1] + settings.new[1]
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        models = write_models(settings.shapes, settings.models, settings.seed, here / "models")
        overrides = (
            f"workers={settings.cores}", f"rows={sorted({1, settings.slots})}", f"context={context}"
        )  # fmt: skip
        files = {name: write_gguf(path, here / f"{name}.gguf") for name, path in models.items()}
        servers = (
            Engine(here / "models", here / "engine.log", overrides),
            LlamaCpp(
                settings.peer, files, here / "llama_cpp.log", slots=settings.slots,
                context=context, threads=settings.cores,
            ),
        )  # fmt: skip
        texts: list[list[tuple[int, ...]]] = []
        with progress_bar("traces", len(servers) * settings.repeats) as advance:
            for _ in range(settings.repeats):
                for server in servers:
                    row, answers = _measure(server, requests)
                    texts.append([answer.tokens for answer in answers])
                    row["equal"] = sum(a == b for a, b in zip(texts[0], texts[-1], strict=True))
                    rows.append(row)
                    folder.write_json("servers", record)  # a later run may fail
                    advance(len(rows))
    out.print(_table(settings, rows))


def _version(python: str) -> str | None:
    places = [str(p) for p in Path(python).parent.parent.glob("lib/python*/site-packages")]
    return next((d.version for d in metadata.distributions(name=PACKAGE, path=places)), None)


def _short(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "first": ("first_p50_s", _short),
    "p95": ("first_p95_s", _short),
    "last": ("last_p50_s", _short),
    "p95 ": ("last_p95_s", _short),
    "tok/s": ("tokens_per_s", _short),
    "CPU s": ("cpu_s", _short),
    "MB": ("memory_mb", "{:.0f}".format),
    "ready": ("ready_s", "{:.0f}".format),
    "load": ("load", "{:.0f}".format),
}


def _table(settings: LlamaCppSettings, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        title=f"{settings.models} models, {settings.requests} requests at {settings.rate:g}/s, "
        f"medians of {settings.repeats} runs. first, last: seconds to first and last token\n"
        "(p50, p95); equal: texts equal to the engine's",
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    for head in ("", *_COLUMNS, "equal"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for name in (Engine.name, LlamaCpp.name):
        mine = [row for row in rows if row["server"] == name]
        shown = (
            written(statistics.median(row[key] for row in mine))
            for key, written in _COLUMNS.values()
        )
        table.add_row(name, *shown, f"{min(row['equal'] for row in mine)}/{settings.requests}")
    return table


_OF_ALL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_OF_A_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_BYTES = 256


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return q or k rows in llama.cpp's order: rotary pairs are neighbours."""
    half = len(rows) // heads // 2
    return rows.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(rows.shape)


def _renamed(
    tensors: dict[str, np.ndarray], config: dict[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    heads = {
        "attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]
    }  # fmt: skip
    for name, values in tensors.items():
        if name in _OF_ALL:
            yield _OF_ALL[name], values
            continue
        _, _, layer, part = name.removesuffix(".weight").split(".", 3)
        kind = _OF_A_LAYER[part]
        turned = config["model_type"] == "llama" and kind in heads
        rows = _interleaved(values, heads[kind]) if turned else values
        yield f"blk.{layer}.{kind}.weight", rows


def write_gguf(folder: Path, to: Path) -> Path:
    """Write a checkpoint (one file, float32, of `ARCHITECTURES`) as GGUF, bit for bit."""
    import gguf
    from safetensors.numpy import load_file

    from c2c.models import from_hf_config

    config = json.loads((folder / "config.json").read_text())
    spec = from_hf_config(config, folder.name)
    writer = gguf.GGUFWriter(to, config["model_type"])
    writer.add_block_count(spec.layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_vocab_size(spec.vocab)
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(_BYTES))]
    texts += [f"w{number}" for number in range(len(texts), spec.vocab)]
    special = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores([-float(number) for number in range(spec.vocab)])
    writer.add_token_types([*special, *[gguf.TokenType.NORMAL] * (spec.vocab - len(special))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END)
    for name, values in _renamed(load_file(folder / "model.safetensors"), config):
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to


def _check(settings: LlamaCppSettings) -> None:
    for name in ("models", "requests", "slots", "cores", "repeats"):
        if getattr(settings, name) < 1:
            raise SettingError(name, getattr(settings, name), "a whole number above 0")
    if not settings.shapes or not set(settings.shapes) <= set(SERVED_SHAPES):
        raise SettingError("shapes", settings.shapes, f"some of {', '.join(SERVED_SHAPES)}")
    if not 0 < settings.rate < float("inf"):
        raise SettingError("rate", settings.rate, "requests a second, above 0")
    if not 0 <= settings.zipf < float("inf"):
        raise SettingError("zipf", settings.zipf, "at least 0")
    for name in ("prompt", "new"):
        check_span(name, getattr(settings, name))
    if not Path(settings.peer).is_file():
        raise SettingError(
            "peer", settings.peer, f"a Python with {PACKAGE}", "Run make peer-server."
        )


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    return benchmark(
        LlamaCppSettings, arguments, _run, check=_check, packages=("c2c",), name="servers"
    )
