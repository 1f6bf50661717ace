"""Bounds of this device: rates of the link, device memory and tensor cores alone.

Every run of a section that compares results with bounds measures them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from experiments.gpu import Case, Context, Row, Scale, time_launches
from experiments.gpu.cases import Place
from experiments.gpu.kernels import operands
from experiments.gpu.kernels.probes import Streaming, launcher, scalars
from experiments.gpu.link import device_copy, link_copy, matrix_products

LINK_SHAPE: Mapping[Scale, tuple[int, int]] = {
    "full": (8192, 16384),  # 268 MB, several times the L2
    "quick": (8192, 16384),
    "tiny": (256, 128),
}


def cases(sm_limits: Iterable[int]) -> list[Case]:
    """List the bounds as cases of every run."""
    found: list[dict[str, Any]] = [
        {"what": "bound", "of": of} for of in ("link_dma", "hbm", "matmul")
    ]
    found += [{"what": "bound", "of": "link_sm", "sm_limit": n} for n in sm_limits]
    return [
        Case(spec=spec, always=True, host="only" if spec["of"] == "link_sm" else "")
        for spec in found
    ]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Measure one bound."""
    tiny, repeats = context.scale == "tiny", max(3, context.repetitions[0])
    if spec["of"] == "link_dma":
        return [link_copy("pinned_to_device", (1 << 20) if tiny else (1 << 28), repeats)]
    if spec["of"] == "hbm":
        return [device_copy((1 << 20) if tiny else (1 << 30), repeats, passes=2 if tiny else 16)]
    if spec["of"] == "matmul":
        return [matrix_products(128 if tiny else 8192, repeats, products=2 if tiny else 16)]
    return [stream(streaming(context), context, sms=spec["sm_limit"])]


def streaming(
    context: Context, *, k: int | None = None, n: int | None = None, **choices: Any
) -> Streaming:
    """Return the probe that reads an array of k x n, by default several times the L2."""
    if context.scale == "tiny":
        choices = {"rows": 64, "columns": 64, "stages": 2} | choices
    rows, columns = LINK_SHAPE[context.scale]
    return Streaming(k=k or rows, n=n or columns, sm_count=operands.sms(context), **choices)


def stream(
    reading: Streaming,
    context: Context,
    *,
    sms: int,
    passes: int = 1,
    place: Place = "host",
) -> Row:
    """Time reads of an array by the SMs with TMA; see `probes`."""
    data = matrix(reading, context, place)
    read = launcher(reading, interpret=operands.interpret_settings(context))
    run = jax.device_put(scalars(reading, sms=min(sms, reading.sm_count), passes=passes))
    times = time_launches(
        lambda _: read(data, run), target_s=context.target_s, repetitions=context.repetitions
    )
    nbytes = reading.boxes * reading.box_bytes * passes
    return {
        "gbps": nbytes / times.median_s / 1e9,
        "gbps_best": nbytes / min(times.seconds) / 1e9,
        "gbps_worst": nbytes / max(times.seconds) / 1e9,
        "bytes": nbytes,
        **times.columns(),
    }


def matrix(reading: Streaming, context: Context, place: Place = "host") -> jax.Array:
    """Return a random matrix in `place` as an operand of a kernel."""
    w = operands.pieces(reading.k, reading.n, 1, 1, context.seed)[0][0]
    return w.to_device() if place == "device" else operands.operand(w, context)
