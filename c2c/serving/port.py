"""The port between the serving loop and what serves: events in, actions out.

The fields of a plan and of a report are stated once, in `c2c.serving.state`.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from c2c.serving.state import PLAN_DTYPE, RECORD_DTYPE, REPORT_DTYPE

__all__ = [
    "Absent",
    "Action",
    "Arrival",
    "Backend",
    "BlocksLost",
    "Cancelled",
    "ChangeLayout",
    "DeviceBack",
    "DeviceLost",
    "DropWeights",
    "Event",
    "Forget",
    "ForgetBlocks",
    "HandOver",
    "HandedOver",
    "Interrupt",
    "KeepWeights",
    "LayoutChanged",
    "Layouts",
    "Load",
    "Plan",
    "Ready",
    "Record",
    "Recut",
    "Relaid",
    "Relayout",
    "ReleaseWeights",
    "RunSteps",
    "SetTimer",
    "StepEnd",
    "Timer",
    "Unload",
    "Weights",
    "WeightsHere",
    "new_report",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request has come in."""

    at_s: float
    request_id: int  # of no other request
    model: int  # position in Fleet.deployment
    prompt_tokens: int
    max_output_tokens: int  # it ends here, or before it by a `StepEnd`
    priority: int | None = None  # the higher, the more urgent; None: its model's
    deadline_s: float = math.inf  # it fails if it has not finished so long after its arrival
    blocks: tuple[int, ...] = ()  # keys of the whole blocks of its prompt, 64 bits each, chained


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model that a device was loading can take its first step."""

    at_s: float
    device: int
    available_gbps: float  # what the device can expect of the link now


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """A device did the steps it reports, of those it was told to run.

    `finished` are the requests whose last token came in the last of them: by an end-of-sequence
    token, a stop string, or because they have all their tokens.
    """

    at_s: float
    device: int
    report: Any  # a row of REPORT_DTYPE; see `new_report`
    finished: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The client wants nothing more of a request, which may have ended already."""

    at_s: float
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLost:
    """A device is gone with all that it held; what it still reports is ignored."""

    at_s: float
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksLost:
    """A device holds no blocks of KV caches any more; what it computes it begins anew by itself."""

    at_s: float
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBack:
    """A device that was lost serves again; it holds nothing."""

    at_s: float
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """The KV cache of a request is where `HandOver` sent it directly, and its source is free."""

    at_s: float
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLayout:
    """A chip is to be cut in another way: some devices go, others come, the rest serves on.

    Answered by `Recut` once the devices that leave hold nothing any more. Requests that compute on
    them end there, or without `drain` give way at the next step boundary.
    """

    at_s: float
    chip: int
    leaves: tuple[int, ...]
    comes: tuple[int, ...]
    drain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChanged:
    """The layout is there that `Recut` asked for."""

    at_s: float
    chip: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaid:
    """All has come that `Relayout` asked for."""

    at_s: float
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """The time of a timer has come: of its last `SetTimer`, or of the state at the start."""

    at_s: float
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepWeights:
    """A model's weights are to be in a chip's memory and stay, if there is room."""

    at_s: float
    model: int
    chip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsHere:
    """The weights have come that `KeepWeights` brought in, whoever uses them."""

    at_s: float
    model: int
    chip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWeights:
    """Weights that `KeepWeights` kept may give way again."""

    at_s: float
    model: int
    chip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DropWeights:
    """A model's weights are to go from memory, unless something needs them."""

    at_s: float
    model: int
    chip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Make a model runnable as an instance of a device; ends with `Ready`."""

    device: int
    instance: int
    model: int
    is_cold: bool  # the weights are not in host memory yet
    kv_out_bytes: float = 0.0  # KV caches of other engines that leave the device before


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSteps:
    """Run one mixed step, or up to `plan.steps` equal decode steps; ends with `StepEnd`.

    A request whose device was lost, or that was set aside, comes back with its own tokens as the
    end of its prompt.
    """

    device: int
    instance: int
    model: int
    plan: Any  # `Plan`
    prefills: tuple[tuple[int, int, int], ...]  # (request id, first prompt token, tokens)
    decodes: tuple[int, ...]  # request ids that get one token a step
    split: Any = None  # i8[homes, 4] the step's size by home of KV caches, of a lane
    kv_homes: tuple[int, ...] = ()  # of prefills, then of decodes, where lanes share memories


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """End the run of decode steps at the next step boundary: something waits for the device."""

    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """Free what an instance holds; it has no requests."""

    device: int
    instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A chip's memory holds the weights of these models no more, if it ever did.

    Said before the loads that need their room, and of all such models, whenever one has given way.
    """

    chip: int
    models: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Free the KV cache of a request that has ended and was not reported as finished."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetBlocks:
    """Free blocks of KV caches that a device has kept for prompts to come.

    Said before the loads and runs that need their room. No request uses them.
    """

    device: int
    keys: tuple[int, ...]  # as `Arrival` has them


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Free the KV cache of a request that gives way to more urgent ones, or lost its next place.

    It comes back with its own tokens as the end of its prompt.
    """

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recut:
    """Make the layout that `ChangeLayout` announced; ends with `LayoutChanged`."""

    chip: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Let an instance have the KV cache of a request that another device has prefilled.

    With `kv_bytes` it is to be carried: it lies in host memory until a run of that instance names
    the request among its decodes; this run begins when it has come. Without, the step of the prompt
    has sent it: it stays where it was until now. `directly` it goes from device to device, where
    there is room for it; no run waits for it, and `HandedOver` says when it has come.
    """

    request_id: int
    source: int  # the device that has it
    device: int
    instance: int
    kv_bytes: float
    directly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayout:
    """Send what a device's next variant needs while it serves on; ends with `Relaid`.

    The variant is in force with the first run that names it (`plan.alpha`).
    """

    device: int
    version: int  # the variant
    sent_bytes: tuple[float, ...]  # over each way of the layout
    kv_homes: tuple[tuple[int, int], ...]  # (request id, home) of sequences that change theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Send `Timer` at this time; it takes the place of one of its number that has not gone off."""

    at_s: float
    number: int = 0  # 0: for deadlines; 1 + c: for the policy of chip c


