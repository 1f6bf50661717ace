"""The engine as processes: what clients get, what they may send, what survives a killed worker."""

from __future__ import annotations

import base64
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from c2c.transformer import Model, load
from tests.engine.bodies import bodies
from tests.engine.checkpoints import VOCAB, make_catalog
from tests.engine.live import Live, make_step, served
from tests.transformer.random_checkpoints import config_of, tensors_of

NAMES = ("one", "two", "three", "bare")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    make_catalog(folder / "models")
    return folder


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    settings = (  # few shapes: each takes a second to compile
        f"catalog={folder / 'models'}", "workers=2", "rows=[4]", "budgets=[32]",
        "context=320", "pool_bytes=16000000",
        f"out={folder / 'out'}", "retries=100", "patience=1000",
        "weights_bytes=400000",  # three of the four
    )  # fmt: skip
    make_step()
    with served(*settings, log=folder / "log") as live:
        assert live.state()["is_compiled"]
        yield live


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, Model]:
    return {name: load(folder / "models" / name) for name in NAMES}


def asked(seed: int, count: int) -> list[tuple[str, list[int], int]]:
    rng = random.Random(seed)
    return [
        (NAMES[k % len(NAMES)], [rng.randrange(VOCAB) for _ in range(rng.randint(1, 150))],
         rng.randint(1, 24))
        for k in range(count)
    ]  # fmt: skip


@pytest.mark.slow
def test_models_are_listed_and_those_that_cannot_be_served_say_why(live: Live) -> None:
    listed = {m["id"]: m for m in live.client.get("/v1/models").json()["data"]}
    assert {name for name, m in listed.items() if m["status"] == "ready"} == set(NAMES)
    assert "model_type='mamba'" in listed["odd"]["reason"]
    assert "NaN" in listed["damaged"]["reason"]
    assert listed["one"]["max_model_len"] == 320
    assert live.client.get("/v1/models/two").json() == listed["two"]
    for name in ("odd", "damaged"):
        answer = live.post("completions", model=name, prompt=[1])
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
    assert live.client.get("/ready").status_code == 200


def test_many_at_once_get_the_tokens_that_a_model_draws_alone(
    live: Live, models: dict[str, Model]
) -> None:
    requests = asked(0, 40)
    seeded = {"temperature": 1.2, "top_k": 30, "top_p": 0.9, "seed": 11}
    with ThreadPoolExecutor(16) as pool:
        greedy = list(pool.map(lambda r: live.tokens(*r), requests))
        drawn = list(pool.map(lambda r: live.tokens(*r, **seeded), requests[:12]))
    for (name, ids, new), found in zip(requests, greedy, strict=True):
        assert found == models[name].generate(ids, new)
    for (name, ids, new), found in zip(requests, drawn, strict=False):
        assert found == models[name].generate(ids, new, **seeded)
    assert live.state()["compiled_after_start"] == 0


def test_streams_texts_choices_and_usage(live: Live, models: dict[str, Model]) -> None:
    model, prompt = models["three"], "w5 w9 w40"
    ids = model.generate([5, 9, 40], 20, stop_at_eos=True)
    text = " ".join(f"w{token}" for token in ids if token != 7)
    body = {"model": "three", "prompt": prompt, "max_tokens": 20, "temperature": 0}
    whole = live.post("completions", **body).json()
    assert whole["choices"][0]["text"].split() == text.split()
    assert whole["choices"][0]["finish_reason"] == ("stop" if 7 in ids else "length")
    assert whole["usage"] == {
        "prompt_tokens": 3, "completion_tokens": len(ids), "total_tokens": 3 + len(ids),
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    events = list(live.events("completions", **body, stream_options={"include_usage": True}))
    assert "".join(c["text"] for e in events for c in e["choices"]).split() == text.split()
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-1]["usage"] == whole["usage"]
    chat = {"model": "three", "messages": [{"role": "user", "content": "w5"}], "max_tokens": 5}
    answer = live.post("chat/completions", **chat, temperature=0).json()
    assert answer["choices"][0]["message"]["content"] == model.chat("w5", 5)
    pieces = [e["choices"][0] for e in live.events("chat/completions", **chat, temperature=0)]
    assert pieces[0]["delta"]["role"] == "assistant"
    assert "".join(p["delta"].get("content", "") for p in pieces) == model.chat("w5", 5)
    several = live.post(
        "completions", model="one", prompt=[[1, 2], [3]], n=2, seed=4, max_tokens=6,
        ignore_eos=True, return_token_ids=True,
    ).json()["choices"]  # fmt: skip
    assert [c["index"] for c in several] == [0, 1, 2, 3]
    hot = {"temperature": 1.0}
    expected = [
        models["one"].generate(p, 6, **hot, seed=4 + k) for p in ([1, 2], [3]) for k in (0, 1)
    ]
    assert [c["token_ids"] for c in several] == expected


