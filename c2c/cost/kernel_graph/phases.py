"""Phases of a served model on GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from c2c.cost.kernel_graph.kernels import Batch, StepKernel, Transfer, Weights, step_kernels
from c2c.cost.kernel_graph.other_models import (
    DiffusionShape,
    MambaShape,
    diffusion_kernels,
    mamba_kernels,
)
from c2c.models import ModelSpec, kv_bytes_per_token, weight_bytes
from c2c.ranges import Count, check_fields

__all__ = [
    "Load",
    "Phase",
    "Served",
    "decoder",
    "diffusion",
    "parameter_bytes",
    "state_space",
]

_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load of identical requests.

    Attributes:
      rows: of a decode step.
      prompts: of a prefill step.
    """

    prompt: Count
    output: Count
    rows: Count = 64
    prompts: Count = 4

    def __post_init__(self) -> None:
        check_fields(self, "load")

    @property
    def prefill(self) -> Batch:
        """A prefill step."""
        return Batch(rows=self.prompts, chunk=self.prompt, context=self.prompt)

    @property
    def decode(self) -> Batch:
        """A decode step at half of the output."""
        return Batch(rows=self.rows, chunk=1, context=self.prompt + max(1, self.output // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A kind of step and its number per request, below 1 if shared."""

    name: str
    kernels: tuple[StepKernel, ...]
    steps: float


# A decoder's prefill passes keys and values to its decode, a state-space model passes states, a
# diffusion model has one phase.
@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model under a load.

    Attributes:
      phases: in order.
      state_bytes: caches or states of the last phase's rows.
      handed_bytes: per request, from first to second phase.
      prompts: requests in a first-phase step.
      handed: transfers between kernels, numbered over phases.
      kept: memory of kernels, likewise.
      splits_attention: whether attention and feed-forward blocks alternate.
    """

    name: str
    phases: tuple[Phase, ...]
    weight_bytes: float
    state_bytes: float
    handed_bytes: float
    prompts: int
    handed: tuple[Transfer, ...]
    kept: tuple[Weights, ...]
    splits_attention: bool

    @property
    def kernels(self) -> tuple[StepKernel, ...]:
        """Kernels of all phases."""
        return tuple(kernel for phase in self.phases for kernel in phase.kernels)


def decoder(
    spec: ModelSpec,
    load: Load,
    *,
    expert_bytes: float = _ELEMENT_BYTES,
    before: Sequence[StepKernel] = (),
) -> Served:
    """Return a decoder under a load.

    Args:
      expert_bytes: bytes of an expert's weight.
      before: an encoder's kernels, read by a prefill step.
    """
    prefill = _after(before, step_kernels(spec, load.prefill, expert_bytes=expert_bytes))
    decode = step_kernels(spec, load.decode, expert_bytes=expert_bytes)
    every = step_kernels(spec, Batch(rows=2**20, chunk=1, context=1), expert_bytes=expert_bytes)
    matrices = _matrices((*before, *every))
    if not spec.tie_embeddings:
        matrices["embed", -1] = matrices["head", -1]
    cache = float(kv_bytes_per_token(spec)) * load.rows * (load.prompt + load.output)
    handed = float(kv_bytes_per_token(spec)) * load.prompt
    caches = {("attention", layer): cache / spec.layers for layer in range(spec.layers)}
    keys = handed * load.prompts / spec.layers
    return Served(
        name=spec.name,
        phases=_phases(load, prefill, decode),
        weight_bytes=parameter_bytes(spec, expert_bytes)
        + sum(kernel.weight_bytes for kernel in before),
        state_bytes=cache,
        handed_bytes=handed,
        prompts=load.prompts,
        handed=_handed(prefill, decode, "kv_write", "attention", keys, 1 / load.prompts),
        kept=_kept((*prefill, *decode), matrices | caches),
        splits_attention=True,
    )


def parameter_bytes(spec: ModelSpec, expert_bytes: float) -> float:
    """Return a decoder's weight bytes, with `expert_bytes` per expert weight."""
    quantised = spec.experts * 3 * spec.hidden * spec.moe_intermediate * spec.layers
    return float(weight_bytes(spec) - quantised * (spec.dtype_bytes - expert_bytes))


def state_space(name: str, shape: MambaShape, load: Load) -> Served:
    """Return a state-space model under a load."""
    prefill, decode = (mamba_kernels(shape, batch) for batch in (load.prefill, load.decode))
    matrices = _matrices(decode)
    matrices["embed", -1] = matrices["head", -1]
    state_bytes = float(_ELEMENT_BYTES * shape.state_elements)  # per sequence and layer
    states = {("state_update", layer): state_bytes * load.rows for layer in range(shape.layers)}
    return Served(
        name=name,
        phases=_phases(load, prefill, decode),
        weight_bytes=sum(matrices.values()),
        state_bytes=state_bytes * shape.layers * load.rows,
        handed_bytes=state_bytes * shape.layers,
        prompts=load.prompts,
        handed=_handed(
            prefill,
            decode,
            "state_passing",
            "state_update",
            state_bytes * load.prompts,
            1 / load.prompts,
        ),
        kept=_kept((*prefill, *decode), matrices | states),
        splits_attention=False,
    )


def diffusion(name: str, shape: DiffusionShape, *, images: int, steps: int) -> Served:
    """Return a diffusion model for a batch of images."""
    kernels = diffusion_kernels(shape, images)
    matrices = _matrices(kernels)
    return Served(
        name=name,
        phases=(Phase(name="denoise", kernels=kernels, steps=steps / images),),
        weight_bytes=sum(matrices.values()),
        state_bytes=0.0,
        handed_bytes=0.0,
        prompts=images,
        handed=(),
        kept=_kept(kernels, matrices),
        splits_attention=False,
    )


def _phases(
    load: Load, prefill: tuple[StepKernel, ...], decode: tuple[StepKernel, ...]
) -> tuple[Phase, ...]:
    return (
        Phase(name="prefill", kernels=prefill, steps=1 / load.prompts),
        Phase(name="decode", kernels=decode, steps=load.output / load.rows),
    )


def _after(before: Sequence[StepKernel], kernels: Sequence[StepKernel]) -> tuple[StepKernel, ...]:
    if not before:
        return tuple(kernels)
    offset = len(before)
    moved = [replace(k, takes=tuple(offset + source for source in k.takes)) for k in kernels]
    moved[0] = replace(moved[0], takes=(offset - 1,))
    return (*before, *moved)


def _matrices(kernels: Iterable[StepKernel]) -> dict[tuple[str, int], float]:
    return {
        (k.kind, k.layer): k.weight_bytes for k in kernels if k.weight_bytes and k.kind != "embed"
    }


def _kept(
    kernels: Sequence[StepKernel], nbytes: Mapping[tuple[str, int], float]
) -> tuple[Weights, ...]:
    readers: dict[tuple[str, int], list[int]] = {}
    for number, kernel in enumerate(kernels):
        if (kernel.kind, kernel.layer) in nbytes:
            readers.setdefault((kernel.kind, kernel.layer), []).append(number)
    return tuple(Weights(nbytes[key], tuple(numbers)) for key, numbers in readers.items())


def _handed(
    first: Sequence[StepKernel], second: Sequence[StepKernel], writes: str, reads: str,
    nbytes: float, weight: float,
) -> tuple[Transfer, ...]:  # fmt: skip
    writers = {k.layer: number for number, k in enumerate(first) if k.kind == writes}
    return tuple(
        Transfer(writers[kernel.layer], number, nbytes, weight)
        for number, kernel in enumerate(second, len(first))
        if kernel.kind == reads
    )
