"""Cases of the shared data over its checkpoints: references' token ids and log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.live import Live, make_step, served

# Twelve checkpoints are compiled.
pytestmark = pytest.mark.soak

TOKENS = (
    "frequency_penalty", "presence_penalty", "logit_bias", "stop_token_ids", "min_p_one",
)  # fmt: skip


@pytest.fixture(scope="module")
def cases(shared_part: Callable[[str], Path]) -> Path:
    return shared_part("cases/engine")


@pytest.fixture(scope="module")
def live(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    settings = ("rows=[1,4]", "budgets=[64]", "context=1024", "pool_bytes=64000000")
    make_step()
    log = tmp_path_factory.mktemp("cases") / "log"
    with served(f"catalog={shared / 'checkpoints'}", *settings, log=log) as live:
        yield live


def asked(live: Live, case: Path) -> tuple[int, Any]:
    raw = (case / "request.json").read_bytes()
    kind = "chat/completions" if b'"messages"' in raw else "completions"
    headers = {"content-type": "application/json"}
    answer = live.client.post(f"/v1/{kind}", content=raw, headers=headers)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("name", TOKENS)
def test_draws_are_the_references(live: Live, cases: Path, name: str) -> None:
    status, answer = asked(live, cases / name)
    expected = json.loads((cases / name / "expected.json").read_text())
    (choice,) = answer["choices"]
    assert status == 200
    assert choice["token_ids"] == expected["token_ids"]
    assert choice["finish_reason"] == expected.get("finish_reason", "length")


def test_an_echo_has_the_references_log_probabilities(live: Live, cases: Path) -> None:
    _, answer = asked(live, cases / "echo_logprobs")
    expected = json.loads((cases / "echo_logprobs" / "expected.json").read_text())
    found = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert found[0] is expected["token_logprobs"][0] is None
    np.testing.assert_allclose(found[1:], expected["token_logprobs"][1:], atol=2e-4)


def test_an_answer_is_of_its_schema(live: Live, cases: Path) -> None:
    _, answer = asked(live, cases / "json_schema")
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    found = json.loads(choice["message"]["content"])
    assert set(found) == {"years"}
    assert isinstance(found["years"], int)


@pytest.mark.parametrize(
    ("name", "param"), [("tool_choice_required", "tools"), ("lone_surrogate", "messages")]
)
def test_what_cannot_be_is_400_with_its_field(
    live: Live, cases: Path, name: str, param: str
) -> None:
    status, answer = asked(live, cases / name)
    assert (status, answer["error"]["param"]) == (400, param)


def test_requests_that_were_refused_are_answered(live: Live, cases: Path) -> None:
    assert len(asked(live, cases / "many_choices")[1]["choices"]) == 16
    assert asked(live, cases / "long_runs")[1]["usage"]["prompt_tokens"] == 381
    for name in ("null_content", "field_with_newline"):
        assert asked(live, cases / name)[0] == 200


def test_places_bytes_and_the_drawn_token(live: Live, cases: Path) -> None:
    (choice,) = asked(live, cases / "text_offset")[1]["choices"]
    told = choice["logprobs"]
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        if "\N{REPLACEMENT CHARACTER}" not in token:
            assert choice["text"][offset:].startswith(token)
    (choice,) = asked(live, cases / "drawn_token_among_top_logprobs")[1]["choices"]
    told = choice["logprobs"]
    for token, top in zip(told["tokens"], told["top_logprobs"], strict=True):
        assert token in top
    (choice,) = asked(live, cases / "bytes_of_part_of_a_character")[1]["choices"]
    found = [one["bytes"] for one in choice["logprobs"]["content"]]
    text = bytes(byte for one in found for byte in one).decode(errors="replace")
    assert text == choice["message"]["content"]
