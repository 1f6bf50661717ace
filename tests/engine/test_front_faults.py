"""Whatever clients send is answered in OpenAI's form, and what nobody foresaw, too."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.engine import messages as say
from c2c.engine.frames import Connection
from c2c.engine.front.app import make_app
from c2c.engine.front.failures import after_end, without_paths
from c2c.engine.front.link import Link
from c2c.engine.log import LineFormatter
from tests.engine.bodies import ANY, bodies
from tests.engine.checkpoints import make_catalog
from tests.engine.fake_front import FakeLink, begun, front_of

Sender = Callable[..., httpx.Response]
HALF = "\ud83d"
CHAT = {"model": "three", "messages": [{"role": "user", "content": "w5"}], "max_tokens": 3}
TEXT = {"model": "three", "prompt": "w5", "max_tokens": 3}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_catalog(tmp_path_factory.mktemp("faults") / "my models")


@pytest.fixture(scope="module")
def front(catalog: Path) -> Iterator[Sender]:
    with begun(front_of(catalog / "three", catalog / "bare")) as send:
        yield send


def sent(
    front: Sender | FastAPI, method: str, path: str, body: Any = None,
    headers: dict[str, Any] | None = None,
) -> httpx.Response:  # fmt: skip
    if isinstance(front, FastAPI):
        with begun(front) as send:
            return sent(send, method, path, body, headers)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kinds = {"content-type": "application/json"} | (headers or {})
    return front(method, path, content=content, headers=kinds)


def said(answer: httpx.Response, given: str = "") -> dict[str, Any]:
    """The error of an answer, which must be in OpenAI's form."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, answer.text
    number = answer.headers["x-request-id"]
    assert number.startswith("req-") or number == given
    result: dict[str, Any] = error
    return result


@pytest.mark.parametrize(
    ("path", "param", "body"),
    [
        ("v1/completions", "prompt", TEXT | {"prompt": f"w5 {HALF}"}),
        ("v1/completions", "prompt", TEXT | {"prompt": ["w5", HALF + "x"]}),
        ("v1/completions", "model", TEXT | {"model": HALF}),
        ("v1/completions", "stop", TEXT | {"stop": ["a", "\udc00"]}),
        ("v1/completions", "user", TEXT | {"user": HALF}),
        ("v1/completions", "user", TEXT | {"stop": ["a"], "user": HALF}),
        ("v1/completions", "?", TEXT | {HALF: 1}),
        ("v1/chat/completions", "messages", CHAT | {"messages": [{"role": HALF, "content": "a"}]}),
        ("v1/chat/completions", "messages", CHAT | {"messages": [{"role": "user", HALF: "a"}]}),
        ("admin/load", "model", {"model": HALF}),
        ("v1/completions", None, b'{"model": "three", "prompt": "\xed\xa0\xbd"}'),
        ("v1/completions", None, "é".encode("latin-1")),
        ("v1/completions", None, b'{"model": "three", "prompt": [' + b"1" * 5000 + b"]}"),
        ("v1/completions", None, b"[" * 100_000),
    ],
)
def test_no_text_that_utf8_has_not_is_taken(
    front: Sender, path: str, param: str | None, body: Any
) -> None:
    answer = sent(front, "POST", f"/{path}", body)
    assert (answer.status_code, said(answer)["param"]) == (400, param)


def test_whole_pairs_are_taken(front: Sender) -> None:
    answer = sent(front, "POST", "/v1/completions", TEXT | {"prompt": "w5 😀"})
    assert answer.status_code == 200


@pytest.mark.parametrize("given", ["²".encode("latin-1"), "²".encode(), "٣".encode(), b"1_0", b"-"])
@pytest.mark.parametrize("name", ["x-priority", "x-deadline-s"])
def test_headers_are_numbers_or_refused(front: Sender, name: str, given: bytes) -> None:
    answer = sent(front, "POST", "/v1/completions", TEXT, {name: given})
    if answer.status_code != 200:
        assert (answer.status_code, said(answer)["param"]) == (400, name)
    else:
        assert (name, given) == ("x-deadline-s", b"1_0")  # Python's form of 10


@pytest.mark.parametrize("depth", [200, 300, 600, 950, 2000])
def test_what_nests_deeply_is_taken_or_refused(front: Sender, depth: int) -> None:
    for nested in ("[" * depth + "]" * depth, '{"x":' * depth + "1" + "}" * depth):
        for text in (
            '{"model": "three", "messages": [{"role": "user", "content": "w5", "x": %s}]}',
            '{"model": "three", "messages": [{"role": "user", "content": "w5"}], "tools": %s}',
            '{"model": "three", "messages": %s}',
        ):
            answer = sent(front, "POST", "/v1/chat/completions", (text % nested).encode())
            assert answer.status_code in (200, 400), answer.text