def test_a_stop_string_ends_the_text_before_it(live: Live, models: dict[str, Model]) -> None:
    words = [f"w{t}" for t in models["one"].generate([5, 9], 30)]
    stop = words[10]
    until = words[: words.index(stop)]
    body = {"model": "one", "prompt": [5, 9], "max_tokens": 30, "temperature": 0}
    answer = live.post("completions", **body, ignore_eos=True, stop=[f"{stop} ", "nowhere"])
    choice = answer.json()["choices"][0]
    # joined words may hold the stop string earlier; the first follows the prompt's last
    joined = "".join(f" {word}" for word in words)
    at = joined.find(f"{stop} ")
    assert choice["text"] == (joined[:at] if at >= 0 else joined)
    assert choice["finish_reason"] == ("stop" if at >= 0 else "length")
    assert len(until) < 30
    live.until(lambda state: not state["open"])


def test_log_probabilities_and_tokens_that_must_come(live: Live, models: dict[str, Model]) -> None:
    model, ids = models["three"], [5, 9, 40]
    drawn = model.generate(ids, 6)
    logits = model.logits([*ids, *drawn[:-1]])[-6:]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    body = {"model": "three", "prompt": ids, "max_tokens": 6, "temperature": 0}
    more = {"ignore_eos": True, "logprobs": 2, "return_tokens_as_token_ids": True}
    found = live.post("completions", **body, **more).json()["choices"][0]["logprobs"]
    assert found["tokens"] == [f"token_id:{t}" for t in drawn]
    own = [row[t] for row, t in zip(expected, drawn, strict=True)]
    np.testing.assert_allclose(found["token_logprobs"], own, atol=1e-4)
    for row, told in zip(expected, found["top_logprobs"], strict=True):
        assert set(told) == {f"token_id:{t}" for t in np.argsort(-row)[:2]}
    streamed = [
        score
        for event in live.events("completions", **body, **more)
        for score in (event["choices"][0]["logprobs"] or {"token_logprobs": []})["token_logprobs"]
    ]
    assert streamed == found["token_logprobs"]
    chat = {"model": "three", "messages": [{"role": "user", "content": "w5"}], "max_tokens": 3}
    answer = live.post("chat/completions", **chat, logprobs=True, top_logprobs=1, temperature=0)
    for one in answer.json()["choices"][0]["logprobs"]["content"]:
        assert (
            one["top_logprobs"][0]["logprob"] == one["logprob"] <= 0
        )  # greedy takes the likeliest
        assert bytes(one["bytes"]).decode() == one["token"]
    ends = next(k for k in range(1, 90) if model.generate([k], 20, stop_at_eos=True)[-1] == 7)
    short = live.post("completions", model="three", prompt=[ends], max_tokens=24, temperature=0)
    used = short.json()["usage"]["completion_tokens"]
    assert used < 21
    longer = live.post(
        "completions", model="three", prompt=[ends], max_tokens=24, temperature=0, min_tokens=21
    ).json()
    assert longer["usage"]["completion_tokens"] > 20


