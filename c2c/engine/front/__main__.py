"""The front's process: `python -m c2c.engine.front <socket> <host> <port>`; the key by C2C_KEY.

It ends with the scheduler, killed or not: the port is free for the next one.
"""

import os
import sys

import uvicorn

from c2c.engine.front.app import make_app
from c2c.engine.front.link import Link
from c2c.engine.log import log_to_stderr

_ENDING_S = 3  # that answers may take which say that the engine is gone


def main(arguments: list[str]) -> int:
    socket, host, port = arguments

    def end() -> None:
        server.should_exit = True

    log_to_stderr()
    app = make_app(Link(socket, end), key=os.environ.get("C2C_KEY") or None)
    server = uvicorn.Server(
        uvicorn.Config(
            app, host=host, port=int(port), log_config=None, log_level="warning", access_log=False,
            timeout_graceful_shutdown=_ENDING_S,
        )
    )  # fmt: skip
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
