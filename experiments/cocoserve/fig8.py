"""Figs. 8 and 10: gains over a static library, an engine with continuous batches, and instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from c2c.models import load_spec
from c2c.systems.cocoserve import module_of, operation_costs
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.cocoserve.compared import HFT, SAID, VLLM, coco, cut, gain, server
from experiments.cocoserve.drained import (
    ANSWER_TOKENS,
    HIGH,
    LOW,
    MODEL,
    Served,
    batch_of,
    drained,
    first_bytes,
    mean_over,
)
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["compute", "compute_instances"]

LOADS: Final = {"low": LOW, "high": HIGH}
BIG: Final = {"model": "llama-2-70b", "split": 4}
_MODELS: Final[Mapping[str, Mapping[str, Any]]] = {"13b": {}, "70b": BIG}
_MIB: Final = 2**20
_SHARED: Final = (
    "A rate of r is read as r requests at once.",
    "Prompts have 85 tokens, answers 256.",
    "Low load is the mean over 3 to 30 requests, high load over 31 to 50.",
    "HFT has static batches of 15 requests.",
    "HFT's host time a step is fitted to Fig. 6 (in-sample).",
    "Algorithm 1 copies no layer at 2.44, the literal gamma of Eq. 4: CoCoServe equals HFT.",
    "Algorithm 1 copies all 40 layers to a second card at gamma 0.",
)
_ABLE: Final = SAID | {"gamma", "t_up", "average"}
Numbers = dict[str, float]


@figure("cocoserve.fig8", title="CoCoServe, Fig. 8: comparison with HFT and vLLM",
        draw="cocoserve.draw_rates", needs=SIMULATOR)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return results of one instance of each system at low and high load, 13B and 70B."""
    by_rate = [
        {
            "model": model, "system": name, "rate": rate,
            "throughput_rps": found.throughput_rps, "latency_s": found.latency_s,
        }
        for model in _MODELS
        for name, served in _systems(model).items()
        for rate in (3, 10, 16, 23, 30, 31, 36, 40, 45, 50)
        for found in (drained(served, rate),)
    ]  # fmt: skip
    results = under_readings(_results(), _results, _ABLE, everything=not context.quick)
    return Computed(
        tables={"rates": pa.Table.from_pylist(by_rate), "readings": readings_table(results)},
        results=results,
        caption=(
            "Lines: throughput and mean latency of one instance by requests at once, LLaMA-13B "
            "above and 70B below."
        ),
        assumptions=(
            *_SHARED,
            "70B is split by layers over four cards, none of which has the free memory for copies.",
            "vLLM serves continuous batches in 0.9 of the memory and reserves it for whole "
            "answers.",
            "vLLM has no host time beside the card's calibration.",
        ),
    )


@figure("cocoserve.fig10", title="CoCoServe, Fig. 10: instances", draw="cocoserve.draw_instances",
        needs=SIMULATOR)  # fmt: skip
def compute_instances(context: Context) -> Computed:
    """Return the gain of two CoCoServe instances over two and four of HFT, and their memory."""
    systems = {
        "2 HFT": replace(HFT, instances=2), "4 HFT": replace(HFT, instances=4),
        "2 CoCoServe": replace(coco(), instances=2),
        "2 CoCoServe, 4 layers": replace(HFT, layers=4, instances=2),
        "2 CoCoServe, gamma 0": replace(coco(gamma=0.0), instances=2),
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        {
            "system": name, "load": load, "throughput_rps": mean.throughput_rps,
            "latency_s": mean.latency_s, "memory_mib": memory_mib(served),
        }
        for name, served in systems.items()
        for load, ends in LOADS.items()
        for mean in (mean_over(served, ends),)
    ]  # fmt: skip
    results = under_readings(_of_instances(), _of_instances, _ABLE, everything=not context.quick)
    return Computed(
        tables={"instances": pa.Table.from_pylist(rows), "readings": readings_table(results)},
        results=results,
        caption=(
            "Bars: throughput, mean latency and memory of two and four instances of LLaMA-13B on "
            "four A100 of 40 GB, at low and high load."
        ),
        assumptions=(
            *_SHARED,
            "Requests are divided evenly among the instances.",
            "Memory counts weights, 499 MiB of a process on each card, and a whole batch's KV "
            "cache.",
            "The paper's memory of two CoCoServe has room for 3 to 4 copied layers an instance.",
        ),
    )


