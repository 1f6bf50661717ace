"""The sections, in the order in which they are run: what answers most comes first."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from experiments.bench.sections import SECTIONS as MEASURING
from experiments.gpu.section import Section

_OWN = (
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
        name="correctness",
        title="every kernel at real sizes against exact results (tests/gpu)",
        module=f"{__package__}.correctness",
        share=0.5,
        checks=True,
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
_ORDER = (
    "smoke",
    "link",
    "facts",
    "correctness",
    "kernels",
    "tune",
    "sanitizer",
    "mig",
    "transformer",
    "contention",
    "quantized",
    "residency",
    "grouped",
    "attention",
    "engine",
    "medusa",
    "tessera",
    "cocoserve",
    "woven",
    "rehearsal",
)
_BY_NAME = {section.name: section for section in (*_OWN, *MEASURING)}

SECTIONS: Mapping[str, Section] = MappingProxyType({name: _BY_NAME[name] for name in _ORDER})
DEFAULT = tuple(section.name for section in SECTIONS.values() if not section.asked)
"""What runs without names: what decides most comes first."""
