"""Step tables against sums of single GEMMs, and the laws of a step."""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_benchmark.fixture import BenchmarkFixture

from c2c.cost import (
    Constants,
    StepTable,
    decode_attention_s,
    elementwise_bytes_per_token,
    expert_layer_time,
    gemm_time,
    load_constants,
    max_min,
    prefill_attention_s,
    resident_gemm_time,
    step_table,
    step_time,
)
from c2c.cost.resident import throttled_s
from c2c.errors import SettingError
from c2c.hardware import Slice, load_mig, load_platform, slices
from c2c.models import (
    ModelSpec,
    catalog_names,
    expected_active_experts,
    gemms,
    kv_bytes_per_token,
    load_spec,
    streamed_bytes,
)

LINK = 375.0
SIZE = {"max_tokens": 300, "max_rows": 20}


@pytest.fixture(scope="session")
def table(dense: ModelSpec, small_slice: Slice, constants: Constants) -> StepTable:
    return step_table(dense, small_slice, constants, LINK, **SIZE)


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("weights", ["host", "hbm"])
@pytest.mark.parametrize("tokens", [1, 3, 64, 65, 257, 300])
def test_rows_are_sums_of_single_gemms(
    model: str, weights: str, tokens: int, small_slice: Slice, constants: Constants
) -> None:
    spec = load_spec(model)
    alphas = [0.0, 0.3, 1.0]
    table = step_table(spec, small_slice, constants, LINK, alphas=alphas, weights=weights, **SIZE)  # type: ignore[arg-type]
    on = constants.on(small_slice)
    hbm_rate = small_slice.hbm_gbps * 1e9 * on.elementwise_efficiency
    for a, alpha in enumerate(alphas):
        elementwise = tokens * elementwise_bytes_per_token(spec)
        seconds = elementwise / hbm_rate + 4 * spec.layers * constants.elementwise_s
        link, hbm, busy_s = 0.0, float(elementwise), 0.0
        for gemm in gemms(spec):
            if gemm.kind == "head" or (weights == "hbm" and gemm.name == "expert_down"):
                continue
            if weights == "hbm":
                placed = {"slice_": small_slice, "constants": on}
                found = (
                    expert_layer_time(
                        tokens, hidden=spec.hidden, intermediate=spec.moe_intermediate,
                        experts=spec.experts, experts_per_token=spec.experts_per_token,
                        **placed,
                    )
                    if gemm.kind == "expert"
                    else resident_gemm_time(tokens, gemm.n, gemm.k, **placed)
                )  # fmt: skip
                seconds += gemm.count * float(found.total_s)
                hbm += gemm.count * float(found.hbm_bytes)
                busy_s += gemm.count * float(found.compute_s)
                continue
            rows, groups = float(tokens), 1.0
            if gemm.kind == "expert":
                groups = float(expected_active_experts(spec, tokens))
                rows = tokens * spec.experts_per_token / groups
            cost = gemm_time(
                rows, gemm.n, gemm.k, alpha,
                slice_=small_slice, constants=on, link_gbps=LINK, groups=groups,
            )  # fmt: skip
            seconds += gemm.count * float(cost.time_s)
            link += gemm.count * float(cost.traffic.link_bytes)
            hbm += gemm.count * float(cost.traffic.hbm_bytes)
        seconds += float(throttled_s(busy_s, busy_s, on))
        assert table.body_s[tokens, a] == pytest.approx(seconds, rel=1e-12)
        assert table.body_link_bytes[tokens, a] == pytest.approx(link, rel=1e-12)
        assert table.body_hbm_bytes[tokens, a] == pytest.approx(hbm, rel=1e-12)


def test_empty_steps_cost_nothing(table: StepTable) -> None:
    for name in ("body", "head"):
        for what in ("s", "link_bytes", "hbm_bytes"):
            assert (getattr(table, f"{name}_{what}")[0] == 0).all()
    assert table.prefill_attention_s[0] == table.decode_attention_s[0] == 0