def test_settings_of_draws_are_those_of_a_model_alone(live: Live, models: dict[str, Model]) -> None:
    settings: list[dict[str, Any]] = [
        {"frequency_penalty": 1.5, "presence_penalty": -0.5},
        {"logit_bias": {"7": -100, "11": 2.5}},
        {"temperature": 1.5, "min_p": 0.2, "seed": -3},
        {"temperature": 1.5, "min_p": 1.0, "frequency_penalty": 2, "seed": 2**63 - 1},
    ]
    for model in ("two", "bare"):
        for own in settings:
            alone = {"temperature": 0.0, **own, "seed": own.get("seed", 0) % 2**64}
            alone["logit_bias"] = {int(k): v for k, v in own.get("logit_bias", {}).items()}
            expected = models[model].generate([5, 9, 40], 24, **alone)
            assert live.tokens(model, [5, 9, 40], 24, **own) == expected
    tokens = models["one"].generate([5, 9], 20)
    stop = tokens[7]
    until = tokens[: tokens.index(stop)]
    assert live.tokens("one", [5, 9], 20, stop_token_ids=[stop]) == until
    more = {"stop_token_ids": [stop], "include_stop_str_in_output": True}
    assert live.tokens("one", [5, 9], 20, **more) == [*until, stop]
    later = live.tokens("one", [5, 9], 20, min_tokens=12, **more)
    assert stop not in later[:12]
    assert len(live.tokens("three", [5, 9], 20, min_tokens=12, stop=list("w123456789"))) == 13
    assert live.state()["compiled_after_start"] == 0


def test_prompts_are_echoed_with_log_probabilities(live: Live, models: dict[str, Model]) -> None:
    model, ids = models["three"], [(5 * k * k + 3) % VOCAB for k in range(75)]
    logits = model.logits(ids)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    own = [row[t] for row, t in zip(expected[:-1], ids[1:], strict=True)]
    body: dict[str, Any] = {"model": "three", "prompt": [ids, [7]], "echo": True, "temperature": 0}
    more: dict[str, Any] = {"logprobs": 2, "return_tokens_as_token_ids": True}
    answer = live.post("completions", **body, **more, max_tokens=0).json()
    whole, short = answer["choices"]
    assert answer["usage"]["completion_tokens"] == 0
    assert (whole["finish_reason"], short["logprobs"]["token_logprobs"]) == ("length", [None])
    found = whole["logprobs"]
    assert found["tokens"] == [f"token_id:{t}" for t in ids]
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    np.testing.assert_allclose(found["token_logprobs"][1:], own, atol=1e-4)
    for row, token, told in zip(expected, ids[1:], found["top_logprobs"][1:], strict=False):
        best = {f"token_id:{t}" for t in np.argsort(-row)[:2]}
        assert set(told) == best | {f"token_id:{token}"}
    further = {"max_tokens": 4, "ignore_eos": True, **more}
    longer = live.post("completions", **body, **further).json()["choices"][0]
    drawn = model.generate(ids, 4)
    assert longer["logprobs"]["tokens"] == [f"token_id:{t}" for t in (*ids, *drawn)]
    assert longer["logprobs"]["token_logprobs"][:75] == found["token_logprobs"]
    assert longer["text"].startswith(whole["text"])
    assert whole["text"].split() == [f"w{t}" for t in ids if t != 7]
    events = [
        e["choices"][0]
        for e in live.events("completions", **body, **further)
        if e["choices"][0]["index"] == 0
    ]
    assert "".join(e["text"] for e in events) == longer["text"]
    assert [
        t for e in events if e["logprobs"] for t in e["logprobs"]["token_logprobs"]
    ] == longer["logprobs"]["token_logprobs"]  # fmt: skip
    plain = live.post("completions", **{**body, "prompt": "w5 w9"}, max_tokens=0).json()
    assert plain["choices"][0]["text"] == "w5 w9"
    assert plain["choices"][0]["logprobs"] is None
    assert live.state()["compiled_after_start"] == 0


