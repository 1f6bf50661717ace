"""Laws of adapters over a shared base: `c2c.serving.memory.adapters`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.models import Adapter, adapter_bytes, load_catalog, load_spec, weight_bytes
from c2c.policies import Resident
from c2c.serving import Prepared, prepare
from c2c.serving.batches.schedulers.token_budget import VllmV1
from tests.simulator.worlds import in_both_forms, random_requests, requests, setup, simulate

BYTES = 83_886_080  # rank 16 on all of Llama 3 8B: 41.94 million parameters in bf16


def fleet(adapters: int, rank: int = 16, tpot: float = 0.25, **system: Any) -> Prepared:
    """Return one base with adapters, on one device unless `mig` says otherwise."""
    made = setup("llama-3-8b", mig=system.pop("mig", "1x96gb"), tpot=tpot, **system)
    entries: list[dict[str, Any]] = [{"spec": "llama-3-8b", "tpot_slo_s": tpot}]
    if adapters:
        entries += [{"name": "ft", "base": "llama-3-8b", "rank": rank, "copies": adapters}]
    catalog = load_catalog(entries)
    if adapters == 1:
        catalog = (catalog[0], replace(catalog[1], name="ft-000"))
    return prepare(replace(made, deployments=catalog))


def test_an_adapter_is_as_large_as_published() -> None:
    spec = load_spec("llama-3-8b")
    assert adapter_bytes(spec, Adapter(rank=16)) == BYTES
    # q and v, 4096 to 4096 and to 1024: the most usual choice
    assert adapter_bytes(spec, Adapter(rank=8, modules=("q_proj", "v_proj"))) == 2 * 3_407_872


SYSTEMS: dict[str, dict[str, Any]] = {
    "streamed": {"mig": "7x12gb"},
    "resident": {"load": Resident()},
    "two_chips": {"mig": "2x48gb", "superchips": 2},
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("slots", [0, 2])
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**31), rate=st.sampled_from([0.5, 5.0, 500.0]))
def test_adapters_without_size_are_their_base(
    system: str, slots: int, seed: int, rate: float
) -> None:
    more = SYSTEMS[system] | {"adapter_cache__slots": slots}
    block = random_requests(40, 6, rate, seed)
    bare, wanted = fleet(0, **more), fleet(5, **more)
    of = wanted.fleet.adapters
    of.nbytes[1:], of.token_s[:], of.token_bytes[:], of.launch_s[:] = 1e-300, 0.0, 0.0, 0.0
    if slots:  # that all find a slot
        of = of._replace(slots=6)
        room = bare.fleet
        wanted = replace(
            wanted,
            fleet=wanted.fleet._replace(
                adapters=of, kv_capacity=room.kv_capacity, kv_capacity_bytes=room.kv_capacity_bytes
            ),
        )
    got, _, _ = simulate(wanted, block)
    base, _, _ = simulate(bare, replace(block, model=np.zeros_like(block.model)))
    assert got.model.tolist() == block.model.tolist()
    for name in ("first_token_s", "finished_s", "link_bytes", "hbm_bytes"):
        np.testing.assert_allclose(got[name], base[name], rtol=1e-9, atol=1e-9)


def alone(model: list[int], output: int = 4, **system: Any) -> tuple[Any, Any]:
    """Return records of requests that meet no other, and those of their base."""
    block = requests(np.arange(len(model)) * 1000.0, model, prompt=64, output=output)
    got, _, _ = simulate(fleet(3, **system), block)
    bare = fleet(0, **system)
    base, _, _ = simulate(bare, replace(block, model=np.zeros_like(block.model)))
    return got, base


def test_link_bytes_are_the_bases_and_each_first_use() -> None:
    got, base = alone([1, 1, 2, 0, 1, 3, 1], adapter_cache__slots=2)
    # 3 takes the slot of 2, which was claimed before the last 1
    loads = np.array([1, 0, 1, 0, 0, 1, 0]) * BYTES
    np.testing.assert_allclose(got.link_bytes - base.link_bytes, loads, atol=64)


def test_without_slots_each_step_reads_its_adapter() -> None:
    got, base = alone([1, 0, 2], output=5)  # one prompt step, four decode steps
    np.testing.assert_allclose(
        got.link_bytes - base.link_bytes, np.array([5, 0, 5]) * BYTES, atol=64
    )
    # Of a layer: inputs, float32 values of rank 16 written and read, results read and written.
    layer = 2 * (3 * 4096 + 14336) + 8 * 16 * 7 + 4 * (6144 + 4096 + 28672 + 4096)
    prepared = fleet(3)
    constants, table = prepared.setup.constants, prepared.tables[0][0]
    rows_s = (64 + 4) * 32 * layer / (4000e9 * constants.gemm_hbm_efficiency)
    kernels_s = 5 * 32 * 4 * 2 * constants.gemm_launch_s
    link_s = 5 * BYTES / (table.link_cap_gbps * 1e9)
    more_s = (got.finished_s - base.finished_s)[0]
    assert more_s == pytest.approx(rows_s + kernels_s + link_s, rel=1e-6)


def test_a_batch_reads_each_adapter_once_a_step() -> None:
    def link(model: list[int]) -> float:
        block = requests(np.zeros(len(model)), model, prompt=64, output=101)
        records, _, _ = simulate(fleet(3), block)
        assert np.ptp(records.finished_s) == 0.0
        return float(records.link_bytes.sum())

    step = link([1, 1]) - link([0, 0])
    assert step == pytest.approx(101 * BYTES, rel=1e-9)
    assert link([1, 2]) - link([0, 0]) == pytest.approx(2 * step, rel=1e-9)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31), slots=st.integers(1, 3), tokens=st.booleans())
def test_a_device_never_serves_more_adapters_than_slots(
    seed: int, slots: int, tokens: bool
) -> None:
    batch = {"batch": VllmV1()} if tokens else {}
    what = fleet(6, mig="2x48gb", adapter_cache__slots=slots, **batch)
    records, _, simulation = simulate(what, random_requests(60, 7, 50.0, seed))
    assert not records.failure.any()
    for k in range(2):
        here = records[(records.slice == k) & (records.model > 0)]
        for at in np.unique(here.admitted_s):
            now = here[(here.admitted_s <= at) & (here.finished_s > at)]
            assert len(np.unique(now.model)) <= slots
    assert not simulation.state.adapters.users.any()


def test_slots_take_room_from_kv_caches() -> None:
    rooms = [fleet(3, adapter_cache__slots=n).fleet.kv_capacity_bytes[0, 0] for n in (0, 8)]
    token = 131_072  # 2 x 8 heads x 128 x 32 layers x 2 bytes
    assert rooms[0] - rooms[1] == pytest.approx(8 * BYTES, abs=token)


def test_host_memory_holds_the_base_and_its_adapters() -> None:
    prepared = fleet(40)
    whole = weight_bytes(load_spec("llama-3-8b")) + 40 * BYTES
    chip = prepared.new_serving(active=False).chip[0]
    assert chip.host_bytes - chip.free_bytes == pytest.approx(whole)


def test_compiled_is_interpreted() -> None:
    what = fleet(5, mig="2x48gb", adapter_cache__slots=2)
    block = random_requests(80, 6, 20.0, 5)
    in_both_forms(what, block)
