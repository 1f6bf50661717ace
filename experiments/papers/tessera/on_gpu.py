r"""One measurement of Tessera on a GPU's driver."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from c2c.cost.kernel_graph import kernel_s, step_s, timed_gpu, timed_gpus
from c2c.errors import DataError, SettingError, unknown_name
from c2c.ranges import Count, check_fields
from c2c.systems.program import Entry, KernelCall, Launch, Peer, Running, Slice, write_image
from c2c.systems.program.xla import XlaStep
from c2c.systems.tessera import (
    Gpus,
    StepGraphs,
    Touch,
    kernels_of,
    plan,
    program_work,
    recording_of,
    running_on,
    xla_kernels,
)
from experiments.command import command
from experiments.papers.tessera.placed_step import analysed, fill, run_placed

__all__ = ["WHATS", "main", "rows_of"]

WHATS: Final = ("kernels", "recorded", "split", "priorities")
_ROW_S: Final = 0.02  # launches in a row, so that starting and waiting are below a percent
_YOUNG: Final = 6  # steps of the request beside the one that is timed


@dataclass(frozen=True)
class _Asked:
    """Settings of the measurement.

    Attributes:
      what: name in `WHATS`.
      trips: iterations of the step's loops.
      copies: of the program, so that weights are read from memory.
      seconds: length of each row of launches; 0: a single launch.
      cuts: device changes of a placement; 0: the planner's.
      is_apart: whether devices are contexts, not streams.
    """

    what: str
    step: str
    trips: int = 1
    tokens: Count = 1
    copies: Count = 2
    repetitions: Count = 5
    seconds: float = _ROW_S
    cuts: int = 4
    is_apart: bool = True

    def __post_init__(self) -> None:
        if self.what not in WHATS:
            raise unknown_name("what", self.what, WHATS)
        check_fields(self)


def rows_of(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a measurement's rows."""
    job = _Asked(**settings)
    xla, touches = analysed(Path(job.step), job.trips)
    if job.what == "kernels":
        return _kernels(job, xla, touches)
    if job.what == "recorded":
        return _recorded(job, xla, touches)
    if job.what == "split":
        return [_split(job, xla, touches)]
    return [_priorities(job, xla, touches)]


def _device(**how: Any) -> Peer:
    from c2c.systems.program.driver import Driver

    return Driver(**how)


def _started(device: Peer, xla: XlaStep, seed: int = 0) -> Running:
    running = running_on(device, xla.program)
    fill(running, xla, seed)
    return running


def _kernels(job: _Asked, xla: XlaStep, touches: Sequence[Touch]) -> list[dict[str, Any]]:
    device = _device()
    hardware = _hardware(str(device.describe()["gpu"]))
    gpu = timed_gpu(hardware)
    running = [_started(device, xla)]
    for _ in range(job.copies - 1):
        running.append(running[0].again())
        running[-1].start()
        fill(running[-1], xla, 0)
    kernels = xla_kernels(xla, touches, job.tokens)
    rows: list[dict[str, Any]] = []
    first: dict[str, int] = {}
    kinds = [_kind(xla, number) for number in range(len(touches))]
    for number, kind in enumerate(kinds):
        first.setdefault(kind, number)
    for kind, number in first.items():
        seconds = _graph_s(job, device, [_launcher(runner, number) for runner in running])
        predicted = kernel_s(kernels[number], gpu)
        rows.append(
            {
                "kernel": kind,
                "launches": kinds.count(kind),
                "megabytes": (kernels[number].weight_bytes + kernels[number].read_bytes
                              + kernels[number].write_bytes) / 1e6,
                "time_s": seconds,
                "predicted_s": predicted,
                "error": predicted / seconds - 1,
            }
        )  # fmt: skip
    module = device.load_module(write_image([Entry("empty", (), (), allocates=False)]))
    empty = KernelCall(device.get_function(module, "empty"), (1, 1, 1), (32, 1, 1), 0, ())
    launch_s = _graph_s(job, device, [lambda: device.launch(empty)] * job.copies)
    whole = StepGraphs.capture(running[:1], [device], touches, [0] * len(touches))
    whole_s = _median_s(whole.start, whole.synchronise, job)
    whole.close()
    errors = [abs(r["error"]) for r in rows]
    times = [r["time_s"] * r["launches"] for r in rows]
    rows.append(
        {
            "kernel": "the step",
            "tokens": job.tokens,
            "launches": len(touches),
            "time_s": whole_s,
            "kernels_s": sum(times),
            "predicted_s": float(step_s(kernels, gpu).sum()),
            "launch_s": launch_s,
            "median_error": statistics.median(errors),
            # as a share of the step's time: a hundred tiny kernels must not hide one large one
            "weighted_error": sum(e * t for e, t in zip(errors, times, strict=True)) / sum(times),
            "hardware": hardware,
        }
    )
    return rows


