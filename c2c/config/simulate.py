"""Simulation of a run in memory, and its summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from c2c.config.bill import bill
from c2c.config.build import RunSetup
from c2c.metrics import (
    Line,
    Records,
    Room,
    judge,
    latency_charts,
    latency_table,
    looks_at,
    summarise,
    summarised_chips,
    summarised_parts,
    utilisation,
)
from c2c.serving import FleetPart, Prepared
from c2c.serving.tables.roles import DECODES
from c2c.simulator import (
    RunStats,
    is_compiled,
    phases_table,
    requests_table,
    simulate_in_memory,
)

__all__ = [
    "SimulationResult",
    "prefers_compiled",
    "run_totals",
    "simulate",
    "summary_of",
]

# The interpreter takes about 4 ms a request, or some 0.3 s if engines take turns, because it then
# walks every step; compiling takes about 20 s, once a machine.
_INTERPRETED_REQUESTS = 300
_INTERPRETED_TURNS = 30


class Latency(NamedTuple):
    """Mean and percentiles in seconds; NaN if none."""

    mean: float
    p50: float
    p95: float
    p99: float


class Attainment(NamedTuple):
    """Shares of requests that met TTFT, TPOT, both."""

    ttft: float
    tpot: float
    both: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Results: requests by id, first phases, totals, summary."""

    setup: RunSetup = field(repr=False)
    requests: pa.Table = field(repr=False)
    phases: pa.Table = field(repr=False)
    stats: RunStats = field(repr=False)
    summary: Mapping[str, Any]

    @property
    def ttft(self) -> Latency:
        """Time to first token, in seconds."""
        return _latency(self.summary["ttft_s"])

    @property
    def tpot(self) -> Latency:
        """Time per output token, in seconds."""
        return _latency(self.summary["tpot_s"])

    @property
    def attainment(self) -> Attainment:
        """Shares of the requests that met their targets."""
        return Attainment(**self.summary["attainment"])

    def _repr_html_(self) -> str:
        name, verdict = self.setup.serving.system.name, self.summary["verdict"] or {}
        head = f"{name} on {self.setup.serving.fleet_name}, seed {self.setup.seed}"
        return (
            f"<p><b>{escape(head)}</b><br/>{'<br/>'.join(map(escape, verdict.get('text', ())))}</p>"
            f"{latency_table(self.summary)}"
            f'<div style="display:flex">{latency_charts([Line(name, self.requests)])}</div>'
        )


def _latency(block: Mapping[str, float | None]) -> Latency:
    return Latency(**{name: np.nan if v is None else v for name, v in block.items()})


def simulate(setup: RunSetup, *, compiled: bool | None = None) -> SimulationResult:
    """Simulate a run in memory.

    Args:
      compiled: True: machine code, False: interpreter, None: the quicker; results are equal.
    """
    if compiled is None:
        compiled = prefers_compiled(setup)
    got = simulate_in_memory(
        setup.prepared, setup.workload, compiled=compiled, timeline_rows=setup.timeline_rows
    )
    requests = requests_table(setup.prepared, got.records)
    return SimulationResult(
        setup=setup,
        requests=requests,
        phases=phases_table(setup.prepared, got.timeline),
        stats=got.stats,
        summary=summary_of(setup, Records((requests,)), run_totals(setup.prepared, got.stats)),
    )


def summary_of(
    setup: RunSetup,
    records: Records,
    totals: Mapping[str, Any],
    mapper: Callable[..., Iterable[Any]] = map,
) -> dict[str, Any]:
    """Return a run's summary with cost, verdict and plan of the layout.

    Args:
      totals: of `run_totals`, kept under "run".
      mapper: see `c2c.metrics.summarised_parts`.
    """
    plan = {} if setup.plan is None else {"plan": setup.plan.as_dict()}
    room, attainment = _room(setup.prepared), setup.settings["slo"]["attainment"]
    parts = summarised_parts(records, mapper)
    looks = looks_at(records, room, attainment, mapper)  # computed by other processes meanwhile
    summary = summarise(records, {**totals, **plan, **_by_part(setup, records, totals)}, parts)
    summary["cost"] = bill(setup.prepared, totals, summary["models"])
    summary["verdict"] = judge(records, room, attainment, looks)
    return summary


