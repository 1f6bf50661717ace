"""Section `facts`: assumptions of the kernels' design about the hardware and XLA.

- tma: TMA reads of host memory: correct values, and the rate by box and multicast;
- sms: read rate by the number of SMs that load;
- clusters: number of clusters on the device at once, by start and end of their CTAs;
- operand: whether XLA hands the host array to the kernel without a copy;
- rereads: whether SymGEMM without multicast reads W over the link once for every 256 rows;
- layout: SymGEMM over the same weights as [K, N], [N, K] and in tiles;
- last_pass: AsymGEMM into bf16, whose last pass reads the sums back, and into float32, without one;
- adds: float32 additions by TMA into an array within the L2 and beyond it, against stores;
- launch: time from one small kernel to the next inside a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gpu import Case, Context, Row, Scale, time_launches, wait
from experiments.gpu.cases import Place, Unmeasurable
from experiments.gpu.kernels import bounds, launching, operands
from experiments.gpu.kernels.adding import adds
from experiments.gpu.kernels.probes import Streaming, last_items, launcher, scalars
from pallas_kernels.gemm import W_LAYOUTS
from pallas_kernels.host_memory import HostArray

FIG4 = (4096, 16384)
QUICK = 13
BOXES = ((64, 128), (128, 64), (64, 64), (128, 128), (64, 256), (256, 64))
SMS = (132, 16, 1, 4, 8, 28, 56, 2, 12, 20, 24, 32, 40, 48, 64, 80, 96, 112)


def cases(scale: Scale) -> list[Case]:
    """List the measurements, most important for the design first."""
    if scale == "tiny":
        specs: list[dict[str, Any]] = [
            {"fact": "tma", "place": "host", "rows": 64, "columns": 64, "stages": 2, "cluster": 1},
            {"fact": "tma", "place": "host", "rows": 64, "columns": 64, "stages": 2, "cluster": 2},
            {"fact": "sms", "sms": 2},
            {"fact": "clusters", "cluster": 2},
            {"fact": "operand"},
            {"fact": "rereads", "m": 64},
            {"fact": "layout", "w_layout": "nk", "m": 64},
            {"fact": "last_pass", "out": "float32", "m": 64},
            {"fact": "adds", "span_mib": 1, "passes": 2},
            {"fact": "launch"},
        ]
        return [_case(spec) for spec in specs]

    def tma(place: str, rows: int, columns: int, cluster: int) -> dict[str, Any]:
        stages = 8 * 64 * 128 // (rows * columns)  # 128 KiB in flight
        return {
            "fact": "tma",
            "place": place,
            "rows": rows,
            "columns": columns,
            "stages": stages,
            "cluster": cluster,
        }

    specs = [tma("device", 64, 128, 1), tma("host", 64, 128, 1), {"fact": "operand"}]
    specs += [{"fact": "layout", "w_layout": of, "m": 64} for of in W_LAYOUTS]
    specs += [{"fact": "last_pass", "out": of, "m": 10240} for of in ("bfloat16", "float32")]
    specs += [{"fact": "adds", "span_mib": mib, "passes": n} for mib, n in ((1024, 8), (16, 256))]
    specs += [{"fact": "clusters", "cluster": c} for c in (8, 4, 2)]
    specs += [tma("host", 64, 128, c) for c in (2, 4, 8)]
    specs += [{"fact": "rereads", "m": m} for m in (256, 512, 1024, 2048)]
    specs += [tma("host", rows, columns, 1) for rows, columns in BOXES[1:]]
    specs += [{"fact": "sms", "sms": n} for n in SMS]
    specs += [{"fact": "launch"}, tma("device", 64, 128, 8)]
    return [_case(spec) for spec in (specs[:QUICK] if scale == "quick" else specs)]


def _case(spec: Mapping[str, Any]) -> Case:
    """Return a fact as a case; those of one fact that read host memory are likely to fail alike."""
    if spec["fact"] in ("adds", "launch") or spec.get("place") == "device":
        return Case(spec=spec)
    either = spec["fact"] in ("layout", "last_pass")
    return Case(spec=spec, host="either" if either else "only", group=str(spec["fact"]))


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Measure one fact."""
    sms = operands.sms(context)
    match spec["fact"]:
        case "tma":
            choices = {name: spec[name] for name in ("rows", "columns", "stages", "cluster")}
            reading = bounds.streaming(context, **choices)
            row = bounds.stream(reading, context, sms=sms, place=spec["place"])
            return [row | {"values_right": values_right(reading, spec["place"], context)}]
        case "sms":
            return [bounds.stream(bounds.streaming(context), context, sms=spec["sms"])]
        case "clusters":
            return [resident(spec["cluster"], context)]
        case "operand":
            return [host_operand(context)]
        case "rereads":
            return [rereads(spec["m"], context)]
        case "layout":
            return [product(spec["m"], context, alpha=1.0, w_layout=spec["w_layout"])]
        case "last_pass":
            return [product(spec["m"], context, alpha=0.0, out_dtype=spec["out"])]
        case "adds":
            return [adds(spec["span_mib"] << 20, spec["passes"], context)]
        case _:
            return [launch_gap(context)]


