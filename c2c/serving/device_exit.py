"""Removal of devices from service once their instances have no work."""

from __future__ import annotations

from c2c.policies import jitable
from c2c.serving.actions import ACT_RECUT, emit
from c2c.serving.block_table import clear
from c2c.serving.instances import evict
from c2c.serving.state import LEAVES, NOWHERE, OUT, Fleet, Serving

__all__ = ["ask_for_the_layout", "go_out", "has_left", "is_leaving", "take_out"]


@jitable
def is_leaving(s: Serving, i: int) -> bool:
    """Return True if instance `i` is removed with its device as soon as it has no work."""
    return bool(s.device[s.instance[i].on_device].service == LEAVES)


@jitable
def take_out(fleet: Fleet, s: Serving, i: int, now_s: float) -> None:
    """Remove instance `i`, which has no work, from its leaving device."""
    evict(fleet, s, i, now_s)
    s.instance[i].state = NOWHERE
    go_out(fleet, s, s.instance[i].on_device, now_s)


@jitable
def go_out(fleet: Fleet, s: Serving, d: int, now_s: float) -> None:
    """Remove leaving device `d` from service if it holds nothing any more."""
    dev = s.device[d]
    for i in range(dev.first, dev.first + fleet.residents):
        if s.instance[i].state != NOWHERE:
            return
    clear(s.blocks, d)
    dev.service = OUT
    dev.until_s = now_s
    if dev.is_held != 0:
        dev.is_held = 0
        s.chip[dev.chip].n_held -= 1
    has_left(s, dev.chip)


@jitable
def has_left(s: Serving, c: int) -> None:
    """Count down the devices that must leave chip `c` before its new layout can be made."""
    s.chip[c].leaving -= 1
    if s.chip[c].leaving == 0:
        ask_for_the_layout(s, c)


@jitable
def ask_for_the_layout(s: Serving, c: int) -> None:
    """Ask the backend for the new layout of chip `c`: all leaving devices are empty."""
    s.chip[c].change = 2
    emit(s, ACT_RECUT, c)