Weights = KeepWeights | WeightsHere | ReleaseWeights | DropWeights
Layouts = ChangeLayout | LayoutChanged
Event = (
    Arrival | Ready | StepEnd | Cancelled | DeviceLost | DeviceBack | BlocksLost | HandedOver
    | Timer | Weights | Layouts | Relaid
)  # fmt: skip
Action = (
    Absent | Load | RunSteps | Interrupt | Unload | Forget | ForgetBlocks | SetAside | HandOver
    | Recut | Relayout | SetTimer
)  # fmt: skip


class Backend(Protocol):
    """The world as the serving loop sees it: virtual in `c2c.simulator`, real in an engine.

    What it owes the loop:

    - `Load` and `RunSteps` are answered by exactly one `Ready` or `StepEnd`, at any later time and
      in any order between devices, unless the device is lost first. A device is told to do one
      thing at a time.
    - `HandOver` with `directly` is answered by one `HandedOver`, unless `Forget` or `SetAside` of
      the request comes before, or one of both devices is lost.
    - A run of several steps ends with the first step in which one of its requests ends, and at the
      next step boundary after an `Interrupt`, which may come too late. At least one step is done.
    - A timer goes off once; late is allowed, early and needless, too. Those of chips are set at the
      start, at the times in the state (`timer_s`), and need not go off where nothing else is to
      come.

    Clocks may jump: the loop takes an event that seems older than the last one as of the same time.
    """

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        """Carry out actions that were decided at `at_s`, in this order."""
        ...

    def next_event(self) -> Event | None:
        """Return the next event; None ends the run."""
        ...


def _row_type(name: str, dtype: np.dtype[Any]) -> Any:
    return namedtuple(name, dtype.names or (), defaults=np.zeros(1, dtype).tolist()[0])


# Rows of tables outside of them: reading a field of a NumPy record takes a microsecond.
Plan: Final = _row_type("Plan", PLAN_DTYPE)
Record: Final = _row_type("Record", RECORD_DTYPE)
_Report: Final = _row_type("Report", REPORT_DTYPE)


def new_report(**fields: float) -> Any:
    """Return a report with the given fields of `REPORT_DTYPE`; the others are zero."""
    return _Report(**fields)
