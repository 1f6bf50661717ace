"""One of several processes that read host memory at the same time.

    python -m experiments.gpu.kernels.streamer <context as JSON> <SMs>

Prints "ready", waits for a line with two times of the monotonic clock, which all processes of a
machine share, reads between these times and prints the end of each launch as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import jax

from experiments.gpu import Context, wait
from experiments.gpu.kernels import bounds, operands
from experiments.gpu.kernels.probes import launcher, scalars


def main(arguments: list[str]) -> None:
    """Read host memory in the window that the parent gives."""
    context = Context(**json.loads(arguments[0]))
    streaming = bounds.streaming(context)
    data = bounds.matrix(streaming, context)
    run = jax.device_put(scalars(streaming, sms=min(int(arguments[1]), streaming.sm_count)))
    read = launcher(streaming, interpret=operands.interpret_settings(context))
    for _ in range(2):
        wait(read(data, run))
    print("ready", flush=True)
    start, end = json.loads(sys.stdin.readline())
    time.sleep(max(0.0, start - time.monotonic()))
    done = [time.monotonic()]
    while done[-1] < end:
        wait(read(data, run))
        done.append(time.monotonic())
    print(json.dumps({"done": done, "bytes": streaming.boxes * streaming.box_bytes}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
