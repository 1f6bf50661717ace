"""The front's process.

python -m c2c.engine.front <socket> <host> <port> <choices> <at once> <draws> <origin> ...
"""

import sys
from functools import partial

from c2c.engine.front.served_model import served_models
from c2c.engine.front.server import run_front


# C2C_KEY has the API key. `choices` and `at once` are bounds of `make_app`; `draws` is `checkpoint`
# or `neutral`: the source of default sampling parameters.
def main(arguments: list[str]) -> int:
    socket, host, port, most_choices, at_once, sampling, *origins = arguments
    run_front(
        socket, host, port,
        most_choices=int(most_choices),
        at_once=int(at_once),
        origins=origins,
        read=partial(served_models, has_own_sampling=sampling == "checkpoint"),
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
