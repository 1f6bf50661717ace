"""Kernels of a step by its shape, and what they take on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from c2c.cost import resident_gemm_time
from c2c.cost.kernel_graph import (
    Batch,
    Efficiency,
    StepKernel,
    kernel_s,
    step_kernels,
    step_s,
    tensor_parallel,
    timed_gpus,
    transfers_of,
)
from c2c.errors import SettingError
from c2c.models import load_spec
from c2c.systems.tessera import work_of

DECODE = Batch(rows=64, chunk=1, context=1084)
PREFILL = Batch(rows=4, chunk=1020, context=1020)
A100, L40S = timed_gpus("a100_80", "l40s")


@pytest.mark.parametrize("model", ["llama-3-8b", "gpt-oss-20b", "qwen3-235b-a22b"])
@pytest.mark.parametrize("batch", [DECODE, PREFILL])
def test_a_step_computes_what_its_model_has(model: str, batch: Batch) -> None:
    spec = load_spec(model)
    kernels = step_kernels(spec, batch)
    layers = [k for k in kernels if k.layer >= 0]
    assert len(layers) % spec.layers == 0
    wide = (spec.heads + 2 * spec.kv_heads) * spec.head_dim + spec.heads * spec.head_dim
    feed = spec.experts_per_token * spec.moe_intermediate if spec.experts else spec.intermediate
    gemms = {"qkv", "o", "gate_up", "down", "experts_gate_up", "experts_down"}
    done = sum(k.tensor_flops for k in layers if k.kind in gemms)
    each = 2 * spec.hidden * (wide + 3 * feed)
    assert done == pytest.approx(batch.tokens * spec.layers * each, rel=1e-12)
    # each reads what was written: transfers are from earlier kernels, no two alike
    edges = [(e.source, e.target) for e in transfers_of(kernels)]
    assert len(set(edges)) == len(edges)
    taken = {source for source, _ in edges}
    assert taken == set(range(len(kernels) - 1))


def test_a_batch_reads_its_experts_once() -> None:
    spec = load_spec("qwen3-235b-a22b")
    few, many = (
        sum(k.weight_bytes for k in step_kernels(spec, Batch(rows=n, chunk=1, context=9))
            if k.kind.startswith("experts"))
        for n in (1, 4096)
    )  # fmt: skip
    one = 2 * 3 * spec.hidden * spec.moe_intermediate * spec.layers
    assert few == pytest.approx(spec.experts_per_token * one)
    assert many == pytest.approx(spec.experts * one, rel=1e-6)


def test_the_longest_of_four_and_a_launch() -> None:
    e = Efficiency()
    launch = e.launch_s * 1.41 / 2.52
    big = 1e12
    for field, seconds in (
        ("tensor_flops", big / (366.5e12 * e.tensor)),
        ("core_flops", big / (91.6e12 * e.cores)),
        ("weight_bytes", big / (864e9 * e.hbm)),
        ("cache_bytes", big / (864e9 * e.hbm)),
    ):
        kernel = StepKernel(kind="k", layer=0, **{field: big})
        assert kernel_s(kernel, L40S) == pytest.approx(seconds + launch)
    small = StepKernel(kind="k", layer=0, read_bytes=20e6, write_bytes=20e6)
    assert kernel_s(small, L40S) == pytest.approx(40e6 / (5161e9 * e.l2) + launch)
    assert kernel_s(small, A100) > 19e6 / (1935e9 * e.hbm)  # does not fit half of 40 MiB


def test_a_product_takes_what_the_cost_model_says() -> None:
    """Alone to the last digit; in a step also what busy tensor cores lose to the power limit."""
    spec = load_spec("llama-3-8b")
    for batch in (DECODE, PREFILL):
        kernels = step_kernels(spec, batch)
        qkv, head = (next(k for k in kernels if k.kind == kind) for kind in ("qkv", "head"))
        assert qkv.product == (batch.tokens, 4096, 6144)
        assert head.product == (batch.rows, 4096, spec.vocab)
        for on in (A100, replace(L40S, share=0.5)):
            m, k, n = qkv.product
            alone = resident_gemm_time(m, n, k, slice_=on.part, constants=on.constants)
            assert kernel_s(qkv, on) == pytest.approx(float(alone.total_s) / on.share)
            longest = float(alone.total_s) + on.constants.gemm_throttle * float(alone.compute_s)
            steady = step_s(kernels, on)[kernels.index(qkv)]
            # a prompt keeps tensor cores busy for long, a step of decodes does not
            wanted = longest if batch is PREFILL else float(alone.total_s)
            assert steady == pytest.approx(wanted / on.share, rel=0.01)


def test_a_rank_has_its_part_of_a_product() -> None:
    kernels = step_kernels(load_spec("llama-3-8b"), DECODE)
    ranked, at = tensor_parallel(kernels, 4, kv_heads=8)
    for before, number in zip(kernels, at, strict=True):
        after = ranked[number]
        if before.kind in ("rope_q", "rope_k", "merge", "activate"):
            assert after.read_bytes == pytest.approx(before.read_bytes / 4)
        if before.product is None:
            assert after.product is None
            continue
        assert before.product != after.product
        m, k, n = after.product
        assert 2 * k * n == pytest.approx(after.weight_bytes)
        assert 2 * m * k * n == pytest.approx(after.tensor_flops)
        assert 2 * m * k == pytest.approx(after.read_bytes)
        assert 2 * m * n == pytest.approx(after.write_bytes)


def test_small_kernels_go_to_the_faster_clock() -> None:
    """More kernels of a decode step are faster on the L40S than its memory would say."""
    work = work_of(step_kernels(load_spec("llama-3-8b"), DECODE), [A100, L40S])
    faster = [n for n, (a, b) in zip(work.names, work.times_s, strict=True) if b < a]
    assert 0.4 < len(faster) / len(work.names) < 0.8
    assert not any(name.endswith(("qkv", "gate_up", "attention")) for name in faster)
    assert work.times[:, 1].sum() > work.times[:, 0].sum()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SettingError, match="rows"):
        Batch(rows=0, chunk=1, context=1)
    with pytest.raises(SettingError, match="context"):
        Batch(rows=1, chunk=5, context=4)
    for wrong in ({"tensor": 0.0}, {"hbm": 1.5}, {"l2_share": -1.0}, {"launch_s": -1e-6}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            Efficiency(**wrong)
    kernel = StepKernel(kind="k", layer=0)
    with pytest.raises(SettingError, match=r"gpu.clock_ghz=None"):
        kernel_s(kernel, replace(A100, gpu=replace(A100.gpu, clock_ghz=None)))
