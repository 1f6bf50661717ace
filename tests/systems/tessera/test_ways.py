"""Ways to use two GPUs for one model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from c2c.cost.kernel_graph import Load, TimedGpu, decoder, timed_gpus
from c2c.errors import SettingError
from c2c.models import load_spec
from c2c.systems.tessera import WAYS, best_way, ways, work_of

SMALL = replace(load_spec("llama-3-8b"), layers=4)
PAIR = timed_gpus("a100_80", "l40s")
LOAD = Load(prompt=1020, output=129)


def found(spec=SMALL, pair=PAIR, load=LOAD, gbps=25.0):
    return {w.name: w for w in ways(decoder(spec, load), pair, gbps=gbps, latency_s=5e-6)}


def having(one: TimedGpu, **rates: float | None) -> TimedGpu:
    """A GPU with some of its file's values changed."""
    return replace(one, gpu=replace(one.gpu, **rates))


def test_ways_are_what_they_say() -> None:
    made = found()
    assert tuple(made) == WAYS
    left, right = made["left"].requests_per_s, made["right"].requests_per_s
    assert made["replicas"].requests_per_s == pytest.approx(left + right)
    assert made["replicas"].price == pytest.approx(2.5)
    assert made["kernels"].requests_per_s <= made["limit"].requests_per_s * (1 + 1e-9)
    # a placement may always leave one GPU alone, or split as attention and the rest do
    for name in ("left", "right", "layers", "attention_ffn"):
        assert made["kernels"].requests_per_s >= made[name].requests_per_s * 0.99
    assert made["kernels"].plan is not None
    assert made["left"].efficiency == pytest.approx(left / 1.5)


def test_without_a_link_what_is_left_is_replicas() -> None:
    made = found(gbps=0.0)
    assert made["prefill_decode"].requests_per_s == 0
    assert made["attention_ffn"].requests_per_s == made["layers"].requests_per_s == 0
    single = max(made["left"].requests_per_s, made["right"].requests_per_s)
    # prefill and decode share keys and values: they cannot be apart either
    assert made["kernels"].requests_per_s == pytest.approx(single, rel=1e-6)
    assert best_way(list(made.values())).name == "replicas"
    cheap = found(pair=[PAIR[0], having(PAIR[1], price=0.5)], gbps=0.0)
    assert best_way(list(cheap.values()), by_price=True).name == "right"


def test_a_model_that_only_both_hold_runs_by_its_kernels() -> None:
    room = 0.7
    whole = found()["left"].held_bytes[0]
    pair = [having(one, hbm_bytes=int(room * whole)) for one in PAIR]
    made = found(pair=pair)
    for name in ("left", "right", "replicas", "prefill_decode"):
        assert made[name].requests_per_s == 0
    kernels = made["kernels"]
    assert kernels.requests_per_s > 0
    assert all(held <= room * whole for held in kernels.held_bytes)
    assert best_way(list(made.values())).name in ("kernels", "attention_ffn", "layers")


def test_layers_are_cut_where_the_slower_part_is_least() -> None:
    """Against each cut by hand: computation by GPU, the residual stream over the link, memory."""
    served = decoder(SMALL, LOAD)
    seconds = []
    for first in (0, 1):
        for layers in range(1, SMALL.layers):
            parts, sent = [0.0, 0.0], 0.0
            for phase in served.phases:
                work = work_of(phase.kernels, PAIR)
                last = [k for k, kernel in enumerate(phase.kernels) if 0 <= kernel.layer < layers]
                for k, times in enumerate(work.times_s):
                    gpu = first if k <= max(last) else 1 - first
                    parts[gpu] += phase.steps * times[gpu]
                sent += phase.steps * sum(
                    5e-6 + edge.nbytes / 25e9
                    for edge in work.transfers
                    if edge.source <= max(last) < edge.target
                )
            seconds.append(max(*parts, sent))
    made = found()["layers"]
    assert 1 / made.requests_per_s == pytest.approx(min(seconds))
    assert sum(made.held_bytes) == pytest.approx(served.weight_bytes + served.state_bytes, rel=1e-3)
    # where it does not fit there, another cut does
    tight = [having(PAIR[0], hbm_bytes=int(0.99 * made.held_bytes[0])), PAIR[1]]
    other = found(pair=tight)["layers"]
    assert 0 < other.requests_per_s < made.requests_per_s
    assert other.held_bytes[0] < made.held_bytes[0]
    assert not found(spec=replace(SMALL, layers=1))["layers"].is_applicable


def test_nothing_fits_is_said() -> None:
    pair = [having(one, hbm_bytes=10**9) for one in PAIR]
    made = found(pair=pair)
    assert all(w.requests_per_s == 0 for w in made.values() if w.name != "limit")
    with pytest.raises(SettingError, match="both GPUs hold"):
        best_way(list(made.values()))


def test_what_is_kept_is_the_model_and_its_cache() -> None:
    from c2c.models import kv_bytes_per_token, weight_bytes

    spec = load_spec("llama-3-8b")
    made = {w.name: w for w in ways(decoder(spec, LOAD), PAIR, gbps=1e9, latency_s=0.0)}
    both = weight_bytes(spec) + kv_bytes_per_token(spec) * 64 * (1020 + 129)
    assert made["left"].held_bytes[0] == pytest.approx(both)
    assert sum(made["attention_ffn"].held_bytes) == pytest.approx(both, rel=0.001)


def test_the_load_must_be_one() -> None:
    with pytest.raises(SettingError, match=r"load\.prompt=0"):
        Load(prompt=0, output=1)
    with pytest.raises(SettingError, match="two GPUs"):
        ways(decoder(SMALL, LOAD), PAIR[:1], gbps=25.0, latency_s=0.0)


def test_a_gpu_without_a_price_is_answered_but_for_the_price() -> None:
    priced, free = found(), found(pair=[having(PAIR[0], price=None), PAIR[1]])
    for name, way in free.items():
        assert way.requests_per_s == pytest.approx(priced[name].requests_per_s, rel=0.02)
    assert free["right"].efficiency == pytest.approx(priced["right"].efficiency)
    assert {n for n, w in free.items() if w.efficiency is None} == set(WAYS) - {"right"}
    assert best_way(list(free.values())).name == best_way(list(priced.values())).name
    with pytest.raises(SettingError, match="a price of both GPUs"):
        best_way(list(free.values()), by_price=True)