def _by_part(setup: RunSetup, records: Records, totals: Mapping[str, Any]) -> dict[str, Any]:
    if "parts" not in totals:
        return {}
    counts = [part.count for part in setup.serving.parts]
    served = summarised_chips(records, np.cumsum([0, *counts[:-1]]).tolist())
    return {"parts": [a | b for a, b in zip(totals["parts"], served, strict=True)]}


def _room(prepared: Prepared) -> Room:
    deployments, kinds = prepared.setup.deployments, prepared.kind_of
    arch, system = np.asarray(prepared.fleet.deployment.arch), prepared.setup.system
    return Room(
        models=tuple(d.name for d in deployments),
        chips=prepared.setup.chips,
        link_gbps=prepared.link_gbps,
        hbm_gbps=np.array([prepared.slice_kinds[k].hbm_gbps for k in kinds]),
        kv_tokens=prepared.fleet.kv_capacity[np.ix_(arch, kinds)],
        max_batch=prepared.fleet.max_batch,
        promise_gbps=np.array(
            prepared.fleet.deployment.demand_gbps if system.traits.place.link_is_promised else ()
        ),
        budget_gbps=prepared.budget_gbps,
        served_by=prepared.fleet.adapters.base,
        handed=prepared.fleet.role == DECODES if prepared.fleet.role.any() else None,
    )


def _failures(stats: RunStats) -> dict[str, Any]:
    if not stats.failures:
        return {}
    rows = sorted(stats.failures, key=lambda row: (row.lost_s, row.chip))
    down_s = sum(min(row.back_s, stats.end_s) - min(row.lost_s, stats.end_s) for row in rows)
    return {
        "failures": {
            "chips": [
                {"chip": row.chip, "lost_s": row.lost_s, "back_s": _known(row.back_s)}
                for row in rows
            ],
            "down_s": down_s,
        }
    }


def _known(seconds: float) -> float | None:
    return float(seconds) if seconds < np.inf else None


def prefers_compiled(setup: RunSetup) -> bool:
    """Return whether machine code is quicker: cached, or a long run."""
    most = _INTERPRETED_REQUESTS if setup.prepared.fleet.residents == 1 else _INTERPRETED_TURNS
    return is_compiled() or setup.workload.description["requests"] > most


def _experts(stats: RunStats) -> dict[str, Any]:
    """Return the expert cache's hits, misses and costs; with a table, bytes and delay alone."""
    if stats.expert_uses == 0 and stats.expert_wait_s > 0.0:
        return {"experts": {"fetched_bytes": stats.expert_bytes, "longer_s": stats.expert_wait_s}}
    if stats.expert_uses == 0:
        return {}
    hit_share = 1.0 - stats.expert_misses / stats.expert_uses
    return {
        "experts": {
            "uses": stats.expert_uses,
            "misses": stats.expert_misses,
            "found_share": hit_share,
            "fetched_ahead": stats.expert_ahead,
            "fetched_bytes": stats.expert_bytes,
            "wait_s": stats.expert_wait_s,
            "host_s": stats.expert_host_s,
        }
    }


def _parked(stats: RunStats) -> dict[str, Any]:
    if stats.kv_out_bytes == 0.0:
        return {}
    return {"kv": {"in_bytes": stats.kv_in_bytes, "out_bytes": stats.kv_out_bytes}}


def _prefixes(stats: RunStats) -> dict[str, Any]:
    if stats.prefix_asked_tokens == 0:
        return {}
    hit_tokens = stats.prefix_hbm_tokens + stats.prefix_host_tokens
    return {
        "prefix": {
            "prompt_tokens": stats.prefix_asked_tokens,
            "found_share": hit_tokens / stats.prefix_asked_tokens,
            "hbm_tokens": stats.prefix_hbm_tokens,
            "host_tokens": stats.prefix_host_tokens,
            "loaded_bytes": stats.prefix_loaded_bytes,
            "stored_bytes": stats.prefix_stored_bytes,
            "evicted_bytes": stats.prefix_evicted_bytes,
        }
    }


def _resources(prepared: Prepared, stats: RunStats) -> dict[str, Any]:
    layout = prepared.setup.system.layout
    if layout is None or stats.end_s <= 0.0:
        return {}
    shares = stats.resource_s.mean(0) / stats.end_s
    result = {
        "resources": dict(zip(layout.resources, map(float, shares), strict=True)),
        "variant_changes": stats.variant_changes,
    }
    if layout.memories:
        result |= {
            name: getattr(stats, name) for name in ("relayouts", "relayout_bytes", "relayout_s")
        }
    return result


