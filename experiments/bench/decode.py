"""Decoding on the CPU: this transformer against Hugging Face transformers, on the same files.

    make peer
    python -m experiments.bench.decode repeats=5

Two processes load the same float32 checkpoint, have the same cores and take turns: this
transformer, and transformers in eager mode with its cache (`.venv-peer`, which `make peer` makes).
The limit of both, memory read bandwidth, is measured in between. Writes JSON with provenance to a
folder in runs/bench.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.errors import DataError, SettingError
from c2c.runs import RunDir
from experiments.bench.turns import TurnTaker
from experiments.benchmark import MeasurementSettings, benchmark
from experiments.children import usable_cores

__all__ = ["BASE", "SHAPES", "DecodeSettings", "main", "write_checkpoint", "write_model"]

TARGET = 1.5
"""Planned ratio of tokens a second to transformers in eager mode."""

BASE: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "vocab_size": 8192,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-18m": {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "qwen3-8m": {
        "model_type": "qwen3",
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "use_sliding_window": False,
    },
    "mixtral-15m": {
        "model_type": "mixtral",
        "hidden_size": 192,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
}
"""Models of random weights, small enough that calls take as long as reading weights."""


@dataclass
class DecodeSettings(MeasurementSettings):
    """Settings of the benchmark, as key=value on the command line.

    Attributes:
      models: names of `SHAPES`, folders of float32 checkpoints, or "smollm2".
      peer: the Python that has torch and transformers.
      prompt: tokens of the prompt.
      new: tokens generated after it.
      repeats: counted turns of each process; one more comes first and is not counted.
      cores: cores that each process may use; 0 for all of this process's.
      pause_s: pause between turns, in which the last process's threads go to sleep.
      seed: seed of prompts and random weights.
    """

    models: list[str] = field(default_factory=lambda: ["smollm2", *SHAPES])
    peer: str = ".venv-peer/bin/python"
    prompt: int = 16
    new: int = 32
    repeats: int = 5
    cores: int = 0
    pause_s: float = 0.3
    seed: int = 0


_OURS = """
import json, sys, time
import jax
import jax.numpy as jnp
from c2c.transformer import load
settings = json.loads(sys.argv[1])
ids, new = settings["ids"], settings["new"]
model = load(settings["folder"], "float32", progress=False)
memory = jnp.ones(1 << 26, jnp.float32)  # 256 MiB, more than caches hold
total = jax.jit(jnp.sum)
def measure():
    start = time.perf_counter()
    stream = model.stream(ids, new)
    tokens = [next(stream)]
    first = time.perf_counter()
    tokens.extend(stream)
    last = time.perf_counter()
    read_s = []
    for _ in range(3):
        again = time.perf_counter()
        total(memory).block_until_ready()
        read_s.append(time.perf_counter() - again)
    return {"first_s": first - start, "decode_s": last - first, "tokens": tokens,
            "read_gbps": memory.nbytes / min(read_s) / 1e9}
