"""Replay of public runs under Poisson arrivals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from c2c.cost import load_engine
from c2c.errors import DataError
from c2c.serving import FAIL_NONE
from c2c.simulator import simulate_in_memory
from c2c.workloads import RequestBlock, Workload
from experiments.measured.chips import chip_of
from experiments.measured.predict import spec_of
from experiments.measured.rows import Rows
from experiments.plain_engine import Group, prepared_group

__all__ = ["FIGURES", "OpenRun", "open_runs", "replay_open", "requests_of"]

FIGURES: Final = ("ttft_p50_ms", "ttft_p99_ms", "itl_mean_ms", "e2e_p50_ms", "seconds")
"""Compared figures. `seconds` is from the first arrival to the last token, hence the inverse of
capacity above saturation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A row: engine, chip, model, requests and measured figures.

    `like`: engine of `conf/engines` with the replay's host seconds.
    """

    platform: str
    engine: str
    like: str
    model: str
    rate_rps: float
    requests: int
    seed: int
    prompt_most: int
    output_most: int
    prompt_tokens: int
    output_tokens: int
    figures: Mapping[str, float]


def open_runs(rows: Rows) -> Iterator[OpenRun]:
    """Yield the rows of known chips and models."""
    for i in range(len(rows)):
        row = {name: rows[name][i] for name in rows.columns}
        platform = chip_of(row["system"])
        if platform is None or spec_of(row["model"]) is None:
            continue
        whole = ("requests", "seed", "prompt_most", "output_most", "prompt_tokens", "output_tokens")
        yield OpenRun(
            platform=platform, engine=row["engine"], like=row["like"], model=row["model"],
            rate_rps=row["rate_rps"], figures={name: row[name] for name in FIGURES},
            **{name: int(row[name]) for name in whole},
        )  # fmt: skip


def requests_of(run: OpenRun) -> RequestBlock:
    """Return a run's requests, as drawn by `sglang.bench_serving`."""
    drawn = np.random.RandomState(run.seed)  # the generator of the client
    prompt = drawn.randint(1, run.prompt_most + 1, size=run.requests)
    output = drawn.randint(0, run.output_most + 1, size=run.requests)
    gaps_s = drawn.exponential(1.0 / run.rate_rps, run.requests)
    if (prompt.sum(), output.sum()) != (run.prompt_tokens, run.output_tokens):
        raise DataError(
            "open_loop.csv", f"{run.prompt_tokens} + {run.output_tokens} tokens, but seed "
            f"{run.seed} draws {prompt.sum()} + {output.sum()}",
        )  # fmt: skip
    return RequestBlock(
        arrival_s=np.concatenate([[0.0], np.cumsum(gaps_s)[:-1]]),
        model=np.zeros(run.requests, np.int32),
        prompt_tokens=prompt.astype(np.int32),
        output_tokens=np.maximum(output, 1).astype(np.int32),
    )


def replay_open(run: OpenRun, *, batch: str = "prompts_alone") -> dict[str, float]:
    """Return a run's simulated figures, by `FIGURES`."""
    spec, engine = spec_of(run.model), load_engine(run.like)
    assert spec is not None
    engine = replace(engine, batch=batch)
    prepared = prepared_group(Group(platform=run.platform), spec, engine)
    block = requests_of(run)
    workload = Workload((spec.name,), lambda: iter([block]), {"requests": run.requests})
    records = simulate_in_memory(prepared, workload).records
    served = records[records.failure == FAIL_NONE]
    ttft_s = engine.request_s + served.first_token_s - served.arrival_s
    decoding_s = served.finished_s - served.first_token_s
    return {
        "ttft_p50_ms": 1e3 * float(np.median(ttft_s)),
        "ttft_p99_ms": 1e3 * float(np.percentile(ttft_s, 99)),
        "itl_mean_ms": 1e3 * float(decoding_s.sum() / (served.output_tokens - 1).sum()),
        "e2e_p50_ms": 1e3 * float(np.median(ttft_s + decoding_s)),
        "seconds": float(served.finished_s.max()),
    }
