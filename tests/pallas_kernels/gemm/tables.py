"""The tables of times and lines in pallas_kernels/README.md: `python -m` this module prints them.

All times are predictions with the rates of `MACHINES`, unmeasured.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
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


KINDS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "int8": {"quantised": Quantised(), "w_layout": "nk"},
    "int4, groups of 128": {"quantised": Quantised(kind="int4", group=128), "w_layout": "nk"},
    "int4, groups of 32, offsets": {
        "quantised": Quantised(kind="int4", group=32, offset_dtype="float32"),
        "w_layout": "nk",
    },
}
WAYS: tuple[dict[str, Any], ...] = (
    {"cluster": 1, "alpha": 1.0},
    {"alpha": 1.0},
    {"cluster": 1},
    {},
)
"""What is held: SymGEMM without multicast, the same with it, AsymGEMM without it, nothing."""


def kinds() -> list[str]:
    """Return a line for each GPU and kind of weights, with what each part of the core brings."""

    def cell(of: Gemm, machine: Machine) -> str:
        times = [f"{choice(of, machine, **held).time_s * 1e3:.3g}" for held in WAYS]
        return times[0] if len(set(times)) == 1 else ", ".join(times)

    def experts(m: int) -> Gemm:
        return Gemm(m=2 * m, k=4096, n=28672, experts=8)  # two for each token

    every: dict[str, Callable[[int], Gemm]] = {
        name: lambda m, fields=fields: replace(gemm(m), **fields)  # type: ignore[misc]
        for name, fields in KINDS.items()
    }
    return [
        f"| {name} | {kind} | " + " | ".join(cell(of(m), machine) for m in ROWS) + " |"
        for name, machine in _DEVICES.items()
        for kind, of in (every | {"experts, bf16": experts}).items()
    ]


def error_of_sums() -> str:
    """Return the line of AsymGEMM as it was, with its partial sums in bf16: errors by SymGEMM's.

    Nine passes of K = 4096, the first one short, as with kc = 512 and `stagger`.
    """
    draw = np.random.default_rng(0)
    x, w = (
        draw.standard_normal(shape).astype(ml_dtypes.bfloat16).astype(np.float32)
        for shape in ((64, K), (K, 256))
    )

    def rounded(values: np.ndarray) -> np.ndarray:
        return values.astype(ml_dtypes.bfloat16).astype(np.float32)

    exact, total = x.astype(np.float64) @ w, np.float32(0)
    ends = [*range(64, K, 512), K]
    for begin, end in zip([0, *ends], ends, strict=False):
        total = rounded(total + rounded(x[:, begin:end] @ w[begin:end]))
    before, once = np.abs(total - exact), np.abs(rounded(x @ w) - exact)
    rms = np.sqrt((before**2).mean() / (once**2).mean())
    return f"| before: alpha 0 with sums in bf16 | | | {rms:.1f}, {before.max() / once.max():.1f} |"


PARTS = {
    "the kernel": "sm90 cta items load compute dequantise conversion rows epilogue",
    "what is computed, tiles, the rules of the hardware": "specs config tiles layout",
    "who does what, arguments, launch, profile": "schedule sharing api launch profile",
    "part of W in device memory": "residency resident shares",
    "counts, predicted times, choice": "traffic times prediction machine heuristics",
    "the same in jax.numpy": "reference",
    "configurations in use, names": "programs __init__",
}
"""Modules of `gemm` by what they are for."""

PACKAGES = ("hybrid_gemm", "quantized_gemm", "grouped_gemm")


def lines_of(path: Path) -> tuple[int, int]:
    """Return a file's lines, and those that are neither blank nor comment nor docstring."""
    text = path.read_text("utf-8")
    said = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    numbered = list(enumerate(text.splitlines(), 1))
    kept = [
        number for number, line in numbered if line.strip() and not line.strip().startswith("#")
    ]
    return len(numbered), len(set(kept) - said)


def sizes() -> dict[str, tuple[int, int, int]]:
    """Return files, lines and lines of code of each part of the GEMM packages."""
    root = Path(choices.__file__).parent
    files = {part: [root / f"{name}.py" for name in names.split()] for part, names in PARTS.items()}
    files |= {f"`{name}`": sorted((root.parent / name).glob("*.py")) for name in PACKAGES}
    assert {path for part in PARTS for path in files[part]} == set(root.glob("*.py"))
    found = {}
    for part, paths in files.items():
        counted = [lines_of(path) for path in paths]
        found[part] = (len(paths), sum(all_ for all_, _ in counted), sum(own for _, own in counted))
    every = [sum(column) for column in zip(*found.values(), strict=True)]
    return found | {"all": (every[0], every[1], every[2])}


def table_of_lines() -> list[str]:
    """Return a line for each part of the GEMM packages: files, lines, lines of code."""
    return [
        f"| {part} | {files} | {round(lines, -1):,} | {round(code, -1):,} |"
        for part, (files, lines, code) in sizes().items()
    ]


if __name__ == "__main__":
    times = [*changes(), *slices(), *shares(), *kinds()]
    print("\n".join([*times, error_of_sums(), "", *table_of_lines()]))
