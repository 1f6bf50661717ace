"""The configurations in use: expert layers of known models, decode to long prefill."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from pallas_kernels.grouped_gemm.api import launch
from pallas_kernels.grouped_gemm.config import Config, shared_bytes
from pallas_kernels.grouped_gemm.heuristics import choose, smallest_cluster
from pallas_kernels.grouped_gemm.quantized_programs import quantized_programs
from pallas_kernels.grouped_gemm.specs import MODEL_EXPERTS, GroupedGemm, WLayout
from pallas_kernels.program import Argument, Program

TOKENS = (1, 64, 1024)
_LAYERS = 2  # any number makes the same code


def programs(sm_count: int) -> tuple[Program, ...]:
    """Return the programs of a device, or slice of one, with `sm_count` SMs."""
    plain = tuple(
        program(gemm, choose(gemm, sm_count=sm_count, cluster=cluster), label)
        for label, gemm, cluster in (*_models(), *_others())
        if cluster <= sm_count
    )
    return plain + quantized_programs(sm_count)


def _models() -> Iterator[tuple[str, GroupedGemm, int]]:
    """Every GEMM of the models, with and without the multicast that reads W once."""
    for model, layer in MODEL_EXPERTS.items():
        for tokens, (k, n) in itertools.product(TOKENS, layer.projections):
            rows = tokens * layer.per_token
            gemm = GroupedGemm(t=rows, k=k, n=n, experts=layer.experts, layers=_LAYERS)
            for cluster in sorted({1, smallest_cluster(rows, layer.experts)}):
                yield model, gemm, cluster


def _others() -> Iterator[tuple[str, GroupedGemm, int]]:
    """The rarer choices, once each: types, layouts, ragged edges, the widest cluster."""
    for t, cluster, dtype, out_dtype, w_layout in _RARE:
        gemm = GroupedGemm(
            t=t, k=2048, n=1600, experts=16, dtype=dtype, out_dtype=out_dtype, w_layout=w_layout
        )
        yield "other", gemm, cluster


_RARE: tuple[tuple[int, int, str, str, WLayout], ...] = (
    (3, 1, "float16", "float16", "nk"),
    (130, 1, "bfloat16", "float32", "nk"),
    (1021, 2, "float16", "float32", "kn"),
    (8191, 8, "bfloat16", "float32", "kn"),
)


def program(gemm: GroupedGemm, config: Config, label: str) -> Program:
    """Return the launch of one shape with one configuration."""
    w_type = f"{gemm.dtype} {gemm.w_layout}"
    return Program(
        op="grouped_gemm",
        name=(
            f"{label} {gemm.t} rows, {gemm.experts} x {gemm.k}x{gemm.n} {w_type} to "
            f"{gemm.out_dtype}, cluster {config.cluster}"
        ),
        function=functools.partial(launch, gemm=gemm, config=config),
        arguments=(
            Argument(shape=(gemm.t, gemm.k), dtype=gemm.dtype),
            Argument(shape=gemm.w_shape, dtype=gemm.dtype, host=True),
            Argument(shape=(gemm.experts,), dtype="int32"),
            Argument(shape=(2,), dtype="int32"),
        ),
        shared_bytes=shared_bytes(config, gemm),
        opcodes=frozenset({"HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG"}),
        absent=frozenset({"UTMAREDG"}),
        multicast=config.cluster > 1,
        key=(
            ("dtype", gemm.dtype),
            ("out_dtype", gemm.out_dtype),
            ("w", f"{gemm.experts}x{gemm.k}x{gemm.n} {gemm.w_layout}"),
            ("layers", str(gemm.layers)),
            ("rows", str(gemm.t)),
            ("cluster", str(config.cluster)),
        ),
    )