"""

_PEER = """
import json, os, sys, time
settings = json.loads(sys.argv[1])
ids, new, threads = settings["ids"], settings["new"], settings["threads"]
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
import torch, transformers
transformers.logging.set_verbosity_error()
torch.set_num_threads(threads)
model = transformers.AutoModelForCausalLM.from_pretrained(
    settings["folder"], dtype=torch.float32, attn_implementation="eager"
).eval()
given = torch.tensor([ids])
def measure():
    with torch.inference_mode():
        start = time.perf_counter()
        out = model(given, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        tokens = [int(token)]
        first = time.perf_counter()
        for _ in range(new - 1):
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            tokens.append(int(token))
        last = time.perf_counter()
    return {"first_s": first - start, "decode_s": last - first, "tokens": tokens,
            "versions": f"torch {torch.__version__}, transformers {transformers.__version__}"}
"""

_TURNS = """
for _ in sys.stdin:
    print(json.dumps(measure()), flush=True)
"""


def _process(
    python: str, script: str, given: Mapping[str, Any], cores: set[int]
) -> TurnTaker:  # fmt: skip
    return TurnTaker([python, "-c", script + _TURNS, json.dumps(given)], cores, ("models", python))


def write_model(name: str, folder: Path, seed: int) -> Path:
    """Return a folder with a float32 checkpoint in Hugging Face's layout.

    Args:
      name: a name of `SHAPES`, "smollm2", or a folder, which is returned.
      folder: folder to write a new checkpoint into.
      seed: seed of random weights.

    Raises:
      SettingError: the name is none of these.
    """
    from c2c.models import from_hf_config
    from c2c.transformer.weights.random_source import RandomSource

    source: Any
    if name == "smollm2":
        from c2c.transformer.gguf.file import GgufCheckpoint
        from c2c.transformer.gguf.source import GgufSource
        from c2c.transformer.weights.default_checkpoint import default_checkpoint

        checkpoint = GgufCheckpoint(default_checkpoint())
        config, source = dict(checkpoint.config), GgufSource(checkpoint)
    elif name in SHAPES:
        config = BASE | dict(SHAPES[name])
        source = RandomSource(from_hf_config(config, name), np.random.default_rng(seed))
    elif (Path(name) / "config.json").is_file():
        return Path(name)
    else:
        raise SettingError("models", name, f"smollm2, {', '.join(SHAPES)} or a folder")
    return write_checkpoint(config, source, folder)


def write_checkpoint(
    config: Mapping[str, Any],
    source: Any,
    folder: Path,
    change: Callable[[dict[str, np.ndarray]], None] | None = None,
) -> Path:
    """Write a source's tensors as a float32 checkpoint, altered by `change` if given."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
    tensors = {tensor: np.empty(source.shape(tensor), np.float32) for tensor in source.names}
    for tensor, values in tensors.items():
        source.read(tensor, values)
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _row(name: str, settings: DecodeSettings, cores: set[int]) -> dict[str, Any]:
    """Measure one model."""
    from c2c.models import load_spec, streamed_bytes

    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = write_model(name, Path(temporary) / "model", settings.seed)
        spec = load_spec(folder)
        rng = np.random.default_rng(settings.seed)
        given = {
            "folder": str(folder),
            "ids": rng.integers(0, spec.vocab, settings.prompt).tolist(),
            "new": settings.new,
            "threads": len(cores),
        }
        processes = {
            "ours": stack.enter_context(_process(sys.executable, _OURS, given, cores)),
            "peer": stack.enter_context(_process(settings.peer, _PEER, given, cores)),
        }
        turns: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
        load = []
        for turn in range(settings.repeats + 1):
            for who, process in processes.items():
                found = process.measure()
                time.sleep(settings.pause_s)
                if turn:  # the first one compiles, or fills caches
                    turns[who].append(found)
            load.append(os.getloadavg()[0])
        weights = float(streamed_bytes(spec, 1.0)) / spec.dtype_bytes * 4
    rates = {
        who: statistics.median((settings.new - 1) / each["decode_s"] for each in found)
        for who, found in turns.items()
    }
    first_s = {
        who: statistics.median(each["first_s"] for each in found) for who, found in turns.items()
    }
    read_gbps = statistics.median(each["read_gbps"] for each in turns["ours"])
    if len({tuple(each["tokens"]) for found in turns.values() for each in found}) != 1:
        raise DataError(name, "tokens differ between turns or processes")
    return {
        "model": name,
        "weights_mb": weights / 1e6,
        "tokens_per_s": rates["ours"],
        "peer_tokens_per_s": rates["peer"],
        "ratio": rates["ours"] / rates["peer"],
        "first_s": first_s["ours"],
        "peer_first_s": first_s["peer"],
        "first_ratio": first_s["peer"] / first_s["ours"],
        "read_gbps": read_gbps,
        "share_of_limit": rates["ours"] * weights / (read_gbps * 1e9),
        "load": max(load),
        "peer": turns["peer"][0]["versions"],
        "turns": {who: [dict(t, tokens=len(t["tokens"])) for t in f] for who, f in turns.items()},
    }


def run(settings: DecodeSettings, out: Console) -> list[dict[str, Any]]:
    """Measure every model, print a table and return its rows."""
    cores = usable_cores(settings.cores)
    rows = [_row(name, settings, cores) for name in settings.models]
    out.print(_table(rows, settings, len(cores)))
    return rows


def _table(rows: Sequence[Mapping[str, Any]], settings: DecodeSettings, cores: int) -> Table:
    title = (
        f"float32 on {cores} cores: {settings.new} tokens after {settings.prompt}, median of "
        f"{settings.repeats}; goal: {TARGET} times transformers' tokens/s"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    heads = ("model", "MB a token", "tokens/s", "peer's", "ratio", "first, ms", "peer's",
             "ratio", "GB/s read", "of limit", "load")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head == "model" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["model"],
            f"{row['weights_mb']:.0f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['peer_tokens_per_s']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['first_s'] * 1e3:.1f}",
            f"{row['peer_first_s'] * 1e3:.1f}",
            f"{row['first_ratio']:.2f}",
            f"{row['read_gbps']:.1f}",
            f"{row['share_of_limit']:.0%}",
            f"{row['load']:.1f}",
        )
    peer = rows[0]["peer"] if rows else ""
    table.caption = f"peer: {peer}, eager attention. load: of the machine, with other work."
    return table


def _check(settings: DecodeSettings) -> None:
    for name, least in (("prompt", 1), ("new", 2), ("repeats", 1), ("cores", 0), ("seed", 0)):
        if getattr(settings, name) < least:
            raise SettingError(name, getattr(settings, name), f"a whole number, at least {least}")
    if not settings.models:
        raise SettingError("models", [], "at least one model")
    if not Path(settings.peer).is_file():
        raise SettingError(
            "peer", settings.peer, "a Python with torch and transformers", "Run make peer."
        )


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the command line asks for; return the exit status."""

    def work(settings: DecodeSettings, folder: RunDir, out: Console) -> None:
        folder.write_json("decode", {"target_ratio": TARGET, "rows": run(settings, out)})

    packages = ("c2c", "pallas_kernels")
    return benchmark(
        DecodeSettings, arguments, work, check=_check, packages=packages, name="decode"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
