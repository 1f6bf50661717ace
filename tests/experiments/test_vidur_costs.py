"""Vidur's prediction files hold this project's step times."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

from c2c.cost import step_time
from c2c.serving import prepare
from experiments.lab.referee.case import CONTEXT, TokenBudget, serving
from experiments.lab.referee.vidur_costs import GRANULARITY, write_predictions

CHUNK, BATCH = 128, 16
LAYERS = 32


def _predictions(folder: Path) -> dict[str, dict[tuple[int, ...], float]]:
    result = {}
    for path in folder.glob("compute/*.csv.xz"):
        with lzma.open(path, "rt") as file:
            rows = np.loadtxt(file, delimiter=",", skiprows=1)
        result[path.name.split(".")[0]] = {
            tuple(int(x) for x in row[:-1]): float(row[-1]) for row in rows
        }
    return result


def test_predictions_add_up_to_our_steps(tmp_path: Path) -> None:
    ((table,),) = prepare(serving(CHUNK, BATCH)).tables
    write_predictions(tmp_path, table, layers=LAYERS, chunk=CHUNK, max_batch=BATCH, context=CONTEXT)
    found = _predictions(tmp_path)
    assert (tmp_path / "network").is_dir()

    def theirs_s(*, decodes: int, cache: int, chunk: int, after: int) -> float:
        tokens = -(-(decodes + chunk) // 8) * 8
        a_layer_ms = sum(each[tokens,] for name, each in found.items() if "attn_" not in name[:5])
        a_layer_ms += sum(
            found[name][tokens,] for name in ("attn_pre_proj", "attn_post_proj", "attn_rope")
        )
        if decodes:
            a_layer_ms += found["attn_decode"][decodes, cache]
        if chunk:
            a_layer_ms += found["attn_prefill"][after, chunk]
        return 1e-3 * LAYERS * a_layer_ms

    # Sixteen decodes, 640 cached tokens each, alone and beside a chunk that follows 256 tokens.
    alone = step_time(table, decode_seqs=16, decode_kv_tokens=16 * 640, head_rows=16)
    assert theirs_s(decodes=16, cache=640, chunk=0, after=0) == pytest.approx(alone.seconds)
    mixed = step_time(
        table, prefill_tokens=96, context_tokens=256, decode_seqs=16, decode_kv_tokens=16 * 640,
        head_rows=16,
    )  # fmt: skip
    seconds = theirs_s(decodes=16, cache=640, chunk=96, after=352)
    assert seconds == pytest.approx(mixed.seconds)
    assert seconds > alone.seconds
    # What Vidur rounds up to is there, to the last token of the longest request.
    assert (BATCH, -(-CONTEXT // GRANULARITY) * GRANULARITY) in found["attn_decode"]
    assert (CONTEXT, CHUNK) in found["attn_prefill"]


def test_decodes_are_among_a_steps_tokens() -> None:
    from c2c.policies.chunk import chunk_tokens

    assert chunk_tokens(TokenBudget(512), 2048, 10_000, 100) == 412
