"""A hot and a cold model in the simulator."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pyarrow.parquet as pq

from c2c.config import build, load
from c2c.cost import Constants, calibration_for, load_constants
from c2c.draws import draw
from c2c.hardware import load_node
from c2c.models import kv_bytes_per_token, load_catalog, weight_bytes
from c2c.policies import ByRatio
from c2c.ranges import AboveZero, Count, FromZero, In, OneOf, Share, SomeShare, check_fields
from c2c.serving import Prepared, ServingSetup, prepare
from c2c.simulator import simulate_in_memory
from c2c.systems.weaver import Weaving, woven_layout
from c2c.workloads import RequestBlock, Workload

__all__ = [
    "A100",
    "L40S",
    "LONG",
    "SAID",
    "TRACE",
    "Found",
    "Lengths",
    "Served",
    "Way",
    "constants_of",
    "gpu_share",
    "largest_rate",
    "lengths_of",
    "mean_of",
    "served",
]

A100: Final = "a100_40_nvlink"
L40S: Final = "l40s_pcie"
TRACE: Final = "azure2023_conv.parquet"
MOST_TOKENS: Final = 2048  # longer sequences are dropped (section 5)
AZURE_MEANS: Final = (749, 232)
BURST_MEANS: Final = (575, 340)
LONG: Final = (512, 1024)  # lengths of Fig. 6
NO_LIMIT: Final = 1024  # sequences of a batch, which is more than both GPUs hold
_SPAN_S: Final = 150.0
_SLOW_S: Final = 0.1  # largest TPOT, by another reading of the largest rate
_KERNELS_S: Final = (  # constants of a kernel's fixed time
    "launch_s", "gemm_launch_s", "gemm_tile_s", "prefill_floor_s", "prefill_head_s",
    "prefill_token_s", "decode_floor_s", "decode_head_s", "elementwise_s", "step_overhead_s",
)  # fmt: skip
_HOME: Final = 0x40E  # as `c2c.policies.vary` draws

Lengths = Annotated[str, OneOf("azure", "burstgpt", "long")]
"""Source of lengths."""


Way = Annotated[str, OneOf("dedicated", "spatial", "temporal", "woven")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A system, its load, and a reading of the paper's open settings (`readings.yaml`).

    Attributes:
      node: of two GPUs.
      lengths: azure, burstgpt or long.
      catalog: with the hot and the cold model.
      hot_rps, cold_rps: requests a second; hot_rps inf: all at once.
      ratio, cut: as in `Weaving`.
      ahead_s: seconds issued ahead by the CPU; None: none.
      rows: of the hot step, for the cut.
      traces: folder of the public traces, or None.
      constants, hbm_bytes, kv_share, host_seconds, prompts, batch_limit, mux_share, threshold,
        poll_seconds, burstgpt_spread, largest_rate: see `readings.yaml`.
    """

    way: Way = "woven"
    node: str = A100
    lengths: Lengths = "azure"
    catalog: str = "hot_and_cold"
    hot_rps: Annotated[float, In("(0, inf]")] = 15.0
    cold_rps: AboveZero = 1.0
    ratio: Share = 0.45
    cut: Annotated[str, OneOf("none", "printed", "guarded", "best")] = "guarded"
    ahead_s: FromZero | None = None
    rows: Count = 118
    seed: int = 0
    traces: Path | None = None
    constants: Annotated[str, OneOf("same_sms", "datasheet", "roofline")] = "same_sms"
    hbm_bytes: Count | None = None
    kv_share: SomeShare = 0.9
    host_seconds: FromZero = 0.0
    prompts: Annotated[str, OneOf("unlimited", "one", "two")] = "unlimited"
    batch_limit: Count | Annotated[str, OneOf("none")] = 256
    mux_share: Annotated[str, OneOf("half", "three_quarters", "by_load")] = "half"
    threshold: Annotated[str, OneOf("operator", "layer", "iteration")] = "iteration"
    poll_seconds: FromZero = 2e-6
    burstgpt_spread: Annotated[str, OneOf("geometric", "constant", "azure_shape")] = "geometric"
    largest_rate: Annotated[str, OneOf("queue", "tpot_100_ms", "kv_full")] = "queue"

    def __post_init__(self) -> None:
        check_fields(self, "experiment.pair")


