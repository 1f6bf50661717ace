"""The tables of predicted times in pallas_kernels/README.md: `python -m` this module prints them.

All are predictions with the rates of `MACHINES`, unmeasured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from pallas_kernels.gemm import (
    MACHINES,
    Gemm,
    Machine,
    Quantised,
    choice,
    plans,
    predict,
    prediction,
)
from pallas_kernels.gemm import heuristics as choices
from pallas_kernels.gemm.config import sums_apart
from pallas_kernels.gemm.prediction import reachable
from pallas_kernels.gemm.schedule import counts

ROWS = (1, 64, 512, 2048, 10240)
K, N = 4096, 16384
_ALPHAS = np.linspace(0, 1, 33)
_DEVICES = {"H200": MACHINES["NVIDIA H200"], "GH200": MACHINES["NVIDIA GH200 480GB"]}


def gemm(m: int) -> Gemm:
    return Gemm(m=-(-m // 8) * 8, k=K, n=N)


def best_s(m: int, machine: Machine, wanted: Callable[[Any], bool] = lambda _: True) -> float:
    """Return the shortest time of the configurations that are wanted, at any alpha."""
    times = [
        predict(gemm(m), config, plans(gemm(m), config, alphas), machine).time_s.min()
        for _, config in choices.candidates(gemm(m), machine)
        if wanted(config)
        for alphas in (reachable(_ALPHAS, config, gemm(m)),)
    ]
    return float(min(times))


@contextmanager
def without_sums() -> Iterator[None]:
    """Predict as if partial sums never left the cluster."""
    counted = prediction.launch_traffic

    def without(of: Gemm, config: Any, plan: Any, **more: Any) -> Any:
        moved = counted(of, config, plan, **more)
        tile, passes = config.tm * config.tn * of.out_itemsize, moved.asym_cta_outputs
        steps = -(-of.k // config.tk)
        tiles = moved.asym_cta_steps // steps
        stored = np.where(sums_apart(config, of), tiles * tile, moved.asym_cta_store_bytes)
        nothing = np.zeros_like(moved.sums_store_bytes)
        return replace(
            moved,
            sums_store_bytes=nothing,
            sums_load_bytes=nothing,
            sums_hbm_bytes=nothing,
            asym_cta_store_bytes=stored,
            asym_cta_outputs=np.minimum(passes, tiles),
        )

    with mock.patch.object(prediction, "launch_traffic", without):
        yield


def _chosen(**fixed: Any) -> Callable[[int, Machine], float]:
    return lambda m, machine: choice(gemm(m), machine, **fixed).time_s


def _split_k(m: int, machine: Machine) -> float:
    with without_sums():
        return best_s(m, machine, lambda config: not config.ping_pong)


CHANGES: dict[str, Callable[[int, Machine], float]] = {
    "before: cluster 1, alpha 1": _chosen(cluster=1, alpha=1.0),
    "cluster for each call, alpha 1": _chosen(alpha=1.0),
    "alpha for each call, cluster 1, sums in float32": _chosen(cluster=1),
    "X by multicast, alpha 0, best cluster": _chosen(alpha=0.0),
    "without ping-pong": lambda m, machine: best_s(m, machine, lambda one: not one.ping_pong),
    "what is chosen now": _chosen(),
    "not built, at best: split K, no sums in HBM": _split_k,
}


def milliseconds(seconds: Sequence[float], digits: str = ".3g") -> str:
    return ", ".join(f"{one * 1e3:{digits}}" for one in seconds)


def changes() -> list[str]:
    """Return a line for each change, with one GPU after the other."""
    return [
        f"| {name} | "
        + " | ".join(milliseconds([time(m, one) for m in ROWS]) for one in _DEVICES.values())
        + " |"
        for name, time in CHANGES.items()
    ]


def slices() -> list[str]:
    """Return with and without ping-pong where the tensor cores are the limit: 16 SMs."""
    return [
        f"| {name}, 16 SMs | "
        + " | ".join(
            milliseconds([best_s(m, one.with_sms(16), wanted) for m in (512, 2048, 10240)])
            for one in _DEVICES.values()
        )
        + " |"
        for name, wanted in (
            ("without ping-pong", lambda config: not config.ping_pong),
            ("with", lambda config: True),
        )
    ]


def shares() -> list[str]:
    """Return a line for each GPU and kind of weights: quarters of W in device memory."""

    def times(m: int, machine: Machine, weights: Quantised | None) -> str:
        of = replace(gemm(m), quantised=weights, w_layout="nk" if weights else "kn")
        config = choice(of, machine).config
        strips = counts(config, of).strips
        alphas = reachable(np.linspace(0, 1, 9), config, of)[:, None]
        near = strips * np.arange(5) // 4
        found = predict(of, config, plans(of, config, alphas, resident_strips=near), machine).time_s
        least = np.broadcast_to(found, (len(alphas), len(near))).min(0)
        rounded = milliseconds(list(least), ".2f").split(", ")
        return f"{rounded[0]} at any share" if len(set(rounded)) == 1 else ", ".join(rounded)

    kinds = {"bf16": None, "int4, groups of 128": Quantised(kind="int4", group=128)}
    return [
        f"| {name} | " + " | ".join(times(m, one, of) for m in (64, 512, 2048)) + " |"
        for one in _DEVICES.values()
        for name, of in kinds.items()
    ]


if __name__ == "__main__":
    print("\n".join([*changes(), *slices(), *shares()]))
