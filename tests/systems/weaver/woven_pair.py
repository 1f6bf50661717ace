"""A hot model on one CPU device, a cold one on another; prints what a test compares.

python -m tests.systems.weaver.woven_pair HOT COLD STORE REQUESTS MIXES    # two CPU devices
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import jax
import numpy as np

from c2c.systems.weaver.live.receiver import KvHost
from c2c.systems.weaver.live.woven import Woven, is_away
from c2c.transformer import (
    KvPool,
    Request,
    Runner,
    Served,
    Shapes,
    Step,
    load,
    serve,
    superblock_elements,
)
from experiments.random_requests import random_requests
from tests.systems.weaver.queue_link import QueueLink

SEED = 3
COLD = Shapes(rows=(2,), budgets=(16,), width=1, mixes=False)


def served(runner: Runner, asked: list[Request]) -> Served:
    *_, done = serve(runner, asked)
    assert done.ended == [1] * len(asked)
    return done


def serve_cold(runner: Runner, asked: list[Request], host: KvHost, out: list[Any]) -> None:
    """Serve without pause until the hot model is done, polling between stages."""
    while not host.is_over:
        out.append(served(runner, asked).texts)
        while host.poll():  # as an idle receiver does
            pass


def main(hot_checkpoint: str, cold_checkpoint: str, store: str, requests: str, mixes: str) -> None:
    """Print a JSON object: references, then one for each ratio."""
    devices = jax.devices()
    shapes = Shapes(rows=(2, 6), budgets=(32,), width=2, mixes=bool(int(mixes)))
    hot, cold = (
        load(checkpoint, "float32", executables=store, device=device)
        for checkpoint, device in zip((hot_checkpoint, cold_checkpoint), devices, strict=True)
    )
    assert hot.executables is not None
    size = superblock_elements((hot.spec, cold.spec))

    def made(device: Any) -> KvPool:
        return KvPool(12, size, dtype=np.float32, executables=hot.executables, device=device)

    asked = random_requests(int(requests), prompt=90, new=38, vocab=hot.spec.vocab, seed=SEED)
    cold_asked = random_requests(3, prompt=30, new=20, vocab=cold.spec.vocab, seed=SEED)
    alone = served(Runner(hot.executor(made(devices[0])), shapes), asked)
    cold_alone = served(Runner(cold.executor(made(devices[1])), COLD), cold_asked)
    print(json.dumps({"hot": alone.texts, "cold": cold_alone.texts}))
    for ratio in (0.0, 0.45, 1.0):
        pools = list(map(made, devices))
        link, here = QueueLink(), cold.executor(pools[1])
        host = KvHost(
            pools[1], hot.spec, link, shapes, reserve=2, executables=hot.executables
        )  # fmt: skip
        woven = Woven(hot.executor(pools[0]), link, shapes, ratio=ratio, seed=SEED)
        runner, cold_runner = Runner(woven, shapes), Runner(here, COLD)
        here.poll = host.poll
        for each in (runner, cold_runner):
            each.warm(draws=(False,), scores=False)
        host.ready()
        before, answers = (hot.executables.compiled, cold.executables.compiled), []  # type: ignore[union-attr]
        steps, start = [0], runner.start

        def counted(step: Step) -> Any:
            steps[0] += any(is_away(SEED, request, ratio) for request in step.decode)  # noqa: B023
            return start(step)  # noqa: B023

        runner.start = counted  # type: ignore[method-assign]
        thread = threading.Thread(target=serve_cold, args=(cold_runner, cold_asked, host, answers))
        thread.start()
        try:
            done = served(runner, asked)
        finally:
            link.close()
            thread.join()
        found = {
            "ratio": ratio, "steps": steps[0], "sent": woven.sent, "done": host.done,
            "brought": woven.brought, "hot": done.texts, "cold": answers,
            "free": [len(pool.free) for pool in pools], "fallen": done.fallen,
            "compiled": hot.executables.compiled - before[0]
            + cold.executables.compiled - before[1],  # type: ignore[union-attr]
        }  # fmt: skip
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
