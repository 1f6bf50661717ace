"""Summary of a run, per model and in total."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from c2c.errors import DataError
from c2c.metrics.columns import codes_of, numbers_of, values_of
from c2c.metrics.latency import (
    e2e_s,
    meets_tpot,
    meets_ttft,
    percentiles,
    tpot_s,
    ttft_s,
)
from c2c.metrics.records import Records
from c2c.metrics.schema import START_KINDS

__all__ = [
    "SUMMARY_COLUMNS",
    "Part",
    "summarise",
    "summarised_chips",
    "summarised_parts",
    "utilisation",
]

# All columns that `summarise` reads: pass them to pyarrow.parquet.read_table to save memory.
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


_LATENCIES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
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


@dataclass(slots=True)
class _Totals:
    """Additive numbers; float sums per model: order has no effect."""

    counts: Counter[str] = field(default_factory=Counter)
    sums: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, c: _Columns) -> _Totals:
        result = cls()
        result.counts.update(
            requests=len(c.ttft),
            finished=int(np.count_nonzero(c.finished)),
            prompt_tokens=int(c.prompt_tokens[c.finished].sum(dtype=np.int64)),
            output_tokens=int(c.output_tokens[c.finished].sum(dtype=np.int64)),
            ttft_met=int(np.count_nonzero(c.ttft_met)),
            tpot_met=int(np.count_nonzero(c.tpot_met)),
            both_met=int(np.count_nonzero(c.ttft_met & c.tpot_met)),
        )
        for code, kind in enumerate(START_KINDS):
            rows = c.start == code
            result.counts[kind] = int(np.count_nonzero(rows))
            result._sum(f"ttft after {kind}", c.ttft[rows])
        for name in _LATENCIES:
            result._sum(name, getattr(c, name))
        return result

    def _sum(self, name: str, values: npt.NDArray[np.float64]) -> None:
        numbers = values[~np.isnan(values)]
        self.counts[name] = len(numbers)
        self.sums[name] = [float(numbers.sum())]

    def add(self, other: _Totals) -> None:
        self.counts.update(other.counts)
        for name, sums in other.sums.items():
            self.sums.setdefault(name, []).extend(sums)

    def mean(self, name: str) -> float:
        count = self.counts[name]
        return math.fsum(self.sums[name]) / count if count else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Summary of a part, by model."""

    models: Mapping[str, tuple[_Totals, Mapping[str, dict[str, float]]]]
    failures: Counter[str]
    first_s: float
    last_s: float


def summarise(
    records: pa.Table | Records,
    run_stats: Mapping[str, Any] | None = None,
    parts: Sequence[Part] | None = None,
) -> dict[str, Any]:
    """Return a run's JSON-able summary; NaN becomes None.

    The division into parts has no effect.

    Args:
      records: with at least `SUMMARY_COLUMNS`.
      run_stats: kept under "run".
      parts: of `summarised_parts`; None: called here.

    Returns:
      requests, finished, failed, failures (by reason), span_s, arrival_rps, throughput_rps,
      output_tokens_per_s, goodput_rps, ttft_s, tpot_s, e2e_s, attainment {ttft, tpot, both}, starts
      {warm, switch, cold}, ttft_by_start_s and models {name: the same}.

    Raises:
      DataError: a column is missing.
    """
    records = _checked(records)
    if parts is None:
        parts = summarised_parts(records)
    first_s, last_s = min(p.first_s for p in parts), max(p.last_s for p in parts)
    span = last_s - first_s if first_s < np.inf else 0.0
    whole, failures = _Totals(), Counter[str]()
    models: dict[str, dict[str, Any]] = {}
    for part in parts:
        failures.update(part.failures)
        for name, (totals, latencies) in part.models.items():
            models[name] = _block(totals, latencies, span)
            whole.add(totals)
    by_start, ttft = _pooled_ttft(records, whole)
    pooled = {"ttft": ttft} | {n: _pooled(records, n, whole) for n in ("tpot", "e2e")}
    summary = _block(whole, pooled, span)
    summary["failures"] = dict(sorted(failures.items()))
    summary["ttft_by_start_s"] = by_start
    summary["models"] = dict(sorted(models.items()))
    summary["run"] = dict(run_stats or {})
    cleaned: dict[str, Any] = _jsonable(summary)
    return cleaned


def summarised_parts(
    records: pa.Table | Records, mapper: Callable[..., Iterable[Part]] = map
) -> list[Part]:
    """Return each part's totals and latencies, for `summarise`.

    Args:
      mapper: such as a process pool's map.

    Raises:
      DataError: a column is missing.
    """
    records = _checked(records)
    return list(mapper(partial(_summarise_part, records), range(len(records.parts))))


