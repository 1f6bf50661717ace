"""The sections, in the order in which they are run: what answers most comes first."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from experiments.gpu.section import Section

_SECTIONS = (
    Section(
        name="smoke",
        title="ten small tests: do the kernels work here at all?",
        module=f"{__package__}.smoke",
        share=0.3,
        checks=True,
    ),
    Section(
        name="link",
        title="copies over the link and in device memory, matrix products",
        module=f"{__package__}.link",
        share=0.1,
    ),
    Section(
        name="facts",
        title="TMA from host memory, L2, clusters, copies by XLA, bandwidth by SMs",
        module=f"{__package__}.kernels.facts",
        share=0.15,
    ),
    Section(
        name="correctness",
        title="every kernel at real sizes against exact results (tests/gpu)",
        module=f"{__package__}.correctness",
        share=0.5,
        checks=True,
    ),
    Section(
        name="kernels",
        title="hybrid_gemm against its limits and its rivals, by shape, rows, SMs, alpha, cluster",
        module=f"{__package__}.kernels.grid",
        share=0.6,
        survey="quick",
    ),
    Section(
        name="tune",
        title="the tuner's candidates for the shapes of models, beside what is chosen without it",
        module=f"{__package__}.kernels.tuning",
        share=0.35,
        survey="quick",
    ),
    Section(
        name="sanitizer",
        title="racecheck and initcheck on a small hybrid, grouped and quantised kernel",
        module=f"{__package__}.kernels.sanitizer",
        share=0.35,
        checks=True,
    ),
    Section(
        name="mig",
        title="what one slice draws of the link alone, and seven together",
        module=f"{__package__}.kernels.mig",
        share=0.3,
        survey="quick",
    ),
    Section(
        name="transformer",
        title="an 8B model: decode and prefill by strategy, switching between two models",
        module=f"{__package__}.transformer.section",
        share=0.4,
    ),
    Section(
        name="grouped",
        title="experts: only those with rows cross the link",
        module=f"{__package__}.kernels.grouped",
        share=0.5,
    ),
    Section(
        name="attention",
        title="prefill, decode and merging of partial results",
        module=f"{__package__}.kernels.attention",
        share=1.0,
    ),
    Section(
        name="engine",
        title="two models by turns over one pool: texts, compiles, what a turn costs",
        module=f"{__package__}.engine",
        share=0.3,
        checks=True,
    ),
    Section(
        name="medusa",
        title="graphs captured in one process and restored in another, by the driver's calls",
        module=f"{__package__}.medusa",
        share=0.3,
        checks=True,
        asked=True,
    ),
    Section(
        name="tessera",
        title="a step's kernels timed, recorded, split over two contexts, with priorities",
        module=f"{__package__}.tessera",
        share=1.0,
        asked=True,
    ),
    Section(
        name="cocoserve",
        title="layers copied and moved between two pools while a model decodes",
        module=f"{__package__}.cocoserve",
        share=0.3,
        checks=True,
        asked=True,
    ),
    Section(
        name="woven",
        title="attention away through pinned host memory: polls, sending, receiving",
        module=f"{__package__}.woven",
        share=0.3,
        checks=True,
        asked=True,
    ),
    Section(
        name="rehearsal",
        title="tests that hang, crash and fail, to see what is left of them; needs no GPU",
        module=f"{__package__}.rehearsal",
        share=1.0,
        checks=True,
        asked=True,
        rehearses=True,
    ),
)

SECTIONS: Mapping[str, Section] = MappingProxyType({one.name: one for one in _SECTIONS})
DEFAULT = tuple(section.name for section in SECTIONS.values() if not section.asked)
"""What runs without names: what decides most comes first."""
