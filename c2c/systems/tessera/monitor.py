"""Which policy a pair should run under, from how long requests wait: pure, a window at a time.

At the end of each window the mean latency of requests is divided by the mean latency of their
execution alone. Above the threshold requests queue, and throughput is what helps; below it latency.

Source: Tessera, section III-D. Where the paper is silent: a window without requests keeps the
policy, and so does equality. Ours, off by default: a band around the threshold within which the
policy stays; a rule that looks at the queue instead.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from c2c.errors import SettingError
from c2c.systems.tessera.plan import Policy
from c2c.systems.tessera.work import Transfer

__all__ = ["SWITCH_S", "Group", "Monitor", "MonitorState", "finish", "groups_of", "tick", "wanted"]

SWITCH_S: Final = 0.03  # that a switch stalls both GPUs; the paper's Fig. 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitor:
    """Settings of the monitor.

    Attributes:
      window_s: W.
      threshold: beta.
      band: a policy stays while the ratio is within this share of the threshold.
      queue: requests that wait, above which throughput is chosen; None: the paper's rule.
      switch_s: how long a switch stalls.
    """

    window_s: float = 0.3  # the paper's default, as the threshold's
    threshold: float = 1.5
    band: float = 0.0
    queue: float | None = None
    switch_s: float = SWITCH_S

    def __post_init__(self) -> None:
        for name in ("window_s", "threshold"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise SettingError(f"monitor.{name}", value, "a number above 0")
        if not 0 <= self.band < 1:
            raise SettingError("monitor.band", self.band, "a number in [0, 1)")
        for name in ("queue", "switch_s"):
            if getattr(self, name) is not None and getattr(self, name) < 0:
                raise SettingError(f"monitor.{name}", getattr(self, name), "at least 0")
        if self.switch_s > self.window_s:
            warnings.warn(
                f"monitor.window_s={self.window_s}: a switch takes longer, {self.switch_s} s",
                stacklevel=2,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorState:
    """What the monitor knows.

    Attributes:
      policy: in force.
      ends_s: when the window ends.
      requests: finished in it.
      latency_s: of them together.
      execution_s: of them together, without waiting.
      switches: so far.
    """

    policy: Policy = "latency"
    ends_s: float
    requests: int = 0
    latency_s: float = 0.0
    execution_s: float = 0.0
    switches: int = 0


def finish(state: MonitorState, latency_s: float, execution_s: float) -> MonitorState:
    """Return the state after a request has finished.

    Args:
      state: before.
      latency_s: since it arrived.
      execution_s: of its kernel groups (`groups_of`), without what it waited.

    Raises:
      SettingError: a latency below 0, or execution longer than it.
    """
    if not 0 <= execution_s <= latency_s * (1 + 1e-9):
        raise SettingError("execution_s", execution_s, f"between 0 and the latency, {latency_s}")
    return replace(
        state,
        requests=state.requests + 1,
        latency_s=state.latency_s + latency_s,
        execution_s=state.execution_s + execution_s,
    )


def wanted(state: MonitorState, monitor: Monitor, waiting: int = 0) -> Policy:
    """Return the policy that this window asks for.

    Args:
      state: with the window's requests.
      monitor: settings.
      waiting: requests that wait now.
    """
    if monitor.queue is not None:
        value, threshold = float(waiting), monitor.queue
    elif state.requests and state.execution_s:
        value, threshold = state.latency_s / state.execution_s, monitor.threshold
    else:
        return state.policy
    if value > threshold * (1 + monitor.band):
        return "throughput"
    if value < threshold * (1 - monitor.band):
        return "latency"
    return state.policy


def tick(state: MonitorState, monitor: Monitor, at_s: float, waiting: int = 0) -> MonitorState:
    """Return the state at a time; at the end of a window the policy may have switched.

    Windows that ended without a request since the last call keep the policy.
    """
    if at_s < state.ends_s:
        return state
    policy = wanted(state, monitor, waiting)
    windows = math.floor((at_s - state.ends_s) / monitor.window_s) + 1
    return MonitorState(
        policy=policy,
        ends_s=state.ends_s + windows * monitor.window_s,
        switches=state.switches + (policy != state.policy),
    )


@dataclass(frozen=True, slots=True)
class Group:
    """Kernels that one GPU runs in a row without communication.

    Attributes:
      gpu: which.
      kernels: in program order.
      receives: transfers that must be there before its first kernel.
      sends: transfers that its last kernel's end releases.
    """

    gpu: int
    kernels: tuple[int, ...]
    receives: tuple[tuple[int, int], ...] = ()
    sends: tuple[tuple[int, int], ...] = ()


def groups_of(gpu_of: Sequence[int], transfers: Sequence[Transfer]) -> tuple[Group, ...]:
    """Return the kernel groups of a placement, in the order of their first kernels.

    A group ends before a kernel that receives and after one that sends: latency is measured, and a
    graph captured, for each.
    """
    into: dict[int, list[tuple[int, int]]] = {}
    outof: dict[int, list[tuple[int, int]]] = {}
    for edge in transfers:
        if gpu_of[edge.source] != gpu_of[edge.target]:
            into.setdefault(edge.target, []).append((edge.source, edge.target))
            outof.setdefault(edge.source, []).append((edge.source, edge.target))
    open_: dict[int, list[int]] = {}
    closed: list[Group] = []

    def close(gpu: int) -> None:
        kernels = open_.pop(gpu, [])
        if kernels:
            closed.append(
                Group(
                    gpu, tuple(kernels), tuple(into.get(kernels[0], ())),
                    tuple(outof.get(kernels[-1], ())),
                )
            )  # fmt: skip

    for kernel, gpu in enumerate(gpu_of):
        if kernel in into:
            close(gpu)
        open_.setdefault(gpu, []).append(kernel)
        if kernel in outof:
            close(gpu)
    for gpu in sorted(open_):
        close(gpu)
    return tuple(sorted(closed, key=lambda group: group.kernels[0]))
