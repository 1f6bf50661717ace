"""Methods to serve one model on two different GPUs, and the gain of each.

    c2c plan tessera                                   # the paper's three pairs
    c2c plan tessera pairs=[[a100_80,l40s]] model=qwen3-32b rows=16
    c2c plan tessera pairs=[[gh200,l40s]] prices.gh200=3.5
    c2c plan tessera -m gbps=12.5,25                   # a sweep: one table of both

Methods are each GPU alone, replicas, pipelines, separate prefill and decode, separate attention, a
placement of kernels, and its limit. Prints requests a second under one load, also by price, next to
the paper's Table III. Writes JSON with provenance to a folder in runs/bench.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from c2c.cost.kernel_graph import Batch, Load, TimedGpu, decoder, step_kernels, timed_gpus
from c2c.errors import SettingError
from c2c.models import load_spec
from c2c.ranges import AboveZero, check_value
from c2c.systems.tessera import Gpus, Way, best_way, check_solver, load_pair, ways, work_of
from experiments.benchmark import MeasurementSettings, benchmark, measure_each
from experiments.papers.tessera.offline import published_for_price
from experiments.papers.tessera.workloads import PAIRS

__all__ = ["WaysSettings", "main", "measure", "published"]

_PAIRS: Final = {(p.left, p.right): p.name for p in map(load_pair, PAIRS)}


@dataclass
class WaysSettings(MeasurementSettings):
    """Settings, as key=value on the command line.

    Attributes:
      model: name of the served model.
      pairs: pairs of names in `conf/hardware`, the left GPU first.
      prices: prices relative to an L40S, instead of those in `conf/hardware`.
      gbps: rate of the link.
      latency_s: latency of a transfer.
      prompt: tokens of a prompt.
      output: tokens of an answer.
      rows: rows of a decode step.
      prompts: prompts of a prefill step.
      gap: relative gap at which the solver may stop.
    """

    model: str = "llama-3-8b"
    pairs: list[Any] = field(default_factory=lambda: [list(pair) for pair in _PAIRS])
    prices: dict[str, float] = field(default_factory=dict)
    gbps: float = 25.0
    latency_s: float = 5e-6
    prompt: int = 1020
    output: int = 129
    rows: int = 64
    prompts: int = 4
    gap: float = 0.01


def published(pair: Sequence[str], way: str) -> float | None:
    """Return Table III's requests a second by price, over the left GPU's."""
    name = _PAIRS.get((pair[0], pair[1]))
    return None if name is None else published_for_price(name, way)


def measure(settings: WaysSettings, pair: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each method of a pair."""
    results = ways(
        decoder(load_spec(settings.model), _load(settings)),
        _gpus(settings, pair),
        gbps=settings.gbps,
        latency_s=settings.latency_s,
        gap=settings.gap,
    )
    # no relative values if the left GPU cannot hold the model
    base = results[0] if results[0].requests_per_s else None
    best = {by_price: _best(results, by_price=by_price) for by_price in (False, True)}
    unpriced = [gpu.name for gpu in _gpus(settings, pair) if gpu.gpu.price is None]
    return [
        {
            "pair": "+".join(pair),
            "way": way.name,
            "requests_per_s": way.requests_per_s,
            "relative": way.requests_per_s / base.requests_per_s if base else None,
            "relative_for_price": _relative(way.efficiency, base.efficiency if base else None),
            "published_for_price": published(pair, way.name),
            "held_gb": [nbytes / 1e9 for nbytes in way.held_bytes],
            "is_best": way is best[False],
            "is_best_for_price": way is best[True],
            "without_price": unpriced,
            "detail": way.detail if way.requests_per_s else f"does not fit: {way.detail}",
        }
        for way in results
    ]


def _gpus(settings: WaysSettings, pair: Sequence[str]) -> tuple[TimedGpu, ...]:
    return tuple(
        replace(one, gpu=replace(one.gpu, price=settings.prices.get(one.name, one.gpu.price)))
        for one in timed_gpus(*pair)
    )


def _relative(efficiency: float | None, base: float | None) -> float | None:
    return None if efficiency is None or base is None else efficiency / base


def _best(strategies: Sequence[Way], *, by_price: bool) -> Way | None:
    if by_price and any(way.price is None for way in strategies):
        return None
    if all(way.requests_per_s == 0 for way in strategies if way.name != "limit"):
        return None
    return best_way(strategies, by_price=by_price)


def _load(settings: WaysSettings) -> Load:
    return Load(
        prompt=settings.prompt, output=settings.output, rows=settings.rows, prompts=settings.prompts
    )


def _table(rows: Sequence[dict[str, Any]], model: str) -> Table:
    table = Table(title=f"{model} on two GPUs, relative to the left one", box=SIMPLE_HEAD)
    for head in ("pair", "method", "requests/s", "relative", "by price", "Table III", "detail"):
        table.add_column(head, justify="left" if head in ("pair", "method", "detail") else "right")
    for row in rows:
        numbers = (row["relative"], row["relative_for_price"], row["published_for_price"])
        mark = " *" if row["is_best"] else ""
        table.add_row(
            row["pair"] if row["way"] == "left" else "", f"{row['way']}{mark}",
            f"{row['requests_per_s']:.2f}",
            *("" if number is None else f"{number:.2f}" for number in numbers), row["detail"],
        )  # fmt: skip
    table.caption = (
        "*: most requests a second. Table III: by price, measured, mean over five models; its "
        "replicas are computed from its columns"
    )
    for name in sorted({name for row in rows for name in row["without_price"]}):
        table.caption += f". {name} has no price; set prices.{name}=... (an L40S is 1)"
    return table


def main(arguments: Sequence[str]) -> int:
    """Run the comparison; return the exit status."""

    def check(settings: WaysSettings) -> None:
        spec = load_spec(settings.model)
        load = _load(settings)
        check_solver(settings.gap, 1.0)
        if not settings.pairs:
            raise SettingError("pairs", settings.pairs, "at least one pair")
        for name, price in settings.prices.items():
            check_value(price, AboveZero, f"prices.{name}")
            if not any(name in pair for pair in settings.pairs):
                raise SettingError(f"prices.{name}", price, "the price of a GPU among `pairs`")
        for pair in settings.pairs:
            if not isinstance(pair, list) or len(pair) != 2:
                raise SettingError(
                    "pairs", settings.pairs, "pairs of names of chips in conf/hardware"
                )
            gpus = _gpus(settings, pair)
            Gpus.alike(pair, gbps=settings.gbps, latency_s=settings.latency_s)
            work_of(step_kernels(spec, Batch(rows=1, chunk=1, context=load.prompt)), gpus)

    work = measure_each(
        "pairs", lambda s: s.pairs, measure, lambda s, rows: _table(rows, s.model), "ways"
    )
    return benchmark(
        WaysSettings, arguments, work, check=check, packages=("c2c", "experiments.papers.tessera"),
        name="ways",
    )  # fmt: skip
