"""Figs. 8 and 10: gains over library, engine and instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from c2c.models import load_spec
from c2c.ranges import Count
from c2c.systems.cocoserve import module_of, operation_costs
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.cocoserve.baselines import OURS, SAID, coco, cut, gain, under, vllm
from experiments.papers.cocoserve.batch_server import (
    ANSWER_TOKENS,
    MODEL,
    Served,
    batch_of,
    drained,
    first_bytes,
    mean_over,
)
from experiments.papers.cocoserve.fig9 import bytes_used

__all__ = ["Comparison", "Instances", "compute", "compute_instances"]

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Big:
    """A model beyond any card, over `split` cards."""

    model: str
    split: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Experiment of Fig. 8: server, split model, burst, loads."""

    server: Served
    big: Big
    rates: tuple[Count, ...]
    loads: dict[str, tuple[Count, Count]]

    def servers(self, base: Served) -> dict[str, Served]:
        """Return the server of each of the two models."""
        return {"13b": base, "70b": replace(base, model=self.big.model, split=self.big.split)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Experiment of Fig. 10: server, loads, and copied layers in the paper's memory."""

    server: Served
    loads: dict[str, tuple[Count, Count]]
    few_layers: Count

    @property
    def peak(self) -> int:
        """The highest load of all."""
        return max(max(ends) for ends in self.loads.values())


def _shared(server: Served, loads: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    (low, low_end), (high, high_end) = loads["low"], loads["high"]
    return (
        "A rate of r is read as r requests at once.",
        f"Prompts have {server.prompt_tokens} tokens, answers {ANSWER_TOKENS}.",
        f"Low load is the mean over {low} to {low_end} requests, high load over {high} to "
        f"{high_end}.",
        f"HFT (Hugging Face Transformers) has static batches of {server.batch} requests.",
        "HFT's host time a step is fitted to Fig. 6 (in-sample).",
        "CoCoServe has continuous batches (section 5), or static ones as HFT.",
        "Algorithm 1 copies all 40 layers to a second card at every gamma of Eq. 4 below 1.",
        "At 2.44, the literal gamma, it copies none: CoCoServe equals vLLM, or HFT if static.",
    )


_ABLE: Final = SAID | OURS | {"average"}
Numbers = dict[str, float]


@figure("cocoserve.fig8", title="CoCoServe, Fig. 8: comparison with HFT and vLLM",
        experiment=Comparison, draw=".drawing.draw_rates", needs=SIMULATOR)  # fmt: skip
def compute(context: Context, experiment: Comparison) -> Computed:
    """Return an instance's results a system at low and high load."""
    by_rate = [
        {
            "model": model, "system": name, "rate": rate,
            "throughput_rps": run.throughput_rps, "latency_s": run.latency_s,
        }
        for model, server in experiment.servers(experiment.server).items()
        for name, served in _systems(server).items()
        for rate in experiment.rates
        for run in (drained(served, rate),)
    ]  # fmt: skip

    def answers(**reading: Any) -> Iterator[Result]:
        base, more = under(experiment.server, reading)
        return _results(experiment, base, **more)

    results = under_readings(answers(), answers, _ABLE, everything=not context.quick)
    return Computed(
        tables={"rates": pa.Table.from_pylist(by_rate), "readings": readings_table(results)},
        results=results,
        finding=_ratios(by_rate),
        caption=(
            "Lines: throughput and mean latency of one instance by requests at once, LLaMA-13B "
            "above and 70B below. HFT: Hugging Face Transformers."
        ),
        assumptions=(
            *_shared(experiment.server, experiment.loads),
            "70B is split by layers over four cards, none of which has the free memory for copies.",
            "vLLM serves continuous batches in 0.9 of the memory and reserves it for whole "
            "answers.",
            "vLLM has no host time beside the card's calibration.",
        ),
    )


@figure("cocoserve.fig10", title="CoCoServe, Fig. 10: instances", experiment=Instances,
        draw=".drawing.draw_instances", needs=SIMULATOR)  # fmt: skip
def compute_instances(context: Context, experiment: Instances) -> Computed:
    """Return two CoCoServe instances' gain over HFT, and memory."""
    base = experiment.server
    few = f"2 CoCoServe, {experiment.few_layers} layers"
    systems = {
        "2 HFT": replace(base, instances=2), "4 HFT": replace(base, instances=4),
        "2 CoCoServe": replace(coco(base), instances=2),
        "2 CoCoServe, static": replace(coco(base, batching="static"), instances=2),
        few: replace(coco(base), layers=experiment.few_layers, instances=2),
        f"{few}, static": replace(base, layers=experiment.few_layers, instances=2),
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        {
            "system": name, "load": load, "throughput_rps": mean.throughput_rps,
            "latency_s": mean.latency_s, "memory_mib": memory_mib(served, experiment.peak),
        }
        for name, served in systems.items()
        for load, ends in experiment.loads.items()
        for mean in (mean_over(served, ends),)
    ]  # fmt: skip

    def answers(**reading: Any) -> Iterator[Result]:
        other, more = under(base, reading)
        return _of_instances(experiment, other, **more)

    results = under_readings(answers(), answers, _ABLE, everything=not context.quick)
    return Computed(
        tables={"instances": pa.Table.from_pylist(rows), "readings": readings_table(results)},
        results=results,
        finding=_half(rows),
        caption=(
            "Bars: throughput, mean latency and memory of two and four instances of LLaMA-13B on "
            "four A100 of 40 GB, at low and high load. HFT: Hugging Face Transformers."
        ),
        assumptions=(
            *_shared(base, experiment.loads),
            "Requests are divided evenly among the instances.",
            "Memory counts weights, 499 MiB of a process on each card, and the KV cache of a whole "
            "batch, or of continuous batches at the highest load.",
            "The paper's memory of two CoCoServe has room for 3 to 4 copied layers an instance.",
        ),
    )


def memory_mib(served: Served, rate: int) -> float:
    """Return all instances' most MiB, with copies and process."""
    costs, copied = operation_costs(), module_of(load_spec(served.model), "layer").allocated_bytes
    copies = served.layers * copied + bool(served.layers) * costs.process_bytes
    if served.engine == "static":
        alone = first_bytes(served, batch_of(served), served.prompt_tokens + ANSWER_TOKENS)
    else:
        rows = -(-rate // served.instances)
        alone = bytes_used(replace(served, layers=0), rows, served.hbm_bytes)
    return served.instances * (alone + copies) / _MIB


def _ratios(rows: list[dict[str, Any]]) -> str:
    most = max(r["rate"] for r in rows)
    rps_of = {r["system"]: r["throughput_rps"] for r in rows
          if r["rate"] == most and r["model"] == "13b"}  # fmt: skip
    others = ", ".join(
        f"{name} {rps_of[name] / rps_of['HFT']:.1f} times" for name in rps_of if name != "HFT"
    )
    return f"Throughput of 13B with {most} requests at once, against HFT: {others}"


def _half(rows: list[dict[str, Any]]) -> str:
    row_of = {r["system"]: r for r in rows if r["load"] == "high"}
    four = row_of["4 HFT"]
    shares = ", ".join(
        f"{name} {100 * row_of[name]['throughput_rps'] / four['throughput_rps']:.0f} % with "
        f"{100 * row_of[name]['memory_mib'] / four['memory_mib']:.0f} % of the memory"
        for name in ("2 CoCoServe", "2 CoCoServe, static")
    )
    return f"Throughput at high load against four instances of HFT: {shares}"


def _systems(base: Served) -> dict[str, Served]:
    result = {"HFT": base, "vLLM": vllm(base)}
    if base.model != MODEL:
        return result
    return result | {"CoCoServe": coco(base), "CoCoServe, static": coco(base, batching="static")}


def _fig8(
    experiment: Comparison, base: Served, *, average: str = "five", **reading: Any
) -> Numbers:
    result: Numbers = {}
    for model, hft in experiment.servers(base).items():
        ours = coco(hft, **reading)
        for load, ends in experiment.loads.items():
            mine = mean_over(ours, ends, average)
            for name, theirs in (("hft", hft), ("vllm", vllm(hft))):
                other = mean_over(theirs, ends, average)
                key = f"{model}.{load}.{name}"
                result[f"{key}.latency"] = cut(mine.latency_s, other.latency_s)
                result[f"{key}.throughput"] = mine.throughput_rps / other.throughput_rps
    return result


def _results(experiment: Comparison, base: Served, **reading: Any) -> Iterator[Result]:
    ours = _fig8(experiment, base, **reading)
    for key, value in ours.items():
        model, load, name, metric = key.split(".")
        if (model, load) == ("13b", "high"):
            continue  # not printed
        # over HFT a factor is printed, over vLLM a gain in percent
        number = gain(value, 1.0) if (name, metric) == ("vllm", "throughput") else value
        yield answer(f"cocoserve.fig8.{key}", number)
    for name in ("hft", "vllm"):
        for metric in ("latency", "throughput"):
            values = [v for k, v in ours.items() if k.endswith(f"{name}.{metric}")]
            yield answer(f"cocoserve.intro.vs_{name}_{metric}", [min(values), max(values)])
    for metric in ("latency", "throughput"):
        values = [v for k, v in ours.items() if k.endswith(metric)]
        yield answer(f"cocoserve.abstract.{metric}_range", [min(values), max(values)])


def _of_instances(
    experiment: Instances, base: Served, *, average: str = "five", **reading: Any
) -> Iterator[Result]:
    scaled = coco(base, **reading)

    def gained(name: str, load: str, baseline: str, *, ours_first: bool) -> float:
        ends = experiment.loads[load]
        theirs = mean_over(replace(base, instances=int(baseline[-1])), ends, average)
        mine = mean_over(replace(scaled, instances=2), ends, average)
        values = (getattr(mine, name), getattr(theirs, name))
        return gain(*values) if ours_first else cut(*values)

    def share() -> float:
        lost = [gained("throughput_rps", load, "hft4", ours_first=False)
                for load in experiment.loads]  # fmt: skip
        return 100.0 - sum(lost) / len(lost)

    for load in experiment.loads:
        for rival in ("hft2", "hft4"):
            is_two = rival == "hft2"
            latency = partial(gained, "latency_s", load, rival, ours_first=not is_two)
            throughput = partial(gained, "throughput_rps", load, rival, ours_first=is_two)
            yield answer(f"cocoserve.fig10.{load}.{rival}.latency", latency)
            yield answer(f"cocoserve.fig10.{load}.{rival}.throughput", throughput)
    hft2, hft4, coco2 = (
        memory_mib(replace(one, instances=n), experiment.peak)
        for one, n in ((base, 2), (base, 4), (scaled, 2))
    )
    without = "Algorithm 1 copies all layers: each instance has a second card."
    yield answer("cocoserve.sec63.mem_hft2", hft2)
    yield answer("cocoserve.sec63.mem_hft4", hft4)
    yield answer("cocoserve.sec63.mem_coco2", coco2, without)
    yield answer("cocoserve.sec63.mem_vs_2", gain(coco2, hft2), without)
    yield answer("cocoserve.sec63.mem_vs_4", 100.0 * coco2 / hft4, without)
    yield answer("cocoserve.sec63.half_cost", 100.0 * coco2 / hft4, without)
    yield answer("cocoserve.abstract.cost_reduction", cut(coco2, hft4), without)
    yield answer("cocoserve.sec63.performance_share", share, "Of throughput.")
