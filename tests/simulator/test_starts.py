"""Starts as graphs of works: closed forms, shares of link and disk (drivers: tests/contracts)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.models import load_spec, weight_bytes
from c2c.policies import Resident, Static, Stream
from tests.simulator.worlds import random_requests, requests, setup, simulate

# An engine's stages, seconds: structure, (weights), tokenizer, KV profiling, graph capture.
STRUCTURE, TOKENIZER, PROFILE, CAPTURE = 0.85, 0.21, 0.5, 0.9
WEIGHTS: dict[str, Any] = {"name": "weights", "moves": "weights", "over": ["link"]}


def _stage(name: str, seconds: float, *after: str) -> dict[str, Any]:
    return {"name": name, "seconds": seconds, "after": list(after)}


SERIAL = (
    _stage("structure", STRUCTURE),
    WEIGHTS | {"after": ["structure"]},
    _stage("tokenizer", TOKENIZER, "weights"),
    _stage("profile", PROFILE, "tokenizer"),
    _stage("capture", CAPTURE, "profile"),
)
OVERLAPPED = (
    _stage("structure", STRUCTURE),
    WEIGHTS | {"after": ["structure"]},
    _stage("tokenizer", TOKENIZER, "structure"),
    _stage("profile", PROFILE, "tokenizer"),
    _stage("capture", CAPTURE, "weights", "profile"),
)


def _world(start: tuple[dict[str, Any], ...], *specs: str, **more: Any) -> Any:
    more = {"mig": "1x96gb", "alpha": Static(), "load": Resident()} | more
    return setup(*(specs or ("llama-3-8b",)), start=start, **more)


def _started_s(what: Any, *blocks: Any) -> np.ndarray:
    records, _, _ = simulate(what, *blocks)
    waited: np.ndarray = records.started_s - records.arrival_s
    return waited


def test_a_chain_takes_the_sum_and_parallel_works_the_longest_path() -> None:
    one = requests([1.0])
    copy_s = weight_bytes(load_spec("llama-3-8b")) / 375e9
    serial = STRUCTURE + copy_s + TOKENIZER + PROFILE + CAPTURE
    assert _started_s(_world(SERIAL), one)[0] == pytest.approx(serial, rel=1e-12)
    longest = STRUCTURE + max(copy_s, TOKENIZER + PROFILE) + CAPTURE
    assert _started_s(_world(OVERLAPPED), one)[0] == pytest.approx(longest, rel=1e-12)


def test_a_work_moves_no_faster_than_its_own_limit() -> None:
    size = weight_bytes(load_spec("llama-3-8b"))
    slow = _world((WEIGHTS | {"gbps": 0.5},))
    assert _started_s(slow, requests([1.0]))[0] == pytest.approx(size / 0.5e9, rel=1e-12)
    fast = _world((WEIGHTS | {"gbps": 1e6},))
    assert _started_s(fast, requests([1.0]))[0] == pytest.approx(size / 375e9, rel=1e-12)


def test_two_copies_share_the_link() -> None:
    both = requests([1.0, 1.0], model=[0, 1])
    alone = weight_bytes(load_spec("llama-3-8b")) / 375e9
    world = _world((WEIGHTS,), "llama-3-8b", "llama-3-8b", mig="2x48gb")
    np.testing.assert_allclose(_started_s(world, both), 2 * alone, rtol=1e-9)


def test_a_copy_of_lower_rank_waits_for_one_of_higher_rank() -> None:
    # The first start copies at rank 1, then computes; the second's copy is the same plan.
    late = requests([1.0, 1.01], model=[0, 1])
    alone = weight_bytes(load_spec("llama-3-8b")) / 375e9
    urgent = (
        WEIGHTS | {"name": "first", "rank": 1},
        WEIGHTS | {"name": "second", "rank": -1, "after": ["first"]},
    )
    waited = _started_s(_world(urgent, "llama-3-8b", "llama-3-8b", mig="2x48gb"), late)
    # 0..: first of 0 alone, then with first of 1 at equal rank; the seconds wait for both firsts.
    assert waited[0] > 3 * alone  # its second copy gets the link only when the other's first ends
    assert waited.max() + 0.01 >= 4 * alone - 1e-6
    assert waited[1] + 0.01 == pytest.approx(4 * alone, rel=1e-9)


def test_a_cold_start_reads_the_disk_and_a_pipeline_goes_at_its_slowest_part() -> None:
    plan = (
        {"name": "read", "moves": "weights", "over": ["disk", "link"], "when": "cold"},
        WEIGHTS | {"name": "copy", "when": "held"},
        _stage("engine", 0.4),
    )
    world = _world(plan, weights_start="disk")
    size = weight_bytes(load_spec("llama-3-8b"))
    disk = world.platform.host.disk_gbps * 1e9
    assert _started_s(world, requests([1.0]))[0] == pytest.approx(size / disk, rel=1e-12)
    held = _world(plan)
    assert _started_s(held, requests([1.0]))[0] == pytest.approx(0.4, rel=1e-12)


def test_works_may_move_a_share_of_the_weights_each() -> None:
    """A quarter is copied beside the disk, the rest when all is read; bytes are those of a copy."""
    read = {"name": "read", "moves": "weights", "over": ["disk"]}
    quarter = WEIGHTS | {"name": "first", "share": 0.25}
    rest = WEIGHTS | {"name": "rest", "share": 0.75, "after": ["read", "first"]}
    world = _world((read, quarter, rest), weights_start="disk")
    size = weight_bytes(load_spec("llama-3-8b"))
    disk, link = world.platform.host.disk_gbps * 1e9, 375e9
    took_s = _started_s(world, requests([1.0]))[0]
    assert took_s == pytest.approx(size / disk + 0.75 * size / link, rel=1e-12)
    _, stats, _ = simulate(world, requests([1.0]))
    assert stats.chip_link_bytes[0] == pytest.approx(size)


def test_readers_share_the_disk() -> None:
    plan = ({"name": "read", "moves": "weights", "over": ["disk"], "when": "cold"},)
    world = _world(
        plan, "llama-3-3b", "llama-3-3b", mig="2x48gb", weights_start="disk", load=Stream()
    )
    size = weight_bytes(load_spec("llama-3-3b"))
    both = _started_s(world, requests([1.0, 1.0], model=[0, 1]))
    np.testing.assert_allclose(both, 2 * size / (world.platform.host.disk_gbps * 1e9), rtol=1e-9)


def test_a_start_without_works_of_its_own_is_done_at_once() -> None:
    plan = (_stage("init", 0.7) | {"when": "cold"},)
    world = _world(plan, load=Stream())
    assert _started_s(world, requests([1.0]))[0] == 0.0


def test_steps_slow_down_beside_a_copy_and_bytes_are_conserved() -> None:
    block = random_requests(60, 3, 2.0, seed=5)
    plan = (_stage("engine", 0.3), WEIGHTS | {"name": "copy"})
    world = _world(plan, "llama-3-8b", "llama-3-3b", "llama-3-3b", mig="2x48gb")
    records, stats, _ = simulate(world, block)
    assert len(records) == 60
    assert stats.switches > 3
    moved = stats.instance_link_bytes.sum()
    assert stats.chip_link_bytes.sum() == pytest.approx(moved, rel=1e-9)
    assert stats.chip_peak_gbps.max() <= stats.link_capacity_gbps * (1 + 1e-9)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([{"seconds": 1.0}], "system.start[0].name=None"),
        ([{"name": "a", "second": 1.0}], "system.start[0].second=1.0"),
        ([{"name": "a", "seconds": -1.0}], "system.start[0].seconds=-1.0"),
        ([{"name": "a", "seconds": "x"}], "system.start[0].seconds='x'"),
        ([{"name": "a"}, {"name": "a"}], "system.start[1].name='a'"),
        ([{"name": "a", "after": ["b"]}], "system.start[0].after='b'"),
        ([{"name": "a", "moves": "kv"}], "system.start[0].moves='kv'"),
        ([{"name": "a", "over": ["nic"]}], "system.start[0].over=('nic',)"),
        ([{"name": "a", "when": "warm"}], "system.start[0].when='warm'"),
        ([{"name": "a", "rank": 0.5}], "system.start[0].rank=0.5"),
        ([{"name": "a", "gbps": 0.0}], "system.start[0].gbps=0.0"),
        ([{"name": "a", "share": 0.0}], "system.start[0].share=0.0"),
        ([{"name": "a", "share": "half"}], "system.start[0].share='half'"),
        ([WEIGHTS | {"share": 0.9}], "works that move all weights over the link when cold"),
        ([{"name": f"w{k}"} for k in range(17)], "17 works"),
        ([{"name": "a"}], "works that move all weights over the link when cold"),
        (["a"], "system.start[0]='a'"),
    ],
)
def test_a_start_that_cannot_work_is_refused(start: list[Any], message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        _world(tuple(start))


def test_seconds_are_said_once() -> None:
    with pytest.raises(SettingError, match=r"system\.load\.start_s=0\.1"):
        _world((WEIGHTS,), load=Resident(start_s=0.1))