@pytest.mark.parametrize("model", catalog_names())
def test_a_decode_step_streams_what_the_model_says_it_touches(
    model: str, small_slice: Slice, constants: Constants
) -> None:
    spec = load_spec(model)
    table = step_table(spec, small_slice, constants, LINK, **SIZE)
    moved = step_time(table, decode_seqs=8, decode_kv_tokens=8, head_rows=8).link_bytes
    assert moved == pytest.approx(float(streamed_bytes(spec, 8)), rel=1e-9)


def test_fig6a_larger_pairs_interfere_more(
    gh200: Callable[[str], Slice], constants: Constants
) -> None:
    """Two equal models decode on the halves of a GPU; the gap widens with their size."""
    gaps = []
    for model in ("llama-3-3b", "llama-3-8b", "llama-3-70b"):
        table = step_table(load_spec(model), gh200("2x48gb"), constants, LINK, **SIZE)
        load = {"decode_seqs": 4, "decode_kv_tokens": 2000, "head_rows": 4}
        alone = step_time(table, **load)
        share = float(max_min([alone.demand_gbps] * 2, LINK)[0])
        gaps.append(1 - alone.seconds / step_time(table, rate_gbps=share, **load).seconds)
    assert 0.2 < gaps[0] < gaps[1] < gaps[2] < 0.45


def test_step_time_is_body_plus_head_plus_attention(
    table: StepTable, dense: ModelSpec, small_slice: Slice, constants: Constants
) -> None:
    cost = step_time(
        table, prefill_tokens=100, context_tokens=50, decode_seqs=4, decode_kv_tokens=4000,
        head_rows=5, alpha_index=3,
    )  # fmt: skip
    on = constants.on(small_slice)
    rate = small_slice.hbm_gbps * 1e9 * on.decode_hbm_efficiency
    kv = kv_bytes_per_token(dense)
    flops = 4 * dense.layers * dense.heads * dense.head_dim * (100 * 50 + 100 * 101 / 2)
    prefill = max(
        flops / (small_slice.bf16_tflops * 1e12 * constants.prefill_efficiency), kv * 150 / rate
    )
    calls = prefill_attention_s(
        100, heads=dense.heads, kv_heads=dense.kv_heads, slice_=small_slice, constants=on
    ) + decode_attention_s(4, kv_heads=dense.kv_heads, slice_=small_slice, constants=on)
    seconds = table.body_s[104, 3] + table.head_s[5, 3] + constants.step_overhead_s
    seconds += prefill + kv * 4000 / rate + dense.layers * float(calls)
    assert cost.seconds == pytest.approx(seconds, rel=1e-12)
    assert cost.hbm_bytes == pytest.approx(
        table.body_hbm_bytes[104, 3] + table.head_hbm_bytes[5, 3] + kv * 4150, rel=1e-12
    )


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(0, 100), st.integers(0, 16), st.floats(1, 1000))
def test_a_slower_link_lengthens_a_step_only_below_its_demand(
    prefill: int, decodes: int, alpha_index: int, rate: float
) -> None:
    table = _shared_table()
    load = {
        "prefill_tokens": prefill,
        "decode_seqs": decodes,
        "decode_kv_tokens": 100 * decodes,
        "alpha_index": alpha_index,
    }
    alone = step_time(table, **load)
    shared = step_time(table, rate_gbps=rate, **load)
    assert shared.seconds >= alone.seconds == alone.alone_s == shared.alone_s
    if rate >= alone.demand_gbps * (1 + 1e-12):
        assert shared.seconds == alone.seconds
    else:
        assert shared.seconds == pytest.approx(alone.link_bytes / rate / 1e9, rel=1e-9)
    assert alone.demand_gbps <= table.link_cap_gbps * (1 + 1e-12)


def _shared_table() -> StepTable:
    if not _TABLES:
        slice_ = slices(load_platform("gh200"), load_mig("7x12gb"))[0]
        _TABLES.append(step_table(load_spec("llama-3-8b"), slice_, load_constants(), LINK, **SIZE))
    return _TABLES[0]


_TABLES: list[StepTable] = []