_SAID: Final = (
    "constants", "hbm_bytes", "kv_share", "host_seconds", "prompts", "batch_limit", "mux_share",
    "threshold", "poll_seconds", "burstgpt_spread", "largest_rate",
)  # fmt: skip
SAID: Final = frozenset(_SAID)  # readings that are settings of a run


@dataclass(frozen=True, slots=True)
class Found:
    """Results of a run, over requests in its steady state.

    Attributes:
      hot_s, cold_s: mean TPOT.
      cold_p99_s: of TPOT.
      batch: mean hot sequences in flight.
      hot_kv, cold_kv: mean used share of each GPU's KV memory, or of both.
      kept: of the hot GPU's, at final lengths.
      rate: hot requests a second: completions of a burst, else arrivals.
    """

    hot_s: float
    cold_s: float
    cold_p99_s: float
    batch: float
    hot_kv: float
    cold_kv: float
    kept: float
    rate: float


@cache
def served(load: Served) -> Found:
    """Serve a load; a woven pair is cut for a first run's batch."""
    result = _served(load)
    if load.way == "woven" and load.ratio > 0.0 and load.cut != "none" and load.ahead_s is None:
        again = replace(load, rows=max(1, round(result.batch)))
        result = _served(again)
    return result


def mean_of(load: Served, seeds: int = 4) -> Found:
    """Return the mean over seeds: batches vary near the largest rate."""
    samples = [astuple(served(replace(load, seed=load.seed + k))) for k in range(seeds)]
    return Found(*np.mean(samples, axis=0).tolist())


@cache
def largest_rate(load: Served) -> float:
    """Return the largest hot rate, in requests a second."""
    alone = replace(load, largest_rate="queue")
    most = served(replace(alone, hot_rps=math.inf)).rate
    if load.largest_rate == "queue":
        return most

    def is_carried(tenths: int) -> bool:
        point = served(replace(alone, hot_rps=tenths / 10))
        return point.hot_s <= _SLOW_S if load.largest_rate == "tpot_100_ms" else point.kept < 1.0

    rates = range(1, int(10 * most) + 1)
    return rates[max(0, bisect_left(rates, True, key=lambda n: not is_carried(n)) - 1)] / 10


@cache
def lengths_of(lengths: Lengths, traces: Path | None, spread: str = "geometric") -> np.ndarray:
    """Return prompt and output tokens, [request, 2], up to the paper's longest."""
    pairs = _pairs(lengths, traces, spread)
    result: np.ndarray = pairs[(pairs.sum(axis=1) <= MOST_TOKENS) & (pairs.min(axis=1) > 0)]
    return result


@cache
def _pairs(lengths: Lengths, traces: Path | None, spread: str) -> np.ndarray:
    if lengths == "long":
        return np.array([LONG])
    path = None if traces is None else traces / TRACE
    has_trace = path is not None and path.is_file()
    if has_trace and (lengths == "azure" or spread == "azure_shape"):
        table = pq.read_table(path, columns=["prompt_tokens", "output_tokens"])
        pairs = np.column_stack([column.to_numpy() for column in table.columns]).astype(np.int64)
        if lengths == "azure":
            return pairs
        fits = pairs[(pairs.sum(axis=1) <= MOST_TOKENS) & (pairs.min(axis=1) > 0)]
        like = np.rint(fits * np.array(BURST_MEANS) / fits.mean(axis=0))
        scaled: np.ndarray = np.maximum(1, like).astype(np.int64)
        return scaled
    means = AZURE_MEANS if lengths == "azure" else BURST_MEANS
    if spread == "constant":
        return np.array([means])
    rng = np.random.default_rng([11, *means])
    # Dropping long sequences lowers the means; the printed means are those after dropping.
    goal, aimed = np.array(means, np.float64), np.array(means, np.float64)
    for _ in range(40):
        pairs = rng.geometric(1.0 / aimed, size=(40_000, 2))
        mean_pair = pairs[pairs.sum(axis=1) <= MOST_TOKENS].mean(axis=0)
        aimed = aimed * (goal / mean_pair) ** 0.5
        rng = np.random.default_rng([11, *means])
    return pairs


