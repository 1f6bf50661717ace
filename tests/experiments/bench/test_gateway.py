"""A gateway before simulated endpoints: what its client calls an answer, and LiteLLM's proxy."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from experiments.bench import gateway
from experiments.bench.servers.servers import Answer, Request

WORDS = {"choices": [{"delta": {"content": " two words"}}]}
EVENTS = {
    "good": [WORDS, {"choices": [{"delta": {}}]}, {"choices": [], "usage": {}}],
    "short": [{"choices": [{"delta": {"content": "one"}}]}],
    "broken": [WORDS, {"error": {"message": "the endpoint went away"}}],
}


class Handler(BaseHTTPRequestHandler):
    """Streams the events of the model that is asked for."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        known = EVENTS.get(body["model"])
        self.send_response(503 if known is None else 200)
        self.send_header("X-LiteLLM-Attempted-Retries", "2")
        self.send_header("X-LiteLLM-Model-Api-Base", "first")
        self.end_headers()
        assert self.headers["authorization"] == "Bearer mine"
        for event in known or ():
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_only_whole_streams_are_answers(address: str) -> None:
    request = Request(at_s=0.0, model="", ids=(1, 2), new=2)

    def ask(model: str) -> Answer | str:
        return gateway._asker(repeat(address), model, "mine")(request)

    answers = [ask(model) for model in ("good", "short", "broken", "unknown")]
    good, short, broken, unknown = answers
    assert isinstance(good, Answer)
    assert 0 < good.first_s <= good.last_s
    assert short == "1 of 2 tokens"
    assert "went away" in str(broken)
    assert "DataError" in str(unknown)
    row = gateway._row("good", answers, "first", 1.5)
    assert [row[n] for n in ("answered", "failed", "retried", "fell_back", "by_first")] == [
        1, 3, 1, 0, 1,
    ]  # fmt: skip
    assert len(row["errors"]) == 3


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("rate=0", "rate=0.0: expected a number above 0."),
        ("retries=-1", "retries=-1: expected a whole number from 0."),
        ("new=[3]", "new=[3]: expected [least, most], tokens above 0."),
    ],
)
def test_settings_that_cannot_work_are_refused(
    argument: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gateway.main([argument]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.soak
def test_litellms_proxy_before_two_endpoints(tmp_path: Path) -> None:
    if not gateway._PROXY.is_file():
        pytest.skip("no LiteLLM proxy: make gateway")
    assert gateway.main(["requests=10", "rate=1", f"out={tmp_path}"]) == 0
    found = json.loads((tmp_path / "gateway.json").read_text())
    rows = {row["case"]: row for row in found["rows"]}
    assert list(rows) == list(gateway.CASES)
    faulty = {
        "status_429": "simulated fault", "status_503": "simulated fault", "slow": "Timeout",
        "cut": "not completed",
    }  # fmt: skip
    for name, told in faulty.items():  # it may ask the endpoint with the fault at each repeat
        row = rows.pop(name)
        assert row["answered"] + row["failed"] == 10
        assert row["answered"] == row["by_first"] > 0
        assert all(told in error for error in row["errors"])
    assert {name: row["answered"] for name, row in rows.items()} == dict.fromkeys(rows, 10)
    assert [row["fell_back"] for row in rows.values()] == [0, 0, 10]
    assert 0 < rows["no_fault"]["by_first"] < 10
    assert rows["no_fault"]["gateway_cpu_s"] > rows["direct"]["gateway_cpu_s"]