def memory_mib(served: Served) -> float:
    """Return the most MiB that all instances hold, with copies of layers and their process."""
    costs, copied = operation_costs(), module_of(load_spec(served.model), "layer").allocated_bytes
    copies = served.layers * copied + bool(served.layers) * costs.process_bytes
    alone = first_bytes(served, batch_of(served), served.prompt_tokens + ANSWER_TOKENS)
    return served.instances * (alone + copies) / _MIB


def _systems(model: str) -> dict[str, Served]:
    base = replace(HFT, **_MODELS[model])
    found = {"HFT": base, "vLLM": replace(VLLM, **_MODELS[model])}
    return found | ({"CoCoServe, gamma 0": coco(gamma=0.0)} if base.model == MODEL else {})


def _fig8(
    base: Served, gamma: str | float = "literal", t_up: float = 0.3, average: str = "five"
) -> Numbers:
    found: Numbers = {}
    for model, over in _MODELS.items():
        hft = replace(base, **over)
        ours = coco(base, gamma, t_up) if model == "13b" else hft
        for load, ends in LOADS.items():
            mine = mean_over(ours, ends, average)
            for name, theirs in (("hft", hft), ("vllm", replace(hft, engine="continuous"))):
                other = mean_over(theirs, ends, average)
                key = f"{model}.{load}.{name}"
                found[f"{key}.latency"] = cut(mine.latency_s, other.latency_s)
                found[f"{key}.throughput"] = mine.throughput_rps / other.throughput_rps
    return found


def _results(**reading: Any) -> Iterator[Result]:
    base, others = server(reading)
    ours = _fig8(base, **others)
    for key, value in ours.items():
        model, load, name, metric = key.split(".")
        if (model, load) == ("13b", "high"):
            continue  # not printed
        # over HFT a factor is printed, over vLLM a gain in percent
        told = gain(value, 1.0) if (name, metric) == ("vllm", "throughput") else value
        yield answer(f"cocoserve.fig8.{key}", told)
    for name in ("hft", "vllm"):
        for metric in ("latency", "throughput"):
            values = [v for k, v in ours.items() if k.endswith(f"{name}.{metric}")]
            yield answer(f"cocoserve.intro.vs_{name}_{metric}", [min(values), max(values)])
    for metric in ("latency", "throughput"):
        values = [v for k, v in ours.items() if k.endswith(metric)]
        yield answer(f"cocoserve.abstract.{metric}_range", [min(values), max(values)])


def _fig10(
    base: Served, gamma: str | float = "literal", t_up: float = 0.3, average: str = "five"
) -> Numbers:
    found: Numbers = {}
    ours = replace(coco(base, gamma, t_up), instances=2)
    for load, ends in LOADS.items():
        two, four = (mean_over(replace(base, instances=n), ends, average) for n in (2, 4))
        mine = mean_over(ours, ends, average)
        found[f"{load}.hft2.latency"] = cut(mine.latency_s, two.latency_s)
        found[f"{load}.hft2.throughput"] = gain(mine.throughput_rps, two.throughput_rps)
        found[f"{load}.hft4.latency"] = gain(mine.latency_s, four.latency_s)
        found[f"{load}.hft4.throughput"] = cut(mine.throughput_rps, four.throughput_rps)
    return found


def _of_instances(**reading: Any) -> Iterator[Result]:
    base, others = server(reading)
    ours = _fig10(base, **others)
    yield from (answer(f"cocoserve.fig10.{name}", value) for name, value in ours.items())
    scaled = coco(base, **{name: others[name] for name in others if name != "average"})
    hft2, hft4, coco2 = (
        memory_mib(replace(one, instances=n)) for one, n in ((base, 2), (base, 4), (scaled, 2))
    )
    without = "Algorithm 1 copies nothing with the literal gamma: two instances hold what HFT's do."
    yield answer("cocoserve.sec63.mem_hft2", hft2)
    yield answer("cocoserve.sec63.mem_hft4", hft4)
    yield answer("cocoserve.sec63.mem_coco2", coco2, without)
    yield answer("cocoserve.sec63.mem_vs_2", gain(coco2, hft2), without)
    yield answer("cocoserve.sec63.mem_vs_4", 100.0 * coco2 / hft4, without)
    yield answer("cocoserve.sec63.half_cost", 100.0 * coco2 / hft4, without)
    yield answer("cocoserve.abstract.cost_reduction", cut(coco2, hft4), without)
    kept = [100.0 - ours[f"{load}.hft4.throughput"] for load in LOADS]
    yield answer("cocoserve.sec63.performance_share", sum(kept) / len(kept), "Of throughput.")