def _stay_weighted(pairs: np.ndarray) -> int:
    prompt, output = pairs.T.astype(np.float64)
    return round(float((output * (prompt + output / 2)).sum() / output.sum()))


_models = cache(load_catalog)


@cache
def constants_of(reading: str, gpu: str = "a100_40") -> Constants:
    """Return a GPU's constants; the A100 of 40 GB follows a reading."""
    if gpu != "a100_40":
        return load_constants(calibration_for(gpu))
    if reading != "roofline":
        return load_constants({"same_sms": "a100_sxm", "datasheet": "datasheet"}[reading])
    base = load_constants("datasheet")
    names = [item.name for item in fields(base)]
    bounds: dict[str, Any] = {name: 1.0 for name in names if name.endswith("_efficiency")}
    bounds |= dict.fromkeys(_KERNELS_S, 0.0)
    return replace(base, **bounds)


def _rows(load: Served) -> int:
    return NO_LIMIT if load.batch_limit == "none" else int(load.batch_limit)


def _weaving(load: Served) -> Weaving:
    hbm = _node(load.node).platforms[0].gpu.hbm_bytes
    cards = load.hbm_bytes / hbm if load.hbm_bytes and load.node == A100 else 1.0
    share = {"half": 0.5, "three_quarters": 0.75,
             "by_load": load.hot_rps / (load.hot_rps + load.cold_rps)}  # fmt: skip
    pairs = lengths_of(load.lengths, load.traces, load.burstgpt_spread)
    multiplexed = load.way in ("spatial", "temporal")
    devices = None if multiplexed else {"unlimited": None, "one": 1, "two": 2}[load.prompts]
    return Weaving(
        way=load.way, ratio=load.ratio, cut=load.cut, threshold_of=load.threshold, rows=load.rows,
        cold_rows=4, context=_stay_weighted(pairs), poll_s=load.poll_seconds, ahead_s=load.ahead_s,
        prompt_devices=devices, kv_share=load.kv_share * cards, host_s=load.host_seconds,
        sm_share=min(0.9, share[load.mux_share]),
    )  # fmt: skip


_node = cache(load_node)


@cache
def _base() -> ServingSetup:
    return build(load(["system=weaver"])).serving


@lru_cache(maxsize=256)
def _prepared(
    weaving: Weaving, catalog: str, node: str, rows: int, constants: Constants
) -> Prepared:
    hardware, models, base = _node(node), _models(catalog), _base()
    layout = woven_layout(weaving, models, hardware, rows=rows, tokens=2048, constants=constants)
    ratio = weaving.ratio if weaving.way == "woven" else 0.0
    system = replace(base.system, layout=layout, vary=ByRatio(ratio), max_batch=rows)
    return prepare(
        replace(
            base, platform=hardware.platforms[0], constants=constants, system=system,
            deployments=models,
        )
    )  # fmt: skip


