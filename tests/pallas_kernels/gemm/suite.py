"""The cases of the contract: ops by dataflow, cluster, layout, kind of weights and odd size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pallas_kernels.gemm import Quantised
from tests.pallas_kernels.gemm.cases import CONVERTING, EVERY, OUTPUT_ONLY, Case, clustered
from tests.pallas_kernels.interpreting import SMALL

WIDE = replace(SMALL, tm=128, tn=128, warpgroups=2, x_stages=3, w_stages=3)
IN_TURN = replace(SMALL, warpgroups=2, ping_pong=True, x_stages=3)
INT4 = Quantised(kind="int4", group=128)
GGUF = Quantised(kind="int4", group=32, scale_dtype="float16", offset_dtype="float32")

PLAIN = {
    "three passes, last one short": Case(m=128, k=320, n=192, out_dtype="float32", alphas=EVERY),
    "ragged everywhere": Case(m=133, k=201, n=150, alphas=(0.5, 1.0)),
    "one row": Case(m=1, k=70, n=50, alphas=(0.0,)),
    "five rows, f16": Case(m=5, k=128, n=130, dtype="float16"),
    "N smaller than a strip": Case(m=72, k=192, n=64, config=replace(SMALL, tn=128)),
    "[N, K], f16 to f32": Case(
        m=136, k=200, n=192, w_layout="nk", dtype="float16", out_dtype="float32"
    ),
    "tiles, of [N, K], two warpgroups": Case(
        m=136, k=200, n=320, w_layout="nk", tiles=True, config=WIDE
    ),
    "tiles, of [K, N], cluster of 2": Case(
        m=136, k=256, n=192, tiles=True, config=clustered(SMALL, 2), alphas=EVERY
    ),
    "equal passes": Case(m=64, k=384, n=128, config=replace(SMALL, stagger=False), alphas=(0.0,)),
    "SymGEMM alone": Case(m=200, k=192, n=150, config=replace(SMALL, asym=False)),
    "cluster of 4, [N, K]": Case(m=200, k=128, n=128, config=clustered(SMALL, 4), w_layout="nk"),
    "cluster of 4, a group of strips cut by N": Case(
        m=136, k=320, n=320, config=clustered(SMALL, 4), alphas=(0.0,)
    ),
    "cluster of 8, wider than M": Case(m=100, k=64, n=128, config=clustered(SMALL, 8)),
    "in turn, an odd number of tiles, three passes": Case(m=184, k=320, n=192, config=IN_TURN),
    "in turn, a warpgroup without rows": Case(
        m=40, k=320, n=150, out_dtype="float32", config=IN_TURN
    ),
    "in turn, cluster of 2, tiles": Case(
        m=264, k=256, n=192, tiles=True, config=clustered(IN_TURN, 2)
    ),
}
QUANTISED = {
    "int8": Case(m=72, k=500, n=100, weights=Quantised(), config=CONVERTING, alphas=EVERY),
    "int8, one row, any K and N": Case(m=1, k=100, n=50, weights=Quantised(), config=OUTPUT_ONLY),
    "int8, groups of 64, [cluster of 2]": Case(
        m=72, k=300, n=192, weights=Quantised(group=64, scale_dtype="bfloat16"),
        config=clustered(replace(CONVERTING, tk=64), 2),
    ),
    "int8, groups of 256, two warpgroups, f16": Case(
        m=70,
        k=768,
        n=256,
        dtype="float16",
        weights=Quantised(group=256),
        config=replace(CONVERTING, tn=128, warpgroups=2, w_stages=4),
    ),
    "int4, groups": Case(m=72, k=640, n=128, weights=INT4, config=CONVERTING, out_dtype="float32"),
    "int4, wide X tiles": Case(
        m=70, k=384, n=64, weights=INT4, config=replace(CONVERTING, x_columns=128), alphas=(0.0,)
    ),
    "int4, groups of 32, offsets": Case(m=70, k=500, n=70, weights=GGUF, config=CONVERTING),
    "int4, eight rows, groups of 32, offsets, wide X tiles": Case(
        m=9, k=400, n=64, weights=GGUF, config=replace(OUTPUT_ONLY, tm=8, x_columns=128)
    ),
    "groups of 96, offsets, cluster of 2": Case(
        m=140, k=500, n=128, weights=Quantised(group=96, offset_dtype="float16"),
        config=clustered(replace(CONVERTING, w_stages=3), 2), alphas=(0.4,),
    ),
    "per channel, offsets, cluster of 2": Case(
        m=136, k=640, n=128, weights=Quantised(offset_dtype="float32"),
        config=clustered(CONVERTING, 2),
    ),
    "fp8, groups, K steps of 256": Case(
        m=72, k=512, n=128, weights=Quantised(kind="float8_e4m3fn", group=256),
        config=replace(CONVERTING, tk=256),
    ),
    "fp8, cluster of 8": Case(
        m=70, k=128, n=64, weights=Quantised(kind="float8_e4m3fn"),
        config=clustered(replace(OUTPUT_ONLY, tm=8), 8),
    ),
    "cluster of 4, an odd number of groups": Case(
        m=16, k=640, n=128, weights=INT4, config=clustered(replace(OUTPUT_ONLY, tm=8), 4)
    ),
    "256 rows, scaled weights": Case(
        m=264, k=640, n=128, weights=INT4, config=replace(CONVERTING, tm=256, sm_count=2)
    ),
}  # fmt: skip
EXPERTS = {
    "empty experts, unaligned ends": Case(
        m=29, k=128, n=128, sizes=(5, 0, 20, 1, 0, 3), alphas=EVERY
    ),
    "rows of no expert": Case(m=40, k=128, n=128, sizes=(7, 0, 2)),
    "no expert has rows": Case(m=9, k=128, n=128, sizes=(0, 0)),
    "all rows to the last expert": Case(m=150, k=320, n=192, sizes=(0, 0, 150)),
    "one row that is nobody's": Case(m=1, k=128, n=64, sizes=(0, 0), alphas=(0.0,)),
    "a second block for one row": Case(m=136, k=128, n=192, sizes=(3, 62, 70)),
    "float16 [N, K] to float32": Case(
        m=81, k=192, n=128, sizes=(9, 0, 70), w_layout="nk", dtype="float16", out_dtype="float32"
    ),
    "two warpgroups": Case(m=221, k=192, n=256, sizes=(90, 0, 131), config=WIDE),
    "cluster of 2": Case(m=215, k=256, n=192, sizes=(70, 3, 0, 140), config=clustered(SMALL, 2)),
    "in turn": Case(m=221, k=192, n=128, sizes=(130, 0, 9, 70), config=IN_TURN),
    "cluster of 8, wider than the rows": Case(
        m=77, k=64, n=128, sizes=(2, 75), config=clustered(SMALL, 8)
    ),
    "int8": Case(m=80, k=384, n=128, sizes=(0, 71, 3, 0), weights=Quantised(), config=CONVERTING),
    "int4, groups of 32, offsets": Case(
        m=70, k=300, n=70, sizes=(0, 65, 3), weights=GGUF, config=CONVERTING
    ),
    "fp8, groups, cluster of 2, to float32": Case(
        m=40, k=256, n=128, sizes=(7, 0, 30), weights=Quantised(kind="float8_e4m3fn", group=128),
        config=clustered(replace(OUTPUT_ONLY, tm=8), 2), out_dtype="float32",
    ),
}  # fmt: skip
CASES = {
    f"{op}, {name}": case
    for op, cases in (("hybrid", PLAIN), ("quantized", QUANTISED), ("grouped", EXPERTS))
    for name, case in cases.items()
}
# Those of the first tier: all kinds of weights, clusters, layouts and ways through the kernel.
QUICK = (
    "hybrid, ragged everywhere", "hybrid, tiles, of [N, K], two warpgroups",
    "hybrid, cluster of 4, a group of strips cut by N", "hybrid, in turn, cluster of 2, tiles",
    "quantized, int8, one row, any K and N", "quantized, int4, groups of 32, offsets",
    "quantized, fp8, cluster of 8", "quantized, 256 rows, scaled weights",
    "grouped, empty experts, unaligned ends", "grouped, in turn",
    "grouped, float16 [N, K] to float32", "grouped, fp8, groups, cluster of 2, to float32",
)  # fmt: skip
OF_EACH = {
    "hybrid": Case(m=72, k=192, n=128),
    "quantized": Case(m=72, k=256, n=128, weights=INT4, config=replace(CONVERTING, w_stages=2)),
    "grouped": Case(m=40, k=64, n=128, sizes=(11, 0, 20)),
    "grouped, quantized": Case(m=40, k=128, n=128, sizes=(0, 33), weights=GGUF, config=CONVERTING),
}
_PARTS = {name: OF_EACH[name] for name in ("hybrid", "grouped, quantized")}
each_part = pytest.mark.parametrize("case", _PARTS.values(), ids=_PARTS.keys())
"""The two that have both operands and both kinds of rows between them."""

each_op = pytest.mark.parametrize("case", OF_EACH.values(), ids=OF_EACH.keys())