def test_the_head_makes_logits_of_embeddings(live: Live, models: dict[str, Model]) -> None:
    prompts = [[5, 9, 40], [7], [(5 * k * k + 3) % VOCAB for k in range(75)]]  # in several chunks
    for name, family, seed in (("one", "llama", 0), ("three", "qwen3", 2)):
        tensors = tensors_of(config_of(family), seed=seed)
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
        answer = live.post("embeddings", model=name, input=prompts).json()
        assert answer["usage"] == {"prompt_tokens": 79, "total_tokens": 79}
        rows = np.array([row["embedding"] for row in answer["data"]], np.float32)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)
        for ids, row in zip(prompts, rows, strict=True):
            own, logits = np.asarray(head, np.float32) @ row, models[name].logits(ids)[-1]
            scaled = own * (np.linalg.norm(logits) / np.linalg.norm(own))
            np.testing.assert_allclose(scaled, logits, atol=1e-4)
        coded = live.post("embeddings", model=name, input=prompts[0], encoding_format="base64")
        text = coded.json()["data"][0]["embedding"]
        assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == rows[0].tolist()
    assert live.state()["compiled_after_start"] == 0


def test_many_choices_and_prompts_wait_for_each_other(live: Live, models: dict[str, Model]) -> None:
    body: dict[str, Any] = {"model": "one", "max_tokens": 2, "ignore_eos": True, "seed": 1}
    many = live.post("completions", **body, prompt="w5 w9", n=128, return_token_ids=True).json()
    assert [c["index"] for c in many["choices"]] == list(range(128))
    for k in (0, 63, 64, 127):
        alone = models["one"].generate([5, 9], 2, 1.0, seed=1 + k)
        assert many["choices"][k]["token_ids"] == alone
    prompts = [[5, 9, k % VOCAB] for k in range(200)]
    events = list(live.events("completions", **body, prompt=prompts))
    assert {e["choices"][0]["index"] for e in events} == set(range(200))
    assert sum(e["choices"][0]["finish_reason"] == "length" for e in events) == 200
    twice = live.post("completions", **{**body, "seed": None, "max_tokens": 20}, prompt=[[5], [5]])
    assert len({c["text"] for c in twice.json()["choices"]}) == 2, "no seed of one is another's"
    late = live.client.post(
        "/v1/completions", headers={"x-deadline-s": "0.02"},
        json={**body, "max_tokens": 200, "prompt": prompts},
    )  # fmt: skip
    assert late.status_code == 408
    live.until(lambda state: not state["open"])


def test_draining_turns_requests_away_until_it_is_resumed(live: Live) -> None:
    assert live.client.post("/admin/drain").json() == {"status": "draining"}
    assert live.client.get("/ready").status_code == 503
    answer = live.post("completions", model="one", prompt=[1], max_tokens=1)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert int(answer.headers["retry-after"]) >= 1
    streamed = live.post("completions", model="one", prompt=[1], max_tokens=1, stream=True)
    assert streamed.status_code == 503, "a stream that never began has a status, too"
    assert live.client.post("/admin/resume").json() == {"status": "ok"}
    assert live.client.get("/ready").status_code == 200
    assert len(live.tokens("one", [1], 1)) == 1


def test_weights_are_loaded_kept_and_dropped_at_an_operators_wish(live: Live) -> None:
    def wish(what: str, model: str) -> tuple[int, str]:
        answer = live.client.post(f"/admin/{what}", json={"model": model})
        return answer.status_code, answer.json().get("error", {}).get("message", "")

    def here() -> set[str]:
        return set(live.state()["weights"]["here"])

    live.until(lambda state: not state["open"])
    assert len(here()) <= 3
    for name in ("one", "two", "bare"):
        assert wish("pin", name) == (200, "")
    assert here() == {"one", "two", "bare"}
    assert wish("load", "three") == (
        409, "three: memory has no room: all other weights are in use or pinned",
    )  # fmt: skip
    assert wish("unload", "two") == (409, "two: it is pinned")
    for name in ("one", "two", "bare"):
        assert wish("unpin", name) == (200, "")
    assert wish("unload", "two") == (200, "")
    assert wish("load", "three") == (200, "")
    assert here() == {"one", "three", "bare"}
    assert wish("pin", "nobody")[0] == 404
    assert wish("pin", "damaged")[0] == 409
    assert len(live.tokens("two", [1], 1)) == 1