def _hardware(gpu: str) -> str:
    names = {"H200": "h200_pcie5", "A100": "a100_80", "L40S": "l40s", "B200": "b200"}
    return next((name for part, name in names.items() if part in gpu), "h100_sxm")


def _kind(xla: XlaStep, number: int) -> str:
    launch = xla.program.launches[number]
    if isinstance(launch, Launch):
        return xla.program.kernels[launch.kernel].entry
    return f"{type(launch).__name__.lower()} {launch.target.nbytes}"


def _launcher(running: Running, number: int) -> Callable[[], None]:
    return lambda: running.launch(number)


def _graph_s(job: _Asked, device: Peer, launches: Sequence[Callable[[], None]]) -> float:
    device.enter()
    device.begin_capture()
    for launch in launches:
        launch()
    graph = device.end_capture()
    executable = device.instantiate(graph)
    device.upload(executable)
    seconds = _median_s(lambda: device.launch_graph(executable), device.synchronise, job)
    device.destroy_executable(executable)
    device.destroy_graph(graph)
    return seconds / len(launches)


def _median_s(start: Callable[[], None], wait: Callable[[], None], job: _Asked) -> float:
    """Return one start's seconds, a median over rows of about `job.seconds`."""
    for _ in range(2):
        start()
    wait()
    begin = time.perf_counter()
    start()
    wait()
    once = max(time.perf_counter() - begin, 1e-7)
    row = max(1, min(200, round(job.seconds / once)))
    times_s = []
    for _ in range(job.repetitions):
        begin = time.perf_counter()
        for _ in range(row):
            start()
        wait()
        times_s.append((time.perf_counter() - begin) / row)
    return statistics.median(times_s)


def _recorded(job: _Asked, xla: XlaStep, touches: Sequence[Touch]) -> list[dict[str, Any]]:
    """Run original and recording code by launch; compare written and touched bytes."""
    device = _device()
    recording = recording_of(xla.program, kernels_of(xla.program))
    plain = _started(device, xla)
    twin = running_on(device, recording.program)
    fill(twin, xla, 0)
    for number, touch in enumerate(touches):
        plain.launch(number)
        twin.launch(number)
        device.synchronise()
        if any(_read(plain, part) != _read(twin, part) for part in touch.writes):
            raise DataError(xla.names[number], "the recording kernel writes other results")
    seen = recording.seen(_read(twin, recording.intervals), twin.addresses)
    access = next((access for access in seen if not access.is_inside), None)
    if access is not None:
        raise DataError(
            xla.names[access.launch],
            f"touches bytes {access.interval.begin} to {access.interval.end} of {access.part}",
        )
    whole: dict[tuple[int, Slice], list[int]] = {}
    for access in seen:
        whole.setdefault((access.launch, access.part), []).extend(
            (access.interval.begin, access.interval.end)
        )
    full = sum(min(x) == 0 and max(x) == key[1].nbytes for key, x in whole.items())
    order = range(len(touches))
    seconds = [_graph_s(job, device, [_all(running, order)]) for running in (plain, twin)]
    return [
        {
            "launches": len(touches),
            "equal": len(touches),
            "sites": sum(len(records) for records, _ in recording.records),
            "happened": len(seen),
            "inside": len(seen),
            "slices": len(whole),
            "whole_slices": full,
            "time_s": seconds[0],
            "recording_s": seconds[1],
            "overhead": seconds[1] / seconds[0],
        }
    ]


def _all(running: Running, order: Sequence[int]) -> Callable[[], None]:
    def launch() -> None:
        for number in order:
            running.launch(number)

    return launch