def _requests(load: Served) -> RequestBlock:
    rng = np.random.default_rng([load.seed, 1])
    pairs = lengths_of(load.lengths, load.traces, load.burstgpt_spread)
    n, span_s = 2000, _SPAN_S
    if math.isinf(load.hot_rps):
        n, span_s = (1000, 400.0) if load.lengths == "long" else (n, 240.0)
        hot_at = np.arange(n) * 1e-3
    else:
        n = round(load.hot_rps * span_s)
        hot_at = np.sort(rng.random(n)) * span_s
    cold = np.random.default_rng([load.seed, 2])
    m = max(1, round(load.cold_rps * span_s))
    cold_at = np.sort(cold.random(m)) * span_s
    times_s = np.concatenate([hot_at, cold_at])
    model = np.repeat([0, 1], [n, m])
    tokens = np.concatenate(
        [g.choice(pairs, size) for g, size in ((rng, n), (cold, m))]
    )  # fmt: skip
    order = np.argsort(times_s, kind="stable")
    return RequestBlock(
        arrival_s=times_s[order], model=model[order].astype(np.int32),
        prompt_tokens=tokens[order, 0].astype(np.int32),
        output_tokens=tokens[order, 1].astype(np.int32),
    )  # fmt: skip


def _served(load: Served) -> Found:
    weaving = _weaving(load)
    constants = constants_of(load.constants, _node(load.node).gpus[0])
    prepared = _prepared(weaving, load.catalog, load.node, _rows(load), constants)
    prepared = replace(prepared, setup=replace(prepared.setup, seed=load.seed))
    block = _requests(load)

    def blocks() -> Iterator[RequestBlock]:
        yield block

    names = tuple(one.name for one in _models(load.catalog))
    records: Any = simulate_in_memory(prepared, Workload(models=names, source=blocks)).records
    return _measured(load, records, block, prepared)


def _measured(load: Served, records: Any, block: RequestBlock, prepared: Prepared) -> Found:
    hot, cold = records["model"] == 0, records["model"] == 1
    arrived, ended = records["arrival_s"], records["finished_s"]
    first, out = records["first_token_s"], block.output_tokens
    each_s = (ended - first) / np.maximum(1, out - 1)
    if math.isinf(load.hot_rps):
        done = np.sort(ended[hot])
        begin, end = done[len(done) // 3], done[int(0.85 * len(done)) - 1]
        rate = (int(0.85 * len(done)) - 1 - len(done) // 3) / (end - begin)
        is_in = (ended > begin) & (ended <= end)
    else:
        begin, end = 0.3 * _SPAN_S, _SPAN_S
        is_in = (arrived >= begin) & (arrived < end)
        rate = float(is_in[hot].sum()) / (end - begin)
    stay_s = np.clip(np.minimum(ended, end) - np.maximum(first, begin), 0.0, None) / (end - begin)
    tokens = (block.prompt_tokens + out / 2) * stay_s
    whole = (block.prompt_tokens + out) * stay_s
    ratio = load.ratio if load.way == "woven" else 0.0
    away = hot & (_homes(load.seed, len(hot))[records["id"]] < ratio)
    layout, one = prepared.setup.system.layout, kv_bytes_per_token(_models(load.catalog)[0].spec)
    rooms = [room / one for room in layout.memories.values()]
    lone = cold & is_in
    return Found(
        hot_s=float(each_s[hot & is_in].mean()),
        cold_s=float(each_s[lone].mean()),
        cold_p99_s=float(np.percentile(each_s[lone], 99)),
        batch=float(stay_s[hot].sum()),
        hot_kv=float(tokens[hot & ~away].sum() / rooms[0]),
        cold_kv=float(tokens[cold | away].sum() / rooms[-1]),
        kept=float(whole[hot & ~away].sum() / rooms[0]),
        rate=float(rate),
    )


def _homes(seed: int, requests: int) -> np.ndarray:
    numbers: Any = np.arange(requests)
    homes: Any = draw(seed, numbers, 0, _HOME, 0)
    return np.asarray(homes)


def gpu_share(result: Found, load: Served) -> float:
    """Return the cold GPU's used memory: weights, reserve, KV cache."""
    node, spec = _node(load.node), _models(load.catalog)[1].spec
    whole, weaving = node.platforms[1].gpu.hbm_bytes, _weaving(load)
    fixed = weight_bytes(spec) + weaving.reserve_bytes
    return (fixed + result.cold_kv * (weaving.kv_share * whole - fixed)) / whole