@pytest.mark.parametrize(
    ("status", "param", "body"),
    [
        (404, "model", {"model": "nobody"}),
        *((400, "prompt", {"prompt": prompt}) for prompt in ([], "", [[1]] * 2049)),
        *((400, "prompt", {"prompt": prompt}) for prompt in ([VOCAB], [-1], [1] * 320)),
        (400, "prompt", {"model": "bare", "prompt": "text"}),
        *((400, "max_tokens", {"max_tokens": tokens}) for tokens in (320, 0)),
        (400, "n", {"n": 129}),
        (400, "n", {"n": 65, "prompt": [[1]] * 32}),
        (400, "logprobs", {"logprobs": 20, "max_tokens": 300, "prompt": [[1]] * 999}),
        (400, "temperature", {"temperature": -1}),
        (400, "top_p", {"top_p": -1}),
        (400, "seed", {"seed": 2**63}),
        (400, "logit_bias", {"logit_bias": {str(VOCAB): 1}}),
        (400, "stop_token_ids", {"stop_token_ids": [VOCAB]}),
        *((400, "stop", {"stop": stop}) for stop in (["a"] * 65, "")),
        (400, "stream", {"stream": "perhaps"}),
        (400, "logprobs", {"logprobs": 21}),
        (400, "min_tokens", {"max_tokens": 4, "min_tokens": 5}),
        (400, "repetition_penalty", {"repetition_penalty": 0}),
        (400, "dimensions", {"dimensions": 4, "input": "w5"}),
        *((400, "input", {"input": text}) for text in ([], [VOCAB], "w5 " * 400)),
        (400, "encoding_format", {"encoding_format": "int8", "input": "w5"}),
        (400, "input_type", {"input_type": "query", "input": "w5"}),
    ],
)
def test_what_cannot_be_is_refused_in_openais_form(
    live: Live, status: int, param: str, body: dict[str, Any]
) -> None:
    path = "embeddings" if "input" in body else "completions"
    asked = {"model": "one"} if "input" in body else {"model": "one", "prompt": [1]}
    answer = live.post(path, **(asked | body))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), answer.text
    assert error["message"] and error["type"] == "invalid_request_error"  # noqa: PT018


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(["completions", "chat/completions"]), body=bodies(*NAMES, "odd"))
def test_no_body_is_too_odd(live: Live, path: str, body: dict[str, Any]) -> None:
    text = json.dumps(body)  # NaN and infinity too
    headers = {"content-type": "application/json"}
    answer = live.client.post(f"/v1/{path}", content=text, headers=headers)
    if answer.status_code == 200:
        return
    error = answer.json()["error"]
    assert answer.status_code in (400, 404, 503), answer.text
    assert (answer.status_code == 503) == (error["code"] == "model_failed")
    assert error["message"]


def test_other_refusals(live: Live) -> None:
    client = live.client
    assert client.get("/v1/completions").status_code == 405
    assert client.post("/v1/completions", content=b"{bad").status_code == 400
    assert client.post("/v1/completions", content=b"x" * (1 << 25) + b"x").status_code == 413
    pieces = (b"x" * (1 << 20) for _ in range(33))  # of no length that is said before
    assert client.post("/v1/completions", content=pieces).status_code == 413
    said = iter([b'{"model": "one", "prompt": [1], ', b'"max_tokens": 1}'])
    headers = {"content-type": "application/json"}
    assert client.post("/v1/completions", content=said, headers=headers).status_code == 200
    chat = {"model": "bare", "messages": [{"role": "user", "content": "w1"}]}
    answer = live.post("chat/completions", **chat)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    late = client.post(
        "/v1/completions", headers={"x-deadline-s": "0.000001"},
        json={"model": "one", "prompt": [1] * 100, "max_tokens": 200},
    )  # fmt: skip
    assert late.status_code == 408
    counted = live.client.get("/metrics").text
    assert 'outcome="deadline"' in counted
    assert 'outcome="failed"' not in counted


