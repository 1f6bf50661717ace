"""Choice of the MIG layout by simulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from c2c.errors import SettingError
from c2c.hardware import load_mig
from c2c.serving import Prepared, ServingSetup, prepare
from c2c.simulator import estimate
from c2c.workloads import RequestBlock, Workload, concatenate

__all__ = ["Candidate", "Plan", "first_requests", "plan_layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout's result on the first requests.

    Attributes:
      attainment: share of requests that met both targets; None if refused.
      ttft_p99_s: of finished requests; None if none finished.
      refused: reason, or "".
    """

    mig: str
    attainment: float | None = None
    ttft_p99_s: float | None = None
    refused: str = ""

    def __str__(self) -> str:
        if self.attainment is None:
            return f"{self.mig}: {self.refused}"
        p99 = "-" if self.ttft_p99_s is None else f"{self.ttft_p99_s:.3f} s"
        return f"{self.mig}: both targets {100 * self.attainment:.2f} %, TTFT p99 {p99}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The chosen layout and all results."""

    mig: str
    requests: int
    candidates: tuple[Candidate, ...]
    prepared: Prepared = field(repr=False, compare=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines: the chosen layout, then every candidate, best first."""
        headline = f"mig {self.mig} (planned: the first {self.requests:,} requests on every layout)"
        return (headline, *(f"  {one}" for one in _ranked(self.candidates)))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, candidates best first."""
        ranked: Sequence[Mapping[str, Any]] = [asdict(one) for one in _ranked(self.candidates)]
        return {"mig": self.mig, "requests": self.requests, "candidates": ranked}


def first_requests(workload: Workload, count: int) -> Workload:
    """Return the first requests, in memory."""

    def upto() -> Iterable[RequestBlock]:
        rest = count
        for block in workload.blocks():
            yield block.take(slice(0, rest))
            rest -= len(block)
            if rest <= 0:
                return

    sample = concatenate(upto())
    return Workload(
        workload.models, lambda: iter([sample]), {"requests": len(sample)}, workload.loop
    )


def plan_layout(
    serving: ServingSetup,
    layouts: Sequence[str],
    workload: Workload,
    *,
    requests: int,
    compiled: bool = True,
) -> Plan:
    """Return the layout with the most first requests within both targets.

    Ties go to the lower p99 of TTFT, then to the earlier layout.
    """
    if not layouts:
        raise SettingError("layouts", list(layouts), "at least one name")
    sample = first_requests(workload, requests)
    trials: list[tuple[Candidate, Prepared | None]] = []
    errors: list[SettingError] = []
    for name in layouts:
        try:
            prepared = prepare(replace(serving, mig=load_mig(name)))
        except SettingError as error:
            errors.append(error)
            trials.append((Candidate(mig=name, refused=str(error)), None))
            continue
        summary = estimate(prepared, sample, compiled=compiled)
        both, p99 = summary["attainment"]["both"], summary["ttft_s"]["p99"]
        trials.append((Candidate(mig=name, attainment=both or 0.0, ttft_p99_s=p99), prepared))
    candidates = tuple(candidate for candidate, _ in trials)
    best = _ranked(candidates)[0]
    chosen = dict(zip(layouts, (prepared for _, prepared in trials), strict=True))[best.mig]
    if chosen is None:
        raise errors[0]
    return Plan(
        mig=best.mig,
        requests=int(sample.description["requests"]),
        candidates=candidates,
        prepared=chosen,
    )


def _ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    def key(one: Candidate) -> tuple[float, float]:
        share = -1.0 if one.attainment is None else one.attainment
        return -share, float("inf") if one.ttft_p99_s is None else one.ttft_p99_s

    return sorted(candidates, key=key)
