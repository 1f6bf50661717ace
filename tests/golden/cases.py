"""The runs whose records are kept: small, with queues, switches, drains and cold starts."""

from __future__ import annotations

from typing import Any

from c2c.config import build, load
from c2c.simulator import simulate_in_memory

# Sixteen models, more than slices, at a rate that seven slices just follow.
BUSY = (
    "catalog=dense16", "workload=poisson", "workload.models=16", "workload.rate_rps=1.5",
    "workload.requests=240", "timeline.rows=0", "system=c2cserve_letter",
    "hardware.mig_table=paper",
)  # fmt: skip

# Two mixtures whose experts do not all fit, few requests: each step is walked, layer by layer.
CACHED = ("catalog=moe", "workload.models=2", "workload.requests=16", "router.skew=0.6",
          "router.locality=0.5")  # fmt: skip

CASES: dict[str, tuple[str, ...]] = {
    "letter": ("system=c2cserve_letter",),
    "letter_from_disk_two_chips": ("system=c2cserve_letter", "weights_start=disk", "superchips=2"),
    "letter_scale_out": ("system/scale=at_outstanding", "system.scale.at=3", "catalog=dense6"),
    "roofline": ("system=c2cserve_roofline",),
    "random_fixed_static": (
        "system/place=random_idle",
        "system/chunk=fixed",
        "system/alpha=static",
        "system.chunk.tokens=512",
    ),
    "first_idle": ("system/place=first_idle", "system.preempt.after_s=2"),
    "experts": ("catalog=moe", "workload.models=4"),
    "experts_cached": (*CACHED, "system=moe_infinity"),
    "experts_by_maps": (*CACHED, "system=finemoe"),
    "experts_read_in_place": (*CACHED, "system=finemoe_hybrid"),
    "resident_whole_gpu": ("system=serverlessllm",),
    "resident_slices": ("system=serverlessllm", "mig=4x24gb", "weights_start=disk"),
}


def records(name: str, *, compiled: bool) -> Any:
    """Return the records of a case, by id."""
    setup = build(load([*BUSY, *CASES[name]]))
    return simulate_in_memory(setup.prepared, setup.workload, compiled=compiled).records
