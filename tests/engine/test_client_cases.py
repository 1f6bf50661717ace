"""The cases of the shared data that came from public reports, each as a client sends it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.live import Live, make_step, served

pytestmark = pytest.mark.slow

CASES = (
    "arg_key_calls", "call_within_thinking", "developer_role", "empty_arguments",
    "empty_list_of_calls", "forced_calls_one_at_a_time", "large_max_items", "newline_in_a_call",
    "null_arguments", "schema_that_is_its_own_reference", "template_for_tools", "text_after_calls",
    "text_between_calls",
)  # fmt: skip


@pytest.fixture(scope="module")
def cases(shared_part: Callable[[str], Path]) -> Path:
    return shared_part("cases2/engine")


@pytest.fixture(scope="module")
def live(cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    make_step()
    log = tmp_path_factory.mktemp("cases") / "log"
    with served(f"catalog={cases / 'checkpoints'}", "hang_s=4", "patience=1000", log=log) as live:
        yield live


def streamed(live: Live, request: dict[str, Any]) -> tuple[str, str, list[list[Any]], str]:
    """Return text, thought, calls and end of a streamed answer."""
    text = thought = why = ""
    calls: list[list[str]] = []
    for event in live.events("chat/completions", **request):
        (choice,) = event["choices"]
        text += choice["delta"].get("content") or ""
        thought += choice["delta"].get("reasoning_content") or ""
        why = choice["finish_reason"] or why
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
    return text, thought, [[name, json.loads(arguments)] for name, arguments in calls], why


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_its_answer(live: Live, cases: Path, name: str) -> None:
    request = json.loads((cases / name / "request.json").read_text())
    expected = json.loads((cases / name / "expected.json").read_text())
    began_s = time.monotonic()
    answer = live.post("chat/completions", **request)
    took_s = time.monotonic() - began_s
    allowed = expected.get("status", 200)
    assert answer.status_code in (allowed if isinstance(allowed, list) else [allowed]), answer.text
    assert took_s < 10 * expected.get("answered_within_s", 60)  # other tests run beside it
    if answer.status_code != 200:
        return
    answered = answer.json()
    choices = answered["choices"]
    assert answered["usage"]["prompt_tokens"] == expected.get(
        "prompt_tokens", answered["usage"]["prompt_tokens"]
    )
    for choice in choices:
        assert len(choice["message"].get("tool_calls", ())) <= expected.get("most_calls", 9)
    if len(choices) > 1:
        return
    (choice,) = choices
    message = choice["message"]
    told, thought = message["content"] or "", message.get("reasoning_content", "")
    assert thought == expected.get("reasoning_content", thought)
    calls = [
        [call["function"]["name"], json.loads(call["function"]["arguments"])]
        for call in message.get("tool_calls", ())
    ]
    assert calls == expected.get("calls", calls)
    assert told == expected.get("content", told)
    assert all(part in told for part in expected.get("content_has", ()))
    assert choice["finish_reason"] == expected.get("finish_reason", choice["finish_reason"])
    if request.get("temperature") == 0:
        assert streamed(live, request) == (told, thought, calls, choice["finish_reason"])


def test_frozen_processes_are_replaced(live: Live, cases: Path) -> None:
    """The worker and the standby are stopped; the standby was ready before."""
    request = json.loads((cases / "frozen_standby" / "request.json").read_text())
    expected = json.loads((cases / "frozen_standby" / "expected.json").read_text())
    assert live.post("completions", **request).status_code == 200
    time.sleep(10.0)  # for the standby's imports
    children = Path(f"/proc/{live.process.pid}/task/{live.process.pid}/children")
    workers = [
        int(pid)
        for pid in children.read_text().split()
        if b"c2c.engine.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(workers) == 2
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    answer = live.post("completions", **request)
    assert answer.status_code == expected["status"]
    assert time.monotonic() - began_s < 2 * expected["answered_within_s"]  # 10 s alone
