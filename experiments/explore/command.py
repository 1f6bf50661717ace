"""A page whose pictures follow its controls: latencies, attainment, link and slices of two systems.

c2c explore                     # prints the page's address; Ctrl-C ends it
c2c explore port=9000 most=20000
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from c2c.errors import SettingError
from c2c.ranges import Count, In
from experiments.plain_settings import run_settings

__all__ = ["main"]


@dataclass
class Settings:
    """Settings of the page.

    Attributes:
      port: 0: any free one.
      most: most requests of a run.
    """

    port: Annotated[int, In("[0, 65535]")] = 8124
    most: Count = 5000


def main(arguments: Sequence[str]) -> int:
    """Serve the page until Ctrl-C; return the exit status."""
    return run_settings(Settings, arguments, _serve)


def _serve(settings: Settings) -> None:
    import uvicorn

    from experiments.explore.app import make_app

    try:
        listening = socket.create_server(("127.0.0.1", settings.port))
    except OSError as error:
        reason = f"a port that can be used ({os.strerror(error.errno or 0).lower()})"
        raise SettingError("port", settings.port, reason, "port=0 takes any.") from error
    with listening:
        app = make_app(settings.most)
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/ (Ctrl-C ends it)", flush=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
        server.run(sockets=[listening])