def _checked(records: pa.Table | Records) -> Records:
    if isinstance(records, Records):
        return records
    if missing := [c for c in SUMMARY_COLUMNS if c not in records.column_names]:
        raise DataError("records", f"missing columns: {', '.join(missing)}")
    return Records((records,))


def _summarise_part(records: Records, part: int) -> Part:
    read = partial(_read_columns, records, part)  # few at a time: a part may be millions of rows
    arrival = numbers_of(read("arrival_s"), "arrival_s")
    first_s, last_s = float(arrival.min(initial=np.inf)), float(arrival.max(initial=-np.inf))
    finished_s = numbers_of(read("finished_s"), "finished_s")
    last_s = float(np.fmax.reduce(finished_s, initial=last_s))
    del arrival, finished_s
    model, names = codes_of(read("model"), "model")
    reason, reasons = codes_of(read("reason"), "reason")
    columns = _derive(read)
    order = np.argsort(model, kind="stable")
    edges = np.searchsorted(model[order], np.arange(len(names) + 1))
    models: dict[str, tuple[_Totals, dict[str, dict[str, float]]]] = {}
    for name, first, last in zip(names, edges[:-1], edges[1:], strict=True):
        if last > first:
            mine = columns.take(order[first:last])
            totals = _Totals.of(mine)
            latencies = {n: percentiles(getattr(mine, n), mean=totals.mean(n)) for n in _LATENCIES}
            models[name] = totals, latencies
    failed = np.bincount(reason[~columns.finished], minlength=len(reasons))
    return Part(
        models=models,
        failures=Counter({n: int(c) for n, c in zip(reasons, failed, strict=True) if c}),
        first_s=first_s,
        last_s=last_s,
    )


def summarised_chips(records: Records, first_chip: Sequence[int]) -> list[dict[str, Any]]:
    """Return requests, output tokens and attainment of each range of chips.

    Args:
      records: with the column `chip`.
      first_chip: first chip of each range, ascending.

    Raises:
      DataError: a column is missing.
    """
    counts = np.zeros((len(first_chip) + 1, 5), np.int64)
    for part in range(len(records.parts)):
        c = _derive(partial(_read_columns, records, part))
        chips = np.searchsorted(
            first_chip, numbers_of(records.read(part, ("chip",)), "chip"), "right"
        )
        done = np.where(c.finished, c.output_tokens, 0)
        every = np.ones(len(chips), np.int64)
        for k, weights in enumerate((every, done, c.ttft_met, c.tpot_met, c.ttft_met & c.tpot_met)):
            counts[:, k] += np.bincount(chips, weights, len(counts)).astype(np.int64)
    return [
        {
            "requests": int(requests),
            "output_tokens": int(tokens),
            "attainment": {
                name: int(met) / int(requests) if requests else None
                for name, met in zip(("ttft", "tpot", "both"), met_of, strict=True)
            },
        }
        for requests, tokens, *met_of in counts[1:]
    ]


def _read_columns(records: Records, part: int, *columns: str) -> pa.Table:
    return records.read(part, columns)


