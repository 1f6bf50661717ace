"""An engine whose KV caches grow: requests that start over for lack of room keep their tokens."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from c2c.transformer import load
from tests.engine.checkpoints import VOCAB, make_catalog
from tests.engine.live import make_step, served


@pytest.mark.slow
def test_answers_are_whole_where_decodes_start_over(tmp_path: Path) -> None:
    for folder in make_catalog(tmp_path / "models").iterdir():
        if folder.name != "one":
            shutil.rmtree(folder)
    out = tmp_path / "out"
    settings = (
        f"catalog={tmp_path / 'models'}", "workers=1", "rows=[4]", "budgets=[32]", "context=320",
        "pool_bytes=850000", f"out={out}", "system/batch=vllm_v1",
        "system.engines.residents=1",
    )  # fmt: skip
    rng = random.Random(3)
    requests = [
        ("one", [rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))], rng.randint(150, 250))
        for _ in range(12)
    ]
    make_step()
    with served(*settings, log=tmp_path / "log") as live, ThreadPoolExecutor(8) as pool:
        greedy = list(pool.map(lambda r: live.tokens(*r), requests))
        assert live.state()["compiled_after_start"] == 0
    model = load(tmp_path / "models" / "one")
    for (_, ids, new), plain in zip(requests, greedy, strict=True):
        assert plain == model.generate(ids, new)
    steps = pq.read_table(out / "steps.parquet").to_pydict()

    assert sum(steps["prompt_tokens"]) > sum(len(ids) for _, ids, _ in requests)  # computed anew
