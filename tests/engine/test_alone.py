"""An engine whose steps have prompts or decodes, never both: the same tokens, other steps."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from c2c.transformer import load
from tests.engine.checkpoints import VOCAB, make_catalog
from tests.engine.live import make_step, served


@pytest.mark.slow
def test_prompts_in_steps_of_their_own_change_no_token(tmp_path: Path) -> None:
    make_catalog(tmp_path / "models")
    out = tmp_path / "out"
    settings = (
        f"catalog={tmp_path / 'models'}", "workers=1", "rows=[4]", "budgets=[32]", "context=320",
        "pool_bytes=16000000", f"out={out}", "system/batch=prompts_alone",
    )  # fmt: skip
    rng = random.Random(3)
    requests = [
        ("one", [rng.randrange(VOCAB) for _ in range(rng.randint(1, 150))], rng.randint(1, 24))
        for _ in range(24)
    ]
    seeded = {"temperature": 1.2, "top_k": 30, "top_p": 0.9, "seed": 11}
    make_step()
    with served(*settings, log=tmp_path / "log") as live, ThreadPoolExecutor(8) as pool:
        greedy = list(pool.map(lambda r: live.tokens(*r), requests))
        drawn = list(pool.map(lambda r: live.tokens(*r, **seeded), requests))
        assert live.state()["compiled_after_start"] == 0
    model = load(tmp_path / "models" / "one")
    for (_, ids, new), plain, hot in zip(requests, greedy, drawn, strict=True):
        assert plain == model.generate(ids, new)
        assert hot == model.generate(ids, new, **seeded)
    steps = pq.read_table(out / "steps.parquet").to_pydict()
    both = zip(steps["prompt_tokens"], steps["decodes"], strict=True)
    found = {(prompt > 0, decodes > 0) for prompt, decodes in both} - {(False, False)}  # a load
    assert found == {(True, False), (False, True)}
