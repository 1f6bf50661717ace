"""What HybridGEMM gives to other systems: their TTFT with and without it (C2CServe, Fig. 13)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.config import SimulationResult
from experiments.c2cserve.baselines import MOE, NAMES, PROMPT, serve_alone
from experiments.c2cserve.context import Computed, Context
from experiments.c2cserve.fig12 import SYSTEMS as REPLAYED
from experiments.c2cserve.replay import describe, load_of_half, replay
from experiments.claims import Result, claim

__all__ = ["compute"]

SHORT: Final = {"aegaeon": "aegaeon", "moe_infinity": "moeinf", "finemoe": "finemoe"}
DENSE: Final = ("catalog=dense6", "mig=1x96gb")
MIXTRAL: Final = "mixtral-8x7b"
SHARES: Final = (0.2, 0.4, 0.6, 0.75, 0.9)
HOSTS_S: Final = (0.0, 2e-5, 5e-5, 2e-4, 9.35e-4)  # work for an expert
ROUTERS: Final = ((0.0, 0.0), (0.6, 0.5), (1.2, 0.5))  # skew, locality


def compute(context: Context) -> Computed:
    """Return TTFT with and without HybridGEMM, its parts, and what the cache's size changes."""
    shares = SHARES[1::2] if context.quick else SHARES
    hosts_s = HOSTS_S[::2] if context.quick else HOSTS_S
    kinds = ("moe_infinity", "moe_infinity_hybrid")
    swept = [
        (model, share, host_s)
        for model in MOE
        for share, host_s in (*((s, HOSTS_S[-1]) for s in shares), *((0.4, h) for h in hosts_s))
    ]
    steps = 2 + 4 * len(MOE) + 2 * len(swept) + len(ROUTERS)
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if context.progress is not None:
            context.progress(done, steps)

    compression = load_of_half(context, REPLAYED["ServerlessLLM"])
    rows: list[dict[str, Any]] = []
    for system in ("aegaeon", "aegaeon_hybrid"):
        got = replay(context, compression, [*DENSE, f"system={system}"], context.seeds[0])
        rows.append(_of_replay(system, got))
        tick()
    for system in ("moe_infinity", "finemoe"):
        for kind in (system, f"{system}_hybrid"):
            for model in MOE:
                rows.append(_of_one(context, kind, model, 0.0, 0.0))
                tick()
    sizes = []
    for model, share, host_s in dict.fromkeys(swept):
        for kind in kinds:
            more = [f"system.expert_share={share}", f"system.expert_host_s={host_s}"]
            found = _of_one(context, kind, model, 0.0, 0.0, *more)
            sizes.append({"share": share, "host_each_s": host_s} | found)
            tick()
    routed = []
    for skew, locality in ROUTERS:
        more = ["system.expert_share=0.4"]
        routed.append(_of_one(context, "moe_infinity_code", "mixtral-8x7b", skew, locality, *more))
        tick()
    seventy = serve_alone(context, "llama-3-70b", "serverlessllm_hybrid", output=2, requests=2)
    caption = (
        f"Aegaeon: {describe(context, compression)}, catalog dense6, first seed, p99. MoE-Infinity "
        f"and FineMoE: requests of {PROMPT} tokens one after another, engine there, mean over "
        f"{' and '.join(MOE)}; experts drawn without skew or locality. Full GPU, link variant "
        f"'{context.link_variant}'. The paper names neither model nor load. Only the way of the "
        "weights changes: what a kernel reads needs no copy; the host's work for an expert stays. "
        "(b) The reduction hangs on that work and on the cache's size, which no paper prints."
    )
    table: Any = pa.Table.from_pylist
    return Computed(
        tables={"ttft": table(rows), "sizes": table(sizes), "routers": table(routed)},
        results=(*_results(context, rows), _seventy(context, seventy.ttft_s)),
        caption=caption,
        report=_report(rows, sizes, routed),
    )


