"""Placement of kernels on GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from c2c.errors import SettingError
from c2c.ranges import BelowOne, Count, In, check_value
from c2c.systems.tessera.cut import minimum_cut
from c2c.systems.tessera.milp import solve
from c2c.systems.tessera.plan import Options, Plan, Policy, cost, costs_of, memory_of, stages_of
from c2c.systems.tessera.work import Gpus, Work

__all__ = ["blocks_of_layers", "check_solver", "plan", "relaxation_s", "sweep"]


def plan(
    work: Work,
    gpus: Gpus,
    policy: Policy,
    *,
    options: Options | None = None,
    tied: Sequence[int] | None = None,
    first: Sequence[int] | None = None,
    gap: float = 0.01,
    time_limit_s: float = 60.0,
) -> Plan:
    """Return a placement: each kernel's GPU, with its cost and bound.

    Args:
      policy: throughput, for queues; or latency.
      tied: [kernel], groups that share a GPU; None: none.
      first: coarser groups, as a start.
      gap: relative gap of the solver.
      time_limit_s: the best so far is returned.

    Raises:
      SettingError: a wrong number of GPUs, or no placement keeps the limits.
    """
    options = options or Options()
    count = len(gpus.names)
    check_value(policy, Policy, "policy")
    if len(work.times_s[0]) != count:
        raise SettingError("times_s", len(work.times_s[0]), f"times on {count} GPUs")
    check_solver(gap, time_limit_s)
    groups = _numbered("tied", range(len(work.names)) if tied is None else tied, work)
    coarse = None if first is None else _numbered("first", first, work)
    _check_memory(work, gpus)
    best = _best_start(work, gpus, policy, options, groups)
    is_plain = options == Options() and gpus.memory_bytes is None and tied is None
    if policy == "latency" and count == 2 and is_plain:
        gpu_of, bound = minimum_cut(work, gpus)
        candidate = _plan(work, gpus, policy, options, gpu_of, bound, "cut")
        # rounding to integers may make the cut miss the better of two nearly equal placements
        return (
            candidate
            if best is None or candidate.objective_s <= best.objective_s
            else _as(best, bound)
        )
    least = relaxation_s(work) if policy == "throughput" else float(work.times.min(1).sum())
    for tying in (groups,) if coarse is None else (coarse, groups):
        whole = tying is groups
        best_s = math.inf if best is None else best.objective_s
        solving = partial(
            solve, work, gpus, policy, options=options, tied=tying, at_most_s=best_s, gap=gap,
            time_limit_s=time_limit_s if whole else time_limit_s / 4,
        )  # fmt: skip
        if whole and coarse is not None and best_s * (1 - gap) > least:
            least = max(least, solving(divisible=True).bound_s)  # ten times as fast
        if best is not None and best_s * (1 - gap) <= least:
            return _as(best, least)
        solved = solving()
        if solved.gpu_of is not None:
            how = "milp" if whole else "milp, tied first"
            candidate = _plan(work, gpus, policy, options, solved.gpu_of, 0.0, how)
            if candidate.objective_s <= best_s:
                best = candidate
    if best is not None:  # if the last program has no solution, nothing costs less than `known`
        bound = best_s if solved.is_infeasible else max(least, solved.bound_s)
        return _as(best, min(bound, best.objective_s))
    why = "is infeasible" if solved.is_infeasible else f"has no solution after {time_limit_s:g} s"
    raise SettingError(
        "placement", policy, "one that keeps the limits",
        f"The program {why}: memory_bytes={gpus.memory_bytes}, max_cuts={options.max_cuts}, "
        f"pinned={dict(work.pinned)}.",
    )  # fmt: skip


def check_solver(gap: float, time_limit_s: float) -> None:
    """Check the solver's gap and time limit.

    Raises:
      SettingError: a gap outside [0, 1), or a limit not above 0.
    """
    check_value(gap, BelowOne, "gap")
    check_value(time_limit_s, Annotated[float, In("(0, inf]")], "time_limit_s")


def relaxation_s(work: Work) -> float:
    """Return a bound on the slowest stage: divisible kernels, no transfers."""
    times = work.times
    kernels, count = times.shape
    c = np.zeros(kernels * count + 1)
    c[-1] = 1.0
    k, g = np.divmod(np.arange(kernels * count), count)
    upper = coo_matrix(
        (
            np.concatenate([times.ravel() * 1e6, -np.ones(count)]),
            (np.concatenate([g, np.arange(count)]),
             np.concatenate([np.arange(kernels * count), np.full(count, kernels * count)])),
        )
    ).tocsr()  # fmt: skip
    equal = coo_matrix(
        (np.ones(kernels * count), (k, np.arange(kernels * count))),
        shape=(kernels, kernels * count + 1),
    ).tocsr()
    result = linprog(c, A_ub=upper, b_ub=np.zeros(count), A_eq=equal, b_eq=np.ones(kernels))
    return float(result.fun) / 1e6


def sweep(work: Work) -> Iterator[tuple[int, ...]]:
    """Yield first placements: GPUs alone, then thresholds of t[k,a] / t[k,b]."""
    kernels, count = work.times.shape
    for g in range(count):
        yield (g,) * kernels
    with np.errstate(divide="ignore", invalid="ignore"):
        for a in range(count):
            for b in range(a + 1, count):
                ratio = np.nan_to_num(work.times[:, a] / work.times[:, b], nan=1.0, posinf=np.inf)
                for threshold in np.unique(ratio):
                    yield tuple(np.where(ratio >= threshold, b, a).tolist())


def blocks_of_layers(
    layer_of: Sequence[int], kind_of: Sequence[str], blocks: int = 4
) -> tuple[int, ...]:
    """Return groups of kernels that share a GPU: those of a kind in a block of layers.

    Args:
      layer_of: each kernel's layer; -1: none.

    >>> blocks_of_layers([-1, 0, 0, 1, 1, 2, 2, 3, 3], "eababababh", 2)
    (0, 1, 2, 1, 2, 3, 4, 3, 4)
    """
    check_value(blocks, Count, "blocks")
    layers = max(layer_of, default=-1) + 1
    groups: dict[tuple[object, ...], int] = {}
    numbers = []
    for kernel, (layer, kind) in enumerate(zip(layer_of, kind_of, strict=False)):
        key = ("apart", kernel) if layer < 0 else (kind, layer * blocks // layers)
        numbers.append(groups.setdefault(key, len(groups)))
    return tuple(numbers)


def _numbered(name: str, groups: Sequence[int], work: Work) -> list[int]:
    if len(groups) != len(work.names):
        raise SettingError(name, len(groups), f"a group for each of {len(work.names)} kernels")
    numbers = {group: n for n, group in enumerate(sorted(set(groups)))}
    return [numbers[group] for group in groups]


def _best_start(
    work: Work, gpus: Gpus, policy: Policy, options: Options, groups: Sequence[int]
) -> Plan | None:
    rows = np.array(list(sweep(work)), np.intp)
    allowed = np.ones(len(rows), bool)
    for kernel, gpu in work.pinned.items():
        allowed &= rows[:, kernel] == gpu
    first: dict[int, int] = {}
    tied = [first.setdefault(group, kernel) for kernel, group in enumerate(groups)]
    allowed &= (rows == rows[:, tied]).all(1)
    rows = rows[allowed]
    about = costs_of(work, gpus, policy, rows, options)
    for k in np.argsort(about, kind="stable"):
        gpu_of = tuple(rows[k].tolist())
        if not math.isfinite(about[k]):
            break
        if not _fits(work, gpus, gpu_of):
            continue
        result = _plan(work, gpus, policy, options, gpu_of, 0.0, "sweep")
        if options.max_cuts is None or result.cuts <= options.max_cuts:
            return result
    return None


def _plan(
    work: Work, gpus: Gpus, policy: Policy, options: Options, gpu_of: Sequence[int], bound: float,
    method: str,
) -> Plan:  # fmt: skip
    stages, cuts = stages_of(work, gpus, gpu_of, options)
    return Plan(
        policy=policy, gpu_of=tuple(gpu_of), objective_s=cost(policy, stages, options),
        bound_s=bound, stages=stages, cuts=cuts, method=method,
    )  # fmt: skip


def _as(plan: Plan, bound_s: float) -> Plan:
    return replace(plan, bound_s=bound_s)


def _fits(work: Work, gpus: Gpus, gpu_of: Sequence[int]) -> bool:
    if gpus.memory_bytes is None:
        return True
    gpu_bytes = memory_of(work, gpu_of, len(gpus.names))
    return all(have <= limit for have, limit in zip(gpu_bytes, gpus.memory_bytes, strict=True))


def _check_memory(work: Work, gpus: Gpus) -> None:
    if gpus.memory_bytes is None:
        return
    largest = max((w.nbytes for w in work.weights), default=0.0)
    if largest > max(gpus.memory_bytes):
        raise SettingError(
            "weights", largest, f"at most {max(gpus.memory_bytes):.0f} bytes, the largest memory"
        )
    total = sum(w.nbytes for w in work.weights)
    if total > sum(gpus.memory_bytes):
        raise SettingError(
            "weights", total, f"at most {sum(gpus.memory_bytes):.0f} bytes, all memory together"
        )
