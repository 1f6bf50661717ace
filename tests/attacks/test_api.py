"""A front over a real socket: each attack gets one clear answer, and the next request is served."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from c2c.engine.front import connection
from tests.attacks.api import ADDING, API, SLOW, head, posted
from tests.attacks.table import Attack, holds
from tests.engine.checkpoints import make_catalog
from tests.engine.fake_front import front_of
from tests.engine.live import Live, make_step, served

_MOST_MB = 700  # of a front, 220 before the first attack


class Target:
    """A server, by its address.

    Attributes:
      secret: a text of paths of its machine.
      log: its file.
    """

    def __init__(self, port: int, secret: str = "", log: Path | None = None) -> None:
        self.address = ("127.0.0.1", port)
        self.secret, self.log = secret, log

    def sent(self, data: bytes, *more: bytes, ends: bool = False) -> list[str]:
        """Send bytes, then others now and then; return the answers, as the tables have them."""
        received = b""
        with socket.create_connection(self.address) as link:
            link.settimeout(60.0)
            with contextlib.suppress(ConnectionError):  # what it says comes all the same
                link.sendall(data)
                if ends:
                    link.shutdown(socket.SHUT_WR)
                link.settimeout(0.1 if more else 60.0)
                while True:
                    try:
                        part = link.recv(1 << 16)
                    except TimeoutError:
                        if not more:
                            raise
                        link.sendall(more[0])
                        continue
                    if not part:
                        break
                    received += part
        assert not self.secret or self.secret not in received.decode("latin-1")
        return [self._said(answer) for answer in received.split(b"HTTP/1.1 ")[1:]]

    def _said(self, answer: bytes) -> str:
        parts = answer.split(b"\r\n\r\n", 1)
        first, *headers = parts[0].decode("latin-1").lower().split("\r\n")
        status = first.split()[0]
        assert any(header.startswith("x-request-id: ") for header in headers)
        if status == "200" or not parts[1]:
            return status
        error = json.loads(parts[1])["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return f"{status} {error['message']}"

    def serves(self) -> None:
        """Have a request answered as if nothing had happened."""
        body = {"model": "three", "prompt": "w5", "max_tokens": 3}
        assert self.sent(posted(body)) == ["200"]


@pytest.fixture(scope="module", params=["engine", "simulated"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("attacked")
    if request.param == "simulated":
        models = "catalog.models=[{spec: llama-3-3b, name: three}]"
        settings: tuple[str, ...] = ("simulated=true", "speed=20", "mig=7x12gb", models)
    else:
        catalog = make_catalog(folder / "models")
        (catalog / "out").symlink_to("/etc")
        (catalog / "loop").symlink_to("loop")
        settings = (
            f"catalog={catalog}", f"add_from={catalog}", "rows=[4]", "budgets=[32]", "context=64",
            "pool_bytes=16000000",
        )  # fmt: skip
        make_step()
    with served(*settings, log=folder / "log") as live:
        yield live, Target(live.client.base_url.port or 0, str(folder), folder / "log")


def front_mb(live: Live) -> float:
    """The most memory that the front has had."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = (process / "status").read_text()
            is_child = f"\nPPid:\t{live.process.pid}\n" in status
            if is_child and b".front" in (process / "cmdline").read_bytes():
                return int(status.split("VmHWM:")[1].split()[0]) / 1024
    raise AssertionError("there is no front")


@pytest.mark.parametrize("attack", API, ids=str)
def test_an_attack_gets_its_answer(live: tuple[Live, Target], attack: Attack) -> None:
    engine, target = live
    said = target.sent(attack.make())
    if attack.back == "200, three times":
        assert said == ["200"] * 3
    else:
        assert len(said) == 1
        assert holds(said[0], attack.back), said
    assert front_mb(engine) < _MOST_MB
    target.serves()


@pytest.mark.parametrize("attack", ADDING, ids=str)
def test_no_model_is_added_from_elsewhere(live: tuple[Live, Target], attack: Attack) -> None:
    engine, target = live
    (said,) = target.sent(attack.make())
    is_simulated = "simulated=true" in engine.process.args
    # What has the form of a request reaches the setting that is not there.
    adds_not = is_simulated and "String should" not in attack.back
    assert holds(said, "403 adding and removing models is disabled..." if adds_not else attack.back)


def test_the_log_has_no_line_of_a_clients(live: tuple[Live, Target]) -> None:
    _, target = live
    assert target.log is not None
    before = len(target.log.read_text())
    body = {"model": "three", "prompt": "w5", "max_tokens": 3}
    for field in ("x\nERROR \x1b[31mdown", "\u2028ERROR", "y" * 100_000):
        assert target.sent(posted(body | {field: 1})) == ["200"]
    assert not [line for line in target.log.read_text().split("\n") if line.startswith("ERROR")]
    assert "\x1b" not in target.log.read_text()
    assert len(target.log.read_text()) - before < 500


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A front of this process, on a port of its own."""
    catalog = make_catalog(tmp_path_factory.mktemp("slow"))
    app = front_of(catalog / "three")
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, http=connection.BoundedConnection, log_config=None)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Target(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("attack", SLOW, ids=str)
def test_who_is_slow_is_told_so(
    front: Target, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ARRIVES_S", 0.5)
    said = front.sent(*attack.make())
    assert holds(", then ".join(said), attack.back), said
    front.serves()


def test_a_body_that_comes_fast_enough_may_take_longer(
    front: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ARRIVES_S", 0.5)
    begun, parts = time.monotonic(), 12
    whole = posted({"model": "three", "prompt": "w5", "max_tokens": 3, "x": "y" * 30_000 * parts})
    said = front.sent(whole[:1000], *[whole[1000:]])  # the rest 0.1 s later
    assert said == ["200"]
    with socket.create_connection(front.address) as link:
        link.settimeout(60.0)
        for at in range(0, len(whole), 30_000):
            link.sendall(whole[at : at + 30_000])
            time.sleep(0.1)
        assert link.recv(12) == b"HTTP/1.1 200"
    assert time.monotonic() - begun > 0.5


def test_too_many_connections_are_turned_away_and_those_there_are_served(
    front: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_OWN_FILES", connection.resource.getrlimit(7)[0] - 20)
    idle = [socket.create_connection(front.address) for _ in range(20)]
    idle[0].sendall(head("GET /health", "connection: close"))  # the others have been taken in
    assert idle[0].recv(12) == b"HTTP/1.1 200"
    further = [socket.create_connection(front.address) for _ in range(3)]
    said = {link.recv(12) for link in further[1:]}
    assert said == {b"HTTP/1.1 503"}
    for link in (*idle, *further):
        link.close()
    time.sleep(0.1)
    front.serves()


def test_a_client_that_will_hear_nothing_more_gets_nothing(front: Target) -> None:
    assert front.sent(posted({"model": "three"}, length=1000), ends=True) == []
    front.serves()
