"""Results of Tessera's planner beyond the paper, in four tables.

    python -m experiments.tessera.beyond
    python -m experiments.tessera.beyond 'questions=[slices]' layout=4g_3g

`links`: the latency policy's placement for all bandwidths at once. `overlap`: a step's latency with
overlapping transfers and branches, against the policy's sum. `slices`: kernels of one model over a
large and a small MIG slice, weights streamed once. `drift`: one placement for prefill and decode if
answers become half or twice as long. Writes JSON with provenance to a folder in runs/bench.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from c2c.cost.kernel_graph import Batch, StepKernel, step_kernels, timed_gpus
from c2c.errors import SettingError, unknown_name
from c2c.hardware import link_gbps, load_platform, slices
from c2c.models import ModelSpec, load_spec
from c2c.systems.tessera import (
    Gpus,
    Work,
    blocks_of_layers,
    cut_curve,
    overlapped,
    robust_plan,
    streamed_ways,
    work_of,
)
from experiments.benchmark import MeasurementSettings, benchmark, measure_each
from experiments.tessera.planner import STEPS

__all__ = ["BeyondSettings", "main", "measure"]

_LOW_GBPS, _HIGH_GBPS = 0.1, 10_000.0
_ANSWERS: Final = (64, 129, 258)  # tokens: the trace's median, half and twice
_ROWS: Final = {"decode": (32, 128), "prefill": (4,)}


@dataclass
class BeyondSettings(MeasurementSettings):
    """Settings, as key=value on the command line.

    Attributes:
      questions: tables to print: links, overlap, slices, drift.
      model: name of the served model.
      pair: names of two GPUs in `conf/hardware`.
      gbps: rate of the link between the GPUs.
      latency_s: latency of a transfer.
      hardware: platform of the slices.
      layout: MIG layout; its first two slices are used.
    """

    questions: list[str] = field(default_factory=lambda: list(_QUESTIONS))
    model: str = "llama-3-8b"
    pair: list[str] = field(default_factory=lambda: ["a100_80", "l40s"])
    gbps: float = 25.0
    latency_s: float = 5e-6
    hardware: str = "gh200"
    layout: str = "3g_4x1g"


def measure(settings: BeyondSettings, question: str) -> list[dict[str, Any]]:
    """Return the rows of a question."""
    return _QUESTIONS[question](settings)


def _work(settings: BeyondSettings, step: str) -> Work:
    kernels = step_kernels(load_spec(settings.model), STEPS[step])
    return work_of(kernels, timed_gpus(*settings.pair))


def _between(settings: BeyondSettings) -> Gpus:
    return Gpus.alike(settings.pair, gbps=settings.gbps, latency_s=settings.latency_s)


def _links(settings: BeyondSettings) -> list[dict[str, Any]]:
    return [
        {
            "question": "links",
            "step": step,
            "what": f"from {each.from_gbps:.3g} GB/s",
            "ms": 1e3 * each.latency_s(each.from_gbps),
            "note": f"{each.cuts} cuts, {each.nbytes / 1e6:.1f} MB sent",
        }
        for step in STEPS
        for each in cut_curve(_work(settings, step), _between(settings), _LOW_GBPS, _HIGH_GBPS)
    ]


def _overlap(settings: BeyondSettings) -> list[dict[str, Any]]:
    rows = []
    for step in STEPS:
        work = _work(settings, step)
        found = overlapped(work, _between(settings))
        alone = float(work.times.sum(0).min())
        for what, seconds in (("better GPU alone", alone), (f"by {found.method}", found.seconds)):
            note = "" if what.startswith("better") else f"{1e3 * found.added_s:.3f} ms added up"
            rows.append(
                {"question": "overlap", "step": step, "what": what, "ms": 1e3 * seconds,
                 "note": note}
            )  # fmt: skip
    return rows


def _slices(settings: BeyondSettings) -> list[dict[str, Any]]:
    platform, spec = load_platform(settings.hardware), load_spec(settings.model)
    parts = slices(platform, settings.layout)[:2]
    rows = []
    for step, counts in _ROWS.items():
        for count in counts:
            found = streamed_ways(
                _step(spec, step), count, platform, parts, link_gbps(platform.link, "measured")
            )
            rows += [
                {
                    "question": "slices",
                    "step": f"{step}, {count} rows",
                    "what": way.name,
                    "ms": 1e3 * way.seconds,
                    "note": f"{way.streamed_bytes / 1e9:.1f} GB over the link",
                }
                for way in found
            ]
    return rows


def _drift(settings: BeyondSettings) -> list[dict[str, Any]]:
    spec = load_spec(settings.model)
    kernels = {name: step_kernels(spec, batch) for name, batch in STEPS.items()}
    names = ("prefill", "decode")
    gpus = timed_gpus(*settings.pair)
    kinds = [(f"{name} {k.kind}", k.layer) for name in names for k in kernels[name]]
    found = robust_plan(
        [work_of(kernels[name], gpus) for name in names],
        [(1 / STEPS["prefill"].rows, tokens / STEPS["decode"].rows) for tokens in _ANSWERS],
        _between(settings),
        first=blocks_of_layers([layer for _, layer in kinds], [kind for kind, _ in kinds]),
    )
    plans = {f"planned for {n}": found.own_losses[k] for k, n in enumerate(_ANSWERS)}
    return [
        {
            "question": "drift",
            "step": f"answers of {tokens}",
            "what": what,
            "loss": losses[k],
            "note": "longer than under its own plan",
        }
        for what, losses in {**plans, "for all": found.losses}.items()
        for k, tokens in enumerate(_ANSWERS)
    ]


def _step(spec: ModelSpec, name: str) -> Callable[[int], tuple[StepKernel, ...]]:
    like = STEPS[name]
    return lambda rows: step_kernels(spec, Batch(rows=rows, chunk=like.chunk, context=like.context))


_QUESTIONS: Final[Mapping[str, Callable[[BeyondSettings], list[dict[str, Any]]]]] = {
    "links": _links,
    "overlap": _overlap,
    "slices": _slices,
    "drift": _drift,
}


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="beyond the paper", box=SIMPLE_HEAD)
    for head in ("question", "step", "what", "", "note"):
        table.add_column(head, justify="left" if head else "right")
    for r in rows:
        number = f"{r['ms']:.3f} ms" if "ms" in r else f"{r['loss']:.1%}"
        table.add_row(r["question"], r["step"], r["what"], number, r["note"])
    table.caption = "products by the cost model, the rest by datasheets; nothing ran on a GPU"
    return table


def main(arguments: Sequence[str]) -> int:
    """Print the tables that the command line asks for; return the exit status."""

    def check(settings: BeyondSettings) -> None:
        if not settings.questions:
            raise SettingError("questions", settings.questions, f"some of {', '.join(_QUESTIONS)}")
        for question in settings.questions:
            if question not in _QUESTIONS:
                raise unknown_name("questions", question, _QUESTIONS)
        if len(settings.pair) != 2:
            raise SettingError("pair", settings.pair, "two names of chips in conf/hardware")
        _between(settings)
        spec = load_spec(settings.model)
        work_of(step_kernels(spec, STEPS["decode"]), timed_gpus(*settings.pair))
        if len(slices(load_platform(settings.hardware), settings.layout)) < 2:
            raise SettingError("layout", settings.layout, "a layout with at least two slices")

    work = measure_each(
        "questions", lambda s: s.questions, measure, lambda _, rows: _table(rows), "beyond"
    )
    return benchmark(
        BeyondSettings, arguments, work, check=check, packages=("c2c", "experiments.tessera"),
        name="beyond",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
