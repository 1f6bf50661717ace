"""Models that come while an engine serves, and go: with requests open, with faults, by a client."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from c2c.config import load
from c2c.engine import Options, fleet
from c2c.engine.catalog import Entry
from c2c.engine.devices import Device
from c2c.engine.fleet import pool_of, pool_with
from c2c.errors import SettingError
from c2c.models import from_hf_config, kv_bytes_per_token
from c2c.transformer import block_elements
from c2c.transformer import load as load_model
from c2c.transformer.layers.pages import PAGE_TOKENS
from experiments.serving.settings import overrides_of, register, settings_of
from tests.engine.checkpoints import make_catalog
from tests.engine.live import Live, make_step, served
from tests.transformer.random_checkpoints import config_of, tensors_of, write

OPTIONS = Options(workers=2, rows=(1, 4), budgets=(64,), context=400, pool_bytes=8 << 20)


def entry_of(family: str, **more: Any) -> Entry:
    spec = from_hf_config(config_of(family) | more, family)
    return Entry(name=family, path=Path(family), spec=spec, context=400)


def test_a_pool_takes_models_that_divide_it() -> None:
    pool = pool_of([entry_of("llama")], OPTIONS)
    assert pool_with(pool, entry_of("llama"), OPTIONS) == pool
    more = entry_of("llama", num_hidden_layers=6)
    grown = pool_with(pool, more, OPTIONS)
    assert (grown.superblocks, grown.superblock) == (pool.superblocks, pool.superblock)
    assert grown.usable_bytes < pool.usable_bytes
    for other in ({"num_hidden_layers": 100}, {"head_dim": 26}):
        with pytest.raises(SettingError, match="path='llama': expected a model whose KV blocks"):
            pool_with(pool, entry_of("llama", **other), OPTIONS)
    small = replace(pool, superblocks=1)
    with pytest.raises(SettingError, match="a model with room for"):
        pool_with(small, more, OPTIONS)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_the_loop_counts_keys_and_values_as_pools_store_them(family: str) -> None:
    """A latent vector is stored twice."""
    entry = entry_of(family)
    assert entry.spec is not None
    (deployment,) = fleet.deployments_of([entry], OPTIONS, (1.0, 0.1))
    stored = 2 * (4 if OPTIONS.dtype == "float32" else 2) * block_elements(entry.spec)
    assert kv_bytes_per_token(deployment.spec) * PAGE_TOKENS == stored


def test_a_share_of_the_memory_is_for_weights_and_keys_and_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wrong in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(SettingError, match=r"memory_fraction=.*a share in \(0, 1\]"):
            Options(memory_fraction=wrong)
    with pytest.raises(SettingError, match="null with pool_bytes=1000"):
        Options(memory_fraction=0.5, pool_bytes=1000)
    assert fleet.with_pool([entry_of("llama")], OPTIONS, ()) == (OPTIONS, "")
    monkeypatch.setattr(fleet, "memory_bytes", lambda: 60_000_000)
    monkeypatch.setattr(fleet, "free_bytes", lambda _gpu: 24_000_000)
    large = entry_of("llama", vocab_size=20_000)
    wide = replace(OPTIONS, pool_bytes=None, context=1 << 16)
    weights = fleet.host_weight_bytes([large], OPTIONS)
    assert 0 < weights < 15_000_000

    def pool_bytes(share: float, *, gpus: int = 0, **more: Any) -> int | None:
        options = replace(wide, memory_fraction=share, **more)
        gpu = Device(uuid="GPU-1", name="any", memory_bytes=40_000_000, sm_count=None, parent=None)
        found, line = fleet.with_pool([large], options, [gpu] * gpus)
        assert line.startswith("the KV cache takes 0.0")
        assert (found.memory_fraction, found.workers) == (None, 2)
        return found.pool_bytes

    assert pool_bytes(0.5) == 15_000_000 - weights // 2  # one copy in host memory for two workers
    assert pool_bytes(0.5, linear="reference") == 15_000_000 - weights
    assert pool_bytes(0.5, gpus=2) == 20_000_000
    assert pool_bytes(0.7, gpus=2, linear="reference") == 28_000_000 - weights
    narrow = replace(wide, context=64)  # no more is taken than all rows can use
    assert pool_bytes(1.0, context=64) == fleet.useful_pool_bytes([large], narrow) < 30_000_000
    with pytest.raises(SettingError, match=r"a share that is free: .*GPU-1 has 24000000"):
        pool_bytes(0.75, gpus=2)


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, config = make_catalog(tmp_path_factory.mktemp("adding") / "more"), config_of("llama")
    tensors = tensors_of(config)
    tensors["model.norm.weight"][:] = 3e38
    write(folder / "infinite", config, tensors)
    return folder


@pytest.fixture(scope="module")
def live(more: Path) -> Iterator[Live]:
    models = more.parent / "models"
    shutil.copytree(more / "one", models / "one")
    settings = (
        f"catalog={models}", f"add_from={more}", "workers=2", "rows=[4]", "budgets=[32]",
        "context=320", "pool_bytes=16000000", "weights_bytes=1000000",
    )  # fmt: skip
    make_step()
    with served(*settings, log=more.parent / "log") as live:
        yield live


def add(live: Live, **body: Any) -> httpx.Response:
    return live.client.post("/v1/models", json=body)


def names(live: Live) -> list[str]:
    return sorted(model["id"] for model in live.client.get("/v1/models").json()["data"])


PROMPT = [5, 9, 3]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("linear=reference",), "null with linear=reference"),
        (("out=runs/x",), "null with out="),
        (("system.prefix_cache.hbm=true",), "null with system.prefix_cache"),
        (("add_from=nowhere",), "a folder of checkpoints"),
    ],
)
def test_where_models_cannot_be_added_is_said_at_the_start(
    tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    register()
    given_ = overrides_of(["port=0", f"add_from={tmp_path}", *more])
    with pytest.raises(SettingError, match="add_from") as found:
        settings_of(load(given_, "serve"))
    assert said in str(found.value)


@pytest.mark.slow
def test_a_model_comes_serves_and_goes(live: Live, more: Path) -> None:
    alone = live.tokens("one", PROMPT, 250)
    with ThreadPoolExecutor(2) as pool:
        meanwhile = pool.submit(live.tokens, "one", PROMPT, 250)
        answer = add(live, path="three", model="own/name")
        assert answer.status_code == 200, answer.text
        assert answer.json()["id"] == "own/name"
        assert meanwhile.result() == alone
        expected = load_model(more / "three", "float32").generate(PROMPT, 8)
        assert live.tokens("own/name", PROMPT, 8) == expected
        assert live.state()["compiled_after_start"] == 0
        chat = {"messages": [{"role": "user", "content": "w5"}], "max_tokens": 2}
        assert live.post("chat/completions", model="own/name", **chat).status_code == 200

        last = pool.submit(live.tokens, "own/name", PROMPT, 250)
        live.until(lambda state: state["open"].get("own/name"))
        gone = pool.submit(live.client.delete, "/v1/models/own/name")
        while "own/name" in names(live):
            time.sleep(0.01)
        refused = live.post("completions", model="own/name", prompt=PROMPT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert gone.result().json() == {"id": "own/name", "object": "model", "deleted": True}
        assert len(last.result()) == 250, "those in flight end"
    state = live.state()
    assert state["weights"]["here"] == ["one"]
    assert all("own/name" not in worker["residents"] for worker in state["workers"])

    assert add(live, path=str(more / "two")).json()["id"] == "two"  # in the row that is free
    expected = load_model(more / "two", "float32").generate(PROMPT, 8)
    assert live.tokens("two", PROMPT, 8) == expected
    assert live.tokens("one", PROMPT, 250) == alone
    while not live.kill_worker(0):
        time.sleep(0.05)
    assert live.tokens("two", PROMPT, 8) == expected, "a process that comes later knows it"
    assert live.client.delete("/v1/models/two").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        ({"path": "damaged"}, 400, "path", "model.norm.weight holds NaN"),
        ({"path": "odd"}, 400, "path", "model_type='mamba'"),
        ({"path": "../models/one"}, 400, "path", "in the folder add_from"),
        ({"path": "/"}, 400, "path", "in the folder add_from"),
        ({"path": "nothing"}, 400, "path", "in the folder add_from"),
        ({"path": "."}, 400, "path", "one checkpoint"),
        ({"path": "two", "model": "one"}, 400, "model", "no other model has"),
        ({"path": ""}, 400, "path", "at least 1"),
        ({}, 400, "path", "required"),
    ],
)
def test_what_cannot_be_added_is_refused_by_field(
    live: Live, body: dict[str, str], status: int, param: str, said: str
) -> None:
    answer = add(live, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert said in error["message"].replace("Field required", "required")
    assert str(live.client.base_url) not in error["message"]
    assert names(live) == ["one"]


def test_no_token_is_made_up_from_infinite_logits(live: Live) -> None:
    assert add(live, path="infinite").status_code == 200
    for more in ({}, {"temperature": 0, "logprobs": 1}, {"echo": True, "logprobs": 1}):
        answer = live.post("completions", model="infinite", prompt=PROMPT, **more)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
        assert "infinite" in answer.json()["error"]["message"]
    assert live.client.delete("/v1/models/infinite").status_code == 200


def test_what_is_not_there_cannot_be_removed(live: Live) -> None:
    assert live.client.delete("/v1/models/nobody").status_code == 404


def test_models_that_stay_leave_no_room_for_one_more(live: Live) -> None:
    """`weights_bytes` holds for models that come, too."""
    added = []
    while (answer := add(live, path="two", model=f"m{len(added)}")).status_code == 200:
        added.append(answer.json()["id"])
        pin = live.client.post("/admin/pin", json={"model": added[-1]})
        assert pin.status_code == 200, pin.text
    assert added
    assert (answer.status_code, answer.json()["error"]["param"]) == (409, None)
    assert "no room" in answer.json()["error"]["message"]
    for name in added:
        assert live.client.delete(f"/v1/models/{name}").status_code == 200
    assert names(live) == ["one"]
