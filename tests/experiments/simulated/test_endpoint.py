"""A simulated endpoint as a user starts it: lengths, faults, cancels, chips that fail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from c2c.engine.front.failures import ApiError
from c2c.errors import DataError
from experiments.simulated.command import EndpointConf, serve_simulated
from experiments.simulated.endpoint import Answers
from experiments.simulated.faults import Fault, fault_of
from tests.engine.live import Live, served

MODEL = "llama-3-3b"
LOSSES = [f"{{chip: 0, at_s: {at_s}, repair_s: 60}}" for at_s in range(100, 20_000, 200)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    settings = (
        "simulated=true", "speed=20", "mig=7x12gb", "max_open=40", "superchips=2",
        f"failures.events=[{', '.join(LOSSES)}]",
    )  # fmt: skip
    with served(*settings, log=tmp_path_factory.mktemp("endpoint") / "log") as live:
        yield live


def test_a_stream_has_as_many_tokens_as_it_says_and_ends_once(live: Live) -> None:
    body = {"messages": [{"role": "user", "content": "Good morning, what is new?"}]}
    options = {"include_usage": True}
    events = list(
        live.events("chat/completions", model=MODEL, max_tokens=50, stream_options=options, **body)
    )
    usage = events[-1]["usage"]
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert sum(choice["finish_reason"] is not None for choice in choices) == 1
    assert 1 <= usage["completion_tokens"] <= 50
    assert 5 <= usage["prompt_tokens"] <= 60
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert len(text.split()) == usage["completion_tokens"]


@pytest.mark.slow
def test_many_at_once_are_answered_while_a_chip_fails_and_returns(live: Live) -> None:
    names = [model["id"] for model in live.client.get("/v1/models").json()["data"]]

    def ask(k: int) -> tuple[int, int]:
        body = {"model": names[k % len(names)], "prompt": "word " * (k + 1), "min_tokens": 7}
        answer = live.post("completions", max_tokens=7, **body)
        return answer.status_code, answer.json()["usage"]["completion_tokens"]

    lost = set[str]()
    while "lost" not in lost or live.state()["workers"][0]["state"] == "lost":
        with ThreadPoolExecutor(20) as pool:
            assert set(pool.map(ask, range(40))) == {(200, 7)}
        state = live.state()
        assert state["simulated_s"] < 20_000.0, "it would have been lost by then"
        lost |= {worker["state"] for worker in state["workers"][:7]}
    assert sum(state["outcomes"].values()) >= 40


def test_faults_are_those_that_were_asked_for(live: Live) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 20, "min_tokens": 20}

    def post(fault: str) -> httpx.Response:
        headers = {"x-simulated-fault": fault}
        return live.client.post("/v1/completions", json=body, headers=headers)

    assert post("status=529").status_code == 529
    assert post("delay_s=0.01, stall_s=0.01").status_code == 200
    assert post("slow").json()["error"]["param"] == "x-simulated-fault"
    with pytest.raises(httpx.RemoteProtocolError):
        list(live.events("completions", {"x-simulated-fault": "cut_after=3"}, **body))
    with pytest.raises(httpx.RemoteProtocolError):
        post("cut_after=0")


def test_what_has_no_simulated_answer_is_refused(live: Live) -> None:
    answer = live.post("completions", model=MODEL, prompt="a", logprobs=1)
    assert (answer.status_code, "log-probabilities" in answer.text) == (400, True)
    answer = live.post("completions", model="nobody", prompt="a")
    assert answer.status_code == 404
    assert live.client.post("/admin/load", json={"model": MODEL}).status_code == 409


def test_a_client_that_goes_away_is_cancelled_and_too_many_get_429(live: Live) -> None:
    before = live.state()["outcomes"].get("cancelled", 0)
    body = {"model": MODEL, "prompt": "a", "max_tokens": 8000, "min_tokens": 8000, "n": 39}
    events = live.events("completions", **body)
    next(events)
    live.until(lambda state: state["open"].get(MODEL, 0) == 39)
    assert live.post("completions", model=MODEL, prompt=["a", "b"], n=1).status_code == 429
    events.close()  # type: ignore[attr-defined]
    live.until(lambda state: state["open"].get(MODEL, 0) == 0)
    assert live.state()["outcomes"]["cancelled"] >= before + 39
    assert all(w["held"] == 0 for w in live.until(lambda s: not s["open"])["workers"])


def test_lengths_are_within_what_a_request_allows() -> None:
    answers = Answers(tokens=100, spread=1.0, words=(1, 2), seed=0)
    lengths = [answers.length(answers.draw(k, 300), 300, 5) for k in range(2000)]
    assert min(lengths) >= 5
    assert max(lengths) == 300
    assert 90 < sorted(lengths)[1000] < 110
    again = [answers.length(answers.draw(k, 300), 300, 5) for k in range(2000)]
    assert lengths == again
    free = Answers(tokens=None, spread=1.0, words=(1,), seed=0)
    assert free.length(random.Random(0), 77, 1) == 77


@pytest.mark.parametrize("text", ["status=200", "cut_after=-1", "stall_s=nan", "delay_s=1e9", "x"])
def test_a_fault_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="x-simulated-fault"):
        fault_of(text)
    assert fault_of("status=503") == Fault(status=503)


def test_the_settings_are_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        serve_simulated(["simulated=true", "--help"])
    said = capsys.readouterr().out
    assert all(f"{name}=" in said for name in vars(EndpointConf()))
    with pytest.raises(DataError, match="no such file"):
        serve_simulated(["simulated=true", "port=0", f"tokenizer={tmp_path}"])
