"""The front ends with its scheduler: nobody else frees the port of an engine that was killed."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

from c2c.engine import messages as say
from c2c.engine.frames import SocketFrames

LIMIT_S = 120.0  # of a machine that others use, too


def test_it_ends_when_the_scheduler_is_gone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket() as probe:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        listening.settimeout(LIMIT_S)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        process = subprocess.Popen(
            [sys.executable, "-m", "c2c.engine.front", str(tmp_path / "socket"), "127.0.0.1",
             str(port), "8", "4", "neutral"],
        )  # fmt: skip
        try:
            connection, _ = listening.accept()
            said = SocketFrames(connection)
            assert said.receive(waits=True) == [say.FrontHello()]
            said.send(say.Models(models=(), max_open=1))
            ends = threading.Timer(1.0, connection.close)
            ends.start()
            assert process.wait(LIMIT_S) == 0
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(("127.0.0.1", port))
        finally:
            process.kill()
            process.wait()
