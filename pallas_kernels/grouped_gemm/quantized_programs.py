"""The configurations in use with quantised experts; one of each tile, type and form of scales."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from pallas_kernels.counting import round_up
from pallas_kernels.grouped_gemm.heuristics import smallest_cluster
from pallas_kernels.grouped_gemm.quantized import QuantizedGroupedGemm, choose_quantized
from pallas_kernels.grouped_gemm.quantized_api import launch
from pallas_kernels.grouped_gemm.specs import MODEL_EXPERTS, ROW_MULTIPLE
from pallas_kernels.program import Argument, Program
from pallas_kernels.quantized_gemm import Config, Kind, QuantizedGemm, shared_bytes
from pallas_kernels.quantized_gemm.specs import storage_dtype

_LAYERS = 2  # any number makes the same code

_MODELS: tuple[tuple[str, Kind, int | None, str | None], ...] = (
    # model, kind, group, type of offsets: what a checkpoint is usually loaded as
    ("qwen3-30b-a3b", "int4", 128, None),
    ("qwen3-30b-a3b", "int4", 32, "float32"),  # GGUF's
    ("mixtral-8x7b", "int8", None, None),
)
_TOKENS = (1, 64, 1024)

_RARE: tuple[tuple[int, int, QuantizedGemm], ...] = (
    # rows, cluster, one expert
    (3, 1, QuantizedGemm(m=8, k=2048, n=1600, kind="float8_e4m3fn")),
    (16, 1, QuantizedGemm(m=16, k=2048, n=1536, group=32, scale_dtype="float16")),
    (130, 1, QuantizedGemm(m=136, k=2048, n=1600, kind="int4", group=128, out_dtype="float32")),
    (
        1021,
        2,
        QuantizedGemm(m=1024, k=2048, n=1600, dtype="float16", out_dtype="float16", group=128),
    ),
    (8191, 8, QuantizedGemm(m=8192, k=2048, n=1536, kind="float8_e4m3fn", out_dtype="float32")),
)


def quantized_programs(sm_count: int) -> tuple[Program, ...]:
    """Return the programs of a device, or slice of one, with `sm_count` SMs."""
    return tuple(
        program(gemm, choose_quantized(gemm, sm_count=sm_count, cluster=cluster), label)
        for label, gemm, cluster in (*_models(), *_others())
        if cluster <= sm_count
    )


def _models() -> Iterator[tuple[str, QuantizedGroupedGemm, int]]:
    for model, kind, group, offset_dtype in _MODELS:
        layer = MODEL_EXPERTS[model]
        for tokens in _TOKENS:
            rows = tokens * layer.per_token
            k, n = layer.projections[tokens % 2]
            expert = QuantizedGemm(
                m=round_up(rows, ROW_MULTIPLE),
                k=k,
                n=n,
                kind=kind,
                group=group,
                offset_dtype=offset_dtype,
            )
            gemm = QuantizedGroupedGemm(
                t=rows, experts=layer.experts, expert=expert, layers=_LAYERS
            )
            yield model, gemm, smallest_cluster(rows, layer.experts)


def _others() -> Iterator[tuple[str, QuantizedGroupedGemm, int]]:
    for t, cluster, expert in _RARE:
        yield "other", QuantizedGroupedGemm(t=t, experts=16, expert=expert), cluster


def program(gemm: QuantizedGroupedGemm, config: Config, label: str) -> Program:
    """Return the launch of one shape with one configuration; weights and scales in host memory."""
    one = gemm.expert
    groups = f"groups of {one.group}" if one.group else "per channel"
    shifted = f" with {one.offset_dtype} offsets" if one.offset_dtype else ""
    scales = Argument(shape=gemm.scales_shape, dtype=one.scale_dtype, host=True)
    arguments = [
        Argument(shape=(gemm.t, one.k), dtype=one.dtype),
        Argument(shape=gemm.w_shape, dtype=str(storage_dtype(one.kind)), host=True),
        scales,
        Argument(shape=(gemm.experts,), dtype="int32"),
        Argument(shape=(2,), dtype="int32"),
    ]
    if one.offset_dtype:
        arguments.append(Argument(shape=gemm.scales_shape, dtype=one.offset_dtype, host=True))
    return Program(
        op="grouped_gemm",
        name=(
            f"{label} {gemm.t} rows, {gemm.experts} x {one.k}x{one.n} {one.kind} {groups}"
            f"{shifted}, {one.scale_dtype} scales, {one.dtype} to {one.out_dtype}, cluster "
            f"{config.cluster}"
        ),
        function=functools.partial(launch, gemm=gemm, config=config, columns=one.n),
        arguments=tuple(arguments),
        shared_bytes=shared_bytes(config, one),
        opcodes=frozenset({"HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG"}),
        absent=frozenset({"UTMAREDG"}),
        multicast=config.cluster > 1,
        key=(
            ("kind", one.kind),
            ("group", str(one.group)),
            ("dtype", one.dtype),
            ("out_dtype", one.out_dtype),
            ("scale_dtype", one.scale_dtype),
            ("offset_dtype", str(one.offset_dtype)),
            ("w", f"{gemm.experts}x{one.k}x{one.n}"),
            ("layers", str(gemm.layers)),
            ("rows", str(gemm.t)),
            ("cluster", str(config.cluster)),
        ),
    )
