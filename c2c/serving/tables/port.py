"""Port between the serving loop and its backend."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from c2c.serving.tables.state import PLAN_DTYPE, RECORD_DTYPE, REPORT_DTYPE

__all__ = [
    "Absent",
    "Action",
    "Arrival",
    "Backend",
    "BlocksLost",
    "Cancelled",
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
    "Load",
    "Plan",
    "Ready",
    "Record",
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
    """A request has arrived."""

    at_s: float
    request_id: int  # unique
    model: int  # index in Fleet.deployment
    prompt_tokens: int
    max_output_tokens: int  # length limit; a `StepEnd` may end it earlier
    priority: int | None = None  # higher is more urgent; None: its model's
    deadline_s: float = math.inf  # time after arrival at which it fails if not finished
    blocks: tuple[int, ...] = ()  # chained 64-bit keys of the full blocks of its prompt
    calls_tool: bool = False  # whether its answer may end in a call of a tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A device has loaded a model."""

    at_s: float
    device: int
    available_gbps: float  # link rate available to the device now


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """A device has ended its report's steps, all or some of those in `RunSteps`.

    `finished` requests ended with the last of them.
    """

    at_s: float
    device: int
    report: Any  # row of REPORT_DTYPE; see `new_report`
    finished: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """A client has cancelled a request, perhaps an ended one."""

    at_s: float
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLost:
    """A device is lost with its content; its reports are ignored."""

    at_s: float
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksLost:
    """A device has lost its KV blocks, and restarts its work."""

    at_s: float
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBack:
    """A lost device is back, empty."""

    at_s: float
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """The KV cache of a direct `HandOver` has arrived."""

    at_s: float
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaid:
    """All transfers of a `Relayout` have ended."""

    at_s: float
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A timer went off, as last set or initially."""

    at_s: float
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepWeights:
    """An operator pins a model's weights in a chip's memory."""

    at_s: float
    model: int
    chip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsHere:
    """The weights that `KeepWeights` loaded are in memory."""

    at_s: float
    model: int
    chip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWeights:
    """An operator unpins the weights of an earlier `KeepWeights`."""

    at_s: float
    model: int
    chip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DropWeights:
    """An operator drops a model's weights, unless needed."""

    at_s: float
    model: int
    chip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load a model as an instance of a device; ends with `Ready`."""

    device: int
    instance: int
    model: int
    is_cold: bool  # the weights are not in host memory yet
    kv_out_bytes: float = 0.0  # KV caches of other engines to move off the device first


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSteps:
    """Run one mixed step, or up to `plan.steps` equal decode steps; ends with `StepEnd`.

    A request set aside or lost returns with its generated tokens as the end of its prompt.
    """

    device: int
    instance: int
    model: int
    plan: Any  # `Plan`
    prefills: tuple[tuple[int, int, int], ...]  # (request id, first prompt token, tokens)
    decodes: tuple[int, ...]  # request ids that get one token a step
    split: Any = None  # i8[homes, 4] a lane's step size by KV-cache home
    kv_homes: tuple[int, ...] = ()  # homes of prefills, then of decodes, if lanes share memories


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """End the run at the next step boundary."""

    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """Free what an instance holds; it has no requests."""

    device: int
    instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """All models whose weights are not in a chip's memory.

    Sent at evictions, before the loads that need the room.
    """

    chip: int
    models: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Free the KV cache of a request that ended unreported."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetBlocks:
    """Free unused KV-cache blocks that a device kept for later prompts.

    Sent before the loads and runs that need their room.
    """

    device: int
    keys: tuple[int, ...]  # block keys as in `Arrival`


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Free a request's KV cache, which returns with its tokens as its prompt's end."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Hand a request prefilled elsewhere over to an instance.

    With `kv_bytes` its KV cache is in host memory until a run names it, and waits for it. With
    `directly` it goes between devices, and `HandedOver` reports it.
    """

    request_id: int
    source: int  # device with the KV cache
    device: int
    instance: int
    kv_bytes: float
    directly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayout:
    """Send weights and KV caches for a device's next variant; ends with `Relaid`.

    It is in force with the first run that names it (`plan.alpha`).
    """

    device: int
    version: int  # number of the variant
    sent_bytes: tuple[float, ...]  # bytes over each way of the layout
    kv_homes: tuple[tuple[int, int], ...]  # (request id, new home); a first chunk may be to come


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Send `Timer` at this time, in place of a pending one."""

    at_s: float
    number: int = 0  # 0: deadlines; 1 + c: policy of chip c


Weights = KeepWeights | WeightsHere | ReleaseWeights | DropWeights
Event = (
    Arrival | Ready | StepEnd | Cancelled | DeviceLost | DeviceBack | BlocksLost | HandedOver
    | Timer | Weights | Relaid
)  # fmt: skip
Action = (
    Absent | Load | RunSteps | Interrupt | Unload | Forget | ForgetBlocks | SetAside | HandOver
    | Relayout | SetTimer
)  # fmt: skip


class Backend(Protocol):
    """Backend of the serving loop: a virtual clock in `c2c.simulator`, GPUs in an engine.

    Obligations:

    - `Load` and `RunSteps` are answered by one `Ready` or `StepEnd`, at any time, unless the device
      is lost first. A device has one action at a time.
    - `HandOver` with `directly` is answered by one `HandedOver`, unless `Forget`, `SetAside` or a
      loss comes before.
    - A run of several steps ends with the first step in which a request ends, or at a step boundary
      after an `Interrupt`. At least one step is done.
    - A timer goes off once; late, early and needless ones are allowed. Chips' timers are set at the
      start (`timer_s`), and need not go off if no other event is pending.

    Clocks may jump: an event older than the last one gets the last one's time.
    """

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        """Carry out actions decided at `at_s`, in this order."""
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
    """Return a report with these fields of `REPORT_DTYPE`, else zeros."""
    return _Report(**fields)
