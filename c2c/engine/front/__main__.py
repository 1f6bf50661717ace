"""The front, `python -m c2c.engine.front <socket> <host> <port> <choices> <at once> <draws>`.

The key is that of C2C_KEY. Then there are `make_app`'s bounds of a request's choices, and
`checkpoint` or `neutral`: who says how tokens are drawn where a request does not.
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
    socket, host, port, most_choices, at_once, sampling = arguments

    def end() -> None:
        server.should_exit = True

    log_to_stderr()
    app = make_app(
        Link(socket, end),
        key=os.environ.get("C2C_KEY") or None,
        most_choices=int(most_choices),
        at_once=int(at_once),
        has_own_sampling=sampling == "checkpoint",
    )
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
