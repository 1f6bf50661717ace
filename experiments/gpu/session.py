"""One run over sections: divides the time, updates summary and archive, ends in time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.gpu import report
from experiments.gpu.archive import Keeper
from experiments.gpu.cases import Case, Context, Limits
from experiments.gpu.placing import Placing, Wanted
from experiments.gpu.probe import LIMIT_S, why_dead
from experiments.gpu.runner import Ran, run_section
from experiments.gpu.section import Section
from experiments.gpu.sections import SECTIONS
from experiments.gpu.store import Store

HOST_READS = "reading weights in host memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run.

    `until` is a time of the monotonic clock; `weights` chooses the memory of weights (`Placing`).
    """

    folder: Path
    archive: Path
    context: Context
    facts: Mapping[str, Any]
    until: float
    limits: Limits = field(default_factory=Limits)
    weights: Wanted = "auto"
    fresh: bool = False
    retry_failed: bool = False
    dry_run: bool = False


@dataclass(slots=True)
class Session:
    """A run and its results so far."""

    settings: Settings
    listed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    failed: bool = False
    placing: Placing = field(init=False)
    keeper: Keeper = field(init=False)

    def __post_init__(self) -> None:
        self.placing = Placing(wanted=self.settings.weights)
        if self.settings.weights == "auto" and not self.settings.fresh:
            self.placing.why = self._moved_earlier()
        self.keeper = Keeper(self.settings.folder, self.settings.archive, self.summarise)

    def summarise(self) -> str:
        """Write the summary into the device's folder; return it."""
        of = self.settings
        return report.write(of.folder, self.listed, self.stopped, dry_run=of.dry_run)

    def run(self, wanted: Sequence[Section]) -> None:
        """Run sections in order until the time is over, the device is dead or the disk is full."""
        for number, section in enumerate(wanted):
            now, until = time.monotonic(), self.settings.until
            if number < len(wanted) - 1:
                until = now + section.share * (until - now)
            ran = self._section(section, until)
            self.failed |= bool(ran.failed or ran.stopped)
            if ran.stopped:
                self.stopped[section.name] = ran.stopped
            if self.placing.why:
                self.stopped[HOST_READS] = self.placing.why
            print(outcome(section.name, ran, time.monotonic() - now), flush=True)
            self.keeper.refresh(now=True)
            if ran.over:
                return

    def _moved_earlier(self) -> str:
        """Return why the resumed run gave up reading host memory; "" if it did not."""
        for name in SECTIONS:
            for row in Store(self.settings.folder / name).rows:
                if row.get("w_in") == "device":
                    return f"as in the run of {row['at']}; --weights host tries again"
        return ""

    def _section(self, section: Section, until: float) -> Ran:
        of, context = self.settings, self.settings.context
        store = Store(of.folder / section.name)
        if of.fresh:
            store.clear()
        try:
            cases = self._cases(section, context)
        except Exception as error:  # noqa: BLE001 - whatever a list does, the next section runs
            return Ran(stopped=f"its cases cannot be listed: {type(error).__name__}: {error}")
        quick = context.scale == "quick" and not section.checks
        labels = {"dry_run": of.dry_run, "quick": quick}
        return run_section(
            section.name,
            section.module,
            cases,
            store,
            context,
            provenance=of.facts,
            until=until,
            limits=of.limits,
            retry_failed=of.retry_failed,
            labels={name: True for name, holds in labels.items() if holds},
            after=self.keeper.refresh,
            waiting=self.keeper.catch_up,
            placing=self.placing,
            why_dead=lambda left_s: why_dead(min(LIMIT_S, max(1.0, left_s))),
        )

    def _cases(self, section: Section, context: Context) -> list[Case]:
        cases = section.cases(context.scale)
        self.listed[section.name] = tuple(case.key for case in cases)
        return cases


def outcome(name: str, ran: Ran, took_s: float) -> str:
    """Return a line with a section's outcomes."""
    text = f"{name}: {ran.ok} ok, {ran.failed} failed, {ran.skipped} skipped in {took_s:.0f} s"
    if ran.earlier:
        text += f"; {ran.earlier} measured earlier"
    if ran.left:
        text += f"; {ran.left} left: run the same command again"
    return text + (f"; given up: {ran.stopped}" if ran.stopped else "")
