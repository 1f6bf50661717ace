"""What `grouped_gemm` accepts of quantised experts, and the tiles and programs it chooses."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels import KernelUnavailable, missing
from pallas_kernels import device as present_device
from pallas_kernels.grouped_gemm import (
    MODEL_EXPERTS,
    Config,
    QuantizedGroupedGemm,
    choose_quantized,
    grouped_gemm,
    launch_traffic,
    programs,
    smallest_cluster,
)
from pallas_kernels.grouped_gemm.heuristics import typical_rows
from pallas_kernels.hopper import SHARED_BYTES_LIMIT
from pallas_kernels.quantized_gemm import Config as QuantizedConfig
from pallas_kernels.quantized_gemm import QuantizedGemm, check_fits, matrix_of
from tests.compilations import compilations
from tests.pallas_kernels.grouped_gemm.quantized_cases import SMALL, Case, assert_right

CASE = Case(sizes=(11, 0, 20), t=40, k=128, kind="int4", group=32, offset_dtype="float16")
W, X = CASE.weights(), CASE.activations()
STACK = CASE.weights(stack=(2,))

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"group_sizes": [1, 2]}, r"group_sizes of shape 2: expected one number for each of w's 3"),
    ({"group_sizes": [20, 0, 21]}, r"group_sizes with sum 41: expected at most the 40 rows"),
    ({"x": X.astype(np.float32)}, r"x of dtype float32: expected one of bfloat16, float16"),
    ({"x": X[:, :64]}, r"x of shape 40x64: expected .*K=128"),
    ({"w": matrix_of(W, 0)}, r"w.data of shape \(64, 64\): expected experts \[E, ...\]"),
    ({"w": CASE.weights(stack=(2, 2))}, r"w.data of shape \(2, 2, 3, 64, 64\): expected"),
    ({"w": replace(W, scales=W.scales[:, :1])}, r"w.scales of shape \(3, 1, 64\): expected"),
    ({"w": replace(W, offsets=W.offsets[:2])}, r"w.offsets of shape \(2, 4, 64\): expected"),
    ({"w": replace(W, data=W.data.view(np.uint8))}, r"w.data of dtype uint8: expected int8"),
    ({"w_layout": "mn"}, r"w_layout='mn': expected 'kn'"),
    ({"layer": 0}, r"layer=0: expected None"),
    ({"w": STACK}, r"layer=None: expected a number from 0 to 1"),
    ({"w": STACK, "layer": 2}, r"layer=2: expected a number from 0 to 1"),
    ({"cluster": 3}, r"cluster=3: expected 1, 2, 4 or 8"),
    ({"config": SMALL, "cluster": 2}, r"cluster=2: expected config.cluster=1"),
    (
        {"config": Config()},
        r"config of type pallas_kernels.grouped_gemm.* expected .*quantized_gemm",
    ),
    ({"config": replace(SMALL, tm=256)}, r"tm=256: expected at most 128 for group=32"),
    ({"config": SMALL, "sm_limit": 4}, r"sm_limit=4: expected from cluster=1 to 3 SMs"),
    ({"out_dtype": jnp.float16}, r"out_dtype=float16: expected bfloat16 or float32"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_use_names_argument_value_and_range(change: dict[str, Any], message: str) -> None:
    arguments = {"x": X, "w": W, "group_sizes": CASE.sizes, "backend": "reference"} | change
    unchecked = inspect.unwrap(grouped_gemm)  # as in production: without the tests' type checks
    with compilations() as seen, pytest.raises(ValueError, match=message):
        unchecked(**arguments)
    assert not seen  # refused before anything was compiled


def test_a_configuration_of_quantised_weights_is_none_for_others() -> None:
    w = np.zeros((3, 128, 64), X.dtype)
    with pytest.raises(ValueError, match=r"config of type .*quantized_gemm.* expected .*grouped"):
        grouped_gemm(X, w, CASE.sizes, config=SMALL, backend="reference")


def test_auto_works_here_and_sm90_says_what_is_missing() -> None:
    assert_right(CASE, np.asarray(grouped_gemm(X, W, CASE.sizes, w_layout="nk")), W)
    if reason := missing("sm90", present_device()):
        with pytest.raises(KernelUnavailable) as refusal:
            grouped_gemm(X, W, CASE.sizes, backend="sm90")
        assert reason in str(refusal.value)


def of_model(model: str, tokens: int, **weights: Any) -> tuple[QuantizedGroupedGemm, int]:
    layer = MODEL_EXPERTS[model]
    t, (k, n) = tokens * layer.per_token, layer.projections[0]
    expert = QuantizedGemm(m=-(-t // 8) * 8, k=k, n=n, **weights)
    gemm = QuantizedGroupedGemm(t=t, experts=layer.experts, expert=expert)
    return gemm, smallest_cluster(t, layer.experts)


@pytest.mark.parametrize("sms", [16, 132])
@pytest.mark.parametrize("model", MODEL_EXPERTS)
@pytest.mark.parametrize(
    "weights", [{}, {"kind": "int4", "group": 128}, {"kind": "int4", "group": 32}], ids=str
)
def test_balanced_routing_reads_most_experts_once(
    sms: int, model: str, weights: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    for tokens in (1, 32, 256, 1024):
        gemm, cluster = of_model(model, tokens, **weights)
        config = choose_quantized(gemm, sm_count=sms, cluster=cluster)
        check_fits(config, gemm.expert)
        if cluster * config.tm < typical_rows(gemm.t, gemm.experts):
            assert config.tm == (128 if weights.get("group") == 32 else 256)
            continue  # no tile is large enough
        sizes = rng.multinomial(gemm.t, np.full(gemm.experts, 1 / gemm.experts))
        traffic = launch_traffic(gemm, config, sizes)
        assert traffic.w_readings <= 1.1 * traffic.experts_read + 1


def test_one_token_of_qwen_moves_eight_experts_of_128_in_few_bits() -> None:
    gemm, cluster = of_model("qwen3-30b-a3b", 1, kind="int4", group=128, scale_dtype="bfloat16")
    sizes = np.zeros(128, int)
    sizes[::16] = 1
    config = choose_quantized(gemm, sm_count=132, cluster=cluster)
    traffic = launch_traffic(gemm, config, sizes)
    assert config.tm == 8
    assert traffic.link_bytes == 8 * (2048 * 1536 // 2 + 2 * 2048 // 128 * 1536)
    assert traffic.experts_read == traffic.w_readings == 8


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    tm=st.sampled_from([8, 32, 128]),
    cluster=st.sampled_from([1, 2, 8]),
)
def test_traffic_is_one_reading_for_each_block_of_rows(
    sizes: list[int], tm: int, cluster: int
) -> None:
    t = sum(sizes) + 3
    expert = QuantizedGemm(
        m=-(-t // 8) * 8, k=512, n=192, kind="int4", group=32, offset_dtype="float16"
    )
    gemm = QuantizedGroupedGemm(t=t, experts=len(sizes), expert=expert)
    config = QuantizedConfig(
        tm=tm, tn=128, x_columns=64, w_stages=2, x_stages=2, cluster=cluster, sm_count=8
    )
    ends = np.cumsum(sizes)
    owned = [(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True) if size]
    readings = sum(-(-(end - begin // 8 * 8) // (tm * cluster)) for begin, end in owned)
    traffic = launch_traffic(gemm, config, np.array(sizes))
    assert traffic.experts_read == len(owned)
    assert traffic.w_readings == readings
    assert traffic.link_bytes == readings * 192 * (512 // 2 + 16 * (4 + 2))
    assert traffic.items == 2 * readings
    assert traffic.flops == 2 * 512 * 192 * sum(sizes) <= traffic.mma_flops
    assert traffic.x_load_bytes * 4 == traffic.sum_bytes * 2 * 32  # one sum for 32 columns of X


def test_traffic_wants_the_configuration_that_goes_with_the_weights() -> None:
    gemm, _ = of_model("qwen3-30b-a3b", 1)
    with pytest.raises(ValueError, match=r"config of type .* goes with QuantizedGroupedGemm"):
        launch_traffic(gemm, Config(), np.zeros(128, int))


def test_programs_cover_every_tile_and_form_of_weights() -> None:
    found: Any = [p for p in programs(132) if ("kind" in dict(p.key))]
    configs = [p.function.keywords["config"] for p in found]
    assert {c.tm for c in configs} >= {8, 16, 128, 256}
    assert {c.cluster for c in configs} == {1, 2, 8}
    keys = [dict(p.key) for p in found]
    assert {k["kind"] for k in keys} == {"int8", "int4", "float8_e4m3fn"}
    assert {k["group"] for k in keys} == {"None", "32", "128"}
    assert {k["offset_dtype"] for k in keys} == {"None", "float32"}
    assert all(p.shared_bytes <= SHARED_BYTES_LIMIT for p in found)
    hosts = [[a.host for a in p.arguments] for p in found]
    assert all(
        h in ([False, True, True, False, False], [False, True, True, False, False, True])
        for h in hosts
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": 0}, "t=0: expected a number above 0"),
        ({"t": 9}, r"expert.m=8: expected t=9 rounded up: 16"),
        ({"experts": 0}, "experts=0: expected a number above 0"),
        ({"layers": 0}, "layers=0: expected a number from 1 up"),
        ({"expert": QuantizedGemm(m=8, k=128, n=64, layers=2)}, "expert.layers=2: expected None"),
    ],
)
def test_a_shape_the_kernel_cannot_take_is_refused(change: dict[str, Any], message: str) -> None:
    gemm = QuantizedGroupedGemm(t=8, experts=2, expert=QuantizedGemm(m=8, k=128, n=64))
    with pytest.raises(ValueError, match=message):
        replace(gemm, **change)
