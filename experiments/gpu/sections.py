"""Sections in the order of a run, most informative first, and calls of a lease."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from experiments.gpu.section import Call, Section

_SECTIONS = (
    Section(
        name="smoke",
        title="first checks: XLA, JAX's own kernel, ours over device and over host memory",
        module=f"{__package__}.smoke",
        share=0.5,
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
        title="TMA from host memory, additions, layouts, the last pass, clusters, copies by XLA",
        module=f"{__package__}.kernels.facts",
        share=0.25,
    ),
    Section(
        name="kernels",
        title="hybrid_gemm against prediction, limits and rivals, by rows, alpha, cluster, SMs",
        module=f"{__package__}.kernels.grid",
        share=0.6,
    ),
    Section(
        name="profile",
        title="two launches by their own clock: waits for X, W and sums, products, stores",
        module=f"{__package__}.kernels.profiling",
        share=0.4,
    ),
    Section(
        name="correctness",
        title="every kernel at real sizes against exact results (tests/gpu)",
        module=f"{__package__}.correctness",
        share=0.6,
        checks=True,
    ),
    Section(
        name="sanitizer",
        title="racecheck and initcheck on a small hybrid, grouped and quantised kernel",
        module=f"{__package__}.kernels.sanitizer",
        share=0.5,
        checks=True,
    ),
    Section(
        name="attention",
        title="prefill, decode and merging of partial results",
        module=f"{__package__}.kernels.attention",
        share=1.0,
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
        name="tune",
        title="the tuner's candidates for model shapes, beside the choice without it",
        module=f"{__package__}.kernels.tuning",
        share=0.35,
    ),
    Section(
        name="medusa",
        title="graphs captured in one process and restored in another, by the driver's calls",
        module=f"{__package__}.medusa",
        share=0.3,
        checks=True,
    ),
    Section(
        name="tessera",
        title="a step's kernels timed, recorded, split over two contexts, with priorities",
        module=f"{__package__}.tessera",
        share=0.4,
    ),
    Section(
        name="engine",
        title="two models in turns over one pool: texts, compilations, cost of a turn",
        module=f"{__package__}.engine",
        share=0.3,
        checks=True,
    ),
    Section(
        name="mig",
        title="link rate of one slice alone and of seven together",
        module=f"{__package__}.kernels.mig",
        share=1.0,
    ),
    Section(
        name="rehearsal",
        title="tests that hang, crash and fail, to check their reports; needs no GPU",
        module=f"{__package__}.rehearsal",
        share=1.0,
        checks=True,
        rehearses=True,
    ),
)

SECTIONS: Mapping[str, Section] = MappingProxyType({one.name: one for one in _SECTIONS})

CALLS: Mapping[str, Call] = MappingProxyType(
    {
        "first": Call(
            sections=("smoke", "link", "facts", "kernels", "profile", "correctness"),
            scale="quick",
            case_s=45.0,
        ),
        "second": Call(sections=("correctness", "sanitizer", "attention")),
        "third": Call(sections=("kernels", "transformer", "grouped")),
        "fourth": Call(sections=("tune", "medusa", "tessera", "engine", "mig"), scale="quick"),
    }
)
"""Sections by command of a lease, most valuable first. No command runs everything."""
