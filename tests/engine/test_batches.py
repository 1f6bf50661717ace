"""Engines with other batch schedulers: the same tokens, other steps."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from c2c.transformer import load
from tests.engine.checkpoints import VOCAB, make_catalog
from tests.engine.live import make_step, served

type Requests = list[tuple[str, list[int], int]]

pytestmark = pytest.mark.slow


def requests(count: int, most: int, new: tuple[int, int]) -> Requests:
    rng = random.Random(3)
    return [
        ("one", [rng.randrange(VOCAB) for _ in range(rng.randint(1, most))], rng.randint(*new))
        for _ in range(count)
    ]


def steps_of(tmp_path: Path, asked: Requests, *settings: str, **draws: Any) -> dict[str, Any]:
    """Hold answers of an engine to those of its model alone; return the record of its steps."""
    (one,) = (f for f in make_catalog(tmp_path / "models").iterdir() if f.name == "one")
    out = tmp_path / "out"
    common = (f"catalog={one}", "workers=1", "rows=[4]", "budgets=[32]", "context=320")
    make_step()
    with (
        served(*common, f"out={out}", *settings, log=tmp_path / "log") as live,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(lambda r: live.tokens(*r, **draws), asked))
        assert live.state()["compiled_after_start"] == 0
    model = load(one)
    for (_, ids, new), found in zip(asked, answers, strict=True):
        assert found == model.generate(ids, new, **draws)
    steps: dict[str, Any] = pq.read_table(out / "steps.parquet").to_pydict()
    return steps


@pytest.mark.parametrize(
    "draws", [{}, {"temperature": 1.2, "top_k": 30, "top_p": 0.9, "seed": 11}], ids=["best", "hot"]
)
def test_prompts_in_steps_of_their_own_change_no_token(
    tmp_path: Path, draws: dict[str, Any]
) -> None:
    asked = requests(24, 150, (1, 24))
    settings = ("pool_bytes=16000000", "system/batch=prompts_alone")
    steps = steps_of(tmp_path, asked, *settings, **draws)
    assert sum(steps["prompt_tokens"]) == sum(len(ids) for _, ids, _ in asked)  # each once
    both = zip(steps["prompt_tokens"], steps["decodes"], strict=True)
    found = {(prompt > 0, decodes > 0) for prompt, decodes in both} - {(False, False)}  # a load
    assert found == {(True, False), (False, True)}


def test_answers_are_whole_where_decodes_start_over(tmp_path: Path) -> None:
    """KV caches that grow: requests that start over for lack of room keep their tokens."""
    asked = requests(12, 60, (150, 250))
    settings = ("pool_bytes=850000", "system/batch=vllm_v1", "system.engines.residents=1")
    steps = steps_of(tmp_path, asked, *settings)
    assert sum(steps["prompt_tokens"]) > sum(len(ids) for _, ids, _ in asked)  # computed anew
