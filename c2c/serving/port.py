"""The port between the serving loop and what serves: events in, actions out.

The fields of a plan and of a report are stated once, in `c2c.serving.state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from c2c.serving.state import REPORT_DTYPE

__all__ = [
    "Action",
    "Arrival",
    "Backend",
    "Event",
    "Interrupt",
    "Load",
    "Ready",
    "RunSteps",
    "StepEnd",
    "Unload",
    "new_report",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request has come in."""

    at_s: float
    request_id: int
    model: int  # position in Fleet.deployment
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model that a device was loading can take its first step."""

    at_s: float
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """A device did the steps it reports, of those it was told to run."""

    at_s: float
    device: int
    report: np.record  # REPORT_DTYPE; see `new_report`


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Make a model runnable as an instance of a device; ends with `Ready`."""

    device: int
    instance: int
    model: int
    is_cold: bool  # the weights are not in host memory yet


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSteps:
    """Run one mixed step, or up to `plan.steps` equal decode steps; ends with `StepEnd`."""

    device: int
    instance: int
    model: int
    plan: np.record  # PLAN_DTYPE
    prefills: tuple[tuple[int, int, int], ...]  # (request id, first prompt token, tokens)
    decodes: tuple[int, ...]  # request ids that get one token a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """End the run of decode steps at the next step boundary: something waits for the device."""

    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """Free what an instance holds; it has no requests."""

    device: int
    instance: int


Event = Arrival | Ready | StepEnd
Action = Load | RunSteps | Interrupt | Unload


class Backend(Protocol):
    """The world as the serving loop sees it: virtual in `c2c.simulator`, real in an engine."""

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        """Carry out actions that were decided at `at_s`, in this order."""
        ...

    def next_event(self) -> Event | None:
        """Return the next event; None ends the run."""
        ...


def new_report(**fields: Any) -> np.record:
    """Return a report with the given fields of `REPORT_DTYPE`; the others are zero."""
    made: np.record = np.zeros(1, REPORT_DTYPE).view(np.recarray)[0]
    for name, value in fields.items():
        setattr(made, name, value)
    return made
