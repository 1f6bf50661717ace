"""Serve a simulated fleet behind OpenAI's API: `c2c serve simulated=true`.

    c2c serve simulated=true system=c2cserve_plus hardware=gh200 mig=7x12gb
    c2c serve simulated=true catalog=dense16 superchips=4 speed=10 port=8123

All settings of c2c simulate apply besides those below. A header of a request makes its answer fail:

    x-simulated-fault: status=503            # an error at once; 400 to 599
    x-simulated-fault: delay_s=2, stall_s=5  # before the request, and after the first piece
    x-simulated-fault: cut_after=3           # pieces of the body, then the connection ends
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from c2c.config import build, load
from c2c.engine import run_in_loop
from c2c.engine.log import log_to_stderr
from c2c.errors import DataError
from c2c.ranges import Count, FromZero, In
from experiments.plain_settings import read_settings
from experiments.serving.fronts import begin_front, end_front, free_port, until_ready
from experiments.serving.settings import check_address
from experiments.simulated.endpoint import Answers, Endpoint
from experiments.simulated.texts import read_tokenizer, words_of

__all__ = ["EndpointConf", "serve_simulated"]

_AT_ONCE = 64  # choices of a request, so that others' requests come in between


@dataclass
class EndpointConf:
    """The endpoint's own settings.

    Attributes:
      simulated: true; else the live engine serves.
      host: address to listen at; any but a loopback one needs a key.
      port: port to listen at; 0 for a free one.
      key: API key that requests need; null: none.
      speed: simulated seconds a second.
      max_open: most open requests; further ones get 429.
      answer_tokens: median length of an answer, up to its cap; null: the cap.
      answer_spread: standard deviation of the logarithm of that length.
      tokenizer: checkpoint folder with a tokenizer; null: one trained on this package's sources.
    """

    simulated: bool = True
    host: str = "127.0.0.1"
    port: int = 8123
    key: str | None = None
    speed: Annotated[float, In("(0, inf)", "simulated seconds a second")] = 1.0
    max_open: Count = 1024
    answer_tokens: Count | None = 128
    answer_spread: FromZero = 0.6
    tokenizer: str | None = None


def serve_simulated(arguments: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    names = {field.name for field in fields(EndpointConf)}
    endpoint_words = [a for a in arguments if a.partition("=")[0] in names or a in ("--help", "-h")]
    conf: EndpointConf = read_settings(EndpointConf, endpoint_words)
    check_address({"host": conf.host, "port": conf.port, "key": conf.key})
    setup = build(load([a for a in arguments if a not in endpoint_words]))
    folder = None if conf.tokenizer is None else Path(conf.tokenizer).expanduser()
    answers = Answers(
        tokens=conf.answer_tokens,
        spread=conf.answer_spread,
        words=words_of(read_tokenizer(folder)),
        seed=setup.seed,
    )
    log_to_stderr()
    endpoint = Endpoint(setup, answers, speed=conf.speed, most=conf.max_open)
    return run_in_loop(_serve(endpoint, conf, "" if folder is None else str(folder)))


async def _serve(endpoint: Endpoint, conf: EndpointConf, tokenizer: str) -> int:
    stop_event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_event.set)
    front: subprocess.Popen[bytes] | None = None
    try:
        await endpoint.listen()
        port = conf.port or free_port(conf.host)
        front = begin_front(
            "experiments.simulated.front", endpoint.socket, conf.host, port,
            min(_AT_ONCE, conf.max_open), tokenizer, key=conf.key,
        )  # fmt: skip
        serving = asyncio.create_task(
            endpoint.serve(lambda: stop_event.is_set() or front.poll() is not None)
        )
        url = f"http://{conf.host}:{port}"
        await until_ready(front, url)
        print(f"{len(endpoint.names)} simulated models at {url}/v1", file=sys.stderr, flush=True)
        await serving
        if front.poll() is not None:
            raise DataError("front", f"ended with status {front.returncode}")
    finally:
        if front is not None:
            await end_front(front)
        await endpoint.close()
    return 0
