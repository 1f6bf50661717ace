"""Section `tune`: candidates for model shapes, each checked before it is timed.

Each candidate is a case with one row. `hybrid_gemm` reads `tune/tuned/<device>.json` once the file
is in `pallas_kernels/tuned/` or in the folder that `PALLAS_KERNELS_TUNED` names.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.gpu import Case, Context, Row, Scale, Times, time_launches
from experiments.gpu.cases import Unmeasurable
from experiments.gpu.kernels import launching, operands
from experiments.gpu.kernels.candidates import Candidate, candidates
from pallas_kernels import tuned_results
from pallas_kernels.counting import round_up
from pallas_kernels.gemm import (
    MODEL_PROJECTIONS,
    ROW_MULTIPLE,
    Gemm,
    Machine,
    WLayout,
    launch_traffic,
    machine_for,
    plans,
    present_machine,
)
from pallas_kernels.gemm.heuristics import KERNEL_SOURCES, OP, tuning_key
from pallas_kernels.host_memory import HostArray
from pallas_kernels.numerics import check_gemm
from pallas_kernels.tuned_results import Entry, Measurement, Tuned

ROWS = (16, 512, 2048, 64, 10240, 1)
MODELS = dict.fromkeys(("c2cserve-fig4", "llama-3.1-8b", *MODEL_PROJECTIONS))
TOP: Mapping[Scale, int] = {"full": 8, "quick": 4, "tiny": 2}
LAYOUT: WLayout = "nk"  # of checkpoints and of `c2c.transformer`; part of the key
_SAMPLE = 64  # one row and one column in so many are checked: every tile of every warpgroup


def cases(scale: Scale) -> list[Case]:
    """List the candidates by rows; at each, the paper's shape comes before those of models."""
    if scale == "tiny":
        return [_case(256, 128, 8, rank) for rank in range(TOP[scale])]
    shapes = list(dict.fromkeys(shape for model in MODELS for shape in MODEL_PROJECTIONS[model]))
    problems = [(*shape, m) for m in ROWS for shape in shapes]
    if scale == "quick":
        problems = [(*shapes[0], m) for m in ROWS[:4]]
    return [_case(*problem, rank) for problem in problems for rank in range(TOP[scale])]


def _case(k: int, n: int, m: int, rank: int) -> Case:
    return Case(
        spec={"k": k, "n": n, "m": m, "rank": rank}, limit_s=60.0, least_s=15.0, host="only"
    )


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Check and time the candidate of this rank by predicted time, and store the result.

    Raises:
      RuntimeError: the candidate's product is wrong.
      Unmeasurable: there is no folder for the tuner's file.
    """
    if not context.folder:
        raise Unmeasurable("no folder for the tuner's file")
    gemm = Gemm(m=round_up(spec["m"], ROW_MULTIPLE), k=spec["k"], n=spec["n"], w_layout=LAYOUT)
    # Earlier measurements must not change the candidates, or a rank would be another one.
    if context.backend == "sm90":
        machine = present_machine(measured=False)
    else:
        machine = machine_for("cpu", sm_count=4, measured=False)
    one = candidates(gemm, machine, TOP[context.scale])[spec["rank"]]
    x = operands.activations(gemm.m, gemm.k, context)
    copies = operands.copies(2 * gemm.k * gemm.n, context)
    w = operands.weights(gemm.k, gemm.n, copies, "host", context.seed, w_layout=LAYOUT)
    assert isinstance(w, HostArray)
    launch = launching.hybrid(
        x,
        w,
        context,
        alpha=one.alpha,
        cluster=one.config.cluster,
        config=one.config,
        w_layout=LAYOUT,
    )
    if reason := wrong(np.asarray(launch(0)), np.asarray(x), w.numpy()[0].T, context.seed):
        raise RuntimeError(f"alpha {one.alpha:.3g}, {one.config}: {reason}")
    times = time_launches(launch, target_s=context.target_s, repetitions=context.repetitions)
    _file(gemm, machine, one, times, context)
    return [
        {
            "alpha": one.alpha,
            "config": json.dumps(asdict(one.config)),
            "predicted_s": one.predicted_s,
            "weight_bytes": 2 * gemm.k * gemm.n,
            "flops": 2.0 * gemm.m * gemm.k * gemm.n,
            **times.columns(),
        }
    ]


def wrong(out: np.ndarray, x: np.ndarray, w: np.ndarray, seed: int) -> str:
    """Return the error of out = x[M, K] w[K, N]; "" if sampled elements are within bounds.

    One random row in every 64 and one random column in every 64 are computed in float64. No element
    of `out` may be NaN or infinite.
    """
    if not np.isfinite(out.astype(np.float32)).all():
        return "the product has NaN or infinities"
    rng = np.random.default_rng([seed, *out.shape])
    rows, columns = (_one_of_each(rng, size) for size in out.shape)
    found = check_gemm(out[rows][:, columns], x[rows], w[:, columns])
    if found.ok:
        return ""
    return (
        f"row {rows[found.row]}, column {columns[found.column]} is {found.got:.6g}, expected "
        f"{found.expected:.6g}: the error is {found.worst_ratio:.3g} times its bound"
    )


def _one_of_each(rng: np.random.Generator, size: int) -> np.ndarray:
    starts = np.arange(0, size, _SAMPLE)
    return starts + rng.integers(0, np.minimum(_SAMPLE, size - starts))


def _file(gemm: Gemm, machine: Machine, one: Candidate, times: Times, context: Context) -> None:
    """Add a measurement to the device's file of tuned results, atomically."""
    path = Path(context.folder) / "tune" / "tuned" / tuned_results.file_name(machine.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    tuned = tuned_results.read(path) if path.exists() else Tuned(device=machine.device)
    measured = Measurement(
        config=asdict(one.config),
        alpha=one.alpha,
        time_s=times.median_s,
        spread=times.spread,
        repeats=len(times.seconds),
    )
    entry = Entry(
        op=OP,
        key=tuning_key(gemm, machine.sm_count),
        source=tuned_results.source_hash(KERNEL_SOURCES),
        provenance={
            "backend": context.backend,
            "device": jax.devices()[0].device_kind,
            "jax": tuned_results.jax_version(),
            "jaxlib": importlib.metadata.version("jaxlib"),
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        },
        measurements=(measured,),
    )
    moved = launch_traffic(gemm, one.config, plans(gemm, one.config, one.alpha))
    on_gpu = context.backend == "sm90"
    link_gbps = float(moved.link_bytes) / times.median_s / 1e9 if on_gpu else 0.0
    tuned_results.write(path, tuned.with_measurement(entry, link_gbps))
