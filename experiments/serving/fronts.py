"""Process of an HTTP front: start, readiness, end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from c2c.errors import DataError

__all__ = ["begin_front", "end_front", "free_port", "until_ready"]

_FRONT_S = 60.0  # limit of a front's start


def begin_front(module: str, *arguments: object, key: str | None) -> subprocess.Popen[bytes]:
    """Start a front's process."""
    return subprocess.Popen(  # noqa: S603 (this Python, our module)
        [sys.executable, "-m", module, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=dict(os.environ) | ({"C2C_KEY": key} if key else {}),
        start_new_session=True,  # Ctrl-C reaches the engine, which ends open answers
    )


async def end_front(front: subprocess.Popen[bytes]) -> None:
    """Terminate a front; kill it after three seconds."""
    front.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(front.wait, 3.0)
    front.kill()


async def until_ready(front: subprocess.Popen[bytes], url: str) -> None:
    """Wait until a front accepts requests."""

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=1.0) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    end_s = time.monotonic() + _FRONT_S
    while not await asyncio.to_thread(is_ready):
        if front.poll() is not None or time.monotonic() > end_s:
            raise DataError("front", "did not start", "Its last output is above.")
        await asyncio.sleep(0.05)


def free_port(host: str) -> int:
    """Return a port of a host that is free."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