@pytest.mark.parametrize("resource", ["sms", "hbm", "link"])
@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("mig", ["1x96gb", "7x12gb"])
def test_doubling_a_resource_never_lengthens_a_step(
    resource: str, model: str, mig: str, gh200: Callable[[str], Slice],
    scaled: Callable[..., Slice], constants: Constants,
) -> None:  # fmt: skip
    spec, slice_ = load_spec(model), gh200(mig)
    before = step_table(spec, slice_, constants, LINK, max_tokens=2048, max_rows=64)
    after = step_table(
        spec, scaled(slice_, **{resource: 2}), constants, LINK * (2 if resource == "link" else 1),
        max_tokens=2048, max_rows=64,
    )  # fmt: skip
    for name in ("body_s", "head_s"):
        assert (getattr(after, name) <= getattr(before, name)).all()
    assert (after.body_s < before.body_s).any()
    if resource == "link":  # binds in every decode step
        assert (after.body_s[1:65] < before.body_s[1:65]).all()
        assert (after.head_s[1:] < before.head_s[1:]).all()
    assert after.kv_read_s_per_token <= before.kv_read_s_per_token
    assert after.attn_s_per_pair <= before.attn_s_per_pair


def test_more_tokens_never_cost_less(table: StepTable, moe: ModelSpec, small_slice: Slice,
                                     constants: Constants) -> None:  # fmt: skip
    for t in (table, step_table(moe, small_slice, constants, LINK, **SIZE)):
        assert (np.diff(t.body_link_bytes, axis=0) >= -1e-6).all()
        assert (np.diff(t.head_s, axis=0) >= 0).all()
    assert (np.diff(table.body_s, axis=0) >= 0).all()


def test_resident_weights_leave_the_link_alone_and_alpha_without_effect(
    dense: ModelSpec, full_gpu: Slice, constants: Constants
) -> None:
    table = step_table(dense, full_gpu, constants, LINK, weights="hbm", **SIZE)
    assert (table.body_link_bytes == 0).all()
    assert (table.head_link_bytes == 0).all()
    assert (table.body_s == table.body_s[:, :1]).all()
    one_token = step_time(table, decode_seqs=1, decode_kv_tokens=1, head_rows=1)
    assert one_token.hbm_bytes == pytest.approx(float(streamed_bytes(dense, 1)), rel=1e-2)


def test_tables_of_equal_inputs_are_equal_and_of_other_inputs_are_not(
    dense: ModelSpec, small_slice: Slice, constants: Constants, table: StepTable
) -> None:
    again = step_table(dense, small_slice, constants, LINK, **SIZE)
    for field in fields(StepTable):
        assert np.array_equal(getattr(again, field.name), getattr(table, field.name))
    changed = replace(constants, elementwise_s=constants.elementwise_s / 2)
    other = step_table(dense, small_slice, changed, LINK, **SIZE)
    assert not np.array_equal(other.body_s, table.body_s)


def test_a_full_table(
    benchmark: BenchmarkFixture, dense: ModelSpec, small_slice: Slice, constants: Constants
) -> None:
    table = benchmark.pedantic(
        step_table,
        args=(dense, small_slice, constants, LINK),
        kwargs={"max_tokens": 8448, "max_rows": 256},
        rounds=3,
    )
    assert table.max_tokens == 8448
    assert np.isfinite(table.body_s).all()


@pytest.mark.parametrize(
    "change",
    [{"alphas": [1.5]}, {"alphas": []}, {"max_tokens": 0}, {"max_rows": 0}, {"weights": "disk"}],
)
def test_settings_that_cannot_work_are_refused(
    dense: ModelSpec, small_slice: Slice, constants: Constants, change: dict[str, object]
) -> None:
    with pytest.raises(SettingError, match=next(iter(change))):
        step_table(dense, small_slice, constants, LINK, **(SIZE | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "load", [{"prefill_tokens": 301}, {"head_rows": 21}, {"decode_seqs": 1, "rate_gbps": 0.0}]
)
def test_steps_outside_the_table_are_refused(table: StepTable, load: dict[str, int]) -> None:
    with pytest.raises(SettingError):
        step_time(table, **load)  # type: ignore[arg-type]
