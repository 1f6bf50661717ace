"""Contraction of kernels not worth separating for latency."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from c2c.systems.tessera.work import Gpus, Work

__all__ = ["Contracted", "contracted"]

_Costs = list[list[float]]  # [own GPU][the other's GPU], seconds


@dataclass(frozen=True, slots=True)
class Contracted:
    """A smaller program with the same optimum.

    Attributes:
      tied: each kernel's group.
      fixed: group -> known GPU.
    """

    tied: tuple[int, ...]
    fixed: Mapping[int, int]


def contracted(
    work: Work, gpus: Gpus, tied: Sequence[int], anchors: Collection[int] = ()
) -> Contracted | None:
    """Return groups that share a GPU in some best placement."""
    pinned: dict[int, int] = {}
    for kernel, gpu in work.pinned.items():
        if pinned.setdefault(tied[kernel], gpu) != gpu:
            return None
    graph = _graph(work, gpus, tied, set(anchors))
    for group, gpu in pinned.items():
        graph.fix(group, gpu)
    graph.shrink()
    return graph.result(tied)


@dataclass(slots=True)
class _Graph:
    times: list[list[float]]  # [group][GPU], transfers to and from fixed groups included
    beside: list[dict[int, _Costs]]  # [group][the other group]
    kept: set[int]
    into: list[int] = field(default_factory=list)  # [group], itself or the group it has joined
    fixed: dict[int, int] = field(default_factory=dict)
    open: list[int] = field(default_factory=list)  # groups to look at
    moves: dict[int, tuple[_Costs, _Costs]] = field(default_factory=dict)  # see `_worst`

    @property
    def count(self) -> int:
        return len(self.times[0])

    def shrink(self) -> None:
        while self.open:
            group = self.open.pop()
            if self.into[group] != group or group in self.fixed or group in self.kept:
                continue
            worst = self._worst(group)
            gpu = self._dominant(group, worst)
            if gpu is not None:
                self.fix(group, gpu)
                continue
            other = self._partner(group, worst)
            if other is not None:
                self.join(group, other)

    def _worst(self, group: int) -> dict[int, _Costs]:
        result = {}
        every = range(self.count)
        for other, costs in self.beside[group].items():
            # layers share cost tables; they are kept here so that no other table gets their id
            entry = self.moves.get(id(costs))
            if entry is None:
                moves = [
                    [max(_more(costs[g][k], costs[h][k]) for k in every) for h in every]
                    for g in every
                ]
                entry = self.moves[id(costs)] = (costs, moves)
            result[other] = entry[1]
        return result

    def _dominant(self, group: int, worst: Mapping[int, _Costs]) -> int | None:
        times, every = self.times[group], range(self.count)
        for g in every:
            if all(
                times[g] - times[h] + sum(cost[g][h] for cost in worst.values()) <= 0
                for h in every
                if h != g
            ):
                return g
        return None

    def _partner(self, group: int, worst: Mapping[int, _Costs]) -> int | None:
        times, every = self.times[group], range(self.count)
        for other, costs in self.beside[group].items():
            if all(
                # move from h to g, with the other group on g
                times[g] - times[h] - costs[h][g]
                + sum(cost[g][h] for n, cost in worst.items() if n != other) <= 0
                for g in every for h in every if g != h
            ):  # fmt: skip
                return other
        return None

    def fix(self, group: int, gpu: int) -> None:
        self.fixed[group] = gpu
        for other, costs in self.beside[group].items():
            self.times[other] = [
                t + c for t, c in zip(self.times[other], costs[gpu], strict=True)
            ]  # fmt: skip
            del self.beside[other][group]
            self.open.append(other)
        self.beside[group] = {}

    def join(self, group: int, other: int) -> None:
        self.into[group] = other
        self.times[other] = [
            a + b for a, b in zip(self.times[other], self.times[group], strict=True)
        ]
        del self.beside[other][group]
        for third, costs in self.beside[group].items():
            if third == other:
                continue
            turned = [list(column) for column in zip(*costs, strict=True)]
            self.beside[other][third] = _sum(self.beside[other].get(third), costs)
            self.beside[third][other] = _sum(self.beside[third].get(other), turned)
            del self.beside[third][group]
            self.open.append(third)
        self.beside[group] = {}
        self.open.append(other)

    def result(self, tied: Sequence[int]) -> Contracted:
        numbers: dict[tuple[str, int], int] = {}
        fixed: dict[int, int] = {}
        group_of = []
        for first in tied:
            group = first
            while self.into[group] != group:
                group = self.into[group]
            gpu = self.fixed.get(group)
            key = ("group", group) if gpu is None else ("gpu", gpu)
            number = numbers.setdefault(key, len(numbers))
            if gpu is not None:
                fixed[number] = gpu
            group_of.append(number)
        return Contracted(tuple(group_of), fixed)


def _graph(work: Work, gpus: Gpus, tied: Sequence[int], anchors: set[int]) -> _Graph:
    groups, count = max(tied) + 1, len(gpus.names)
    times = [[0.0] * count for _ in range(groups)]
    for group, row in zip(tied, work.times_s, strict=True):
        times[group] = [a + b for a, b in zip(times[group], row, strict=True)]
    beside: list[dict[int, _Costs]] = [{} for _ in range(groups)]
    cache: dict[tuple[float, float], tuple[_Costs, _Costs]] = {}  # layers repeat their transfers
    for edge in work.transfers:
        a, b = tied[edge.source], tied[edge.target]
        if a == b or not edge.weight:
            continue
        size = (edge.nbytes, edge.weight)
        if size not in cache:
            costs = [
                [0.0 if u == g else edge.weight * gpus.seconds(edge.nbytes, u, g)
                 for g in range(count)]
                for u in range(count)
            ]  # fmt: skip
            cache[size] = (costs, [list(column) for column in zip(*costs, strict=True)])
        there, back = cache[size]
        beside[a][b] = _sum(beside[a].get(b), there)
        beside[b][a] = _sum(beside[b].get(a), back)
    return _Graph(
        times=times, beside=beside, kept=anchors, into=list(range(groups)),
        open=list(range(groups))[::-1],
    )  # fmt: skip


def _more(a: float, b: float) -> float:
    return 0.0 if a == b else a - b


def _sum(a: _Costs | None, b: _Costs) -> _Costs:
    if a is None:
        return b
    return [[x + y for x, y in zip(p, q, strict=True)] for p, q in zip(a, b, strict=True)]
