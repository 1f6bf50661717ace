"""The sections of `make gpu` that measure kernels and models; each names a module from here."""

from __future__ import annotations

from experiments.gpu.section import Section

SECTIONS = (
    Section(
        name="facts",
        title="TMA from host memory, L2, clusters, copies by XLA, bandwidth by SMs",
        module=f"{__package__}.kernels.facts",
        share=0.15,
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
        name="contention",
        title="several streams over one link: groups of SMs, and processes",
        module=f"{__package__}.kernels.contention",
        share=0.25,
    ),
    Section(
        name="quantized",
        title="weights of fewer bits against bf16",
        module=f"{__package__}.kernels.quantized",
        share=0.4,
    ),
    Section(
        name="residency",
        title="part of the weights in device memory: time by share, and filling on the way",
        module=f"{__package__}.kernels.residency",
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
)
"""`experiments.gpu.sections` says in which order all sections are run."""
