"""Web server of the front's process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import uvicorn

from c2c.engine.front.app import make_app
from c2c.engine.front.connection import BoundedConnection
from c2c.engine.front.link import Link
from c2c.engine.log import log_to_stderr

__all__ = ["run_front"]

_ENDING_S = 3  # for last answers after the engine's end


def run_front(
    socket: str,
    host: str,
    port: str,
    *,
    around: Callable[[Any], Any] = lambda app: app,
    **more: Any,
) -> None:
    """Serve until the scheduler ends, even if killed, which frees the port.

    Args:
      around: middleware.
      more: of `make_app`; the key is in C2C_KEY.
    """

    def end() -> None:
        server.should_exit = True

    log_to_stderr()
    app = make_app(Link(socket, end), key=os.environ.get("C2C_KEY") or None, **more)
    server = uvicorn.Server(
        uvicorn.Config(
            around(app), host=host, port=int(port), http=BoundedConnection, log_config=None,
            log_level="error",  # warnings for each request that is not HTTP would fill the log
            access_log=False, timeout_graceful_shutdown=_ENDING_S,
        )
    )  # fmt: skip
    server.run()
