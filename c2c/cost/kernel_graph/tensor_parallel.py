"""Tensor-parallel step of a decoder on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from c2c.cost.kernel_graph.kernels import StepKernel, Transfer, Weights
from c2c.cost.kernel_graph.phases import Served
from c2c.ranges import Count, check_value

__all__ = ["ranked", "tensor_parallel"]

_SPLIT: Final = frozenset(
    {"qkv", "rope_q", "merge", "o", "gate_up", "activate", "down", "experts_gate_up",
     "experts_down", "head"}
)  # fmt: skip
_OF_KEYS: Final = frozenset({"rope_k", "kv_write"})
_OF_ALL: Final = frozenset({"qkv", "gate_up", "experts_gate_up", "head"})  # replicated on each rank
_SUMMED: Final = {"o": "all_reduce_o", "down": "all_reduce", "combine": "all_reduce"}


def tensor_parallel(
    kernels: Sequence[StepKernel], ranks: int, *, kv_heads: int
) -> tuple[tuple[StepKernel, ...], tuple[int, ...]]:
    """Return one rank's kernels, and the new index of each given kernel.

    Raises:
      SettingError: `ranks` is below 1.

    Source: Tessera, section IV: each rank becomes a pair, collectives stay.
    """
    check_value(ranks, Count, "ranks")
    result: list[StepKernel] = []
    places: list[int] = []
    stands: list[int] = []  # a kernel, or the all-reduce of its result
    for kernel in kernels:
        moved = replace(kernel, takes=tuple(stands[k] for k in kernel.takes))
        result.append(_of_rank(moved, ranks, min(ranks, kv_heads)))
        places.append(len(result) - 1)
        name = _SUMMED.get(kernel.kind)
        if name and ranks > 1:
            nbytes = kernel.write_bytes
            result.append(
                StepKernel(
                    kind=name, layer=kernel.layer, read_bytes=nbytes, write_bytes=nbytes,
                    takes=(len(result) - 1,),
                    wire_bytes=2 * (ranks - 1) / ranks * nbytes,
                )
            )  # fmt: skip
        stands.append(len(result) - 1)
    return tuple(result), tuple(places)


def ranked(served: Served, ranks: int, *, kv_heads: int) -> Served:
    """Return the load of one rank of a model."""
    phases, places, offset, keys = [], [], 0, min(ranks, kv_heads)
    for phase in served.phases:
        kernels, moved = tensor_parallel(phase.kernels, ranks, kv_heads=kv_heads)
        phases.append(replace(phase, kernels=kernels))
        places += [offset + k for k in moved]
        offset += len(kernels)
    nodes = served.kernels
    return replace(
        served,
        phases=tuple(phases),
        weight_bytes=served.weight_bytes / ranks,
        state_bytes=served.state_bytes / keys,
        handed_bytes=served.handed_bytes / keys,
        handed=tuple(
            Transfer(places[e.source], places[e.target], e.nbytes / keys, e.weight)
            for e in served.handed
        ),
        kept=tuple(
            Weights(
                w.nbytes / (keys if nodes[w.readers[0]].kind == "attention" else ranks),
                tuple(places[k] for k in w.readers),
            )
            for w in served.kept
        ),
    )


def _of_rank(kernel: StepKernel, ranks: int, keys: int) -> StepKernel:
    if kernel.kind == "attention":
        return replace(
            kernel, tensor_flops=kernel.tensor_flops / ranks, core_flops=kernel.core_flops / ranks,
            cache_bytes=kernel.cache_bytes / keys, read_bytes=kernel.read_bytes / ranks,
            write_bytes=kernel.write_bytes / ranks,
        )  # fmt: skip
    share = ranks if kernel.kind in _SPLIT else keys if kernel.kind in _OF_KEYS else 1
    row_wise = kernel.kind in ("o", "down", "experts_down")  # each rank has a full-size partial sum
    return replace(
        kernel, tensor_flops=kernel.tensor_flops / share, core_flops=kernel.core_flops / share,
        weight_bytes=kernel.weight_bytes / share,
        read_bytes=kernel.read_bytes / (1 if kernel.kind in _OF_ALL else share),
        write_bytes=kernel.write_bytes / (1 if row_wise else share),
        product=kernel.product and _part_of(kernel.product, share, row_wise=row_wise),
    )  # fmt: skip


def _part_of(
    product: tuple[float, float, float], share: int, *, row_wise: bool
) -> tuple[float, float, float]:
    m, k, n = product
    return (m, k / share, n) if row_wise else (m, k, n / share)
