"""Price and energy of a run: rent of its chips and the watts that they draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.hardware import Gpu
from c2c.models import flops_per_token
from c2c.serving import Prepared

__all__ = ["bill"]


def bill(
    prepared: Prepared, totals: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]
) -> dict[str, float | None]:
    """Return the price and energy of all chips of a run from its start to its end.

    A chip draws `idle_w`, plus a constant energy for each byte that HBM or the link carries and for
    each operation of the tensor cores. While it computes it draws at most `power_w`.
    Operations are those of the models' prompt and output tokens; parts of a fleet share them in
    proportion to their HBM bytes. A byte on the link costs as much energy as one of HBM, because
    no figure for the link is published.

    Args:
      prepared: fleet of the run.
      totals: result of `run_totals`.
      models: rows of the summary's models, with prompt_tokens and output_tokens.

    Returns:
      usd, usd_per_million_tokens, energy_j, power_w (mean) and joules_per_million_tokens. Tokens
      are output tokens. None: a chip lacks a price or watts, or no token was made.
    """
    names = {d.name: d.spec for d in prepared.setup.deployments}
    flops = sum(
        float(flops_per_token(names[name], 0)) * (row["prompt_tokens"] + row["output_tokens"])
        for name, row in models.items()
    )
    seconds, tokens = totals["end_s"], sum(row["output_tokens"] for row in models.values())
    parts = totals.get("parts") or [{"chips": totals["chips"], **totals}]
    bytes_of_all = totals["hbm_bytes"]
    usd: float | None = 0.0
    watts: float | None = 0.0
    for part, used in zip(prepared.setup.parts, parts, strict=True):
        gpu, chips = part.platform.gpu, used["chips"]
        share = used["hbm_bytes"] / bytes_of_all if bytes_of_all else 0.0
        drawn = _watts(gpu, chips, used, flops * share, seconds)
        watts = None if watts is None or drawn is None else watts + drawn
        if usd is not None:
            price = gpu.usd_per_hour
            usd = None if price is None else usd + chips * price * seconds / 3600
    energy_j = None if watts is None else watts * seconds
    return {
        "usd": usd,
        "usd_per_million_tokens": _a_million(usd, tokens),
        "energy_j": energy_j,
        "power_w": watts,
        "joules_per_million_tokens": _a_million(energy_j, tokens),
    }


def _watts(
    gpu: Gpu, chips: int, used: Mapping[str, Any], flops: float, seconds: float
) -> float | None:
    if gpu.idle_w is None or gpu.pj_per_byte is None or gpu.pj_per_flop is None or not seconds:
        return None
    moved = used["hbm_bytes"] + used["link_bytes"]
    more_w = (gpu.pj_per_byte * moved + gpu.pj_per_flop * flops) * 1e-12 / seconds
    if gpu.power_w is not None:
        busy = used["utilisation"]["instance_busy_mean"]
        more_w = min(more_w, chips * busy * (gpu.power_w - gpu.idle_w))
    return float(chips * gpu.idle_w + more_w)


def _a_million(amount: float | None, tokens: int) -> float | None:
    return None if amount is None or not tokens else amount * 1e6 / tokens
