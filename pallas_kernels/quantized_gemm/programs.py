"""The configurations in use, to be compiled ahead of time."""

from __future__ import annotations

import functools
from typing import Any

from pallas_kernels.program import Argument, Program
from pallas_kernels.quantized_gemm.api import launch
from pallas_kernels.quantized_gemm.config import shared_bytes
from pallas_kernels.quantized_gemm.heuristics import choose
from pallas_kernels.quantized_gemm.specs import Kind, QuantizedGemm, storage_dtype

_OPCODES = frozenset({"HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG"})
_ABSENT = frozenset({"UTMAREDG"})

_WEIGHTS: tuple[tuple[Kind, int | None], ...] = (
    ("int8", None),
    ("int8", 128),
    ("float8_e4m3fn", None),
    ("float8_e4m3fn", 128),
    ("int4", None),
    ("int4", 128),
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


def programs(sm_count: int) -> tuple[Program, ...]:
    """Return the programs of decode and prefill for a GPU or slice of `sm_count` SMs.

    `Argument` of int4 weights is the packed array: bytes.
    """
    found = [
        program(QuantizedGemm(m=m, k=4096, n=16384, kind=kind, group=group), sm_count, cluster)
        for kind, group in _WEIGHTS
        for m, cluster in _ROWS
        if cluster <= sm_count
    ]
    found += [
        program(QuantizedGemm(m=m, k=4096, n=16384, group=32, **weights), sm_count, cluster)
        for weights, rows in _GGUF
        for m, cluster in rows
        if cluster <= sm_count
    ]
    special = (
        QuantizedGemm(m=8, k=14336, n=4096, kind="int4", group=128, layers=3),  # few columns
        QuantizedGemm(m=16, k=4096, n=16384, kind="int4", group=128),
        QuantizedGemm(m=32, k=4096, n=6144, out_dtype="float32", layers=3),
        QuantizedGemm(m=64, k=4096, n=6144, group=64, scale_dtype="bfloat16"),
        QuantizedGemm(m=64, k=4096, n=6144, kind="int4", group=256, scale_dtype="bfloat16"),
        QuantizedGemm(m=128, k=3072, n=16384, kind="float8_e4m3fn", out_dtype="float32"),
        QuantizedGemm(m=128, k=4096, n=16384, dtype="float16", out_dtype="float16", group=128),
        QuantizedGemm(m=2000, k=4224, n=16064, kind="int4", dtype="float16", out_dtype="float16"),
        QuantizedGemm(m=2048, k=4096, n=16384, out_dtype="float32", group=128),
        QuantizedGemm(m=2048, k=4096, n=16384, group=64),
        QuantizedGemm(m=64, k=4096, n=6144, kind="float8_e4m3fn", group=32),
        QuantizedGemm(
            m=64, k=4096, n=6144, kind="int4", group=64, dtype="float16", out_dtype="float16"
        ),
        QuantizedGemm(m=64, k=3072, n=6144, group=96, offset_dtype="bfloat16"),
        QuantizedGemm(m=64, k=4096, n=6144, group=None, offset_dtype="float32"),
        QuantizedGemm(m=128, k=4096, n=6144, group=128, offset_dtype="float32"),
    )
    found += [program(gemm, sm_count, cluster=1) for gemm in special]
    found.append(program(QuantizedGemm(m=1000, k=8192, n=1024, kind="int4"), sm_count, 4))
    return tuple(found)


def program(gemm: QuantizedGemm, sm_count: int, cluster: int) -> Program:
    """Return the launch of one GEMM with weights and scales in host memory."""
    config = choose(gemm, sm_count=sm_count, cluster=cluster)
    group = f"groups of {gemm.group}" if gemm.group else "per channel"
    stack = "" if gemm.layers is None else f"{gemm.layers}x"
    scales = "" if gemm.scale_dtype == "float32" else f" {gemm.scale_dtype} scales"
    if gemm.offset_dtype:
        scales += f" {gemm.offset_dtype} offsets"
    offsets = (
        [Argument(shape=gemm.scales_shape, dtype=gemm.offset_dtype, host=True)]
        if gemm.offset_dtype
        else []
    )
    return Program(
        op="quantized_gemm",
        name=(
            f"{gemm.kind} {group}{scales} m{gemm.m} k{gemm.k} n{stack}{gemm.n} {gemm.dtype} to "
            f"{gemm.out_dtype} cluster {cluster}"
        ),
        function=functools.partial(launch, gemm=gemm, config=config, columns=gemm.n),
        arguments=(
            Argument(shape=(gemm.m, gemm.k), dtype=gemm.dtype),
            Argument(shape=gemm.w_shape, dtype=str(storage_dtype(gemm.kind)), host=True),
            Argument(shape=gemm.scales_shape, dtype=gemm.scale_dtype, host=True),
            Argument(shape=(2,), dtype="int32"),
            *offsets,
        ),
        shared_bytes=shared_bytes(config, gemm),
        opcodes=_OPCODES,
        absent=_ABSENT,
        multicast=cluster > 1,
        key=(
            ("kind", gemm.kind),
            ("group", str(gemm.group)),
            ("dtype", gemm.dtype),
            ("out_dtype", gemm.out_dtype),
            ("scale_dtype", gemm.scale_dtype),
            ("offset_dtype", str(gemm.offset_dtype)),
            ("shape", f"{gemm.m}x{gemm.k}x{gemm.n}"),
            ("layers", str(gemm.layers)),
            ("cluster", str(cluster)),
            ("sm_count", str(sm_count)),
        ),
    )
