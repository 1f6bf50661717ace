"""The sections, in the order in which they are run: what answers most comes first."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from experiments.gpu.cases import Case, Scale

_BENCH = "experiments.bench.kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A list of cases and the module that measures them: `cases(scale)`, `measure(spec, context)`.

    `share` is the part of a run of all sections that this one may take, of what is left when it
    begins. `survey` is the scale at which it runs there, if not in full.
    """

    name: str
    title: str
    module: str
    share: float
    survey: Scale | None = None
    checks: bool = False  # measures nothing: what passed quickly need not run again
    asked: bool = False  # runs only if it is named

    def cases(self, scale: Scale) -> list[Case]:
        """Return the cases, most informative first."""
        found: list[Case] = importlib.import_module(self.module).cases(scale)
        return found


_ALL = (
    Section(
        name="smoke",
        title="ten small tests: do the kernels work here at all?",
        module="experiments.gpu.smoke",
        share=0.3,
        checks=True,
    ),
    Section(
        name="link",
        title="copies over the link and in device memory, matrix products",
        module="experiments.gpu.link",
        share=0.1,
    ),
    Section(
        name="facts",
        title="TMA from host memory, L2, clusters, copies by XLA, bandwidth by SMs",
        module=f"{_BENCH}.facts",
        share=0.15,
    ),
    Section(
        name="correctness",
        title="every kernel at real sizes against exact results (tests/gpu)",
        module="experiments.gpu.correctness",
        share=0.5,
        checks=True,
    ),
    Section(
        name="kernels",
        title="hybrid_gemm against its limits and its rivals, by shape, rows, SMs, alpha, cluster",
        module=f"{_BENCH}.grid",
        share=0.6,
        survey="quick",
    ),
    Section(
        name="tune",
        title="the tuner's candidates for the shapes of models, beside what is chosen without it",
        module=f"{_BENCH}.tuning",
        share=0.35,
        survey="quick",
    ),
    Section(
        name="sanitizer",
        title="racecheck and initcheck on a small hybrid, grouped and quantised kernel",
        module=f"{_BENCH}.sanitizer",
        share=0.35,
        checks=True,
    ),
    Section(
        name="mig",
        title="what one slice draws of the link alone, and seven together",
        module=f"{_BENCH}.mig",
        share=0.3,
        survey="quick",
    ),
    Section(
        name="transformer",
        title="an 8B model: decode and prefill by strategy, switching between two models",
        module="experiments.bench.transformer.section",
        share=0.4,
    ),
    Section(
        name="contention",
        title="several streams over one link: groups of SMs, and processes",
        module=f"{_BENCH}.contention",
        share=0.25,
    ),
    Section(
        name="quantized",
        title="weights of fewer bits against bf16",
        module=f"{_BENCH}.quantized",
        share=0.4,
    ),
    Section(
        name="grouped",
        title="experts: only those with rows cross the link",
        module=f"{_BENCH}.grouped",
        share=0.5,
    ),
    Section(
        name="attention",
        title="prefill, decode and merging of partial results",
        module=f"{_BENCH}.attention",
        share=1.0,
    ),
    Section(
        name="rehearsal",
        title="tests that hang, crash and fail, to see what is left of them; needs no GPU",
        module="experiments.gpu.rehearsal",
        share=1.0,
        checks=True,
        asked=True,
    ),
)

SECTIONS: Mapping[str, Section] = MappingProxyType({section.name: section for section in _ALL})
DEFAULT = tuple(section.name for section in _ALL if not section.asked)
"""What runs without names: what decides most comes first."""
