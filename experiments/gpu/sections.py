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

    `share` is the part of a run of all sections that this one may take.
    """

    name: str
    title: str
    module: str
    share: float

    def cases(self, scale: Scale) -> list[Case]:
        """Return the cases, most informative first."""
        found: list[Case] = importlib.import_module(self.module).cases(scale)
        return found


_ALL = (
    Section(
        name="link",
        title="copies over the link and in device memory, matrix products",
        module="experiments.gpu.link",
        share=0.05,
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
    ),
    Section(
        name="kernels",
        title="hybrid_gemm against its limits and its rivals, by shape, rows, SMs, alpha, cluster",
        module=f"{_BENCH}.grid",
        share=0.6,
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
)

SECTIONS: Mapping[str, Section] = MappingProxyType({section.name: section for section in _ALL})
"""By name. `share` is of the time that is left when the section begins."""
