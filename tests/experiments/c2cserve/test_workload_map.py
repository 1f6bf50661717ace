"""The best system in a workload, and the run of a point of the map."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments.figure import Context, figures
from experiments.papers.c2cserve import workload_map
from experiments.papers.c2cserve.measures import MEASURES
from experiments.papers.c2cserve.workload_map import Point, best_of
from tests.experiments.duties import QUICK

FULL = figures()["workload_map"].settings(replace(QUICK, profile="full"))


def row(system: str, both: float, p99_s: float) -> dict[str, Any]:
    return {
        "chip": "gh200", "bursts": "steady", "models": 2, "rate_rps": 1.0, "memory_gb": None,
        "system": system, "both_percent": both, "ttft_p99_s": p99_s,
    }  # fmt: skip


def test_of_those_that_meet_the_targets_equally_often_the_quickest_is_best() -> None:
    found = best_of(
        [row("C2CServe", 99.5, 0.5), row("plus", 100.0, 0.4), row("Aegaeon", 99.2, 0.1),
         row("ServerlessLLM", 98.9, 0.01)],
        FULL,
    )  # fmt: skip
    assert found["best"] == "Aegaeon"  # 98.9 is more than a point behind
    assert found["close"] == 3
    assert found["opponent"] == "Aegaeon"
    assert found["paper_lead_points"] == pytest.approx(0.3)
    assert found["plus_lead_points"] == pytest.approx(0.8)


def test_the_papers_system_is_the_better_of_its_readings_and_plus_is_no_opponent() -> None:
    found = best_of(
        [row("C2CServe", 60.0, 9.0), row("C2CServe to the letter", 62.0, 9.0),
         row("plus", 99.0, 0.2), row("ServerlessLLM", 80.0, 1.0)],
        FULL,
    )  # fmt: skip
    assert found["paper_percent"] == 62.0
    assert found["paper_lead_points"] == pytest.approx(-18.0)
    assert (found["best"], found["opponent"]) == ("plus", "ServerlessLLM")


def test_plus_is_compared_on_the_layout_it_plans_and_so_are_others() -> None:
    found = best_of(
        [row("C2CServe", 60.0, 9.0), row("plus", 99.0, 0.2), row("plus, planned", 70.0, 1.0),
         row("Aegaeon", 50.0, 1.0), row("Aegaeon, planned", 80.0, 1.0)],
        FULL,
    )  # fmt: skip
    assert (found["plus_form"], found["plus_percent"]) == ("plus, planned", 70.0)
    assert found["plus_slices_percent"] == 99.0  # better by hindsight, which nobody has
    assert found["plus_lead_points"] == pytest.approx(-10.0)


def test_a_layout_is_planned_with_other_requests_than_those_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[tuple[str, int]] = []
    made = workload_map._setup

    def noted(link: Any, run: Any, point: Point, system: str, mig: str, seed: int) -> Any:
        seeds.append((mig, seed))
        return made(link, run, point, system, mig, seed)

    monkeypatch.setattr(workload_map, "_setup", noted)
    few = replace(FULL, requests=60, plan=replace(FULL.plan, requests=30))
    point = Point(chip="gh200", models=2, rate_rps=4.0, bursts="steady")
    for seed in (0, 1):
        workload_map._run(QUICK, few, point, "ServerlessLLM, 50 ms, planned", seed)
    (first, planned_with), *served = seeds
    assert first == "planned"
    assert [seed for _, seed in served] == [0, 1]
    assert planned_with not in (0, 1)
    assert len({mig for mig, _ in served}) == 1  # planned once


def test_bursts_have_the_same_mean_rate_and_cost_attainment() -> None:
    few = replace(FULL, requests=300)
    steady = Point(chip="gh200", models=2, rate_rps=4.0, bursts="steady")
    bursty = Point(chip="gh200", models=2, rate_rps=4.0, bursts="bursty", memory_gb=240)
    calm, rough = (
        workload_map._run(QUICK, few, point, "ServerlessLLM", 0) for point in (steady, bursty)
    )
    assert calm["requests"] == rough["requests"] == 300
    assert calm["ttft_p99_s"] != rough["ttft_p99_s"]
    assert 0 <= calm["worst_percent"] <= calm["both_percent"] <= 100


def test_behind_is_said_only_where_every_seed_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(context: Context, run: Any, point: Point, name: str, seed: int) -> dict[str, Any]:
        met = {"ServerlessLLM": 90.0, "plus, planned": 80.0}.get(name, 70.0)
        if name == "plus, planned" and seed == 1:
            met = 95.0
        return dict.fromkeys(MEASURES, met)

    monkeypatch.setattr(workload_map, "_run", fake)
    found = workload_map.compute(replace(QUICK, profile="full", seeds=(0, 1, 2, 3)))
    best = found.tables["best"].to_pylist()
    assert {r["seed"] for r in found.tables["by_seed"].to_pylist()} == {0, 1}
    assert all(b["paper_behind"] and not b["plus_behind"] for b in best)
    assert {b["plus_percent"] for b in best} == {87.5}  # the median
    assert {(b["plus_low_percent"], b["plus_high_percent"]) for b in best} == {(80.0, 95.0)}
    assert {row[7] for row in found.report[1:]} == {"87.5 (80.0 to 95.0)"}
    assert f"in {len(best)} of {len(best)} workloads with every seed, plus in 0" in found.finding
    assert len(found.caption.split()) <= 50
