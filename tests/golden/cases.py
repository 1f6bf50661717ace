"""The runs whose records are kept: small, with queues, switches, evictions, drains and cold starts."""

from __future__ import annotations

from typing import Any

from c2c.config import build, load
from c2c.simulator import simulate_in_memory

# Sixteen models, more than slices, at a rate that seven slices just follow.
BUSY = (
    "catalog=dense16",
    "workload=poisson",
    "workload.models=16",
    "workload.rate_rps=1.5",
    "workload.requests=240",
    "timeline.rows=0",
)

CASES: dict[str, tuple[str, ...]] = {
    "letter": ("system=c2cserve",),
    "letter_from_disk_two_chips": ("system=c2cserve", "weights_start=disk", "superchips=2"),
    "letter_scale_out": ("system=c2cserve", "system.scale_out_at=3", "catalog=dense6"),
    "letter_layers": ("system=c2cserve", "+policy=alpha_layer", "system.alpha.initial=1.0"),
    "roofline": ("system=c2cserve_plus",),
    "random_fixed_static": (
        "+policy=[placement_random,chunk_fixed,alpha_static]",
        "system.chunk_tokens=512",
    ),
    "first_idle": ("+policy=placement_first_idle", "system.drain_after_s=2"),
    "experts": ("catalog=moe", "workload.models=4"),
    "resident_whole_gpu": ("system=serverlessllm",),
    "resident_slices": ("system=serverlessllm", "mig=4x24gb", "weights_start=disk"),
}


def records(name: str, *, compiled: bool) -> Any:
    """Return the records of a case, by id."""
    setup = build(load([*BUSY, *CASES[name]]))
    return simulate_in_memory(setup.prepared, setup.workload, compiled=compiled).records
