"""Steps of today's families: what streams, what attends, what is packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from c2c.cost import Constants, step_table, step_time
from c2c.cost.gemm_time import gemm_time
from c2c.cost.kernel_graph import Batch, step_kernels
from c2c.cost.resident import expert_layer_time, resident_gemm_time
from c2c.errors import SettingError
from c2c.hardware import Slice
from c2c.models import (
    ModelSpec,
    from_hf_config,
    kv_bytes_per_token,
    state_bytes,
    streamed_bytes,
    weight_bytes,
)
from c2c.serving.prepare import tables
from c2c.systems.cocoserve.modules import modules
from tests.models import published, recent

CONFIGS = published.CONFIGS | recent.CONFIGS
LINK = 375.0
SIZE = {"max_tokens": 4, "max_rows": 2}
SHAPE = {"hidden": 2048, "intermediate": 768, "experts": 128, "experts_per_token": 8}


def spec_of(name: str, **changes: object) -> ModelSpec:
    return from_hf_config(CONFIGS[name] | changes, name)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_of_one_token_streams_what_the_model_says(
    name: str, full_gpu: Slice, constants: Constants
) -> None:
    spec = spec_of(name)
    table = step_table(spec, full_gpu, constants, LINK, **SIZE)
    streamed = table.body_link_bytes[1] + table.head_link_bytes[1]
    np.testing.assert_allclose(streamed, float(streamed_bytes(spec, 1)), rtol=1e-9)
    assert table.kv_bytes_per_token == kv_bytes_per_token(spec)
    for values in (table.body_s, table.head_s):
        assert (np.diff(values[:, 0]) >= 0).all()


@pytest.mark.parametrize("weights", ["host", "staged", "hbm"])
def test_packed_weights_move_fewer_bytes_and_take_less_time(
    weights: str, full_gpu: Slice, constants: Constants
) -> None:
    packed = spec_of("deepseek_v3")
    wide = replace(packed, weights=None)
    few, many = (
        step_table(s, full_gpu, constants, LINK, weights=weights, **SIZE)  # type: ignore[arg-type]
        for s in (packed, wide)
    )
    assert (few.body_s[1:] < many.body_s[1:]).all()
    np.testing.assert_array_equal(few.head_s, many.head_s)  # a head is never packed
    if weights == "staged":  # all of a layer is copied: matrices, without norms and the embedding
        beside = 2 * (2 * 129280 * 7168 + 61 * (1536 + 512 + 2 * 7168) + 7168) + 4 * 58 * 256
        np.testing.assert_allclose(few.body_link_bytes[1], weight_bytes(packed) - beside)


def test_only_what_is_read_of_weights_shrinks(full_gpu: Slice, constants: Constants) -> None:
    rows, n, k = 4, 4096, 2048
    chip = {"slice_": full_gpu, "constants": constants.on(full_gpu)}
    wide, packed = (
        gemm_time(rows, n, k, 0.5, link_gbps=LINK, stored=stored, **chip).traffic
        for stored in (None, 0.5)
    )
    assert packed.link_bytes == wide.link_bytes / 4
    assert packed.hbm_bytes == wide.hbm_bytes
    one = {"tiles": ((64, 128),), "k_slices": (1,), **chip}
    wide, packed = (resident_gemm_time(rows, n, k, stored=stored, **one) for stored in (2.0, 0.5))
    assert float(wide.hbm_bytes - packed.hbm_bytes) == 1.5 * n * k
    np.testing.assert_array_equal(wide.compute_s, packed.compute_s)
    wide, packed = (expert_layer_time(1, stored=stored, **SHAPE, **chip) for stored in (None, 0.5))
    saved = float(wide.hbm_bytes - packed.hbm_bytes)
    assert saved == pytest.approx(1.5 * 8 * 3 * 2048 * 768)


def test_layers_of_linear_attention_have_a_state_and_no_cache(
    full_gpu: Slice, constants: Constants
) -> None:
    spec = spec_of("qwen3_next_80b")
    table = step_table(spec, full_gpu, constants, LINK, **SIZE)
    on = constants.on(full_gpu)
    rate = full_gpu.hbm_gbps * 1e9 * on.decode_hbm_efficiency
    attended = replace(spec, linear=None)
    every = step_table(attended, full_gpu, constants, LINK, **SIZE)
    assert every.attn_s_per_pair == pytest.approx(4 * table.attn_s_per_pair)
    assert every.kv_read_s_per_token == pytest.approx(4 * table.kv_read_s_per_token)
    state_s = table.decode_attention_s - every.decode_attention_s / 4
    np.testing.assert_allclose(state_s, 2 * state_bytes(spec) / rate * np.arange(5), rtol=1e-9)


def test_latent_attention_reads_little_and_computes_much(
    full_gpu: Slice, constants: Constants
) -> None:
    spec = spec_of("deepseek_v3")
    table = step_table(spec, full_gpu, constants, LINK, **SIZE)
    plain = step_table(replace(spec, latent=None), full_gpu, constants, LINK, **SIZE)
    assert plain.attn_s_per_pair / table.attn_s_per_pair == pytest.approx(2 * 192 / (192 + 128))
    assert plain.kv_bytes_per_token / table.kv_bytes_per_token == 2 * 128 * 192 / 576


def test_sparse_attention_reads_its_best_positions(full_gpu: Slice, constants: Constants) -> None:
    sparse, whole = (
        step_table(spec_of("glm5", index_topk=k), full_gpu, constants, LINK, **SIZE)
        for k in (2048, 10**6)
    )
    assert sparse.cache == sparse.reads._replace(
        full=sparse.cache.full, windowed=0, window=0
    )  # all are held
    ends = [
        [step_time(t, prefill_tokens=4, context_tokens=n).alone_s for n in (1024, 65_536)]
        for t in (sparse, whole)
    ]
    assert ends[0][0] == pytest.approx(ends[1][0])
    # the index alone grows: 128 of 704 values and a ninth of the products
    assert ends[0][1] - ends[0][0] < 0.3 * (ends[1][1] - ends[1][0])


def test_heads_of_several_sizes_take_the_time_of_each(
    full_gpu: Slice, constants: Constants
) -> None:
    spec = spec_of("gemma4_26b_a4b")
    table = step_table(spec, full_gpu, constants, LINK, **SIZE)
    alike = step_table(replace(spec, windowed_heads=None), full_gpu, constants, LINK, **SIZE)
    # 25 layers of 16 x 256 and 5 of 16 x 512, or 30 of these
    assert table.attn_s_per_pair / alike.attn_s_per_pair == pytest.approx((25 + 10) / 60)


@pytest.mark.parametrize("weights", ["host", "hbm"])
def test_experts_without_a_gate_and_in_a_narrow_space_cost_less(
    weights: str, full_gpu: Slice, constants: Constants
) -> None:
    spec = spec_of("nemotron3_super")
    narrow, wide, gated = (
        step_table(s, full_gpu, constants, LINK, weights=weights, **SIZE)  # type: ignore[arg-type]
        for s in (spec, replace(spec, expert_hidden=0), replace(spec, gated_mlp=True))
    )
    assert narrow.body_s[4, 0] < wide.body_s[4, 0]
    assert narrow.body_s[4, 0] < gated.body_s[4, 0]


def test_kernels_that_cannot_read_host_memory_stream_no_weights(
    full_gpu: Slice, constants: Constants
) -> None:
    copies = replace(full_gpu, kernels_read=False)
    spec = spec_of("olmo2_7b")
    assert step_table(spec, copies, constants, LINK, weights="staged", **SIZE)
    with pytest.raises(SettingError, match=r"link\.kernels_read=False: expected true for a system"):
        step_table(spec, copies, constants, LINK, **SIZE)


def test_parts_of_a_layer_are_named_of_usual_layers_only() -> None:
    batch = Batch(rows=2, chunk=1, context=8)
    assert step_kernels(spec_of("gemma2_9b"), batch)
    assert modules(spec_of("olmo2_7b"))
    for name in ("deepseek_v2_lite", "qwen3_next_80b", "glm45_air"):
        for call in (lambda s: step_kernels(s, batch), modules):
            with pytest.raises(SettingError, match="a family with keys and values of its own in"):
                call(spec_of(name))


def test_a_simulation_loads_what_the_checkpoint_stores() -> None:
    spec = spec_of("deepseek_v3")
    # 58 layers of 256 experts of three matrices, and scales of 128 x 128
    one = 3 * (7168 * 2048 + 16 * 56 * 4)
    assert tables.expert_bytes(spec) == one
    assert tables.dense_bytes(spec) == weight_bytes(spec) - 58 * 256 * one
    beside = 2 * (129280 * 7168 + 61 * (1536 + 512 + 2 * 7168) + 7168) + 4 * 58 * 256
    matrices = 61 * tables.layer_bytes(spec) + tables.head_bytes(spec)
    assert matrices == pytest.approx(weight_bytes(spec) - beside, rel=1e-12)
