"""Cases of a section, their results, and the settings that they share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Scale = Literal["full", "quick", "tiny"]
SCALES: tuple[Scale, ...] = get_args(Scale)
"""full: real sizes. quick: real sizes, few of them, few repetitions. tiny: a dry run on a CPU."""

Backend = Literal["sm90", "interpret", "reference"]
"""Backend of the kernels, as `pallas_kernels` names it."""

Place = Literal["host", "device"]
"""Memory that holds the weights."""

HostRead = Literal["", "either", "only"]
"""Reads of weights in host memory: none; "either" can read device memory instead; "only" cannot."""

HostFault = Literal["", "hang", "crash"]

Row = dict[str, Any]
"""One measurement: scalars (numbers, text, booleans or None) by column name."""


class Unmeasurable(Exception):
    """A case cannot be measured here, for a reason that is not a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement or check, small enough to lose.

    `spec` holds scalars only and identifies the case: results are stored under it. `host` says
    whether the case reads weights in host memory. Its process is ended after `limit_s`, without
    compilation if the section reports that, and always after `most_s`, which is the only limit of a
    process's first case. The case is not begun with less than `least_s` left of the run. A case
    with `always` is measured in every run, because others of the run are compared with it. Cases of
    a `group` are likely to fail together.
    """

    spec: Mapping[str, Any]
    limit_s: float = 60.0
    most_s: float | None = None  # default: limit_s
    least_s: float = 5.0
    always: bool = False
    group: str = ""
    host: HostRead = ""

    @property
    def key(self) -> str:
        """Spec as text, the same for equal specs.

        >>> Case(spec={"m": 8, "alpha": 0.5}).key == Case(spec={"alpha": 0.5, "m": 8}).key
        True
        """
        return json.dumps(dict(self.spec), sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that a process may take to start, and caps on the limits of cases.

    `first_s` caps the first case of a process.
    """

    start_s: float = 90.0
    case_s: float = math.inf
    first_s: float = math.inf

    def of(self, case: Case) -> Case:
        """Return the case with its limits capped by these."""
        most_s = case.limit_s if case.most_s is None else case.most_s
        return replace(
            case, limit_s=min(case.limit_s, self.case_s), most_s=min(most_s, self.first_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings that all cases of a run share.

    `backend` is that of the kernels: "sm90" on a GPU; "reference" in a dry run. `folder` may hold
    files of a section beside its rows ("" for none). `weights` is the memory of the weights that
    cases read: "device" replaces host memory. `host_fault` simulates a device that cannot read
    host memory.
    """

    backend: Backend = "sm90"
    scale: Scale = "full"
    seed: int = 0
    folder: str = ""
    weights: Place = "host"
    host_fault: HostFault = ""

    @property
    def target_s(self) -> float:
        """Seconds to spend on one measurement, without compilation."""
        return {"full": 0.4, "quick": 0.1, "tiny": 0.0}[self.scale]

    @property
    def repetitions(self) -> tuple[int, int]:
        """Fewest and most repetitions of one measurement."""
        return {"full": (5, 30), "quick": (3, 5), "tiny": (2, 2)}[self.scale]
