"""Price and energy of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from c2c.hardware import Platform
from c2c.models import flops_per_token
from c2c.serving import Prepared

__all__ = ["bill", "unpriced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    platform: Platform
    count: int
    busy: float
    hbm_bytes: float
    link_bytes: float = 0.0


def bill(
    prepared: Prepared, totals: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the price and energy of a run's GPUs.

    A GPU draws `idle_w`, plus constant energies a byte of HBM or link (the link's is unpublished)
    and an operation; at most `power_w` while it computes. Over a node GPUs read HBM at the full
    rate, an upper bound.
    """
    names = {d.name: d.spec for d in prepared.setup.deployments}
    flops = sum(
        float(flops_per_token(names[name], 0)) * (row["prompt_tokens"] + row["output_tokens"])
        for name, row in models.items()
    )
    seconds, tokens = totals["end_s"], sum(row["output_tokens"] for row in models.values())
    used = _used(prepared, totals)
    every = sum(one.hbm_bytes for one in used)
    watts = [
        _watts(one, flops * (one.hbm_bytes / every if every else 0.0), seconds) for one in used
    ]
    powers_w = [w for w in watts if w is not None]
    no_watts = dict.fromkeys(
        one.platform.name for one, w in zip(used, watts, strict=True) if w is None
    )
    no_price = unpriced([one.platform for one in used])
    prices = [one.count * (one.platform.gpu.usd_per_hour or 0.0) for one in used]
    usd = None if no_price or not used else sum(prices) * seconds / 3600
    power_w = None if no_watts or not used else sum(powers_w)
    energy_j = None if power_w is None else power_w * seconds
    reasons = [
        f"no {quantity} of {', '.join(lacking)}"
        for quantity, lacking in (("price", no_price), ("watts", no_watts))
        if lacking and seconds
    ]
    return {
        "usd": usd,
        "usd_per_million_tokens": _a_million(usd, tokens),
        "energy_j": energy_j,
        "power_w": power_w,
        "joules_per_million_tokens": _a_million(energy_j, tokens),
        "unknown": reasons if used else ["the layout does not name its GPUs (StepLayout.gpus)"],
    }


def unpriced(platforms: Sequence[Platform]) -> tuple[str, ...]:
    """Return the platforms without a price."""
    return tuple(dict.fromkeys(p.name for p in platforms if p.gpu.usd_per_hour is None))


def _used(prepared: Prepared, totals: Mapping[str, Any]) -> list[_Use]:
    layout = prepared.setup.system.layout
    if layout is not None:
        shares, nodes = totals.get("resources", {}), totals["chips"]
        busy_of = [(platform, shares.get(resource, 0.0)) for resource, platform in layout.gpus]
        return [
            _Use(
                platform=platform,
                count=nodes,
                busy=busy,
                hbm_bytes=nodes * busy * totals["end_s"] * platform.gpu.hbm_gbps * 1e9,
            )
            for platform, busy in busy_of
        ]
    parts = totals.get("parts") or [totals]
    return [
        _Use(
            platform=part.platform,
            count=used["chips"],
            busy=used["utilisation"]["instance_busy_mean"],
            hbm_bytes=used["hbm_bytes"],
            link_bytes=used["link_bytes"],
        )
        for part, used in zip(prepared.setup.parts, parts, strict=True)
    ]


def _watts(used: _Use, flops: float, seconds: float) -> float | None:
    gpu = used.platform.gpu
    if gpu.idle_w is None or gpu.pj_per_byte is None or gpu.pj_per_flop is None or not seconds:
        return None
    moved = used.hbm_bytes + used.link_bytes
    more_w = (gpu.pj_per_byte * moved + gpu.pj_per_flop * flops) * 1e-12 / seconds
    if gpu.power_w is not None:
        more_w = min(more_w, used.count * used.busy * (gpu.power_w - gpu.idle_w))
    return float(used.count * gpu.idle_w + more_w)


def _a_million(amount: float | None, tokens: int) -> float | None:
    return None if amount is None or not tokens else amount * 1e6 / tokens
