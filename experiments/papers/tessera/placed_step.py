"""Place the kernels of a step's machine code over two GPUs, run it on two devices, compare bits.

    c2c try medusa_steps out=steps                  # XLA compiles decode steps; no GPU is needed
    c2c try tessera step=steps/8 tokens=8 chips=[h100_sxm,l40s]
    c2c try tessera step=steps/8 tokens=8 device=gpu   # two contexts of this machine's GPU

Reads each kernel's accesses from its PTX, plans by them, and captures each device's launches in
CUDA graphs with copies between. Outputs of an emulated kernel depend on every byte that it reads.
Returns 1 if an output differs from that of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, cast

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.cost.kernel_graph import timed_gpus
from c2c.errors import SettingError
from c2c.ranges import AboveZero, Count, FromZero, OneOf
from c2c.systems.program import Emulated, Peer, Running
from c2c.systems.program.xla import XlaStep, read_dump, stated_kernels
from c2c.systems.tessera import (
    Gpus,
    Policy,
    Schedule,
    StepGraphs,
    Touch,
    check_solver,
    kernels_of,
    plan,
    program_work,
    running_on,
    touches_of,
)
from experiments.plain_settings import Ran, run_settings

__all__ = ["PlacedSettings", "analysed", "fill", "main", "run_placed"]

_BLOCK: Final = 16 << 20
_STEPS: Final = 2  # the second one starts from the first one's state


@dataclass
class PlacedSettings:
    """Settings, as key=value on the command line.

    Attributes:
      step: folder of a step that XLA compiled.
      tokens: rows of the step.
      chips: two names of `conf/hardware`, with whose rates the plan is made.
      policy: shortest step, or shortest work of the busiest GPU.
      gbps: rate of the link between them.
      latency_s: latency of a transfer.
      gap: relative gap at which the solver may stop.
      device: emulated devices, or contexts of this machine's GPU (`make driver`).
      seed: of inputs and of emulated addresses.
    """

    step: str = ""
    tokens: Count = 1
    chips: list[str] = field(default_factory=lambda: ["a100_80", "l40s"])
    policy: Annotated[str, OneOf("latency", "throughput")] = "throughput"
    gbps: AboveZero = 25.0
    latency_s: FromZero = 5e-6
    gap: AboveZero = 0.01
    device: Annotated[str, OneOf("emulated", "gpu")] = "emulated"
    seed: int = 0


def analysed(folder: Path, trips: int = 1) -> tuple[XlaStep, tuple[Touch, ...]]:
    """Return a dump's step, its kernels as an emulated device runs them, and launches' accesses."""
    xla = read_dump(folder, trips=trips)
    xla = replace(xla, program=replace(xla.program, kernels=stated_kernels(xla)))
    return xla, touches_of(xla.program, kernels_of(xla.program))


def fill(running: Running, xla: XlaStep, seed: int) -> None:
    """Set inputs to random numbers, finite in any float type, all else to zero."""
    device = running.device
    draw = np.random.default_rng(seed)
    block = np.frombuffer(draw.bytes(_BLOCK), np.uint8).copy()
    block[1::2] = (block[1::2] & 0xBF) | 0x30  # exponents that neither overflow nor vanish
    random, zero = block.tobytes(), bytes(_BLOCK)
    kinds = zip(running.program.inputs, xla.input_kinds, strict=True)
    floats = {part.buffer for part, kind in kinds if not kind.startswith(("s", "u", "pred"))}
    for number, buffer in enumerate(running.program.buffers):
        if buffer.content:
            continue
        source = random if number in floats else zero
        for offset in range(0, buffer.nbytes, _BLOCK):
            nbytes = min(_BLOCK, buffer.nbytes - offset)
            device.write(running.addresses[number] + offset, source[:nbytes])


def run_placed(
    devices: Sequence[Peer], running: Sequence[Running], xla: XlaStep, touches: Sequence[Touch],
    gpu_of: Sequence[int], seed: int = 0, timed: Callable[[StepGraphs], float] = lambda _: 0.0,
) -> tuple[list[bytes], Schedule, float]:  # fmt: skip
    """Run two steps of a placement; return the outputs, the schedule and `timed`'s seconds."""
    for device, one in zip(devices, running, strict=True):
        device.enter()
        fill(one, xla, seed)
    capture = StepGraphs.capture(running, devices, touches, gpu_of, xla.carried)
    for _ in range(_STEPS):
        capture.run()
    devices[0].enter()
    outputs = [devices[0].read(running[0].at(part), part.nbytes) for part in xla.program.outputs]
    seconds = timed(capture)
    capture.close()
    return outputs, capture.schedule, seconds


def _devices(settings: PlacedSettings) -> list[Peer]:
    if settings.device == "emulated":
        return [Emulated(settings.seed + k) for k in range(len(settings.chips))]
    from c2c.systems.program.driver import Driver

    return [Driver(is_apart=True) for _ in settings.chips]


def _work(settings: PlacedSettings) -> Ran:
    if not settings.step:
        raise SettingError("step", "", "a folder of `c2c try medusa_steps`, such as steps/8")
    if len(settings.chips) != 2:
        raise SettingError("chips", settings.chips, "two names of chips")
    check_solver(settings.gap, 1.0)
    chips = timed_gpus(*settings.chips)
    gpus = Gpus.alike(settings.chips, gbps=settings.gbps, latency_s=settings.latency_s)
    devices = _devices(settings)
    xla, touches = analysed(Path(settings.step))
    work = program_work(xla, touches, chips, settings.tokens)
    best = plan(work, gpus, cast("Policy", settings.policy), gap=settings.gap)
    running = [running_on(device, xla.program) for device in devices]
    ways = {name: [number] * len(touches) for number, name in enumerate(settings.chips)}
    ways["placed"] = list(best.gpu_of)
    table = Table(title=f"{settings.step}: {len(touches)} launches", box=SIMPLE_HEAD)
    for head in ("kernels on", *settings.chips, "segments", "sent MB", "busiest ms", "outputs"):
        table.add_column(head, justify="left" if head == "kernels on" else "right")
    first: list[bytes] = []
    differing = 0
    for name, gpu_of in ways.items():
        outputs, schedule, _ = run_placed(devices, running, xla, touches, gpu_of, settings.seed)
        first = first or outputs
        equal = sum(a == b for a, b in zip(first, outputs, strict=True))
        differing += len(outputs) - equal
        counts = [gpu_of.count(number) for number in range(len(settings.chips))]
        busy_s = [work.times[np.array(gpu_of) == k, k].sum() for k in range(len(counts))]
        table.add_row(
            name, *map(str, counts), str(len(schedule.segments)), f"{schedule.nbytes / 1e6:.2f}",
            f"{max(busy_s) * 1e3:.3f}", f"{equal} of {len(outputs)} equal",
        )  # fmt: skip
    pinned = f"; {len(work.pinned)} of unknown accesses stay on one GPU" if work.pinned else ""
    table.caption = (
        f"{len(work.transfers)} dependencies; planned {settings.policy} "
        f"{best.objective_s * 1e3:.3f} ms a step{pinned}; run on {settings.device} devices"
    )
    Console(highlight=False, width=100).print(table)
    return Ran(table, int(differing > 0))


def main(arguments: Sequence[str]) -> int:
    """Plan, run and compare; return the exit status."""
    return run_settings(PlacedSettings, arguments, _work)
