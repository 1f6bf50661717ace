"""Launches drawn at random, beyond what the suites list, in interpret mode against float64."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.attention import (
    DecodeConfig,
    PrefillConfig,
    decode_attention,
    prefill_attention,
)
from pallas_kernels.gather_rows import GatherRows
from pallas_kernels.gather_rows.api import launch as gather
from pallas_kernels.gemm import Config, Quantised, check_fits, plan_launch
from pallas_kernels.gemm.specs import KINDS, SCALE_DTYPES
from pallas_kernels.hopper import CLUSTERS, INPUT_DTYPES
from pallas_kernels.mosaic import interpret_params
from tests.pallas_kernels.attention import cases as attention
from tests.pallas_kernels.gemm.cases import Case, same
from tests.pallas_kernels.interpreting import within

# A number draws the same launch for ever. A few are slow, the others a part of `make soak`; more:
#     LAUNCHES_FROM=1000 make soak TESTS=tests/pallas_kernels/test_random_launches.py
FIRST = int(os.environ.get("LAUNCHES_FROM", "0"))
NUMBERS = range(FIRST, FIRST + 240)
REGISTERS = {1: (232, 40), 2: (232, 40), 3: (160, 24), 4: (112, 24)}
TRIES = 400

Draw = np.random.Generator


def few(numbers: range, slow: int) -> list[Any]:
    """Return numbers of which the first are slow and the others for soak."""
    mark = pytest.mark
    return [
        pytest.param(number, marks=mark.slow if k < slow else mark.soak)
        for k, number in enumerate(numbers)
    ]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A product and how it is launched."""

    case: Case
    options: dict[str, Any]
    layers: int | None = None


def one_of(draw: Draw, *choices: Any) -> Any:
    return choices[int(draw.integers(len(choices)))]


