"""Unlike chips in one fleet: the laws of every fleet, each chip's own rates, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from c2c.config import build, load, simulate
from c2c.errors import SettingError
from c2c.hardware import load_platform
from c2c.policies import (
    AtBacklog,
    GateAndTriage,
    LeastLoaded,
    Resident,
    Roofline,
    WhereWorkIs,
    WhileRoom,
)
from c2c.serving import FAIL_NONE, Failures, Prepared, ServingSetup, prepare
from c2c.simulator import build_machine
from c2c.simulator.shards import merged_stats, split
from c2c.workloads import Workload
from tests.contracts.recorded import Recorded
from tests.contracts.watching import serve
from tests.simulator.test_shards import of_shard, run
from tests.simulator.worlds import check_equal, in_both_forms, part_of, random_requests, setup
from tests.simulator.worlds import simulate as simulated

MODELS = ("llama-3-3b", "llama-3-8b") * 3
PARTS = (
    ("gh200", "7x12gb"), ("gh200", "1x96gb"), ("gh200", "3g_4x1g"), ("l40s", "1x48gb"),
    ("h100_sxm", "7x10gb"), ("rtx_pro_6000", "4x24gb"), ("a100_80", "2x40gb"),
)  # fmt: skip
TURNS: dict[str, Any] = {
    "turn": GateAndTriage(), "route": WhereWorkIs(), "place": LeastLoaded(), "scale": AtBacklog(),
    "alpha": Roofline(), "keep": WhileRoom(spare_bytes=0.05e9), "engines__residents": 2,
}  # fmt: skip
SYSTEMS: dict[str, dict[str, Any]] = {
    "streamed": {},
    "turns": TURNS,
    "resident": {"load": Resident()},
    "graph": {
        "load": Resident(),
        "start": (
            {"name": "engine", "seconds": 0.05},
            {"name": "read", "moves": "weights", "over": ["disk"], "when": "cold"},
            {"name": "copy", "moves": "weights", "after": ["engine", "read"]},
        ),
    },
    "apart": TURNS | {"disaggregation__prompt_share": 0.4, "engines__kv_host_bytes": 1e9},
}

AS_DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)
parts = st.tuples(st.sampled_from(PARTS), st.integers(1, 2)).map(lambda p: (*p[0], p[1]))


def fleet(given_parts: list[tuple[str, str, int]], system: str, **more: Any) -> ServingSetup:
    (chip, mig, count), *others = given_parts
    first = part_of(chip, mig, count)
    made = setup(
        *MODELS, platform=first.platform, constants=first.constants, mig=mig, superchips=count,
        beside=others, tpot=30.0, **(SYSTEMS[system] | more),
    )  # fmt: skip
    return replace(made, deployments=tuple(replace(d, ttft_slo_s=30.0) for d in made.deployments))


@pytest.mark.parametrize("system", SYSTEMS)
@settings(max_examples=3, deadline=None, phases=AS_DRAWN)
@given(
    given_parts=st.lists(parts, min_size=2, max_size=3), start=st.sampled_from(["host", "disk"]),
    n=st.integers(1, 24), rate=st.sampled_from([0.5, 4.0, 2000.0]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_laws_over_random_fleets(
    system: str, given_parts: list[tuple[str, str, int]], start: str, n: int, rate: float, seed: int
) -> None:
    if system == "apart":  # roles are of cut chips, or of whole ones
        given_parts = [p for p in given_parts if p[1][0] != "1"] or [("gh200", "7x12gb", 1)]
    elif "load" in SYSTEMS[system]:  # a chip on which every model fits
        given_parts = [*given_parts, ("l40s", "1x48gb", 1)]
    what = prepare(fleet(given_parts, system, weights_start=start))
    block = random_requests(n, len(MODELS), rate, seed)
    over_port, _, _ = serve(what, Recorded(what, block))
    records, stats, simulation = in_both_forms(what, block, timeline_rows=100_000)
    assert over_port.tobytes() == records.tobytes()
    phases = simulation.timeline()
    loads = phases[phases["is_load"] == 1]
    kinds = what.kind_of[loads["instance"] // what.fleet.residents]
    loaded = float(simulation.machine.load_link_bytes[loads["model"], kinds].sum())
    of_chip = np.bincount(what.chip_of, weights=stats.instance_link_bytes)
    if system != "graph":
        asked = over_port.link_bytes.sum() + loaded
        assert asked == pytest.approx(of_chip.sum(), rel=1e-9)
    assert (of_chip <= stats.chip_link_bytes * (1 + 1e-9) + 1.0).all()
    assert (of_chip >= stats.chip_link_bytes * 0.97 - 1.0).all()
    assert (stats.chip_peak_gbps <= what.link_gbps * (1 + 1e-9)).all()
    served = over_port[over_port.failure == FAIL_NONE]
    part_of_chip = np.repeat(range(len(given_parts)), [p[2] for p in given_parts])
    assert what.serves[served.model, part_of_chip[served.chip]].all()


@pytest.mark.parametrize("system", ["streamed", "turns", "resident"])
def test_parts_that_are_alike_are_one_fleet_of_their_chips(system: str) -> None:
    block = random_requests(40, len(MODELS), 4.0, 3)
    mig = "3x24gb" if system == "resident" else "7x12gb"
    whole, stats, _ = simulated(fleet([("gh200", mig, 3)], system), block)
    parts_, cut_stats, _ = simulated(fleet([("gh200", mig, 1), ("gh200", mig, 2)], system), block)
    assert whole.tobytes() == parts_.tobytes()
    check_equal(stats, cut_stats)


def _alone(chip: str, mig: str) -> Prepared:
    return prepare(fleet([(chip, mig, 1)], "streamed"))


def test_each_chip_has_the_costs_links_and_starts_it_has_alone() -> None:
    both = prepare(fleet([("gh200", "7x12gb", 1), ("l40s", "1x48gb", 2)], "streamed"))
    assert both.chip_of.tolist() == [0] * 7 + [1, 2]
    machine = build_machine(both)
    for k, (chip, mig) in enumerate((("gh200", "7x12gb"), ("l40s", "1x48gb"))):
        one = _alone(chip, mig)
        its = build_machine(one)
        for arch in range(len(both.architectures)):
            ours, theirs = both.tables[arch][k], one.tables[arch][0]
            np.testing.assert_array_equal(ours.body_s, theirs.body_s)
            assert both.chunks[arch][k] == one.chunks[arch][0]
        np.testing.assert_array_equal(both.fleet.switch_s[:, k], one.fleet.switch_s[:, 0])
        np.testing.assert_array_equal(both.fleet.kv_capacity[:, k], one.fleet.kv_capacity[:, 0])
        np.testing.assert_array_equal(machine.load_s[:, k], its.load_s[:, 0])
        assert machine.link_cap[k] == its.link_cap[0]
        assert machine.cold_init_s[k] == its.cold_init_s[0]
        assert machine.capacity[k] == its.capacity[0]
        assert machine.disk[k] == its.disk[0]
    assert machine.capacity[0] > 10 * machine.capacity[1]


def test_a_model_is_only_where_it_has_room_and_can_meet_its_targets() -> None:
    tight = setup("llama-3-3b", "llama-3-8b", beside=[("l40s", "1x48gb", 1)], tpot=0.2)
    what = prepare(tight)
    # 6.4 GB in 0.2 s are more than PCIe 4 carries
    assert what.serves.tolist() == [[True, False], [True, False]]
    assert what.chips_of().tolist() == [0]
    slow = prepare(replace(tight, deployments=tuple(
        replace(d, tpot_slo_s=2.0, ttft_slo_s=30.0) for d in tight.deployments
    )))  # fmt: skip
    assert slow.serves.all()
    assert slow.chips_of().tolist() == [0, 1]


def test_a_catalog_that_no_part_serves_is_refused_with_the_first_reason() -> None:
    with pytest.raises(SettingError, match=r"llama-3-8b.*tpot_slo_s"):
        prepare(setup("llama-3-8b", beside=[("l40s", "1x48gb", 1)], tpot=0.01))


def test_failures_and_shards_are_those_of_the_whole() -> None:
    made = fleet([("gh200", "7x12gb", 2), ("l40s", "1x48gb", 2)], "streamed", starts_active=True)
    made = replace(made, cells=2, failures=Failures(mtbf_hours=20.0 / 3600.0, repair_s=5.0))
    prepared = prepare(made)
    block = random_requests(60, len(MODELS), 4.0, 5)
    whole, stats, _ = run(prepared, [block])
    assert len(stats.failures) > 1
    workload = Workload(models=MODELS, source=lambda: iter([block]))
    shards = split(prepared, workload, shards=2, requests=60, part_rows=10**9)
    assert len(shards) == 2
    runs = [
        run(prepared, of_shard(workload, shards, k), s.models.tolist())
        for k, s in enumerate(shards)
    ]
    records = np.concatenate([r for r, _, _ in runs])
    assert np.sort(records, order="id").tobytes() == np.sort(whole, order="id").tobytes()
    assert merged_stats([s for _, s, _ in runs]).finished == stats.finished


FLEET = "fleet.parts=[{hardware:gh200,mig:7x12gb},{hardware:l40s,count:2}]"


@pytest.mark.slow
def test_a_summary_tells_by_part() -> None:
    settings_ = [FLEET, "workload=poisson", "workload.requests=60", "catalog=dense6",
                 "system=c2cserve_plus"]  # fmt: skip
    built = build(load(settings_))
    got = simulate(built, compiled=False)
    here, there = got.summary["run"]["parts"]
    assert (here["hardware"], here["mig"], here["chips"]) == ("gh200", "7x12gb", 1)
    assert (there["hardware"], there["chips"], there["instances"]) == ("l40s", 2, 2)
    assert here["requests"] + there["requests"] == 60
    assert here["steps"] + there["steps"] == got.summary["run"]["steps"]
    both = sum(p["attainment"]["both"] * p["requests"] for p in (here, there) if p["requests"])
    assert both / 60 == pytest.approx(got.summary["attainment"]["both"])
    assert here["usd_per_hour"] == load_platform("gh200").gpu.usd_per_hour
    assert there["usd_per_hour"] == 2 * (load_platform("l40s").gpu.usd_per_hour or 0.0)
    assert there["power_w"] == 2 * 350.0
    alone = build(load(["workload=poisson", "workload.requests=5"]))
    assert "parts" not in simulate(alone, compiled=False).summary["run"]


def test_a_file_of_conf_fleet_and_the_command_line_give_the_same_fleet() -> None:
    named = build(load(["fleet=gh200_l40s"])).serving
    given_ = build(load([
        "fleet.parts=[{hardware:gh200,mig:7x12gb},{hardware:l40s,mig:1x48gb,count:4}]"
    ])).serving  # fmt: skip
    assert named == given_
    assert named.chips == 5
    profiles = build(load(["fleet.parts=[{hardware:gh200,mig:[3g,4x1g]}]"])).serving
    assert profiles.mig == build(load(["mig=custom", "mig.parts=[3g,4x1g]"])).serving.mig
    alone = build(load(["fleet.parts=[{hardware:l40s}]", "system=mig_resident"])).serving
    assert alone == build(load(["hardware=l40s", "system=mig_resident"])).serving
