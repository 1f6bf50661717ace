"""Chips that fail and return: when, and what a failure does to a chip's phases."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from c2c.serving import Prepared
from c2c.serving.state import Rules, Serving
from c2c.simulator.graphs import end_works
from c2c.simulator.phases import advance
from c2c.simulator.world import SHARES, World, account
from c2c.workloads.streams import stream_of

__all__ = ["FailureRow", "FailureSchedule", "has_steps_done", "lose_phase"]

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """A failure of a chip as it went.

    Attributes:
      back_s: when the chip served again; inf: the run ended before.
    """

    chip: int
    lost_s: float
    back_s: float = math.inf


class FailureSchedule:
    """What a run's settings say of failures, chip by chip.

    A chip's failures depend on the seed and its number alone, so that parts of a fleet that are
    simulated apart see what the whole sees.

    Args:
      prepared: of the run.
      chips: that may fail.
    """

    def __init__(self, prepared: Prepared, chips: NDArray[np.int64]) -> None:
        self._settings = prepared.setup.failures
        self._streams = {int(c): stream_of(prepared.setup.seed, "failures", int(c)) for c in chips}
        self._rows: list[FailureRow] = []
        self._row_of: dict[int, int] = {}  # a chip that is lost: its row
        # when, chip, for how long from then on it is lost (0: it returns), and whether it was drawn
        self._due: list[tuple[float, int, float, bool]] = [
            (e.at_s, e.chip, e.repair_s, False)
            for e in self._settings.events
            if e.chip in self._streams
        ]
        heapq.heapify(self._due)
        for chip in self._streams:
            self._draw(chip, 0.0)

    @property
    def next_s(self) -> float:
        """When the next chip fails or returns; inf: none does."""
        return self._due[0][0] if self._due else math.inf

    def next_event(self) -> tuple[int, bool] | None:
        """Take what is due next: a chip, and whether it returns.

        Returns:
          None for a failure of a chip that is lost already, which changes nothing.
        """
        at_s, chip, repair_s, is_drawn = heapq.heappop(self._due)
        is_lost = chip in self._row_of
        fails = repair_s > 0.0
        if is_drawn and is_lost:  # it returns, or a chosen failure came before this one
            self._draw(chip, at_s)
        if fails and is_lost:
            return None
        if fails:
            self._row_of[chip] = len(self._rows)
            self._rows.append(FailureRow(chip=chip, lost_s=at_s))
            heapq.heappush(self._due, (at_s + repair_s, chip, 0.0, is_drawn))
            return chip, False
        row = self._row_of.pop(chip)
        self._rows[row] = replace(self._rows[row], back_s=at_s)
        return chip, True

    @property
    def rows(self) -> tuple[FailureRow, ...]:
        """The failures so far, in order of time."""
        return tuple(self._rows)

    def _draw(self, chip: int, now_s: float) -> None:
        settings = self._settings
        if settings.mtbf_hours < math.inf:
            draw = self._streams[chip].exponential
            at_s = now_s + float(draw(settings.mtbf_hours * _HOUR_S))
            heapq.heappush(self._due, (at_s, chip, float(draw(settings.repair_s)), True))


def has_steps_done(world: World, d: int, now_s: float) -> bool:
    """Say whether device `d` runs steps of which some are done; if so, the run ends with these.

    What clients have had of a run before a failure they keep.
    """
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
    """End what device `d` does, whose chip has failed: what it moved is counted, nobody gets it."""
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