def values_right(streaming: Streaming, place: Place, context: Context) -> bool:
    """Return True if every CTA's last box equals that part of the array."""
    w = bounds.matrix(streaming, context, place)
    run = scalars(streaming, sms=streaming.sm_count)
    read = launcher(streaming, interpret=operands.interpret_settings(context))
    last = np.asarray(read(w, jnp.asarray(run))[0])
    stored = np.asarray(jax.device_get(w))
    down = streaming.k // streaming.rows
    for cluster, item in last_items(run).items():
        top, left = item % down * streaming.rows, item // down * streaming.columns
        expected = stored[top : top + streaming.rows, left : left + streaming.columns]
        for rank in range(streaming.cluster):
            if not np.array_equal(last[cluster * streaming.cluster + rank], expected):
                return False
    return True


def resident(cluster: int, context: Context) -> Row:
    """Count the clusters that are on the device at once.

    These start before any CTA ends, in a launch that reads host memory long enough for all to
    start.
    """
    sms = operands.sms(context)
    row: Row = {"clusters_in_grid": sms // cluster}
    streaming = bounds.streaming(context, cluster=cluster)
    read = launcher(streaming, interpret=operands.interpret_settings(context))
    _, times = read(bounds.matrix(streaming, context), jnp.asarray(scalars(streaming, sms=sms)))
    begun, ended = since_first(np.asarray(times)[: streaming.clusters * cluster])
    row["clusters_overlapping"] = int((begun[::cluster] <= ended.min()).sum())
    return row


def since_first(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends, in ns after the first start, from 32-bit timers that wrap."""
    values = times.astype(np.int64)
    first = int(values[0, 0])
    around = (values - first + 2**31) % 2**32 - 2**31  # within +-2.1 s of the first CTA
    around -= around[:, 0].min()
    return around[:, 0], around[:, 1]


def host_operand(context: Context) -> Row:
    """Check whether XLA copies the weights, by its memory analysis and the memory in use."""
    m, (k, n) = (8, (256, 128)) if context.scale == "tiny" else (64, FIG4)
    w = operands.weights(k, n, 2, "host", context.seed)
    assert isinstance(w, HostArray)
    x = operands.activations(m, k, context)
    row: Row = {"w_bytes": w.nbytes, "memory_kind": w.memory_kind}
    if context.backend == "sm90":
        gemm, config = launching.configuration(m, k, n, 2, 1, context)
        run = launching.kernel(gemm, config, m, None)
        scalars_of_plan = jnp.array([1, 1, 1, 0], jnp.int32)
        memory = run.lower(x, w.ref(), scalars_of_plan).compile().memory_analysis()
        row |= {
            "host_argument_bytes": memory.host_argument_size_in_bytes,
            "temporary_bytes": memory.temp_size_in_bytes,
        }
    launch = launching.hybrid(x, w, context, alpha=1.0)
    wait(launch(0))
    device = jax.devices()[0]
    before = (device.memory_stats() or {}).get("bytes_in_use")
    wait(launch(1))
    stats = device.memory_stats() or {}
    row |= {"in_use_before": before, "in_use_after": stats.get("bytes_in_use")}
    row["peak_bytes"] = stats.get("peak_bytes_in_use")
    if "temporary_bytes" in row:
        row["copied"] = bool(row["temporary_bytes"] > w.nbytes // 16)
    return row


def rereads(m: int, context: Context) -> Row:
    """Time SymGEMM without multicast; `link_reads` is its time over that of one read of W."""
    k, n = (256, 128) if context.scale == "tiny" else FIG4
    w = operands.weights(k, n, operands.copies(2 * k * n, context), "host", context.seed)
    launch = launching.hybrid(operands.activations(m, k, context), w, context, alpha=1.0)
    times = time_launches(launch, target_s=context.target_s, repetitions=context.repetitions)
    once = bounds.stream(bounds.streaming(context, k=k, n=n), context, sms=operands.sms(context))
    return {"link_reads": times.median_s / once["time_s"], **times.columns()}


def product(m: int, context: Context, *, alpha: float, **options: Any) -> Row:
    """Time one dataflow on the paper's shape; `options` are arguments of `launching.hybrid`."""
    k, n = (256, 128) if context.scale == "tiny" else FIG4
    layout = options.get("w_layout", "kn")
    count = operands.copies(2 * k * n, context)
    w = operands.weights(k, n, count, context.weights, context.seed, w_layout=layout)
    x = operands.activations(m, k, context)
    launch = launching.hybrid(x, w, context, alpha=alpha, **options)
    times = time_launches(launch, target_s=context.target_s, repetitions=context.repetitions)
    return {"weight_bytes": 2 * k * n, "gbps": 2 * k * n / times.median_s / 1e9, **times.columns()}


def launch_gap(context: Context) -> Row:
    """Time a chain of small kernels inside one program; `kernel_s` is the time a kernel."""
    barrier: Any = jax.lax.optimization_barrier  # untyped
    chain = 16 if context.scale == "tiny" else 256

    @jax.jit
    def many(x: jax.Array) -> jax.Array:
        for _ in range(chain):
            # the barrier keeps XLA from fusing all into one kernel
            x = barrier(x * jnp.float32(1.0001))
        return x

    if context.backend == "sm90":
        found = (many.lower(jnp.ones(256)).compile().as_text() or "").count(" fusion(")
        if found != chain:
            raise Unmeasurable(f"XLA made {found} kernels of a chain of {chain}")
    x = jnp.ones(256)
    times = time_launches(
        lambda _: many(x), target_s=context.target_s, repetitions=context.repetitions
    )
    return {"kernel_s": times.median_s / chain, "kernels": chain, **times.columns()}
