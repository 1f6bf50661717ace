"""Summary of a run: latency percentiles, attainment, goodput, starts, per model and in all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from c2c.errors import DataError
from c2c.metrics.columns import codes_of, numbers_of
from c2c.metrics.latency import (
    attainment,
    e2e_s,
    goodput_rps,
    meets_tpot,
    meets_ttft,
    percentiles,
    span_s,
    tpot_s,
    ttft_s,
)
from c2c.metrics.schema import START_KINDS

__all__ = ["SUMMARY_COLUMNS", "summarise", "utilisation"]

# All `summarise` reads: give pyarrow.parquet.read_table these columns to spare memory.
SUMMARY_COLUMNS = (
    "model",
    "arrival_s",
    "first_token_s",
    "finished_s",
    "prompt_tokens",
    "output_tokens",
    "start_kind",
    "ttft_slo_s",
    "tpot_slo_s",
    "status",
    "reason",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Decoded columns and what is derived from them once, in row order."""

    arrival_s: npt.NDArray[np.float64]
    finished_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[Any]
    output_tokens: npt.NDArray[Any]
    start: npt.NDArray[np.int32]
    finished: npt.NDArray[np.bool_]
    ttft: npt.NDArray[np.float64]
    tpot: npt.NDArray[np.float64]
    e2e: npt.NDArray[np.float64]
    ttft_met: npt.NDArray[np.bool_]
    tpot_met: npt.NDArray[np.bool_]

    def take(self, rows: Any) -> _Columns:
        return _Columns(**{name: getattr(self, name)[rows] for name in self.__slots__})


def summarise(records: pa.Table, run_stats: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON-able summary of a run; NaN becomes None.

    Args:
      records: table with at least `SUMMARY_COLUMNS`.
      run_stats: totals of the run (plain numbers, arrays, mappings), kept under "run".

    Returns:
      requests, finished, failed, failures (by reason), span_s, arrival_rps, throughput_rps,
      output_tokens_per_s, goodput_rps, ttft_s, tpot_s, e2e_s, attainment {ttft, tpot, both},
      starts {warm, switch, cold}, ttft_by_start_s and models {name: the same}.

    Raises:
      DataError: a column is missing.
    """
    if missing := [c for c in SUMMARY_COLUMNS if c not in records.column_names]:
        raise DataError("records", f"missing columns: {', '.join(missing)}")
    model, model_names = codes_of(records, "model")
    reason, reason_names = codes_of(records, "reason")
    columns = _derive(records)
    span = span_s(columns.arrival_s, columns.finished_s)

    order = np.argsort(model, kind="stable")
    edges = np.searchsorted(model[order], np.arange(len(model_names) + 1))
    models = {
        name: _block(columns.take(order[first:last]), span)
        for name, first, last in zip(model_names, edges[:-1], edges[1:], strict=True)
        if last > first
    }
    failed = np.bincount(reason[~columns.finished], minlength=len(reason_names))
    summary: dict[str, Any] = _block(columns, span)
    summary["failures"] = {n: int(c) for n, c in zip(reason_names, failed, strict=True) if c}
    summary["ttft_by_start_s"] = {
        kind: percentiles(columns.ttft[columns.start == code])
        for code, kind in enumerate(START_KINDS)
    }
    summary["models"] = dict(sorted(models.items()))
    summary["run"] = dict(run_stats or {})
    cleaned: dict[str, Any] = _jsonable(summary)
    return cleaned


def utilisation(
    *,
    end_s: float,
    busy_s: npt.NDArray[np.float64],
    chip_link_bytes: npt.NDArray[np.float64],
    link_capacity_gbps: float,
    instance_hbm_bytes: npt.NDArray[np.float64] | None = None,
    instance_hbm_gbps: npt.NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """Return mean utilisations over [0, end_s]: instances (time busy), link and HBM (bytes moved).

    Args:
      end_s: length of the run; 0 gives zeros.
      busy_s: seconds each instance ran a step.
      chip_link_bytes: bytes each chip's link carried.
      link_capacity_gbps: capacity of one chip's link, the variant the run used.
      instance_hbm_bytes: bytes each instance moved in its HBM.
      instance_hbm_gbps: HBM bandwidth of each instance.
    """
    busy, link = np.asarray(busy_s, float), np.asarray(chip_link_bytes, float)
    time = end_s if end_s > 0 else np.inf
    out: dict[str, Any] = {
        "instance_busy": (busy / time).tolist(),
        "instance_busy_mean": float(busy.mean() / time),
        "link": (link / (link_capacity_gbps * 1e9 * time)).tolist(),
        "link_mean": float(link.mean() / (link_capacity_gbps * 1e9 * time)),
    }
    if instance_hbm_bytes is not None and instance_hbm_gbps is not None:
        hbm = np.asarray(instance_hbm_bytes, float) / (np.asarray(instance_hbm_gbps) * 1e9 * time)
        out |= {"hbm": hbm.tolist(), "hbm_mean": float(hbm.mean())}
    return out


def _derive(records: pa.Table) -> _Columns:
    start, start_names = codes_of(records, "start_kind")
    status, status_names = codes_of(records, "status")
    wanted = np.array([START_KINDS.index(n) for n in start_names], dtype=np.int32)
    done = np.array([n == "finished" for n in status_names], dtype=bool)
    arrival, first, finish, ttft_slo, tpot_slo = (
        numbers_of(records, c)
        for c in ("arrival_s", "first_token_s", "finished_s", "ttft_slo_s", "tpot_slo_s")
    )
    output = numbers_of(records, "output_tokens")
    finished = done[status] if len(status) else np.zeros(0, bool)
    # a failed request may have had its first token: it still meets nothing and has no latency
    ttft, e2e = ttft_s(arrival, first), e2e_s(arrival, finish)
    tpot = tpot_s(first, finish, output)
    for values in (ttft, e2e, tpot):
        values[~finished] = np.nan
    return _Columns(
        arrival_s=arrival,
        finished_s=finish,
        prompt_tokens=numbers_of(records, "prompt_tokens"),
        output_tokens=output,
        start=wanted[start] if len(start) else np.zeros(0, np.int32),
        finished=finished,
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        ttft_met=meets_ttft(ttft, ttft_slo),
        tpot_met=meets_tpot(tpot, tpot_slo, output, finished),
    )


def _block(c: _Columns, span: float) -> dict[str, Any]:
    both = c.ttft_met & c.tpot_met
    starts = np.bincount(c.start, minlength=len(START_KINDS))
    finished = int(np.count_nonzero(c.finished))
    per_s = 1.0 / span if span > 0 else 0.0
    return {
        "requests": len(c.arrival_s),
        "finished": finished,
        "failed": len(c.arrival_s) - finished,
        "span_s": span,
        "arrival_rps": len(c.arrival_s) * per_s,
        "throughput_rps": finished * per_s,
        "goodput_rps": goodput_rps(both, span),
        "prompt_tokens": int(c.prompt_tokens[c.finished].sum()),
        "output_tokens": int(c.output_tokens[c.finished].sum()),
        "output_tokens_per_s": float(c.output_tokens[c.finished].sum()) * per_s,
        "ttft_s": percentiles(c.ttft),
        "tpot_s": percentiles(c.tpot),
        "e2e_s": percentiles(c.e2e),
        "attainment": {
            "ttft": attainment(c.ttft_met),
            "tpot": attainment(c.tpot_met),
            "both": attainment(both),
        },
        "starts": {kind: int(n) for kind, n in zip(START_KINDS, starts, strict=True)},
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return _jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
