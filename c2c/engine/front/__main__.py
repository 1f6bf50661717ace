"""The front's process: `python -m c2c.engine.front <socket> <host> <port>`; the key by C2C_KEY."""

import os
import sys

import uvicorn

from c2c.engine.front.app import make_app
from c2c.engine.front.link import Link


def main(arguments: list[str]) -> int:
    socket, host, port = arguments
    app = make_app(Link(socket), key=os.environ.get("C2C_KEY") or None)
    uvicorn.run(app, host=host, port=int(port), log_level="warning", access_log=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