def test_a_client_that_goes_away_frees_what_it_held(live: Live) -> None:
    live.until(lambda state: not state["open"])
    before = live.state()["outcomes"].get("cancelled", 0)
    counter = 'c2c_requests_total{model="two",outcome="cancelled"} '

    def counted() -> float:
        lines = live.client.get("/metrics").text.splitlines()
        return sum(float(line.removeprefix(counter)) for line in lines if line.startswith(counter))

    counted_before = counted()
    body = {"model": "two", "prompt": [3], "max_tokens": 300, "ignore_eos": True}
    with live.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        next(answer.iter_lines())
    state = live.until(
        lambda state: not state["open"] and not sum(w["held"] for w in state["workers"])
    )
    assert state["outcomes"]["cancelled"] == before + 1
    assert counted() == counted_before + 1


def test_killed_workers_lose_no_token(live: Live, models: dict[str, Model]) -> None:
    requests = [(name, ids, 40) for name, ids, _ in asked(1, 24)]
    stop = threading.Event()
    kills = 0

    def kill() -> None:
        nonlocal kills
        while not stop.wait(1.0) and kills < 3:
            kills += live.kill_worker(kills % 2)

    killer = threading.Thread(target=kill)
    killer.start()
    found: list[list[int]] = []
    with ThreadPoolExecutor(8) as pool:
        while kills < 3:
            found = list(pool.map(lambda r: live.tokens(*r), requests))
    stop.set()
    killer.join()
    for (name, ids, new), tokens in zip(requests, found, strict=True):
        assert tokens == models[name].generate(ids, new)
    state = live.until(lambda state: all(w["state"] == "idle" for w in state["workers"]))
    assert sum(w["restarts"] for w in state["workers"]) >= 3
    assert state["compiled_after_start"] == 0


def test_metrics_and_page(live: Live) -> None:
    text = live.client.get("/metrics").text
    assert 'c2c_requests_total{model="one",outcome="length"}' in text
    assert "c2c_compiled_after_start_total 0.0" in text
    assert 'c2c_worker_up{device="1"} 1.0' in text
    page = live.client.get("/").text
    assert 'new EventSource("live")' in page
    first, second = live.state(), live.state()
    assert second["uptime_s"] > first["uptime_s"]


@pytest.mark.slow
def test_sigterm_drains_and_leaves_a_record(live: Live, folder: Path) -> None:
    """Last: it ends the engine of this module, whose other tests may run in another process."""
    for k in range(64):
        live.tokens(("one", "two", "three", "bare")[k % 4], [5, k % 7], 2)
    body = {"model": "one", "prompt": [5], "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    events = live.events("completions", **body, return_token_ids=True)
    first = next(events)
    live.process.terminate()
    tokens = [t for e in (first, *events) for t in e["choices"][0]["token_ids"]]
    assert len(tokens) == 200
    assert live.process.wait(30.0) == 0
    requests = pq.read_table(folder / "out" / "requests.parquet").to_pydict()
    steps = pq.read_table(folder / "out" / "steps.parquet").to_pydict()
    assert {"one", "two", "three", "bare"} == set(requests["model"])
    served_ = [k for k, status in enumerate(requests["status"]) if status == "finished"]
    assert len(served_) > 60
    for k in served_:
        assert requests["arrival_s"][k] <= requests["first_token_s"][k] <= requests["finished_s"][k]
    assert len(steps["plan"]) > 100
    assert all(seconds > 0 for seconds in steps["seconds"])
    settings = json.loads((folder / "out" / "settings.json").read_text())
    assert settings["workers"] == 2
