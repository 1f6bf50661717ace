"""Replay of the captures' allocations and frees."""

from __future__ import annotations

from collections import deque
from typing import Final

from c2c.systems.medusa.artefact import Artefact
from c2c.systems.program import DeviceFault, Recorder

__all__ = ["TRIGGER_POOL", "ReplayDiffers", "replay"]

# Pool of triggers, which run before graphs are restored; the comparison of events skips it.
TRIGGER_POOL: Final = "trigger"


class ReplayDiffers(Exception):
    """Error of a start or replay unlike the captured one."""


def replay(artefact: Artefact, recorder: Recorder) -> tuple[int, ...]:
    """Replay an artefact's steps; return all allocations' addresses, in order."""
    _compare(artefact, recorder)
    begun = len(recorder.events)
    try:
        return _carried_out(artefact, recorder)
    except (DeviceFault, ReplayDiffers) as problem:
        recorder.roll_back(begun)
        raise ReplayDiffers(str(problem).rstrip(".") + ".") from problem


def _carried_out(artefact: Artefact, recorder: Recorder) -> tuple[int, ...]:
    for step in artefact.steps[artefact.begin :]:
        name = artefact.allocations[step.allocation]
        if step.nbytes:
            recorder.allocate(step.nbytes, thread=name.thread, pool=name.pool)
        else:
            recorder.free(recorder.addresses[name], thread=step.thread)
    begun = artefact.steps[: artefact.begin]
    standing = {step.allocation for step in begun if step.nbytes}
    permanent = set(artefact.permanent)
    for number, name in enumerate(artefact.allocations):
        if number not in standing and recorder.is_live(name) != (number in permanent):
            raise ReplayDiffers(f"{name} is live after either the replay or the capture only.")
    return tuple(recorder.addresses[name] for name in artefact.allocations)


def _compare(artefact: Artefact, recorder: Recorder) -> None:
    expected: dict[str, deque[tuple[object, int]]] = {}
    for step in artefact.steps[: artefact.begin]:
        name = artefact.allocations[step.allocation]
        expected.setdefault(step.thread, deque()).append((name, step.nbytes))
    for number, event in enumerate(recorder.events):
        if event.allocation.pool == TRIGGER_POOL:
            continue
        queue = expected.get(event.thread)
        if not queue:
            raise ReplayDiffers(
                f"event {number} of the start ({event.nbytes} bytes, thread {event.thread}) is "
                "missing in the captured start."
            )
        expectation = queue.popleft()
        if expectation != (event.allocation, event.nbytes):
            raise ReplayDiffers(
                f"event {number} of the start is {event.nbytes} bytes of {event.allocation}; in "
                f"the captured start it is {expectation[1]} bytes of {expectation[0]}."
            )
    for thread, queue in expected.items():
        if queue:
            raise ReplayDiffers(
                f"thread {thread} made {len(queue)} events fewer than in the captured start."
            )
