"""Money and energy of a run: what its chips rent for, and the watts they draw."""

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
    """Return the price and the energy of a run, of all its chips from its start to its end.

    A chip draws `idle_w`, a number of joules for each byte that HBM or the link carries and for
    each operation of the tensor cores, and never more than `power_w` while it computes.
    Operations are those of the tokens that models took and made; in a fleet of unlike chips
    each part's share is that of its steps' HBM bytes. A link's byte costs as much as HBM's: nobody
    has published what it does.

    Args:
      prepared: the run's fleet.
      totals: of `run_totals`.
      models: of the summary, with their tokens.

    Returns:
      usd and usd_per_million_tokens, energy_j, power_w (the mean) and joules_per_million_tokens, by
      output tokens; None where a chip has no price or no watts, or nothing was made.
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
