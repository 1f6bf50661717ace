"""Programs of the configurations in use, for ahead-of-time compilation."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pallas_kernels.gemm.config import Config, shared_bytes, sums_apart
from pallas_kernels.gemm.heuristics import FAMILY, choose, smallest_cluster
from pallas_kernels.gemm.launch import launch
from pallas_kernels.gemm.schedule import PLAN_FIELDS
from pallas_kernels.gemm.specs import MODEL_EXPERTS, ROW_MULTIPLE, Gemm, Quantised
from pallas_kernels.hopper import CLUSTERS
from pallas_kernels.integer_math import round_up
from pallas_kernels.program import Argument, Program

_OPCODES = frozenset({"HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG"})
_REDUCTION = frozenset({"UTMAREDG"})
_LAYERS = 2  # any number makes the same code
_PACKED: dict[str, Any] = {"k": 4096, "n": 16384}  # several K passes in every member of the family

_QUANTISED = tuple(
    Quantised(kind=kind, group=group)
    for kind in ("int8", "float8_e4m3fn", "int4")
    for group in (None, 128)
)
_ROWS = ((8, 1), (64, 1), (128, 1), (512, 2), (2048, 8))  # one of each tile of `choose`

# What GGUF files hold, in their types of scales: Q8_0, Q4_0, Q4_1, Q4_K; all rows between them.
_GGUF: tuple[tuple[dict[str, Any], tuple[tuple[int, int], ...]], ...] = (
    ({"kind": "int8", "scale_dtype": "float16"}, ((8, 1), (2048, 8))),
    ({"kind": "int4", "scale_dtype": "float16"}, ((64, 1), (512, 2))),
    (
        {"kind": "int4", "scale_dtype": "float16", "offset_dtype": "float32"},
        ((8, 1), (128, 1), (2048, 8)),
    ),
    ({"kind": "int4", "offset_dtype": "float32"}, ((64, 1), (512, 2))),
)

_TOKENS = (1, 64, 1024)
_EXPERTS: tuple[tuple[str, Quantised], ...] = (
    # what a checkpoint is usually loaded as
    ("qwen3-30b-a3b", Quantised(kind="int4", group=128)),
    ("qwen3-30b-a3b", Quantised(kind="int4", group=32, offset_dtype="float32")),  # GGUF's
    ("mixtral-8x7b", Quantised(kind="int8")),
)


# Machine code depends on the tiles, the cluster and the types, and on sizes only through constants.
# So each member of the family is compiled once at a size that reaches all of its code, with two
# clusters and types of output, and the other variants once. Quantised weights and experts have the
# results of `choose` from decode to long prefill.
def programs(sm_count: int) -> tuple[Program, ...]:
    """Return the programs for a GPU or slice of `sm_count` SMs."""
    entries = (
        *_plain(sm_count),
        *_quantised(sm_count),
        *_of_experts(sm_count),
        *_of_quantised_experts(sm_count),
    )
    return tuple(entries)


def program(
    name: str, gemm: Gemm, config: Config, *, rows: int | None = None, columns: int | None = None
) -> Program:
    """Return a launch as a program: operands and run-time scalars in, product out.

    Weights, scales and offsets are in host memory; int4 weights are packed.

    Args:
      rows: of x and the result; `gemm`'s by default, like `columns`.
    """
    rows, columns = rows or gemm.m, columns or gemm.n
    # Added by TMA are the sums of passes between the first, which stores, and where they are apart
    # the last, which reads them; two equal passes have none between, nor code for it.
    apart = sums_apart(config, gemm)
    others = 2 if apart and not config.stagger else 1
    adds = 0 < others * config.kc < gemm.k and (apart or gemm.out_dtype == "float32")
    arguments = {
        "x": Argument(shape=(rows, gemm.k), dtype=gemm.dtype),
        "w": Argument(shape=gemm.w_shape, dtype=gemm.w_dtype, host=True),
        "scalars": Argument(shape=(len(PLAN_FIELDS),), dtype="int32"),
    }
    if (weights := gemm.quantised) is not None:
        for key, dtype in (("scales", weights.scale_dtype), ("offsets", weights.offset_dtype)):
            if dtype:
                arguments[key] = Argument(shape=gemm.scales_shape, dtype=dtype, host=True)
    if gemm.experts is not None:
        arguments["group_sizes"] = Argument(shape=(gemm.experts,), dtype="int32")
    run: Any = functools.partial(launch, gemm=gemm, config=config, columns=columns)
    names = tuple(arguments)

    def function(*arrays: Any) -> Any:
        return run(**dict(zip(names, arrays, strict=True)))

    return Program(
        op="gemm",
        name=name,
        function=function,
        arguments=tuple(arguments.values()),
        shared_bytes=shared_bytes(config, gemm),
        opcodes=_OPCODES | _REDUCTION if adds else _OPCODES,
        absent=frozenset() if adds else _REDUCTION,
        multicast=config.cluster > 1,
    )


def _plain(sm_count: int) -> Iterator[Program]:
    for name, config in FAMILY.items():
        for cluster, out_dtype in ((CLUSTERS[0], "bfloat16"), (CLUSTERS[-1], "float32")):
            yield program(
                f"{name}, cluster of {cluster}, {out_dtype} out",
                Gemm(m=8 * config.tm, out_dtype=out_dtype, **_PACKED),
                replace(config, cluster=cluster, sm_count=sm_count),
            )
    wide = replace(FAMILY["256x128"], sm_count=sm_count)
    narrow = replace(FAMILY["64x64"], sm_count=sm_count)
    for cluster in CLUSTERS[1:-1]:
        yield program(
            f"256x128, cluster of {cluster}, [N, K], stack of 3",
            Gemm(m=2048, w_layout="nk", layers=3, **_PACKED),
            replace(wide, cluster=cluster),
        )
    half: dict[str, Any] = {"dtype": "float16", "out_dtype": "float16"}
    yield program("256x128, float16", Gemm(m=2048, **half, **_PACKED), wide)
    yield program("64x64, float16, stack of 3", Gemm(m=8, layers=3, **half, **_PACKED), narrow)
    yield program("64x64, [N, K]", Gemm(m=16, w_layout="nk", **_PACKED), narrow)
    yield program(
        "256x128, cluster of 8, tiles, stack of 3",
        Gemm(m=2048, w_layout="tiles", layers=3, **_PACKED),
        replace(wide, cluster=8),
    )
    yield program("64x64, tiles", Gemm(m=16, w_layout="tiles", **_PACKED), narrow)
    yield program("64x64, one row", Gemm(m=ROW_MULTIPLE, **_PACKED), narrow, rows=1)
    ragged = Gemm(m=round_up(2001, ROW_MULTIPLE), k=4160, n=16064)
    yield program("256x128, ragged", ragged, wide, rows=2001, columns=16001)
    yield program("256x128, one K pass", Gemm(m=2048, k=256, n=16384), wide)


def _quantised(sm_count: int) -> Iterator[Program]:
    packed: dict[str, Any] = {"w_layout": "nk", **_PACKED}
    for weights, (m, cluster) in itertools.product(_QUANTISED, _ROWS):
        yield from _chosen(Gemm(m=m, quantised=weights, **packed), sm_count, cluster)
    for fields, rows in _GGUF:
        for m, cluster in rows:
            weights = Quantised(group=32, **fields)
            yield from _chosen(Gemm(m=m, quantised=weights, **packed), sm_count, cluster)
    half: dict[str, Any] = {"dtype": "float16", "out_dtype": "float16"}
    special: tuple[tuple[int, int, int, Quantised, dict[str, Any]], ...] = (
        (8, 14336, 4096, Quantised(kind="int4", group=128), {"layers": 3}),  # few columns
        (16, 4096, 16384, Quantised(kind="int4", group=128), {}),
        (32, 4096, 6144, Quantised(), {"out_dtype": "float32", "layers": 3}),
        (64, 4096, 6144, Quantised(group=64, scale_dtype="bfloat16"), {}),
        (64, 4096, 6144, Quantised(kind="int4", group=256, scale_dtype="bfloat16"), {}),
        (128, 3072, 16384, Quantised(kind="float8_e4m3fn"), {"out_dtype": "float32"}),
        (128, 4096, 16384, Quantised(group=128), half),
        (2000, 4224, 16064, Quantised(kind="int4"), half),
        (2048, 4096, 16384, Quantised(group=128), {"out_dtype": "float32"}),
        (2048, 4096, 16384, Quantised(group=64), {}),
        (10240, 4096, 16384, Quantised(), {}),
        (10240, 4096, 16384, Quantised(kind="int4", group=128), {"out_dtype": "float32"}),
        (10240, 4096, 16384, Quantised(kind="int4", group=32, offset_dtype="float32"), {}),
        (64, 4096, 6144, Quantised(kind="float8_e4m3fn", group=32), {}),
        (64, 4096, 6144, Quantised(kind="int4", group=64), half),
        (64, 3072, 6144, Quantised(group=96, offset_dtype="bfloat16"), {}),
        (64, 4096, 6144, Quantised(offset_dtype="float32"), {}),
        (128, 4096, 6144, Quantised(group=128, offset_dtype="float32"), {}),
    )
    for m, k, n, weights, more in special:
        gemm = Gemm(m=m, k=k, n=n, quantised=weights, w_layout="nk", **more)
        yield from _chosen(gemm, sm_count, 1)
    few = Gemm(m=1000, k=8192, n=1024, quantised=Quantised(kind="int4"), w_layout="nk")
    yield from _chosen(few, sm_count, 4)


def _of_experts(sm_count: int) -> Iterator[Program]:
    for model, layer in MODEL_EXPERTS.items():
        for tokens, (k, n) in itertools.product(_TOKENS, layer.projections):
            rows = tokens * layer.per_token
            gemm = Gemm(m=rows, k=k, n=n, experts=layer.experts, layers=_LAYERS)
            for cluster in sorted({1, smallest_cluster(gemm.rows_each)}):
                yield from _chosen(gemm, sm_count, cluster, model)
    for t, cluster, dtype, out_dtype, w_layout in (
        (3, 1, "float16", "float16", "nk"),
        (130, 1, "bfloat16", "float32", "nk"),
        (1021, 2, "float16", "float32", "kn"),
        (8191, 8, "bfloat16", "float32", "kn"),
    ):
        kind: dict[str, Any] = {"dtype": dtype, "out_dtype": out_dtype, "w_layout": w_layout}
        yield from _chosen(Gemm(m=t, k=2048, n=1600, experts=16, **kind), sm_count, cluster)


def _of_quantised_experts(sm_count: int) -> Iterator[Program]:
    for model, weights in _EXPERTS:
        layer = MODEL_EXPERTS[model]
        for tokens in _TOKENS:
            k, n = layer.projections[tokens % 2]
            gemm = Gemm(
                m=tokens * layer.per_token,
                k=k,
                n=n,
                experts=layer.experts,
                layers=_LAYERS,
                quantised=weights,
                w_layout="nk",
            )
            yield from _chosen(gemm, sm_count, smallest_cluster(gemm.rows_each), model)
    rare: tuple[tuple[int, int, int, Quantised, dict[str, Any]], ...] = (
        (3, 1, 1600, Quantised(kind="float8_e4m3fn"), {}),
        (16, 1, 1536, Quantised(group=32, scale_dtype="float16"), {}),
        (130, 1, 1600, Quantised(kind="int4", group=128), {"out_dtype": "float32"}),
        (1021, 2, 1600, Quantised(group=128), {"dtype": "float16", "out_dtype": "float16"}),
        (8191, 8, 1536, Quantised(kind="float8_e4m3fn"), {"out_dtype": "float32"}),
    )
    for t, cluster, n, weights, more in rare:
        gemm = Gemm(m=t, k=2048, n=n, experts=16, quantised=weights, w_layout="nk", **more)
        yield from _chosen(gemm, sm_count, cluster)


def _chosen(gemm: Gemm, sm_count: int, cluster: int, label: str = "") -> Iterator[Program]:
    if cluster <= sm_count:
        config = choose(gemm, sm_count=sm_count, cluster=cluster)
        yield program(_name(gemm, config, label), gemm, config)


def _name(gemm: Gemm, config: Config, label: str) -> str:
    experts = f"{gemm.experts} experts " if gemm.experts else ""
    stack = "" if gemm.layers is None else f"{gemm.layers}x"
    weights, asym = "", f", kc {config.kc}" if config.asym else ""
    if (stored := gemm.quantised) is not None:
        weights = f"{stored.kind} {f'groups of {stored.group}' if stored.group else 'per channel'}"
        weights += "" if stored.scale_dtype == "float32" else f" {stored.scale_dtype} scales"
        weights += f" {stored.offset_dtype} offsets" if stored.offset_dtype else ""
    else:
        weights = gemm.w_layout
    sizes = f"m{gemm.m} k{gemm.k} n{stack}{gemm.n}"
    types = f"{gemm.dtype} to {gemm.out_dtype}"
    named = (label, f"{experts}{weights}", sizes, types, f"cluster {config.cluster}{asym}")
    return " ".join(part for part in named if part)
