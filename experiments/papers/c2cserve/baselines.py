"""Systems that C2CServe is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from omegaconf import OmegaConf

from c2c.config import SimulationResult, build, simulate
from experiments.figure import Context
from experiments.papers.c2cserve.settings import GH200, composed

__all__ = ["DENSE", "MOE", "NAMES", "PROMPT", "Alone", "chunk_settings", "engine_settings",
           "serve_alone"]  # fmt: skip

DENSE, MOE = ("llama-3-3b", "llama-3-8b"), ("qwen3-30b-a3b", "mixtral-8x7b")
# The 95th percentile of ShareGPT's prompts. C2CServe's section 9.1 takes lengths from ShareGPT and
# reports that percentile of TTFT; the TTFT of a lone request grows with its prompt.
PROMPT: Final = 577
WARM: Final = 2  # requests that are not counted: the first one of a model starts an engine

NAMES: Final[Mapping[str, str]] = {
    "c2cserve": "C2CServe",
    "serverlessllm": "ServerlessLLM",
    "aegaeon": "Aegaeon",
    "moe_infinity": "MoE-Infinity",
    "finemoe": "FineMoE",
    "moe_infinity_hybrid": "MoE-Infinity + HybridGEMM",
    "finemoe_hybrid": "FineMoE + HybridGEMM",
    "aegaeon_hybrid": "Aegaeon + HybridGEMM",
    "serverlessllm_hybrid": "ServerlessLLM + HybridGEMM",
}


EAGER: Final = ("transformers-4.51", "vllm-0.5.1-eager")  # of Aegaeon the second
CACHES: Final = ("moe_infinity", "finemoe")


def engine_settings(system: str, engine: str) -> tuple[str, ...]:
    """Return a system's settings under reading `engine`."""
    if engine == "gpu_bound" or system.startswith("c2cserve"):
        return ()
    base = system.removesuffix("_hybrid")
    settings = [f"engine={EAGER[base == 'aegaeon']}"]
    if engine == "public_x86":
        settings.append("hardware.host.host_factor=1")
    if base in CACHES:
        settings.append("system.expert_cache.host_s=0")
    return tuple(settings)


def chunk_settings(system: str, chunk: str | int) -> tuple[str, ...]:
    """Return C2CServe's settings under reading `chunk`; others have none."""
    if system != "c2cserve" or chunk == "table":
        return ()
    return (
        "system/chunk=fixed", f"system.chunk.tokens={chunk}", f"system.profile.chunks=[{chunk}]"
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Means over lone requests with a start.

    Attributes:
      ttft_s, tpot_s: NaN if requests failed.
      parts_s: link, host and hbm parts of the mean TTFT; empty for several tokens.
      found_share: cached share of needed experts.
      fetched_bytes: of experts, a request.
    """

    ttft_s: float
    tpot_s: float
    failed: int
    parts_s: Mapping[str, float]
    found_share: float
    fetched_bytes: float


def serve_alone(
    context: Context,
    model: str,
    system: str,
    *,
    output: int,
    prompt: int = PROMPT,
    requests: int = 6,
    overrides: Sequence[str] = (),
) -> Alone:
    """Serve one model's requests one by one on a GH200."""
    settings = composed(
        [
            *GH200,
            f"system={system}",
            "mig=1x96gb",
            f"link={context.link_variant}",
            "system.check_slo=false",
            "system.on_oom=fail",
            "workload=deterministic",
            f"workload.requests={WARM + requests}",
            "workload.rate_rps=0.001",
            f"workload.prompt_tokens={prompt}",
            f"workload.output_tokens={output}",
            f"seed={context.seeds[0]}",
            *overrides,
        ]
    )
    OmegaConf.update(settings, "catalog", {"models": [{"spec": model}]}, merge=False)
    setup = build(settings)
    # Interpreting a few requests is quicker than compiling, unless each layer looks for experts.
    walks_layers = setup.serving.system.traits.experts.caches_experts
    return _alone(simulate(setup, compiled=walks_layers), output)


def _alone(result: SimulationResult, output: int) -> Alone:
    arrival, start, first, last = (
        result.requests[name].to_numpy()
        for name in ("arrival_s", "started_s", "first_token_s", "finished_s")
    )
    stats = result.stats
    served = max(1, stats.finished)
    ttft_s = float(np.mean((first - arrival)[WARM:]))
    # The totals cover all requests; the rest of a prompt's time is the same for each.
    parts: dict[str, Any] = {}
    if output == 1:
        link_s, host_s = stats.expert_wait_s / served, stats.expert_host_s / served
        hbm_s = float(np.mean(first - start)) - link_s - host_s
        counted = (ttft_s - hbm_s) / max(link_s + host_s, 1e-12)
        parts = {"link": link_s * counted, "host": host_s * counted}
        parts["hbm"] = ttft_s - parts["link"] - parts["host"]
    return Alone(
        ttft_s=ttft_s,
        tpot_s=float(np.mean((last - first)[WARM:] / max(1, output - 1))),
        failed=stats.failed,
        parts_s=parts,
        found_share=1.0 - stats.expert_misses / max(1, stats.expert_uses),
        fetched_bytes=stats.expert_bytes / served,
    )