def size(draw: Draw, most: int) -> int:
    """Any size; every third one small."""
    return int(draw.integers(1, (most if draw.random() < 0.67 else max(1, most // 8)) + 1))


def weights_of(draw: Draw) -> Quantised | None:
    if draw.random() < 0.45:
        return None
    return Quantised(
        kind=one_of(draw, *KINDS),
        group=one_of(draw, None, None, 32, 64, 96, 128, 160, 256),
        scale_dtype=one_of(draw, *SCALE_DTYPES),
        offset_dtype=one_of(draw, None, None, *SCALE_DTYPES),
    )


def config_of(draw: Draw, quantised: bool) -> Config:
    warpgroups = one_of(draw, 1, 1, 2, 2, 3)
    cluster = one_of(draw, *CLUSTERS)
    tk = one_of(draw, 64, 128, 256) if quantised else 64
    registers = REGISTERS[warpgroups]
    return Config(
        tm=one_of(draw, 8, 16, 32, 64, 128, 256) if quantised else 64 * size(draw, 4),
        tn=64 * size(draw, 4),
        tk=tk,
        x_columns=one_of(draw, *(columns for columns in (64, 128, 256) if columns <= tk)),
        x_stages=one_of(draw, 2, 3, 4, 5),
        w_stages=one_of(draw, 2, 3, 4, 7),
        asym=draw.random() < 0.8,
        warpgroups=warpgroups,
        compute_registers=registers[0],
        load_registers=registers[1],
        cluster=cluster,
        sm_count=cluster * one_of(draw, 1, 2, 3, 4) + one_of(draw, 0, 0, cluster - 1),
        stagger=bool(draw.integers(2)),
        ping_pong=not quantised and draw.random() < 0.3,
    )


def sizes_of(draw: Draw, m: int) -> tuple[int, ...] | None:
    if draw.random() < 0.6:
        return None
    cuts = np.sort(draw.integers(0, m + 1, int(draw.integers(1, 6))))
    sizes = np.diff([0, *cuts])  # what is left belongs to no expert
    return tuple(int(one) for one in np.where(draw.random(len(sizes)) < 0.25, 0, sizes))


def drawn(number: int) -> Launch:
    """Draw until the configuration is one that the op takes."""
    draw = np.random.default_rng([12, number])
    for _ in range(TRIES):
        weights = weights_of(draw)
        dtype = one_of(draw, *INPUT_DTYPES)
        m = size(draw, 280)
        sizes = sizes_of(draw, m)
        tiles = weights is None and sizes is None and draw.random() < 0.3
        try:
            case = Case(
                m=m, k=size(draw, 700), n=size(draw, 400),
                config=config_of(draw, weights is not None), weights=weights, sizes=sizes,
                dtype=dtype, out_dtype=one_of(draw, None, "float32"),
                w_layout="kn" if weights else one_of(draw, "kn", "nk"), tiles=tiles,
            )  # fmt: skip
            if weights is not None and (weights.group or 0) > -(-case.k // 128) * 128:
                continue  # more zeros than weights
            if sizes is not None and weights is None:  # as they are given, nothing is padded
                case = replace(case, k=-(-case.k // 64) * 64, n=-(-case.n // 64) * 64)
            check_fits(case.config, case.gemm)
            options = options_of(draw, case)
            plan_launch(case.gemm, case.config, **options)
        except ValueError:
            continue
        return Launch(case=case, options=options, layers=one_of(draw, None, None, 2))
    raise AssertionError(f"nothing in {TRIES} tries")


def options_of(draw: Draw, case: Case) -> dict[str, Any]:
    """Return run-time arguments."""
    config = case.config
    alpha = one_of(draw, 0.0, 1.0, float(draw.random())) if config.asym else 1.0
    options: dict[str, Any] = {"alpha": alpha}
    if draw.random() < 0.4:
        options["sm_limit"] = int(draw.integers(config.cluster, config.sm_count + 1))
    if draw.random() < 0.3:
        clusters = options.get("sm_limit", config.sm_count) // config.cluster
        options["sm_split"] = config.cluster * int(draw.integers(0, clusters + 1))
    return options


def run(launch: Launch) -> None:
    case, options = launch.case, launch.options
    stack = () if launch.layers is None else (launch.layers,)
    x, w, exact = case.operands(stack=stack)
    if launch.layers is not None:
        options = options | {"layer": launch.layers - 1}
        exact = exact[-1]
    same(case.run(x, w, **options), case.right(x, exact))


@pytest.mark.parametrize("number", few(NUMBERS, 6))
def test_a_product_equals_float64_to_the_bit(number: int) -> None:
    run(drawn(number))


def random_prefill(draw: Draw) -> None:
    kv_heads = one_of(draw, 1, 2, 3)
    keys, rows = size(draw, 330), one_of(draw, 1, 2)
    case = attention.Case(
        queries=size(draw, 200),
        keys=keys,
        heads=kv_heads * one_of(draw, 1, 2, 3),
        kv_heads=kv_heads,
        dim=one_of(draw, 64, 128),
        dtype=one_of(draw, *INPUT_DTYPES),
        causal=draw.random() < 0.7,
        window=one_of(draw, None, size(draw, 200)),
        offsets=tuple(int(draw.integers(-50, keys + 50)) for _ in range(rows)),
        lengths=tuple(int(draw.integers(0, keys + 1)) for _ in range(rows)),
        seed=int(draw.integers(2**31)),
    )
    block = one_of(draw, 64, 128)
    fits = block * case.dim < 128 * 128  # a third stage
    config = PrefillConfig(block_kv=block, stages=one_of(draw, 2, 3) if fits else 2)
    out = within(
        lambda: prefill_attention(
            *case.arrays, **case.options(), config=config, backend="interpret"
        )
    )
    assert case.exact().worst(out) <= 1


def random_decode(draw: Draw) -> None:
    page, kv_heads = one_of(draw, 16, 32, 64, 128), one_of(draw, 1, 2)
    keys = page * size(draw, 320 // page)
    lengths = tuple(int(draw.integers(0, keys + 1)) for _ in range(one_of(draw, 1, 2, 3)))
    case = attention.decoding(
        lengths, keys, heads=kv_heads * one_of(draw, 1, 3, 4, 8, 16), kv_heads=kv_heads,
        dim=one_of(draw, 64, 128), dtype=one_of(draw, *INPUT_DTYPES),
        window=one_of(draw, None, size(draw, 300)), seed=int(draw.integers(2**31)),
    )  # fmt: skip
    block = one_of(draw, 64, 128) if page < 128 else 64
    fits = block * case.dim < 128 * 128  # a third stage
    stages = one_of(draw, 2, 3, 4) if fits else 2
    config = DecodeConfig(block_kv=block, stages=stages, splits=size(draw, 4))
    pool = attention.paged(case, page, seed=int(draw.integers(2**31)))
    out = within(
        lambda: decode_attention(
            *pool.arguments, window=case.window, config=config, backend="interpret"
        )
    )
    assert case.exact(merges=config.splits).worst(out[:, None]) <= 1


def random_rows(draw: Draw) -> None:
    dtype = np.dtype(jnp.dtype(one_of(draw, "bfloat16", "float16", "float32", "int8")))
    rows, columns = size(draw, 60), size(draw, 40) * (16 // dtype.itemsize)
    table = draw.integers(-100, 100, (rows, columns)).astype(dtype)
    ids = draw.integers(0, rows, size(draw, 40), dtype=np.int32)
    spec = GatherRows(
        tokens=len(ids), rows=rows, columns=columns, dtype=str(dtype),
        piece_bytes=16 * size(draw, 30), stages=one_of(draw, 2, 3, 5), sm_count=size(draw, 6),
    )  # fmt: skip
    active = np.array([size(draw, spec.sm_count)], np.int32)
    same(
        within(
            lambda: np.asarray(gather(table, ids, active, spec=spec, interpret=interpret_params()))
        ),
        table[ids],
    )


OTHERS: dict[str, Callable[[Draw], None]] = {
    "prefill": random_prefill,
    "decode": random_decode,
    "rows": random_rows,
}


@pytest.mark.parametrize("op", OTHERS)
@pytest.mark.parametrize("number", few(NUMBERS[::8], 4))
def test_other_ops_are_within_their_bounds(op: str, number: int) -> None:
    OTHERS[op](np.random.default_rng([13, number]))


def test_what_is_drawn_has_everything() -> None:
    """So that a rule that refuses more than before does not silently empty the draw."""
    launches = [drawn(number) for number in range(120)]
    cases = [launch.case for launch in launches]
    assert {case.op for case in cases} == {"hybrid_gemm", "quantized_gemm", "grouped_gemm"}
    assert {case.gemm.w_layout for case in cases} == {"kn", "nk", "tiles"}
    assert {case.config.cluster for case in cases} == set(CLUSTERS)
    assert {case.weights.kind for case in cases if case.weights} == set(KINDS)
    for many in (
        [case for case in cases if case.sizes and case.weights],
        [case for case in cases if case.config.ping_pong],
        [case for case in cases if case.config.warpgroups == 3],
        [one for one in launches if one.case.config.asym and 0 < one.options["alpha"] < 1],
        [one for one in launches if one.layers],
        [one for one in launches if "sm_split" in one.options],
    ):
        assert len(many) >= 5
