"""Baselines of the replay as public code schedules them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from c2c.config import SimulationResult
from experiments.figure import Context
from experiments.papers.c2cserve.baselines import engine_settings
from experiments.papers.c2cserve.replay import replay

__all__ = ["aegaeon_ttft_s", "routed_ttft_s", "served_ttft_s"]

Seconds = npt.NDArray[np.float64]

# Fig. 11 prints 1.7 s; two ticks of a second, half of each in the mean, and 43 ms of copy.
START_S: Final = 0.66
AEGAEON: Final = {"rounds": "aegaeon", "artefact": "aegaeon_artefact", "batches": "mini_aegaeon"}
# HybridGEMM in the artefact's rounds, as `conf/system/aegaeon_hybrid.yaml` has it.
HYBRID: Final = ("system/load=stream", "system/alpha=feedback", "system/keep=while_room",
                 "system.keep.engines=2", "system.keep.displace=inf",
                 "system.keep.spare_bytes=1.5e9")  # fmt: skip


def served_ttft_s(
    result: SimulationResult, *, until: str = "first_token_s"
) -> tuple[Seconds, Seconds]:
    """Return TTFT of each request of a run, inf for a failure, and arrivals."""
    arrival_s = result.requests["arrival_s"].to_numpy()
    ttft_s = result.requests[until].to_numpy() - arrival_s
    served = np.asarray(result.requests["status"].to_pylist()) == "finished"
    return np.where(served, ttft_s, np.inf), arrival_s


def routed_ttft_s(
    context: Context, compression: float, settings: Sequence[str], *, engine: str, at_client: bool,
    has_ticks: bool, seed: int,
) -> tuple[Seconds, Seconds]:  # fmt: skip
    """Return TTFT under ServerlessLLM's public router, and the arrivals."""
    more = [*engine_settings("serverlessllm", engine)]
    if has_ticks:
        more.append(f"system.load.start_s={START_S}")
    got = replay(context, compression, [*settings, "system=serverlessllm_public", *more], seed)
    return served_ttft_s(got, until="finished_s" if at_client else "first_token_s")


def aegaeon_ttft_s(
    context: Context, compression: float, settings: Sequence[str], *, engine: str, scheduler: str,
    seed: int, hybrid: bool = False,
) -> tuple[Seconds, Seconds]:  # fmt: skip
    """Return TTFT of a replay by Aegaeon, and the arrivals."""
    system, more = AEGAEON[scheduler], [*engine_settings("aegaeon", engine)]
    if hybrid and scheduler == "artefact":
        more += HYBRID
    elif hybrid:
        system += "_hybrid"
    return served_ttft_s(replay(context, compression, [*settings, f"system={system}", *more], seed))
