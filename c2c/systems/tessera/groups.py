"""Kernel groups of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from c2c.cost.kernel_graph import Transfer

__all__ = ["Group", "groups_of"]


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive kernels of one GPU without communication.

    Attributes:
      receives: transfers (source, target) before the first kernel.
      sends: transfers (source, target) after the last kernel.
    """

    gpu: int
    kernels: tuple[int, ...]
    receives: tuple[tuple[int, int], ...] = ()
    sends: tuple[tuple[int, int], ...] = ()


def groups_of(gpu_of: Sequence[int], transfers: Sequence[Transfer]) -> tuple[Group, ...]:
    """Return a placement's kernel groups, by first kernel.

    Groups end before receiving and after sending kernels.

    Source: Tessera, sections III-D and III-C.
    """
    into: dict[int, list[tuple[int, int]]] = {}
    outof: dict[int, list[tuple[int, int]]] = {}
    for edge in transfers:
        if gpu_of[edge.source] != gpu_of[edge.target]:
            into.setdefault(edge.target, []).append((edge.source, edge.target))
            outof.setdefault(edge.source, []).append((edge.source, edge.target))
    open_: dict[int, list[int]] = {}
    closed: list[Group] = []

    def close(gpu: int) -> None:
        kernels = open_.pop(gpu, [])
        if kernels:
            closed.append(
                Group(
                    gpu, tuple(kernels), tuple(into.get(kernels[0], ())),
                    tuple(outof.get(kernels[-1], ())),
                )
            )  # fmt: skip

    for kernel, gpu in enumerate(gpu_of):
        if kernel in into:
            close(gpu)
        open_.setdefault(gpu, []).append(kernel)
        if kernel in outof:
            close(gpu)
    for gpu in sorted(open_):
        close(gpu)
    return tuple(sorted(closed, key=lambda group: group.kernels[0]))
