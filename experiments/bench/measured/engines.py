"""Replay of public engine runs by the simulator: TPOT in a closed loop on one GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from c2c.config import build, load
from c2c.cost import Constants, calibration_for, engine_names, load_constants, load_engine
from c2c.models import Deployment, ModelSpec, WeightFormat
from c2c.policies import Reserved
from c2c.serving import FAIL_NONE, Prepared, ServingSetup, activation_bytes, prepare
from c2c.simulator import simulate_in_memory
from c2c.workloads import ClosedLoop, RequestBlock, Workload
from experiments.bench.measured.chips import chip_of
from experiments.bench.measured.errors import error_of
from experiments.bench.measured.ops import is_held_out
from experiments.bench.measured.predict import spec_of
from experiments.bench.measured.rows import Rows

__all__ = [
    "EngineRun",
    "fit_overheads",
    "overhead_of",
    "prepared_engine",
    "replay",
    "runs_of",
    "tpot_s",
]

SHAPE: Final = ("model", "system", "backend", "version", "gemm", "isl", "osl", "concurrency")
WAVES: Final = 6  # requests of each client
# Bytes of an element of weights, activations and KV cache. Four-bit weights cost as eight-bit ones.
WIDTHS: Final[Mapping[str, int]] = {"bf16": 2, "fp8": 1, "fp8_block": 2, "nvfp4": 1}
# One-byte weights with a scale for each block. Engines keep activations and KV cache in BF16 and
# quantise a product's inputs. Products cost as in BF16.
BLOCKS: Final = WeightFormat(kind="fp8", bits=8, block=(128, 128))
ROUNDING: Final = 0.01  # relative errors below it hardly count
MEMORY_SHARE: Final = 0.9  # share for weights and KV cache of engines without a file


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """One row: a run of an engine on a known chip with a known model."""

    platform: str
    engine: str  # name and version, as in the file names of conf/engines
    model: str
    spec: ModelSpec
    precision: str
    isl: int
    osl: int
    concurrency: int
    tpot_s: float
    held_out: bool


def runs_of(rows: Rows) -> Iterator[tuple[EngineRun | None, str]]:
    """Yield each row as a run and "", or None and the unknown chip, model or precision."""
    for i, key in enumerate(rows.keys(SHAPE)):
        row = {name: rows[name][i] for name in rows.columns}
        platform, spec = chip_of(row["system"]), spec_of(row["model"])
        if platform is None or spec is None or row["gemm"] not in WIDTHS:
            unknown = row["system"] if platform is None else row["model"]
            yield None, unknown if platform is None or spec is None else row["gemm"]
            continue
        yield EngineRun(
            platform=platform,
            engine=f"{row['backend']}-{row['version']}",
            model=row["model"],
            spec=replace(
                spec,
                dtype_bytes=WIDTHS[row["gemm"]],
                weights=BLOCKS if row["gemm"] == "fp8_block" else None,
                max_position=max(spec.max_position, int(row["isl"] + row["osl"])),
            ),
            precision=row["gemm"],
            isl=int(row["isl"]),
            osl=int(row["osl"]),
            concurrency=int(row["concurrency"]),
            tpot_s=row["tpot_ms"] / 1e3,
            held_out=is_held_out(key),
        ), ""  # fmt: skip


def overhead_of(run: EngineRun) -> tuple[float, bool]:
    """Return the host's seconds a step, and whether they are the engine's own.

    An engine without a file in conf/engines has the value of the chip's calibration.
    """
    if run.engine in engine_names():
        return load_engine(run.engine).step_overhead_s, True
    return load_constants(calibration_for(run.platform)).step_overhead_s, False


def fit_overheads(rows: Rows) -> dict[str, tuple[float, str]]:
    """Fit the host's seconds a step of each engine that has a file; return value and source text.

    The fit uses half of an engine's BF16 runs (see `is_held_out`); the text has the error on the
    others.
    """
    from scipy.optimize import minimize_scalar

    found = {}
    runs = [run for run, _ in runs_of(rows) if run is not None and run.precision == "bf16"]
    for engine in engine_names():
        ours = [run for run in runs if run.engine == engine]
        fitted = [run for run in ours if not run.held_out]
        if not fitted:
            continue

        def loss(overhead_s: float, fitted: Sequence[EngineRun] = fitted) -> float:
            logs = [math.log(tpot_s(r, overhead_s=overhead_s) / r.tpot_s) for r in fitted]
            return float(np.mean([math.hypot(x, ROUNDING) for x in logs]))

        best = minimize_scalar(loss, bounds=(0.0, 4e-3), method="bounded",
                               options={"xatol": 1e-5, "maxiter": 20})  # fmt: skip
        value = float(f"{best.x:.3g}")
        held = [run for run in ours if run.held_out]
        error = error_of(
            np.array([tpot_s(r, overhead_s=value) for r in held]),
            np.array([r.tpot_s for r in held]),
        )
        rest = "none" if error is None else error.in_words
        found[engine] = (
            value,
            (
                f"fitted to {len(fitted)} of its {len(ours)} BF16 runs in e2e_single_gpu.csv; "
                f"TPOT of the others: {rest}"
            ),
        )
    return found


def tpot_s(run: EngineRun, *, overhead_s: float, constants: Constants | None = None) -> float:
    """Return the simulated TPOT, the mean over all requests after the first wave.

    Args:
      run: run to replay.
      overhead_s: host's seconds a step.
      constants: constants of the chip; None: its own calibration.
    """
    if constants is None:
        constants = load_constants(calibration_for(run.platform))
    known = run.engine in engine_names()
    share = load_engine(run.engine).memory_share if known else MEMORY_SHARE
    prepared = prepared_engine(run.platform, run.spec, constants, overhead_s, share)
    together = replay(prepared, run)
    records = replay(prepared, run, ramp_s=_mean_s(together))
    served = records[records.failure == FAIL_NONE]
    # The first wave has all prompts at once, unlike a running server: leave it out.
    steady = served[np.argsort(served.id)][run.concurrency :]
    per_token = (steady.finished_s - steady.first_token_s) / (steady.output_tokens - 1)
    return float(per_token.mean()) if len(per_token) else float("nan")


def _mean_s(records: Any) -> float:
    served = records[records.failure == FAIL_NONE]
    return float((served.finished_s - served.arrival_s).mean()) if len(served) else 0.0


def replay(prepared: Prepared, run: EngineRun, ramp_s: float = 0.0) -> Any:
    """Return the records of a closed loop of equal requests."""
    count = run.concurrency * WAVES
    block = RequestBlock(
        arrival_s=np.zeros(count),
        model=np.zeros(count, np.int32),
        prompt_tokens=np.full(count, run.isl, np.int32),
        output_tokens=np.full(count, run.osl, np.int32),
    )
    loop = ClosedLoop(concurrency=run.concurrency, ramp_s=ramp_s)
    workload = Workload((run.spec.name,), lambda: iter([block]), {"requests": count}, loop)
    return simulate_in_memory(prepared, workload).records


@cache
def _base(platform: str) -> ServingSetup:
    """Return a plain engine on a whole chip with a resident model, which callers replace.

    8192 tokens a step is the default of TensorRT-LLM and of SGLang on large GPUs.
    """
    return build(load([
        f"hardware={platform}", "catalog=dense", "catalog.models=[{spec: llama-3-3b}]",
        "workload=deterministic", "workload.requests=1", "system=serverlessllm",
        "system.starts_active=true", "system.chunk.tokens=8192", "system.profile.chunks=[8192]",
        "system.max_batch=2048", "system.check_slo=false",
    ])).serving  # fmt: skip


@lru_cache(maxsize=None, typed=True)  # policies without fields are equal tuples
def prepared_engine(
    platform: str, spec: ModelSpec, constants: Constants, overhead_s: float, memory_share: float,
    batch: Any = Reserved(),  # noqa: B008 (it never changes)
) -> Prepared:  # fmt: skip
    """Return a plain engine on a whole chip with one model and a scheduler, ready to simulate."""
    base = _base(platform)
    deployment = Deployment(name=spec.name, spec=spec, ttft_slo_s=1.0, tpot_slo_s=1.0)
    # An engine's share is for weights and KV cache; activations use the rest.
    widest = max(base.system.profile.chunks)
    rest = (1.0 - memory_share) * base.platform.gpu.hbm_bytes
    reserve_bytes = max(0.0, rest - activation_bytes(spec, widest))
    system = replace(base.system, hbm_reserve_bytes=reserve_bytes, batch=batch)
    return prepare(replace(
        base,
        deployments=(deployment,),
        constants=replace(constants, step_overhead_s=overhead_s),
        system=system,
    ))  # fmt: skip