def _of_replay(system: str, got: SimulationResult) -> dict[str, Any]:
    start = got.requests["started_s"].to_numpy() - got.requests["arrival_s"].to_numpy()
    ttft_s = got.summary["ttft_s"]["p99"]
    return {
        "system": system,
        "model": "dense6",
        "skew": 0.0,
        "locality": 0.0,
        "ttft_s": ttft_s,
        "wait_s": float(np.percentile(start, 99)),
        "link_s": 0.0,
        "host_s": 0.0,
        "hbm_s": max(0.0, ttft_s - float(np.percentile(start, 99))),
        "found_share": 1.0,
        "fetched_gb": 0.0,
    }


def _of_one(
    context: Context, system: str, model: str, skew: float, locality: float, *more: str
) -> dict[str, Any]:
    router = [f"router.skew={skew}", f"router.locality={locality}"]
    got = serve_alone(context, model, system, output=1, overrides=[*router, *more])
    return {
        "system": system,
        "model": model,
        "skew": skew,
        "locality": locality,
        "ttft_s": got.ttft_s,
        "wait_s": 0.0,
        **{f"{part}_s": seconds for part, seconds in got.parts_s.items()},
        "found_share": got.found_share,
        "fetched_gb": got.fetched_bytes / 1e9,
    }


def _mean(rows: list[dict[str, Any]], system: str) -> float:
    return float(np.mean([r["ttft_s"] for r in rows if r["system"] == system]))


def _results(context: Context, rows: list[dict[str, Any]]) -> tuple[Result, ...]:
    found = []
    for system, short in SHORT.items():
        before, after = _mean(rows, system), _mean(rows, f"{system}_hybrid")
        for what, ours, unit in (
            ("before", before, "s"),
            ("after", after, "s"),
            ("reduction", 100.0 * (1.0 - after / before), "percent"),
        ):
            found.append(
                Result(
                    claim_id=f"c2cserve.fig13.{short}.{what}",
                    ours=ours,
                    unit=unit,
                    sample="out-of-sample",
                    link_variant=context.link_variant,
                    note="Neither model nor load nor the cache's size is printed; see the caption."
                    + _would_take(rows, system, what),
                )
            )
    return tuple(found)


def _would_take(rows: list[dict[str, Any]], system: str, what: str) -> str:
    """Say how slow copies of experts would have to be for the printed TTFT before."""
    (row,) = (r for r in rows if r["system"] == system and r["model"] in ("dense6", MIXTRAL))
    if what != "before" or row["fetched_gb"] == 0.0:
        return ""
    printed = float(claim(f"c2cserve.fig13.{SHORT[system]}.before").value)
    gbps = row["fetched_gb"] / (printed - row["hbm_s"])
    return (
        f" What would it take: copies at {gbps:.0f} GB/s give the printed TTFT on {MIXTRAL}, of "
        f"which {row['fetched_gb']:.0f} GB are fetched for a prompt; the link carries 375."
    )


def _seventy(context: Context, ttft_s: float) -> Result:
    return Result(
        claim_id="c2cserve.fig13.sllm_70b.after",
        ours=ttft_s,
        unit="s",
        sample="out-of-sample",
        link_variant=context.link_variant,
        note=f"A prompt of {PROMPT} tokens, engine there; copied, the model fits no GPU.",
    )


def _report(
    rows: list[dict[str, Any]], sizes: list[dict[str, Any]], routed: list[dict[str, Any]]
) -> tuple[tuple[str, ...], ...]:
    head = ("system", "model", "cache share, host ms", "skew, locality", "TTFT s", "wait",
            "link", "HBM", "host", "experts found %", "paper s")  # fmt: skip
    body = []
    for r in (*rows, *sizes, *routed):
        base = r["system"].removesuffix("_hybrid")
        what = "after" if r["system"].endswith("_hybrid") else "before"
        printed = ""
        if "share" not in r and base in SHORT:
            printed = str(claim(f"c2cserve.fig13.{SHORT[base]}.{what}").value)
        body.append(
            (
                NAMES.get(r["system"], r["system"]),
                r["model"],
                f"{r['share']:g}, {1e3 * r['host_each_s']:g}" if "share" in r else "as set",
                f"{r['skew']:g}, {r['locality']:g}",
                *(f"{r[f'{k}_s']:.3g}" for k in ("ttft", "wait", "link", "hbm", "host")),
                f"{100 * r['found_share']:.0f}",
                printed,
            )
        )
    return (head, *body)
