"""Cases of a section, their results, and the context that they are measured in."""

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
"""Of the kernels, as `pallas_kernels` names them."""

Place = Literal["host", "device"]
"""Memory that holds the weights."""

HostRead = Literal["", "either", "only"]
"""Of a case: reads no weights in host memory; does, or elsewhere as well; is about nothing else."""

HostFault = Literal["", "hang", "crash"]

Row = dict[str, Any]
"""One measurement: scalars (numbers, text, booleans or None) by column name."""


class Unmeasurable(Exception):
    """A case cannot be measured here, for a reason that is not a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to measure or check, small enough to lose.

    `spec` holds scalars only and is what the results are filed under: an equal spec is the same
    case. `host` says whether it reads weights in host memory. `limit_s` is when its process is
    ended, compilation not counted where the section tells of it; `most_s` is when it is ended in
    any case, and the only limit of a process's first case. With less than `least_s` left of the run
    it is not begun. A case with `always` is measured in every run, because others of the run are
    compared with it. Cases of a `group` are likely to fail alike.
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
        """The spec as text, the same for equal specs.

        >>> Case(spec={"m": 8, "alpha": 0.5}).key == Case(spec={"alpha": 0.5, "m": 8}).key
        True
        """
        return json.dumps(dict(self.spec), sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that a process may take to start, and caps on the limits that cases have.

    `first_s` caps what a process's first case may take.
    """

    start_s: float = 90.0
    case_s: float = math.inf
    first_s: float = math.inf

    def of(self, case: Case) -> Case:
        """Return the case with limits that are no longer than these."""
        most_s = case.limit_s if case.most_s is None else case.most_s
        return replace(
            case, limit_s=min(case.limit_s, self.case_s), most_s=min(most_s, self.first_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings that all cases of a run are measured with.

    `backend` is the kernels': "sm90" on a GPU; "reference" in a dry run. `folder` is where a
    section may keep files of its own beside its rows. `weights` is where cases put the weights that
    they read in host memory otherwise. `host_fault` is a rehearsal of a device that cannot read it.
    """

    backend: Backend = "sm90"
    scale: Scale = "full"
    seed: int = 0
    folder: str = ""
    weights: Place = "host"
    host_fault: HostFault = ""

    @property
    def target_s(self) -> float:
        """Seconds to spend on one measurement, compilation not counted."""
        return {"full": 0.4, "quick": 0.1, "tiny": 0.0}[self.scale]

    @property
    def repetitions(self) -> tuple[int, int]:
        """Fewest and most repetitions of one measurement."""
        return {"full": (5, 30), "quick": (3, 5), "tiny": (2, 2)}[self.scale]