def _of_all(amount: float | None, part: FleetPart) -> float | None:
    return None if amount is None or part.nodes is not None else part.count * amount


def _parts(prepared: Prepared, stats: RunStats) -> dict[str, Any]:
    parts = prepared.setup.parts
    if len(parts) == 1:
        return {}
    rows, first = [], 0
    kinds = prepared.slice_kinds
    for p, part in enumerate(parts):
        chips = slice(first, first + part.count)
        here = (prepared.chip_of >= first) & (prepared.chip_of < first + part.count)
        used = utilisation(
            end_s=stats.end_s,
            busy_s=(stats.busy_s - stats.load_s)[here],
            chip_link_bytes=stats.chip_link_bytes[chips],
            link_capacity_gbps=prepared.link_gbps[chips],
            instance_hbm_bytes=stats.instance_hbm_bytes[here],
            instance_hbm_gbps=np.array([kinds[k].hbm_gbps for k in prepared.kind_of[here]]),
        )
        gpu = part.platform.gpu
        rows.append(
            {
                "hardware": part.platform.name if part.nodes is None else "node",
                "mig": part.layout if part.nodes is None else " and ".join(part.nodes.models),
                "chips": part.count,
                "instances": int(here.sum()),
                "models": int(prepared.serves[:, p].sum()),
                "link_gbps": float(prepared.link_gbps[first]),
                "steps": int(stats.steps[here].sum()),
                "link_bytes": float(stats.chip_link_bytes[chips].sum()),
                "hbm_bytes": float(stats.instance_hbm_bytes[here].sum()),
                "utilisation": {k: v for k, v in used.items() if k.endswith("_mean")},
                "usd_per_hour": _of_all(gpu.usd_per_hour, part),
                "power_w": _of_all(gpu.power_w, part),
            }
        )
        first += part.count
    return {"parts": rows}


def _ranks(prepared: Prepared) -> dict[str, Any]:
    ranks = prepared.setup.platform.ranks
    return {} if ranks is None else {"ranks": ranks.count}


def run_totals(prepared: Prepared, stats: RunStats) -> dict[str, Any]:
    """Return totals and utilisation, for `c2c.metrics.summarise`."""
    hbm_gbps = np.array([prepared.slice_kinds[k].hbm_gbps for k in prepared.kind_of])
    there_s = np.minimum(stats.until_s, stats.end_s) - np.minimum(stats.since_s, stats.end_s)
    return {
        "end_s": stats.end_s,
        "instances": len(prepared.kind_of),
        "chips": len(stats.chip_link_bytes),
        "layout": "+".join(dict.fromkeys(part.layout for part in prepared.setup.parts)),
        **_ranks(prepared),
        "switches": stats.switches,
        "cold_starts": stats.cold_starts,
        "evictions": stats.evictions,
        "dropped_from_host": stats.dropped,
        "drains": stats.drains,
        "preempted": stats.preempted,
        "steps": int(stats.steps.sum()),
        "walked": int(stats.runs.sum()),  # equal decode steps in a row count once
        "prefill_tokens": int(stats.prefill_tokens.sum()),
        "decode_tokens": int(stats.decode_tokens.sum()),
        "link_bytes": float(stats.chip_link_bytes.sum()),
        "hbm_bytes": float(stats.instance_hbm_bytes.sum()),
        **_experts(stats),
        **_parked(stats),
        **_prefixes(stats),
        **_failures(stats),
        **_resources(prepared, stats),
        **_parts(prepared, stats),
        "link_variant": prepared.setup.link_variant,
        "link_gbps": stats.link_capacity_gbps,
        "link_peak_gbps": float(stats.chip_peak_gbps.max()),
        "load_s": float(stats.load_s.sum()),
        "utilisation": utilisation(
            end_s=stats.end_s,
            busy_s=stats.busy_s - stats.load_s,
            there_s=there_s if stats.failures else None,
            chip_link_bytes=stats.chip_link_bytes,
            link_capacity_gbps=prepared.link_gbps,
            instance_hbm_bytes=stats.instance_hbm_bytes,
            instance_hbm_gbps=hbm_gbps,
        ),
    }