_BYTES = st.text(st.characters(codec="latin-1", exclude_characters="\n\r\0"), max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    method=st.sampled_from(["POST", "POST", "POST", "GET", "HEAD", "PUT"]),
    path=st.sampled_from(
        ["/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/x", "/admin/load",
         "/admin/pin", "/health", "/ready", "/metrics", "/admin/drain", "/none", "/%ed%a0%bd",
         "/tokenize", "/detokenize", "/version", "/v1/messages", "/v1/responses", "/v1/embeddings"]
    ),
    body=bodies("three", "bare") | ANY | st.binary(max_size=20),
    headers=st.dictionaries(
        st.sampled_from(["x-priority", "x-deadline-s", "authorization", "x-request-id"]), _BYTES
    ),
)  # fmt: skip
def test_nothing_that_is_sent_is_a_fault_of_ours(
    front: Sender, method: str, path: str, body: Any, headers: dict[str, str]
) -> None:
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = sent(front, method, path, body, raw)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400 and method != "HEAD":
        assert said(answer, headers.get("x-request-id", ""))["message"]


def log_of(records: list[logging.LogRecord]) -> str:
    return "\n".join(map(LineFormatter().format, records))


def test_what_nobody_foresaw_has_a_form_and_an_id_that_the_log_has(
    catalog: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise KeyError("/data/secret\nERROR forged")

    app = front_of(catalog / "three")
    monkeypatch.setattr(FakeLink, "ask", fail)
    answer = sent(app, "POST", "/v1/completions", TEXT)
    error, number = said(answer), answer.headers["x-request-id"]
    assert (answer.status_code, error["type"]) == (500, "server_error")
    assert number in error["message"]
    assert "secret" not in answer.text
    lines = log_of(caplog.records).splitlines()
    assert sum(line.startswith("ERROR ") for line in lines) == 1
    assert number in lines[0]
    assert "Traceback" in lines[1]
    assert "KeyError" in lines[-1]


@pytest.mark.parametrize("begins", [False, True])
def test_a_stream_that_fails_ends_with_an_error(
    catalog: Path, begins: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = FakeLink.ask

    def fail(link: FakeLink, **fields: Any) -> Any:
        number, answers = whole(link, **fields)
        first, _ = answers.get_nowait(), answers.get_nowait()
        for frame in (first, say.Stop()) if begins else (say.Stop(),):
            answers.put_nowait(frame)  # type: ignore[arg-type] # the last is no answer
        return number, answers

    app = front_of(catalog / "three")
    monkeypatch.setattr(FakeLink, "ask", fail)
    answer = sent(app, "POST", "/v1/completions", TEXT | {"stream": True})
    number = answer.headers["x-request-id"]
    if not begins:
        assert (answer.status_code, said(answer)["type"]) == (500, "server_error")
    else:
        assert answer.status_code == 200
        events = [json.loads(e.removeprefix("data: ")) for e in answer.text.split("\n\n") if e]
        assert number in events[-1]["error"]["message"]
        assert "choices" in events[0]
    assert number in caplog.text


def over_a_socket(
    folder: Path,
    scheduler: Callable[[Connection], Awaitable[None]],
    client: Callable[[httpx.AsyncClient], Awaitable[None]],
) -> None:
    """Run a client of a front whose scheduler says what it is told to say."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        path, tasks = str(folder / "socket"), []

        async def serve(link: Connection) -> None:
            await scheduler(link)
            await link.each(lambda _: None)
            link.close()

        server = await loop.create_unix_server(
            lambda: Connection(lambda link: tasks.append(loop.create_task(serve(link)))), path
        )
        app = make_app(Link(path), key=None)
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://c2c") as asking:
                await client(asking)
        await asyncio.gather(*tasks)
        server.close()

    asyncio.run(run())


def test_a_request_whose_engine_goes_away_is_told_so(tmp_path: Path) -> None:
    async def scheduler(link: Connection) -> None:
        await link.next()
        link.send(say.Models(models=(), max_open=1))
        assert isinstance(await link.next(), say.Watch)
        link.close()

    async def client(asking: httpx.AsyncClient) -> None:
        answer = await asking.get("/metrics")
        assert (answer.status_code, said(answer)["code"]) == (503, "engine_gone")
        assert int(answer.headers["retry-after"]) >= 1

    over_a_socket(tmp_path, scheduler, client)


def test_an_engine_that_starts_says_how_far_it_is(tmp_path: Path, catalog: Path) -> None:
    steps = [asyncio.Event(), asyncio.Event()]
    info = say.ModelInfo(name="three", path=str(catalog / "three"), context=64, vocab=96)

    async def scheduler(link: Connection) -> None:
        await link.next()
        link.send(say.Starting(what="starting"))
        await steps[0].wait()
        link.send(say.Starting(what="compiling 12 of 40"))
        await steps[1].wait()
        link.send(say.Models(models=(info,), max_open=2))

    async def client(asking: httpx.AsyncClient) -> None:
        for path in ("/ready", "/v1/models", "/metrics", "/live"):
            answer = await asking.get(path)
            assert (answer.status_code, said(answer)["code"]) == (503, "starting"), path
            assert openai_repeats(answer)
            assert int(answer.headers["retry-after"]) >= 1
        for path in ("/health", "/"):
            assert (await asking.get(path)).status_code == 200
        steps[0].set()
        while "12 of 40" not in (await asking.post("/v1/completions", json=TEXT)).text:
            await asyncio.sleep(0.01)
        steps[1].set()
        while (await asking.get("/v1/models")).status_code == 503:
            await asyncio.sleep(0.01)
        assert [m["id"] for m in (await asking.get("/v1/models")).json()["data"]] == ["three"]

    over_a_socket(tmp_path, scheduler, client)


@pytest.mark.parametrize("n", [16, 17, 128])
def test_more_choices_than_requests_at_a_time_are_refused(front: Sender, n: int) -> None:
    """The engine of the fixture has 16 open; further prompts wait for those before."""
    answer = sent(front, "POST", "/v1/completions", TEXT | {"n": n, "prompt": ["w5"] * 2})
    if n == 16:
        assert len(answer.json()["choices"]) == 32
    else:
        assert (answer.status_code, said(answer)["param"]) == (400, "n")
        assert "max_open" in said(answer)["message"]


def test_names_of_unknown_fields_do_not_forge_or_fill_the_log(
    front: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {f"x{k}\nERROR worker 0 is gone {k}": 1 for k in range(500)} | {"y" * 10**6: 1}
    assert sent(front, "POST", "/v1/completions", TEXT | fields).status_code == 200
    assert sent(front, "POST", "/v1/completions", TEXT | {"y" * 10**6: 2}).status_code == 200
    text = log_of(caplog.records)
    assert len(text.splitlines()) == len(caplog.records) < 40
    assert "x0\\nERROR worker" in text
    assert len(text) < 10_000


@given(st.text() | st.just("a\nb\r\u2028\x1b[2J\udc00"))
def test_a_record_is_a_line(text: str) -> None:
    record = logging.LogRecord("c2c", logging.ERROR, "", 0, "it is %s", (text,), None)
    line = LineFormatter().format(record)
    assert line.isprintable()
    assert line.startswith("ERROR it is ")
    assert text.isprintable() <= (text[:1000] in line)


def test_head_is_get_without_the_body(front: Sender) -> None:
    for path in ("/health", "/ready", "/metrics", "/", "/v1/models", "/v1/models/three", "/live"):
        head = sent(front, "HEAD", path)
        assert (head.status_code, head.content) == (200, b""), path
        if path not in ("/live", "/metrics"):
            got = sent(front, "GET", path)
            assert head.headers["content-length"] == str(len(got.content))
    assert sent(front, "HEAD", "/v1/completions").status_code == 405


def openai_repeats(answer: httpx.Response) -> bool:
    """The rule of OpenAI's clients decides."""
    if (told := answer.headers.get("x-should-retry")) is not None:
        return bool(told == "true")
    return answer.status_code in (408, 409, 429) or answer.status_code >= 500


@pytest.mark.parametrize(
    ("why", "status", "repeats"),
    [
        ("deadline", 408, False),
        ("model_failed", 503, False),
        ("context_length_exceeded", 400, False),
        ("overloaded", 429, True),
        ("draining", 503, True),
        ("worker_lost", 503, True),
        ("gone", 503, True),
    ],
)
def test_clients_repeat_what_may_go_well_the_next_time(
    catalog: Path, why: str, status: int, repeats: bool
) -> None:
    for answer in (
        sent(front_of(catalog / "three", why=why), "POST", "/v1/completions", TEXT | {"n": 2}),
        after_end(why).response(),
    ):
        assert answer.status_code == status
        assert openai_repeats(answer) == repeats  # type: ignore[arg-type]
        assert repeats == ("retry-after" in answer.headers)


def test_errors_do_not_say_where_files_are(catalog: Path) -> None:
    why = f"{catalog}/odd/config.json: model_type='mamba' (see /data/other/x.json). Use tokens/s"
    odd = say.ModelInfo(name="odd", path=str(catalog / "odd"), context=0, vocab=0, failed=why)
    app = make_app(FakeLink(odd), key=None)
    expected = "odd/config.json: model_type='mamba' (see x.json). Use tokens/s"
    answer = sent(app, "POST", "/v1/completions", TEXT | {"model": "odd"})
    assert said(answer)["message"] == f"odd cannot be served: {expected}"
    assert not openai_repeats(answer)
    assert sent(app, "GET", "/v1/models/odd").json()["reason"] == expected
    assert said(sent(app, "POST", "/admin/pin", {"model": "odd"}))["message"] == (
        "odd: x.json is pinned"
    )


@given(st.lists(st.from_regex(r"[a-z.]{1,5}", fullmatch=True), min_size=2, max_size=4))
def test_of_a_path_the_name_is_left(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    found = without_paths(f"'{path}' is odd, {path}: no such file ({path})", "/data/model")
    assert found == f"'{parts[-1]}' is odd, {parts[-1]}: no such file ({parts[-1]})"
