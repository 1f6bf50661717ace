"""Blocks of prompts in a live engine: tokens are those without, usage says what was found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from c2c.engine.block_keys import block_keys
from c2c.transformer import Model, load
from tests.engine.checkpoints import VOCAB, make_catalog
from tests.engine.live import Live, make_step, served

NAMES = ("one", "two")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefix")
    make_catalog(folder / "models")
    return folder


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    settings = (
        f"catalog={folder / 'models'}", "rows=[4]", "budgets=[32]", "context=320",
        f"out={folder / 'out'}", "retries=100",
        "patience=1000", "pool_bytes=6000000", "system.prefix_cache.hbm=true",
    )  # fmt: skip
    make_step()
    with served(*settings, log=folder / "log") as live:
        yield live


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, Model]:
    return {name: load(folder / "models" / name) for name in NAMES}


def talk(rng: random.Random, turns: int) -> list[list[int]]:
    """Return prompts that each go on from the one before."""
    ids: list[int] = []
    result = []
    for _ in range(turns):
        ids = [*ids, *(rng.randrange(VOCAB) for _ in range(rng.choice((64, 40, 91))))]
        result.append(ids)
    return result


def cached(live: Live, model: str, ids: list[int], new: int, **more: object) -> int:
    answer = live.post("completions", model=model, prompt=ids, max_tokens=new, **more).json()
    result: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return result


def counted(live: Live, counter: str) -> float:
    lines = live.client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{counter}{{"))


@pytest.mark.slow
def test_conversations_at_once_get_the_tokens_of_a_model_alone(
    live: Live, models: dict[str, Model]
) -> None:
    before = counted(live, "c2c_model_found_tokens_total")
    asked = [(name, ids) for k in range(8) for name in NAMES
             for ids in talk(random.Random(k // 2), 3)]  # fmt: skip
    random.Random(1).shuffle(asked)
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda each: live.tokens(*each, 12), asked))
    for (name, ids), tokens in zip(asked, found, strict=True):
        assert tokens == models[name].generate(ids, 12)
    prompts = sum(len(ids) for _, ids in asked)
    assert counted(live, "c2c_model_found_tokens_total") - before > prompts / 4
    assert live.state()["compiled_after_start"] == 0


@pytest.mark.parametrize("length", [63, 64, 65, 128, 129, 200])
def test_usage_says_how_many_tokens_were_found(
    live: Live, models: dict[str, Model], length: int
) -> None:
    rng = random.Random(length)
    ids = [rng.randrange(VOCAB) for _ in range(length)]
    assert cached(live, "one", ids, 2) == 0
    assert cached(live, "one", ids, 2) == (length - 1) // 64 * 64
    assert cached(live, "two", ids, 2) == 0, "models share nothing"
    assert cached(live, "one", [*ids, 1], 2) == length // 64 * 64 - (64 if length % 64 == 0 else 0)
    other = [*ids[:-1], (ids[-1] + 1) % VOCAB]
    assert live.tokens("one", other, 9) == models["one"].generate(other, 9)
    events = live.events("completions", model="one", prompt=ids, max_tokens=3, temperature=0,
                         stream_options={"include_usage": True})  # fmt: skip
    usage = [event["usage"] for event in events if event.get("usage")][-1]
    assert usage["prompt_tokens_details"]["cached_tokens"] == (length - 1) // 64 * 64


@pytest.mark.parametrize("busy", [False, True])
def test_choices_compute_their_prompt_once(
    live: Live, models: dict[str, Model], busy: bool
) -> None:
    """Also where it is of many chunks, and where all choices begin in one step."""
    rng = random.Random(busy)
    ids = [rng.randrange(VOCAB) for _ in range(250)]
    before = counted(live, "c2c_model_found_tokens_total")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(live.tokens, "one" if busy else "two", [1, 2, 3], 60 if busy else 1)
        body = {"n": 3, "max_tokens": 9, "seed": 7, "temperature": 1.0, "ignore_eos": True}
        answer = live.post(
            "completions", model="one", prompt=ids, return_token_ids=True, **body
        ).json()
        assert len(other.result()) == (60 if busy else 1)
    for k, choice in enumerate(answer["choices"]):
        wanted = models["one"].generate(ids, 9, temperature=1.0, seed=7 + k)
        assert choice["token_ids"] == wanted
    found = counted(live, "c2c_model_found_tokens_total") - before
    assert 2 * (192 - 64) <= found <= 2 * 192, "but for less than a block, left of a chunk"
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "one has computed it"


def test_a_prompt_that_is_scored_is_computed_whole(live: Live) -> None:
    rng = random.Random(3)
    ids = [rng.randrange(VOCAB) for _ in range(150)]
    body = {"model": "one", "prompt": ids, "max_tokens": 3, "echo": True, "logprobs": 2}
    first, second = (live.post("completions", **body, temperature=0).json() for _ in range(2))
    assert first["choices"][0]["logprobs"] == second["choices"][0]["logprobs"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_killed_worker_has_no_blocks_and_its_requests_are_answered(
    live: Live, models: dict[str, Model]
) -> None:
    rng = random.Random(9)
    ids = [rng.randrange(VOCAB) for _ in range(200)]
    assert cached(live, "one", ids, 2) == 0
    assert cached(live, "one", ids, 2) == 192
    with ThreadPoolExecutor(6) as pool:
        asked = [[*ids, k] for k in range(6)]
        under_way = [pool.submit(live.tokens, "one", each, 60) for each in asked]
        live.until(lambda state: state["workers"][0]["held"] > 0)
        assert live.kill_worker(0)
        for each, tokens in zip(asked, under_way, strict=True):
            assert tokens.result() == models["one"].generate(each, 60)
    live.until(lambda state: state["workers"][0]["restarts"] > 0)
    live.until(lambda state: state["workers"][0]["state"] == "idle")
    assert live.kill_worker(0)
    live.until(lambda state: state["workers"][0]["restarts"] > 1)
    assert cached(live, "one", ids, 2) == 0
    assert cached(live, "one", ids, 2) == 192


def test_pools_too_small_for_all_blocks_forget_some(live: Live, models: dict[str, Model]) -> None:
    rng = random.Random(5)
    asked = [(name, [rng.randrange(VOCAB) for _ in range(250)]) for name in NAMES * 30]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: live.tokens(*each, 3), asked))
    for (name, ids), tokens in zip(asked, found, strict=True):
        assert tokens == models[name].generate(ids, 3)
    assert cached(live, "two", asked[-1][1], 2) == 192
    assert cached(live, asked[0][0], asked[0][1], 2) == 0


def test_keys_are_those_of_whole_blocks_before_the_last_token() -> None:
    ids = list(range(200))
    keys = block_keys("m", ids)
    assert len(keys) == len(set(keys)) == 3
    assert block_keys("m", ids[:193]) == keys
    assert block_keys("m", ids[:192]) == keys[:2]
    assert block_keys("m", [*ids[:70], 0, *ids[71:]])[0] == keys[0]
    assert not set(block_keys("m", [*ids[:70], 0, *ids[71:]])[1:]) & set(keys)
    assert not set(block_keys("n", ids)) & set(keys)
    assert not set(block_keys("m", ids[64:])) & set(keys), "where a block is counts"
    assert all(-(1 << 63) <= key < 1 << 63 for key in keys)


def test_records_say_what_was_found(live: Live, folder: Path) -> None:
    live.process.terminate()
    live.process.wait(60)
    rows = pq.read_table(folder / "out" / "requests.parquet").to_pylist()
    found = [row["cached_hbm_tokens"] for row in rows]
    assert max(found) == 192
    assert all(0 <= n < row["prompt_tokens"] for n, row in zip(found, rows, strict=True))
    steps = pq.read_table(folder / "out" / "steps.parquet")
    assert sum(steps["found"].to_pylist()) > 0
