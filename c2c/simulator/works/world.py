"""Simulated hardware and its state: constants, phases, links, timeline."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import inlined
from c2c.serving import RESOURCES
from c2c.serving.tables.plans import Plans
from c2c.serving.tables.state import Serving
from c2c.simulator.expert_cache.miss_table import MissTable
from c2c.simulator.works.events import Tournament, new_tournament, replay
from c2c.simulator.works.phases import PHASE_DTYPE
from c2c.simulator.works.resources import Resources, new_resources
from c2c.simulator.works.wires import Wires, new_wires
from c2c.simulator.works.works import DISK, LINK, Works, new_works

__all__ = [
    "CLEAN",
    "ENDS",
    "SHARES",
    "TIMELINE_DTYPE",
    "Machine",
    "World",
    "account",
    "new_world",
    "note_ends",
    "relayouts_at",
]

LINK_DTYPE = np.dtype(
    [
        ("at_s", "f8"),
        ("rate", "f8"),  # bytes/s moved now
        ("moved", "f8"),  # bytes moved so far
        ("peak", "f8"),  # highest rate seen
        ("disk_free_s", "f8"),
        ("sent_s", "f8"),  # when the KV caches that go to other devices will have left the chip
        ("dirty", "i8"),  # CLEAN and so on
        ("graphs", "i8"),  # phases under way that are made of works
    ],
    align=True,
)

# What an event has changed on a chip.
CLEAN: Final = 0
ENDS: Final = 1  # when phases end
SHARES: Final = 2  # who uses the link, and with it when phases end

TIMELINE_DTYPE = np.dtype(
    [
        ("chip", "i4"),
        ("instance", "i4"),
        ("model", "i4"),
        ("is_load", "i4"),
        ("start_s", "f8"),
        ("end_s", "f8"),
        ("prefill_tokens", "i8"),
        ("decode_seqs", "i8"),
        ("steps", "i8"),
        ("alpha", "f8"),
        ("link_gbps", "f8"),  # average over the phase
        ("chip_link_gbps", "f8"),  # all instances of the chip, over the same time
    ],
    align=True,
)


class Machine(NamedTuple):
    """Fixed part of the simulated hardware."""

    capacity: Any  # f8[C] bytes/s of each chip's link
    hbm: Any  # f8[kind] bytes/s of a slice
    link_cap: Any  # f8[kind] bytes/s one slice can draw
    load_s: Any  # f8[D, kind] seconds to activate a model that is in host memory
    load_link_bytes: Any  # f8[D, kind] bytes an activation copies over the link
    weight_bytes: Any  # f8[D] bytes read from disk on a cold start
    disk: Any  # f8[C] bytes/s of each chip's disk
    cold_init_s: Any  # f8[kind] engine start on a cold start
    turn_s: float  # changing the engine of a slice between two steps
    turn_bytes: Any  # f8[D] weights that are copied then
    is_ahead: Any  # bool[D, kind] they are on their way since the turn before
    between: float  # bytes/s at which a KV cache goes to another chip
    sends_directly: bool  # from device to device, not through host memory
    max_batch: int
    cuts_runs: bool  # answers may end before their limits, or a run has fewer steps
    most_steps: int  # of a run
    misses: MissTable
    plans: Plans
    start_plan: Any  # i8[D, kind, cold]; empty: a start is one phase
    step_plan: Any  # i8[pairs, variants]; empty: a step is one work
    lanes: int  # resources beside the link and the disk
    by_age: bool  # they serve first what has been busy longest
    switch_s: float  # of the variant of a step
    way_on: Any  # i8[ways, DRAWS] between memories: the resources of each, -1 for none
    way_latency_s: Any  # f8[ways]
    way_rate: Any  # f8[ways] bytes/s
    way_rank: Any  # i8[ways]


class World(NamedTuple):
    """Changing part of the simulated hardware."""

    phase: Any  # PHASE_DTYPE [rows]: devices, and as many relayouts if lanes have any
    link: Any  # LINK_DTYPE [C]
    busy: Any  # i8[rows] 1: a phase is under way
    end_s: Any  # f8[rows], or devices and as many wires
    due_s: Any  # f8[instances] when the KV caches on their way to each will have come
    tournament: (
        Tournament  # of these; groups of chips that are driven apart have roots of their own
    )
    demands: Any  # scratch, one a slice of a chip
    rates: Any
    active: Any
    wires: Wires
    works: Works
    resources: Resources  # scratch, of the chip whose shares are found
    outside_s: Any  # f8[1] when the driver acts next: a chip fails or returns; inf: never
    timeline: Any  # TIMELINE_DTYPE buffer
    n_timeline: Any  # i8[1]


def new_world(machine: Machine, state: Serving, timeline_rows: int, chips: Any = (0,)) -> World:
    """Return the initial world; at most `timeline_rows` phases are kept."""
    n, works = len(state.device), machine.plans.after.shape[1]
    widest = int((state.chip.last - state.chip.first).max())
    if len(machine.way_on) > 0:  # a second row for each: its relayout
        n, widest, works = 2 * n, 2 * widest, max(works, len(machine.way_on))
    resources = new_resources(widest * max(1, works), len(RESOURCES) + machine.lanes)
    resources.capacity[:] = 1.0  # a second a second
    unit = np.full(len(resources.capacity), machine.capacity[0])
    unit[LINK] = unit[DISK] = 1.0
    places = len(state.instance) * machine.max_batch if machine.sends_directly else 0
    wires = new_wires(n if machine.sends_directly else 0, places)
    return World(
        phase=np.zeros(n, PHASE_DTYPE).view(np.recarray),
        link=np.zeros(len(state.chip), LINK_DTYPE).view(np.recarray),
        busy=np.zeros(n, np.int64),
        end_s=np.full(n + len(wires.wire), np.inf),
        due_s=np.zeros(len(state.instance)),
        tournament=new_tournament(np.array(chips), len(state.chip)),
        demands=np.zeros(widest),
        rates=np.zeros(widest),
        active=np.zeros(widest, np.int64),
        wires=wires,
        works=new_works(n if works > 0 else 0, works, len(state.chip), unit),
        resources=resources,
        outside_s=np.full(1, np.inf),
        timeline=np.zeros(max(1, timeline_rows), TIMELINE_DTYPE).view(np.recarray),
        n_timeline=np.array([0 if timeline_rows > 0 else 1], np.int64),
    )


@inlined
def account(world: World, c: int, now_s: float) -> None:
    """Count the traffic of chip `c`'s link up to now."""
    link = world.link[c]
    link.moved += link.rate * (now_s - link.at_s)
    link.at_s = now_s


@inlined
def relayouts_at(state: Serving, world: World) -> int:
    """Return the first relayout's row; 0 without relayouts."""
    return len(state.device) if len(world.phase) > len(state.device) else 0


@inlined
def note_ends(state: Serving, world: World, c: int) -> None:
    """Update the next event after changed ends on chip `c`."""
    chip = state.chip[c]
    devices = len(state.device)
    beside = devices if len(world.end_s) > devices else 0
    replay(world.tournament, c, world.end_s, chip.first, chip.last, beside)
    world.link[c].dirty = CLEAN