def _read(running: Running, part: Slice) -> bytes:
    return running.device.read(running.at(part), part.nbytes)


def _split(job: _Asked, xla: XlaStep, touches: Sequence[Touch]) -> dict[str, Any]:
    devices = [_device(is_apart=job.is_apart), _device(is_apart=job.is_apart)]
    gpu_of = _placement(job, xla, touches)
    running = [running_on(device, xla.program) for device in devices]
    results, seconds, schedules = [], [], []
    for where in ([0] * len(touches), gpu_of):
        outputs, schedule, step_s = run_placed(
            devices, running, xla, touches, where,
            timed=lambda capture: _median_s(capture.start, capture.synchronise, job),
        )  # fmt: skip
        results.append(outputs)
        seconds.append(step_s)
        schedules.append(schedule)
    placed = schedules[1]
    if results[0] != results[1]:
        differ = sum(a != b for a, b in zip(*results, strict=True))
        raise DataError("split", f"{differ} of {len(results[0])} outputs differ")
    return {
        "apart": "contexts" if job.is_apart else "streams",
        "cuts": job.cuts,
        "segments": len(placed.segments),
        "sends": sum(len(s.sends) for s in placed.segments) + len(placed.last),
        "sent_megabytes": placed.nbytes / 1e6,
        "outputs": len(results[0]),
        "equal": len(results[0]),
        "one_graph_s": seconds[0],
        "time_s": seconds[1],
        "cut_us": 1e6 * (seconds[1] - seconds[0]) / max(len(placed.segments) - 1, 1),
    }


def _placement(job: _Asked, xla: XlaStep, touches: Sequence[Touch]) -> Sequence[int]:
    if job.cuts:
        return _to_and_fro(len(touches), job.cuts)
    names = ("a100_80", "l40s")
    work = program_work(xla, touches, timed_gpus(*names), job.tokens)
    near = Gpus.alike(names, gbps=2000.0, latency_s=1e-8)
    return plan(work, near, "throughput", gap=0.02, time_limit_s=10.0).gpu_of


def _to_and_fro(launches: int, cuts: int) -> list[int]:
    """Return a placement with `cuts` device changes, at equal distances.

    >>> _to_and_fro(6, 2)
    [0, 0, 1, 1, 0, 0]
    """
    return [k * (cuts + 1) // launches % 2 for k in range(launches)]


def _priorities(job: _Asked, xla: XlaStep, touches: Sequence[Touch]) -> dict[str, Any]:
    from c2c.systems.program.driver import Driver

    first = Driver().priorities()[1]
    report: dict[str, Any] = {}
    for name, priority in (("off", 0), ("on", first)):
        devices = [_device(priority=priority), _device()]
        requests = []
        for device in devices:
            running = [_started(device, xla)]
            requests.append((running, StepGraphs.capture(running, [device], touches,
                                                       [0] * len(touches))))  # fmt: skip
        old, young = (capture for _, capture in requests)
        alone, beside = [], []
        for _ in range(job.repetitions + 1):
            alone.append(_elapsed(old))
            for _ in range(_YOUNG):
                young.start()
            beside.append(_elapsed(old))
            young.synchronise()
        report |= {
            f"alone_{name}_s": statistics.median(alone[1:]),
            f"beside_{name}_s": statistics.median(beside[1:]),
        }
        for device, (running, capture) in zip(devices, requests, strict=True):
            capture.close()
            device.enter()
            running[0].recorder.allocator.release_all()
    slow = {name: report[f"beside_{name}_s"] / report[f"alone_{name}_s"] for name in ("off", "on")}
    return {**report, "priority": first, "slower_off": slow["off"], "slower_on": slow["on"]}


def _elapsed(launched: StepGraphs) -> float:
    begin = time.perf_counter()
    launched.run()
    return time.perf_counter() - begin


def main(arguments: Sequence[str]) -> int:
    """Run the measurement; return the exit status."""

    def run() -> int:
        if len(arguments) != 1:
            raise SettingError("arguments", list(arguments), "one JSON object")
        print(json.dumps(rows_of(json.loads(arguments[0]))))
        return 0

    return command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
