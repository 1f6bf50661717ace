"""Steps over several ranks: conserved bytes, and what an interconnect can and cannot do."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.cost import StepTable, all_reduce_s, load_constants, ranks_table, step_table
from c2c.errors import SettingError
from c2c.hardware import Ranks, grouped, load_platform, one_rank, slices
from c2c.models import gemm_bytes, gemms, kv_bytes_per_token, load_spec, rank_of

CHIP = load_platform("gh200")
CONSTANTS = load_constants("gh200")
MODELS = ("llama-3-70b", "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b")
MEASURED = Path(__file__).parents[2] / "experiments" / "measured"
FREE = Ranks(count=1, gbps=1e30, latency_s=0.0)
models = st.sampled_from(MODELS)
counts = st.sampled_from((2, 4, 8))
places = st.sampled_from(("host", "hbm", "staged"))


def table(name: str, ranks: Ranks, weights: str = "host", tokens: int = 300) -> StepTable:
    spec, n = load_spec(name), ranks.count
    apart = ranks.experts_apart
    one = step_table(
        rank_of(spec, n, experts_apart=apart), slices(CHIP, CHIP.mig[0])[0], CONSTANTS, 375.0,
        max_tokens=tokens, max_rows=64, alphas=(0.0, 0.5), weights=weights,  # type: ignore[arg-type]
        experts_over=n if apart else 1,
    )  # fmt: skip
    return one if n == 1 else ranks_table(one, spec, ranks)


@given(name=models, n=counts, weights=places, apart=st.booleans())
def test_free_interconnects_make_no_step_slower(
    name: str, n: int, weights: str, apart: bool
) -> None:
    apart &= load_spec(name).experts > 0
    whole = table(name, FREE, weights)
    many = table(name, replace(FREE, count=n, experts_apart=apart), weights)
    assert (many.body_s <= whole.body_s * (1 + 1e-9)).all()
    assert (many.head_s <= whole.head_s * (1 + 1e-9)).all()
    for field in ("kv_read_s_per_token", "attn_s_per_pair"):
        assert getattr(many, field) <= getattr(whole, field) * (1 + 1e-9)
    for field in ("prefill_attention_s", "decode_attention_s"):
        assert (getattr(many, field) <= getattr(whole, field) * (1 + 1e-9)).all()


@given(name=models, n=counts, over_link=st.booleans(), slower=st.floats(1.0, 100.0),
       latency_s=st.floats(0.0, 1e-4), more_s=st.floats(0.0, 1e-4))  # fmt: skip
def test_a_slower_interconnect_makes_no_step_faster(
    name: str, n: int, over_link: bool, slower: float, latency_s: float, more_s: float
) -> None:
    fast = Ranks(count=n, gbps=400.0, latency_s=latency_s, over_link=over_link)
    slow = replace(fast, gbps=fast.gbps / slower, latency_s=latency_s + more_s)
    one, other = table(name, fast), table(name, slow)
    assert (one.body_s <= other.body_s).all()
    assert (one.head_s <= other.head_s).all()
    assert np.array_equal(one.body_link_bytes, other.body_link_bytes)


@given(name=models, n=counts, apart=st.booleans(), tokens=st.integers(1, 300))
def test_ranks_stream_the_model_once_and_copies_of_what_is_not_shared_out(
    name: str, n: int, apart: bool, tokens: int
) -> None:
    spec = load_spec(name)
    apart &= spec.experts > 0
    whole = table(name, FREE).body_link_bytes[tokens, 0]
    many = table(name, replace(FREE, count=n, experts_apart=apart)).body_link_bytes[tokens, 0]
    rank = rank_of(spec, n, experts_apart=apart)
    copied = {"router", "qkv_a"} | ({"qkv"} if spec.kv_heads < n else set())
    bytes_of = [{g.name: g.count * gemm_bytes(s, g) for g in gemms(s)} for s in (spec, rank)]
    extra = sum(n * bytes_of[1].get(g, 0) - bytes_of[0].get(g, 0) for g in copied)
    # scales of fp8 blocks that a cut does not meet are rounded up
    assert many == pytest.approx(whole + extra, rel=1e-3)
    assert many >= whole * (1 - 1e-12)


def test_kv_caches_are_shared_out_by_heads_and_copied_where_there_are_too_few() -> None:
    eight_heads = load_spec("llama-3-70b")
    latent = load_spec("deepseek-v3")
    for n in (1, 2, 4, 8):
        assert n * kv_bytes_per_token(rank_of(eight_heads, n)) == kv_bytes_per_token(eight_heads)
        assert kv_bytes_per_token(rank_of(latent, n)) == kv_bytes_per_token(latent)
    doubled = 16 * kv_bytes_per_token(rank_of(eight_heads, 16))
    assert doubled == 2 * kv_bytes_per_token(eight_heads)


def test_wires_of_the_link_are_bytes_of_the_link() -> None:
    spec, n, tokens = load_spec("llama-3-8b"), 4, 128
    beside = table("llama-3-8b", replace(FREE, count=n)).body_link_bytes[tokens, 0]
    over = table("llama-3-8b", replace(FREE, count=n, over_link=True)).body_link_bytes[tokens, 0]
    sums = 2 * spec.layers + 1
    assert over - beside == pytest.approx(sums * 2 * (n - 1) * tokens * spec.hidden * 2)


@pytest.mark.parametrize(
    ("system", "chip", "median"),
    [("h100_sxm", "h100_sxm", 0.15), ("h200_sxm", "h200_pcie5", 0.15),
     ("a100_sxm", "a100_80", 0.15),
     ("b200_sxm", "b200", 0.15), ("b300_sxm", "b300", 0.15),
     ("rtx_pro_6000_server", "rtx_pro_6000", 0.06), ("l40s", "l40s", 0.06)],
)  # fmt: skip
def test_all_reduces_take_what_was_measured(system: str, chip: str, median: float) -> None:
    """Sizes that are odd powers of two, which nothing was fitted to; B300 has the B200's links."""
    lines = (MEASURED / "all_reduce.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    errors = []
    for row in rows:
        nbytes, count = int(row["bytes"]), int(row["gpus"])
        if row["system"] != system or round(np.log2(nbytes)) % 2 == 0:
            continue
        ranks = grouped(load_platform(chip), count, variant="measured").ranks
        assert ranks is not None
        errors.append(1e6 * float(all_reduce_s(nbytes, ranks)) / float(row["us"]) - 1.0)
    assert len(errors) > 20
    assert np.median(np.abs(errors)) <= median


@given(name=st.sampled_from(("gh200", "h100_sxm", "l40s", "b200")), n=st.integers(2, 16))
def test_a_group_has_all_of_its_chips_and_a_rank_is_one(name: str, n: int) -> None:
    chip = load_platform(name)
    group = grouped(chip, n, variant="measured")
    assert group.gpu.hbm_bytes == n * chip.gpu.hbm_bytes
    assert group.host.memory_bytes == n * chip.host.memory_bytes
    for name in ("usd_per_hour", "power_w", "idle_w"):
        one_has = getattr(chip.gpu, name)
        assert getattr(group.gpu, name) == (None if one_has is None else n * one_has)
    (whole,), (one,) = slices(group, group.mig[0]), slices(chip, chip.mig[0])
    assert one_rank(whole).sm_count == one.sm_count
    assert one_rank(whole).hbm_bytes == one.hbm_bytes
    assert one_rank(whole).hbm_gbps == pytest.approx(one.hbm_gbps)
    assert one_rank(whole).link_cap_gbps == pytest.approx(one.link_cap_gbps)
    assert grouped(chip, 1, variant="measured") is chip


@pytest.mark.parametrize(
    ("name", "n", "apart", "message"),
    [
        ("llama-3-70b", 3, False, "8 kv_heads of llama-3-70b evenly"),
        ("qwen1.5-0.5b", 32, False, "16 heads"),
        ("mixtral-8x7b", 16, True, "8 experts"),
    ],
)
def test_what_ranks_cannot_share_is_refused(name: str, n: int, apart: bool, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        rank_of(load_spec(name), n, experts_apart=apart)
