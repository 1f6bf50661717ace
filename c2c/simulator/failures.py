"""Failures and repairs of chips and hosts."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from c2c.serving import Prepared
from c2c.serving.tables.state import Rules, Serving
from c2c.simulator.works.graphs import end_works
from c2c.simulator.works.phases import advance
from c2c.simulator.works.world import SHARES, World, account
from c2c.workloads.streams import stream_of

__all__ = ["FailureRow", "FailureSchedule", "has_steps_done", "lose_phase"]

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """A failure of a chip, as it occurred.

    Attributes:
      back_s: when the chip served again; inf: never.
    """

    chip: int
    lost_s: float
    back_s: float = math.inf


class FailureSchedule:
    """Failures by seed and number of chip or host."""

    def __init__(self, prepared: Prepared, chips: NDArray[np.int64]) -> None:
        self._settings = prepared.setup.failures
        unit_of = prepared.setup.unit_of
        self._chips: dict[int, list[int]] = {}  # of each chip or host, those that may fail
        for chip in chips.tolist():
            self._chips.setdefault(int(unit_of[chip]), []).append(chip)
        self._streams = {u: stream_of(prepared.setup.seed, "failures", u) for u in self._chips}
        self._rows: list[FailureRow] = []
        self._first_row: dict[int, int] = {}  # what is lost: the row of its first chip
        # when, what, for how long from then on it is lost (0: it returns), and whether it was drawn
        self._due: list[tuple[float, int, float, bool]] = [
            (e.at_s, int(unit_of[e.chip]), e.repair_s, False)
            for e in self._settings.events
            if int(unit_of[e.chip]) in self._streams
        ]
        heapq.heapify(self._due)
        for unit in self._streams:
            self._draw(unit, 0.0)

    @property
    def next_s(self) -> float:
        """Time of the next failure or return; inf: none."""
        return self._due[0][0] if self._due else math.inf

    def next_event(self) -> tuple[list[int], bool] | None:
        """Take the next due event: chips, and whether they return."""
        at_s, unit, repair_s, is_drawn = heapq.heappop(self._due)
        is_lost = unit in self._first_row
        fails, chips = repair_s > 0.0, self._chips[unit]
        if is_drawn and is_lost:  # it returns, or a chosen failure came before this one
            self._draw(unit, at_s)
        if fails and is_lost:
            return None
        if fails:
            self._first_row[unit] = len(self._rows)
            self._rows += [FailureRow(chip=chip, lost_s=at_s) for chip in chips]
            heapq.heappush(self._due, (at_s + repair_s, unit, 0.0, is_drawn))
            return chips, False
        first = self._first_row.pop(unit)
        for row in range(first, first + len(chips)):
            self._rows[row] = replace(self._rows[row], back_s=at_s)
        return chips, True

    @property
    def rows(self) -> tuple[FailureRow, ...]:
        """Failures so far, in order of time."""
        return tuple(self._rows)

    def _draw(self, unit: int, now_s: float) -> None:
        settings = self._settings
        if settings.mtbf_hours < math.inf:
            draw = self._streams[unit].exponential
            at_s = now_s + float(draw(settings.mtbf_hours * _HOUR_S))
            heapq.heappush(self._due, (at_s, unit, float(draw(settings.repair_s)), True))


def has_steps_done(world: World, d: int, now_s: float) -> bool:
    """Return whether device `d` runs steps and some are done."""
    p = world.phase[d]
    if world.busy[d] == 0 or p.is_load != 0 or p.works != 0:
        return False
    advance(p, now_s)
    if p.done == 0 or p.done == p.steps:
        return bool(p.done > 0)
    p.total_link += p.part * p.link_bytes
    p.total_hbm += p.part * (p.hbm_bytes + p.hbm_growth * p.done)
    p.steps, p.part = p.done, 0.0
    return True


def lose_phase(rules: Rules, state: Serving, world: World, d: int, now_s: float) -> None:
    """End device `d`'s phase after a failure: traffic counts."""
    p, c = world.phase[d], state.device[d].chip
    if world.busy[d] == 0:
        return
    account(world, c, now_s)
    if p.works == 0:
        advance(p, now_s)
        p.total_link += p.part * p.link_bytes + p.lead_link + p.ahead
        p.total_hbm += p.part * p.hbm_bytes + p.lead_hbm + p.ahead
    else:
        end_works(rules, world, c, d, now_s)
        world.link[c].graphs -= 1
    p.busy_s += now_s - p.start_s
    p.load_s += now_s - p.start_s if p.is_load != 0 else 0.0
    world.busy[d] = 0
    world.link[c].dirty = SHARES
    world.end_s[d] = np.inf
