"""MIG layout of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.errors import check_keys
from c2c.hardware import MigConfig, Platform, load_mig, mig_from_mapping
from c2c.policies import weights_in
from c2c.ranges import Count, check_value
from c2c.serving import SystemSpec

__all__ = ["NAMELESS", "choose_layout", "planned_requests"]

AUTO, PLANNED, CUSTOM = "auto", "planned", "custom"

# Choices of the group `mig` without a file: by the system, by simulation, of named parts.
NAMELESS: Mapping[str, Mapping[str, Any]] = {
    AUTO: {"name": AUTO},
    PLANNED: {"name": PLANNED, "requests": 3000},
    CUSTOM: {"name": CUSTOM, "parts": []},
}


def planned_requests(settings: Mapping[str, Any]) -> int:
    """Return the requests to plan with; 0 unless `mig=planned`."""
    if settings.get("name") != PLANNED:
        return 0
    check_keys(settings, NAMELESS[PLANNED], "mig")
    count = settings.get("requests", NAMELESS[PLANNED]["requests"])
    check_value(count, Count, "mig.requests")
    return int(count)


def choose_layout(
    settings: Mapping[str, Any], platform: Platform, system: SystemSpec
) -> tuple[MigConfig, tuple[str, ...]]:
    """Return the layout and notes; `auto` has most slices, or none for resident weights."""
    if settings.get("name") == PLANNED:
        return load_mig(platform.mig[0]), ()
    if dict(settings) != {"name": AUTO}:
        return mig_from_mapping(settings), ()
    layouts = [load_mig(name) for name in platform.mig]
    if weights_in(system.load) == "hbm":
        chosen = min(layouts, key=lambda m: m.instances)
        models = "several models" if system.shares_hbm else "one model"
        why = f"{system.name} keeps weights in HBM, {models} a GPU; mig=planned tries all layouts"
    else:
        chosen = max(layouts, key=lambda m: m.instances)
        why = f"{system.name} streams weights: the layout with most slices"
    return chosen, (f"mig {chosen.name} on {platform.name} (auto: {why})",)
