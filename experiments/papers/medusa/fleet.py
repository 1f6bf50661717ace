"""One model on four A100 that start from nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from omegaconf import OmegaConf

from c2c.config import build, load
from c2c.models import load_spec
from c2c.policies import AtOutstanding
from c2c.serving import FAIL_NONE, Plan, Prepared, ServingSetup, prepare
from c2c.simulator import simulate_in_memory
from c2c.systems.medusa import (
    launched_extra_s,
    load_measured_start,
    loaded_bytes,
    start_works,
)
from c2c.workloads import Workload, build_workload, workload_config

__all__ = ["Fleet", "Tail", "disk_gbps", "tail_of"]

_MAX_BATCH: Final = 256  # largest captured batch size


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet: model, start of instances, and rule for another.

    Attributes:
      model: name of its spec.
      start: name in `c2c.systems.medusa.STARTS`.
      at: least outstanding requests at which another starts.
      lengths: `sharegpt`, or a file of lengths.
    """

    model: str
    start: str
    at: int
    lengths: str
    gpus: int = 4


@dataclass(frozen=True, slots=True)
class Tail:
    """Results: p99 and mean of TTFT, served requests a second, started instances."""

    p99_ttft_s: float
    mean_ttft_s: float
    served_rps: float
    starts: int


def disk_gbps() -> float:
    """Return the read rate of the paper's striped drives."""
    measured = load_measured_start()
    return loaded_bytes(load_spec(measured.model)) / measured.weights_s / 1e9


@cache
def _serving(model: str, gpus: int) -> ServingSetup:
    settings = load(
        [
            "hardware=a100_40",
            f"hardware.host.disk_gbps={disk_gbps()}",
            "mig=1x40gb",
            f"superchips={gpus}",
            "system=serverlessllm",
            "system/scale=at_outstanding",
            f"system.max_batch={_MAX_BATCH}",
            "system.check_slo=false",
            "weights_start=disk",
            "workload=poisson",
        ]
    )
    OmegaConf.update(settings, "catalog", {"models": [{"spec": model}]}, merge=False)
    return build(settings).serving


@cache
def prepared(fleet: Fleet) -> Prepared:
    """Return the fleet, ready to serve."""
    serving = _serving(fleet.model, fleet.gpus)
    spec = serving.deployments[0].spec
    measured = load_measured_start()
    works = start_works(fleet.start, [spec], measured, is_copied=True)
    constants = serving.constants
    if fleet.start == "no_graph":
        step_s = constants.step_overhead_s + launched_extra_s(spec, measured)
        constants = replace(constants, step_overhead_s=step_s)
    scale = AtOutstanding(at=fleet.at)
    system = replace(serving.system, start=_always_from_disk(works), scale=scale)
    return prepare(replace(serving, system=system, constants=constants))


def _always_from_disk(works: Plan) -> Plan:
    return tuple(
        replace(
            work,
            when="always",
            after=tuple(name for name in work.after if name != "copy"),
        )
        for work in works
        if work.name != "copy"
    )


@lru_cache(maxsize=256)  # all starts and thresholds see the same requests, for every seed
def _workload(
    names: tuple[tuple[str, str], ...], lengths: str, rate_rps: float, requests: int, seed: int
) -> Workload:
    options: dict[str, Any] = {
        "kind": "poisson", "name": "poisson", "requests": requests, "rate_rps": rate_rps,
        "models": 0, "zipf_exponent": 1.0, "lengths": lengths,
    }  # fmt: skip
    models, specs = zip(*names, strict=True)
    return build_workload(workload_config(options), list(models), seed, list(specs))


def tail_of(
    fleet: Fleet, rate_rps: float, requests: int, seed: int, *, compiled: bool = True
) -> Tail:
    """Serve a Poisson trace from no instances; p99 of 116 requests is the second largest."""
    ready = prepared(fleet)
    deployments = ready.setup.deployments
    names = tuple((d.name, d.spec.name) for d in deployments)
    workload = _workload(names, fleet.lengths, rate_rps, requests, seed)
    got = simulate_in_memory(ready, workload, compiled=compiled)
    records = got.records
    served = records[records["failure"] == FAIL_NONE]
    ttft = served["first_token_s"] - served["arrival_s"]
    span = float(served["finished_s"].max() - served["arrival_s"].min())
    return Tail(
        float(np.percentile(ttft, 99, method="higher")),
        float(ttft.mean()),
        len(served) / span,
        int(got.stats.switches),
    )
