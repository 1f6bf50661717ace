"""Served models: other models' kernels, one rank of several, pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from c2c.cost.kernel_graph import (
    MAMBA,
    SD35,
    VISION,
    Batch,
    Load,
    decoder,
    diffusion,
    kernel_s,
    ranked,
    state_space,
    step_kernels,
    tensor_parallel,
    timed_gpu,
    transfers_of,
    vision_kernels,
)
from c2c.errors import SettingError
from c2c.models import kv_bytes_per_token, load_spec, weight_bytes
from c2c.systems.tessera import Lanes, Options, load_pair, plan, ways, work_of

LOAD = Load(prompt=1020, output=129)
OSS = load_spec("gpt-oss-20b")


def test_other_models_have_their_published_sizes() -> None:
    assert state_space("mamba", MAMBA, LOAD).weight_bytes == pytest.approx(2 * 7.3e9, rel=0.02)
    assert diffusion("sd", SD35, images=2, steps=28).weight_bytes == pytest.approx(
        2 * 2.24e9, rel=0.1
    )
    tower = sum(k.weight_bytes for k in vision_kernels(VISION, 1, 1296))
    assert tower == pytest.approx(2 * 0.67e9, rel=0.03)


def test_every_result_is_read_and_edges_go_forward() -> None:
    for served in (state_space("mamba", MAMBA, LOAD), diffusion("sd", SD35, images=1, steps=28)):
        for phase in served.phases:
            edges = {(e.source, e.target) for e in transfers_of(phase.kernels)}
            assert all(a < b for a, b in edges)
            last_text = {n for n, k in enumerate(phase.kernels) if k.kind.endswith("2_c")}
            unread = set(range(len(phase.kernels) - 1)) - {a for a, _ in edges} - last_text
            assert not unread, [phase.kernels[n].kind for n in unread]


def test_quantised_experts_are_smaller() -> None:
    wide, narrow = decoder(OSS, LOAD), decoder(OSS, LOAD, expert_bytes=4.25 / 8)
    assert wide.weight_bytes == weight_bytes(OSS)
    assert narrow.weight_bytes == pytest.approx(13.8e9, rel=0.05)
    kept = sum(w.nbytes for w in narrow.kept)
    assert kept == pytest.approx(narrow.weight_bytes + narrow.state_bytes, rel=0.001)


def test_windows_bound_what_a_layer_reads() -> None:
    kernels = step_kernels(OSS, Batch(rows=2, chunk=1, context=4000))
    reads = {k.layer: k.cache_bytes for k in kernels if k.kind == "attention"}
    each = kv_bytes_per_token(OSS) / OSS.layers
    for layer, nbytes in reads.items():
        seen = 128 if layer in OSS.window_layers else 4000
        assert nbytes == pytest.approx(2 * seen * each)


def test_ranks_share_the_work() -> None:
    spec = replace(load_spec("llama-3-8b"), layers=2)
    whole = step_kernels(spec, Batch(rows=8, chunk=1, context=100))
    parts, at = tensor_parallel(whole, 4, kv_heads=spec.kv_heads)
    sums = [k for k in parts if k.wire_bytes]
    assert len(parts) == len(whole) + len(sums) == len(whole) + 2 * spec.layers
    assert [parts[n].kind for n in at] == [k.kind for k in whole]
    split = {"qkv", "o", "gate_up", "down", "head"}
    for kernel, part in zip(whole, (parts[n] for n in at), strict=True):
        share = 4 if kernel.kind in split else 1
        assert part.weight_bytes == pytest.approx(kernel.weight_bytes / share)
        if kernel.kind == "attention":
            assert part.cache_bytes == pytest.approx(kernel.cache_bytes / 4)
    # what adds up a block's parts is read by the residual stream, not the part itself
    added = next(k for k in parts if k.kind == "add1")
    assert parts[added.takes[0]].kind == "all_reduce_o"
    assert tensor_parallel(whole, 1, kv_heads=8)[0] == whole
    with pytest.raises(SettingError, match="ranks"):
        tensor_parallel(whole, 0, kv_heads=8)
    nbytes = sums[0].write_bytes
    without = [replace(k, wire_bytes=0.0) for k in sums]
    for gpu in load_pair("b200_h100").gpus:  # each over its own wires
        longer_s = kernel_s(sums[0], gpu) - kernel_s(without[0], gpu)
        rate = gpu.gpu.nvlink_gbps
        assert rate is not None
        assert longer_s == pytest.approx(2 * 3 / 4 * nbytes / (rate * 1e9))
    with pytest.raises(SettingError, match="nvlink_gbps"):
        kernel_s(sums[0], load_pair("a100_l40s").gpus[1])


def test_collectives_stay_with_the_left_group() -> None:
    pair = load_pair("b200_h100")
    spec = replace(load_spec("llama-3-8b"), layers=4)
    served = ranked(decoder(spec, LOAD), 8, kv_heads=spec.kv_heads)
    found = {w.name: w for w in ways(served, pair.gpus, gbps=50.0, latency_s=5e-6, gap=0.05)}
    made = found["kernels"].plan
    assert made is not None
    stays = [n for n, k in enumerate(served.kernels) if k.wire_bytes]
    assert len(stays) == 2 * 2 * spec.layers
    assert all(made.gpu_of[n] == 0 for n in stays)


def test_what_cannot_be_split_says_so() -> None:
    pair = load_pair("a100_l40s")
    served = diffusion("sd", replace(SD35, blocks=2, dual_blocks=1), images=1, steps=28)
    found = {w.name: w for w in ways(served, pair.gpus, gbps=25.0, latency_s=5e-6, gap=0.05)}
    assert not found["prefill_decode"].is_applicable
    assert not found["attention_ffn"].is_applicable
    assert found["kernels"].requests_per_s > found["left"].requests_per_s


def test_a_price_on_transfers_sends_less_for_hardly_more_time() -> None:
    pair = load_pair("a100_l40s")
    spec = replace(load_spec("llama-3-8b"), layers=4)
    work = work_of(step_kernels(spec, LOAD.prefill), pair.gpus)
    free, priced = (
        plan(work, pair.link(), "throughput", gap=0.01, options=Options(price=price))
        for price in (0.0, 0.1)
    )
    sent, slowest = (
        [of(s.communication_s if of is sum else s.seconds for s in made.stages)
         for made in (free, priced)]
        for of in (sum, max)
    )  # fmt: skip
    assert sent[1] < sent[0] / 2
    assert slowest[1] < 1.05 * slowest[0]
    with pytest.raises(SettingError, match="price"):
        Options(price=-1.0)


def test_lanes_are_what_their_placements_are() -> None:
    pair = load_pair("a100_l40s")
    spec = replace(load_spec("llama-3-8b"), layers=2)
    lanes = Lanes(spec=spec, pair=pair, context=1000)
    left, both = lanes.single(0), lanes.placed("throughput")
    assert left.decode.busy_s[0][1:] == (0.0, 0.0, 0.0)
    assert max(both.decode.busy_s[-1]) < left.decode.busy_s[-1][0]
    assert both.decode.alone_s[-1] > max(both.decode.busy_s[-1])
    assert lanes.placed("latency").decode.alone_s[0] <= left.decode.alone_s[0] * (1 + 1e-9)
    assert lanes.handed_s(1000, 0) == pytest.approx(5e-6 + 1000 * kv_bytes_per_token(spec) / 25e9)


def test_a_pair_must_be_one() -> None:
    pair = load_pair("a100_l40s")
    for gpus, links in ((("a100_80", "l40s", "b200"), True),
                        (("a100_80", "l40s"), False)):  # fmt: skip
        with pytest.raises(SettingError, match="node='a100_l40s': expected two GPUs"):
            replace(
                pair, node=replace(pair.node, gpus=gpus, links=pair.node.links if links else ())
            )
    with pytest.raises(SettingError, match="node='none'"):
        load_pair("none")
    with pytest.raises(SettingError, match=r"pair\.a100_l40s\.right_share"):
        replace(pair, right_share=0.0)
    with pytest.raises(SettingError, match=r"l40s\.share"):
        timed_gpu("l40s", share=0.0)