def utilisation(
    *,
    end_s: float,
    busy_s: npt.NDArray[np.float64],
    chip_link_bytes: npt.NDArray[np.float64],
    link_capacity_gbps: float | npt.NDArray[np.float64],
    instance_hbm_bytes: npt.NDArray[np.float64] | None = None,
    instance_hbm_gbps: npt.NDArray[np.float64] | None = None,
    there_s: npt.NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """Return mean utilisations over [0, end_s] of instances (busy), link and HBM (bytes).

    Args:
      end_s: 0 gives zeros.
      busy_s: seconds of each instance's steps.
      link_capacity_gbps: of each chip, in the run's variant.
      there_s: seconds of each instance in service; None: the whole run.
    """
    busy, link = np.asarray(busy_s, float), np.asarray(chip_link_bytes, float)
    capacity = np.broadcast_to(link_capacity_gbps, len(link))
    mean_gbps = capacity[0] + (capacity - capacity[0]).mean()  # exact if all are equal
    time = end_s if end_s > 0 else np.inf
    spans_s = np.full(len(busy), time) if there_s is None else np.maximum(there_s, 1e-12)
    out: dict[str, Any] = {
        "instance_busy": (busy / spans_s).tolist(),
        "instance_busy_mean": float(busy.mean() / spans_s.mean()),
        "link": (link / (capacity * 1e9 * time)).tolist(),
        "link_mean": float(link.mean() / (mean_gbps * 1e9 * time)),
    }
    if instance_hbm_bytes is not None and instance_hbm_gbps is not None:
        hbm = np.asarray(instance_hbm_bytes, float) / (
            np.asarray(instance_hbm_gbps) * 1e9 * spans_s
        )
        weight = None if there_s is None else spans_s
        out |= {"hbm": hbm.tolist(), "hbm_mean": float(np.average(hbm, weights=weight))}
    return out


def _finished(records: pa.Table) -> npt.NDArray[np.bool_]:
    status, names = codes_of(records, "status")
    done = np.array([n == "finished" for n in names], dtype=bool)
    return done[status] if len(status) else np.zeros(0, bool)


def _start(records: pa.Table) -> npt.NDArray[np.int32]:
    start, names = codes_of(records, "start_kind")
    codes = np.array([START_KINDS.index(n) for n in names], dtype=np.int32)
    return codes[start] if len(start) else np.zeros(0, np.int32)


def _latency(records: pa.Table, name: str, finished: npt.NDArray[np.bool_]) -> Any:
    # A failed request may have a first token; it still meets no target and has no latency.
    if name == "ttft":
        values = ttft_s(numbers_of(records, "arrival_s"), numbers_of(records, "first_token_s"))
    elif name == "tpot":
        first, finish = numbers_of(records, "first_token_s"), numbers_of(records, "finished_s")
        values = tpot_s(first, finish, numbers_of(records, "output_tokens"))
    else:
        values = e2e_s(numbers_of(records, "arrival_s"), numbers_of(records, "finished_s"))
    values[~finished] = np.nan
    return values


_NEEDS = {
    "ttft": ("arrival_s", "first_token_s", "status", "start_kind"),
    "tpot": ("first_token_s", "finished_s", "output_tokens", "status"),
    "e2e": ("arrival_s", "finished_s", "status"),
}


def _pooled(records: Records, name: str, whole: _Totals) -> dict[str, float]:
    values = np.empty(whole.counts[name])
    offset = 0
    for part in range(len(records.parts)):
        table = records.read(part, _NEEDS[name])
        latencies = _latency(table, name, _finished(table))
        latencies = latencies[~np.isnan(latencies)]
        values[offset : offset + len(latencies)] = latencies
        offset += len(latencies)
    return percentiles(values, mean=whole.mean(name), overwrite=True)


def _pooled_ttft(
    records: Records, whole: _Totals
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    names = [f"ttft after {kind}" for kind in START_KINDS]
    edges = np.cumsum([0, *(whole.counts[name] for name in names)])
    values = np.empty(edges[-1])  # ordered by kind of start, so that one array serves both
    offsets = edges[:-1].copy()
    for part in range(len(records.parts)):
        table = records.read(part, _NEEDS["ttft"])
        latencies, start = _latency(table, "ttft", _finished(table)), _start(table)
        mask = ~np.isnan(latencies)
        for code in range(len(START_KINDS)):
            mine = latencies[mask & (start == code)]
            values[offsets[code] : offsets[code] + len(mine)] = mine
            offsets[code] += len(mine)
    by_start = {
        kind: percentiles(values[edges[k] : edges[k + 1]], mean=whole.mean(name), overwrite=True)
        for k, (kind, name) in enumerate(zip(START_KINDS, names, strict=True))
    }
    return by_start, percentiles(values, mean=whole.mean("ttft"), overwrite=True)


def _derive(read: Callable[..., pa.Table]) -> _Columns:
    finished = _finished(read("status"))
    ttft, tpot, e2e = (_latency(read(*_NEEDS[name]), name, finished) for name in _LATENCIES)
    output = values_of(read("output_tokens"), "output_tokens")
    return _Columns(
        prompt_tokens=values_of(read("prompt_tokens"), "prompt_tokens"),
        output_tokens=output,
        start=_start(read("start_kind")),
        finished=finished,
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        ttft_met=meets_ttft(ttft, numbers_of(read("ttft_slo_s"), "ttft_slo_s")),
        tpot_met=meets_tpot(tpot, numbers_of(read("tpot_slo_s"), "tpot_slo_s"), output, finished),
    )


def _block(t: _Totals, latencies: Mapping[str, Any], span: float) -> dict[str, Any]:
    n, requests = t.counts, t.counts["requests"]
    per_s = 1.0 / span if span > 0 else 0.0
    return {
        "requests": requests,
        "finished": n["finished"],
        "failed": requests - n["finished"],
        "span_s": span,
        "arrival_rps": requests * per_s,
        "throughput_rps": n["finished"] * per_s,
        "goodput_rps": n["both_met"] * per_s,
        "prompt_tokens": n["prompt_tokens"],
        "output_tokens": n["output_tokens"],
        "output_tokens_per_s": n["output_tokens"] * per_s,
        "ttft_s": latencies["ttft"],
        "tpot_s": latencies["tpot"],
        "e2e_s": latencies["e2e"],
        "attainment": {
            name: n[f"{name}_met"] / requests if requests else float("nan")
            for name in ("ttft", "tpot", "both")
        },
        "starts": {kind: n[kind] for kind in START_KINDS},
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, float | np.floating):  # a NumPy float64 is a float: most values are
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int | str | None):
        return value
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    return value
