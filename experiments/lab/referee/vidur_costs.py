"""Step costs of this project as Vidur's prediction files."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from c2c.cost import StepTable, attention_pairs
from c2c.errors import SettingError

__all__ = ["GRANULARITY", "write_predictions"]

GRANULARITY: Final = 32  # tokens of cache between predictions; Vidur's own: 256. Chunks go in 32.
_EIGHT: Final = 8  # Vidur rounds a step's tokens up to a multiple of eight

# Columns that Vidur adds up for the tokens of a step; here the first two have all costs.
_BY_TOKENS: Final = ("mlp_up_proj", "add", "attn_pre_proj", "attn_post_proj", "mlp_down_proj",
                     "mlp_act", "input_layernorm", "post_attention_layernorm", "attn_rope",
                     "attn_kv_cache_save")  # fmt: skip


def write_predictions(
    folder: Path, table: StepTable, *, layers: int, chunk: int, max_batch: int, context: int
) -> None:
    """Write the files into `folder/compute`, and an empty `folder/network`."""
    if table.cache.windowed:
        raise SettingError("model", table.cache.window, "a model without a sliding window")
    for name in ("compute", "network"):
        (folder / name).mkdir()

    def store(op: str, keys: np.ndarray, seconds: np.ndarray) -> None:
        rows = np.column_stack([keys, 1e3 * seconds / layers])
        names = [f"X_{i}" for i in range(keys.shape[1])]
        with lzma.open(folder / "compute" / f"{op}.csv.xz", "wt", encoding="ascii") as file:
            np.savetxt(
                file, rows, delimiter=",", comments="", header=",".join([*names, "prediction"]),
                fmt=["%d"] * len(names) + ["%.17e"],
            )  # fmt: skip

    tokens = np.arange(1, -(-chunk // _EIGHT) * _EIGHT + 1)
    # Rows that need logits are a step's decodes and the prompts that end in it. They are known
    # only for steps of decodes alone, but the product hardly depends on them: it reads weights.
    last = table.step_overhead_s + table.head_s[np.minimum(tokens, max_batch), 0]
    by_tokens = (table.body_s[tokens, 0], last)
    for i, op in enumerate(_BY_TOKENS):
        store(op, tokens[:, None], by_tokens[i] if i < len(by_tokens) else np.zeros(len(tokens)))

    caches = np.arange(0, context + GRANULARITY + 1, GRANULARITY)
    decodes = _product(np.arange(1, max_batch + 1), caches)
    store("attn_decode", decodes, _each(lambda n, kv: decode_s(table, n, kv), decodes))
    prefills = _product(caches, np.arange(GRANULARITY, chunk + GRANULARITY, GRANULARITY))
    store("attn_prefill", prefills, _each(lambda kv, n: prefill_s(table, kv, n), prefills))


def decode_s(table: StepTable, sequences: int, cache: int) -> float:
    """Return decodes' attention seconds with `cache` tokens each."""
    calls = float(table.decode_attention_s[sequences])
    return calls + table.kv_read_s_per_token * sequences * cache


def prefill_s(table: StepTable, cache: int, chunk: int) -> float:
    """Return a chunk's attention seconds, ending at `cache` tokens."""
    chunk = min(chunk, len(table.prefill_attention_s) - 1)
    pairs = attention_pairs(max(0, cache - chunk), chunk, 0)
    return float(table.prefill_attention_s[chunk]) + max(
        table.attn_s_per_pair * pairs, table.kv_read_s_per_token * cache
    )


def _product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack(np.meshgrid(first, second, indexing="ij"), axis=-1).reshape(-1, 2)


def _each(cost: Callable[[int, int], float], keys: np.ndarray) -> np.ndarray:
    return np.array([cost(int(a), int(b)) for a, b in keys])
