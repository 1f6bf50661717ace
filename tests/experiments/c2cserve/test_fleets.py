"""Comparisons of systems at a tiny scale: interpreted runs, so that nothing is compiled here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from omegaconf import OmegaConf

from c2c.config import SimulationResult, build, load, simulate
from c2c.hardware import slices
from c2c.serving import SystemSpec
from experiments.c2cserve import fleets, replay
from experiments.c2cserve.measures import MEASURES, measures
from experiments.figure import Context

QUICK = Context(profile="quick", link_variant="measured", seeds=(0, 1))
FULL = replace(QUICK, profile="full")
TINY = ("workload=deterministic", "workload.requests=8", "workload.rate_rps=8")


def interpreted(*settings: str) -> SimulationResult:
    return simulate(build(load([*settings, *TINY, "workload.output_tokens=4"])), compiled=False)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[tuple[Any, ...]]]:
    """Replace the replays of a module by tiny ones, equal for equal settings; keep the calls."""

    def use(module: Any) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []
        got: dict[tuple[str, ...], SimulationResult] = {}

        def fake(context: Context, compression: float, overrides: Any, seed: int) -> Any:
            calls.append((compression, tuple(overrides), seed))
            settings = tuple(o for o in overrides if not o.startswith("workload."))
            if settings not in got:
                got[settings] = interpreted("hardware=gh200", *settings)
            return got[settings]

        monkeypatch.setattr(module, "replay", fake)
        return calls

    return use


def test_measures_are_those_of_the_summary() -> None:
    got = interpreted(*fleets.catalog(3), *fleets.SYSTEMS["c2cserve"])
    found = measures(got)
    assert set(found) == set(MEASURES)
    assert found["ttft_p95_s"] == got.summary["ttft_s"]["p95"]
    assert found["both_percent"] == 100 * got.summary["attainment"]["both"]
    assert found["worst_percent"] <= found["both_percent"]
    assert found["requests"] == 8


def test_a_catalog_is_half_and_half() -> None:
    deployments = build(load([*fleets.catalog(7), "workload=deterministic"])).serving.deployments
    assert [d.spec.name for d in deployments].count("llama-3-3b") == 4
    assert len(deployments) == 7
    assert {d.tpot_slo_s for d in deployments} == {0.15, 0.3}


@pytest.mark.parametrize("draw", fleets.DRAWS_GBPS)
def test_the_cap_is_what_a_slices_kernel_draws(draw: float) -> None:
    in_flight = fleets.inflight_bytes_per_sm(draw, "7x12gb")
    cap = f"hardware.link.inflight_bytes_per_sm={in_flight}"
    setup = build(load([*fleets.catalog(2), *fleets.SYSTEMS["plus"], cap, *TINY]))
    assert setup.prepared.tables[0][0].link_cap_gbps == pytest.approx(draw)
    one = slices(setup.serving.platform, setup.serving.mig)[0]
    assert draw < one.link_cap_gbps < setup.prepared.link_capacity_gbps


def test_fleets_quick(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "_points", lambda _: [fleets.Point(compression=8.0, models=3)])
    calls = tiny(fleets)
    found = fleets.compute(QUICK)
    assert [r["system"] for r in found.tables["systems"].to_pylist()] == list(fleets.QUICK_SYSTEMS)
    assert {c[2] for c in calls} == {0}
    leads = found.tables["leads"].to_pylist()
    assert [r["system"] for r in leads] == list(fleets.OURS)
    for r in leads:
        assert r["lead_points"] == pytest.approx(r["both_percent"] - r["opponent_percent"])
        behind = f"{r['system']} at 3 models" in " ".join(found.assumptions)
        assert (r["lead_points"] < 0) == behind
    assert len(found.caption.split()) <= 50
    assert len(found.report) == 1 + len(fleets.QUICK_SYSTEMS)
    assert {len(row) for row in found.report} == {len(found.report[0])}


def test_the_full_grid_has_every_size_the_caps_and_the_large_fleet() -> None:
    points = list(fleets._points(quick=False))
    for compression in fleets.LOADS:
        here = [p for p in points if p.compression == compression and p.draw_gbps is None]
        assert [p.models for p in here] == [*fleets.SIZES, 89]
    assert [p.draw_gbps for p in points if p.draw_gbps] == list(fleets.DRAWS_GBPS)
    assert any(f"catalog={fleets.FLEET}" in fleets._settings(FULL, p) for p in points)


def test_who_is_behind_is_said() -> None:
    rows = [
        {"compression": 8.0, "models": 16, "draw_gbps": None, "system": name, "both_percent": both,
         "tpot_percent": tpot, "ttft_percent": 99.0}
        for name, both, tpot in (
            ("plus", 95.0, 99.1), ("plus, 4x24gb", 98.0, 100.0), ("layer staging", 96.0, 100.0)
        )
    ]  # fmt: skip
    leads = fleets._leads(rows)
    assert [r["lead_points"] for r in leads] == [-1.0, 2.0]
    assert "behind the best opponent in 1 of 2 comparisons" in fleets._verdict(leads)
    (said,) = fleets._behind(leads)
    assert said.startswith("plus at 16 models, compression 8 is behind: 95.00% of requests")
    assert "against 96.00% of layer staging (behind in TPOT" in said
    assert "4x24gb" not in said
    assert "at least as often as every opponent" in fleets._verdict(leads[1:])


def system_of(*settings: str) -> SystemSpec:
    def plain(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        return {k: plain(v) for k, v in node.items() if v is not None and k != "_target_"}

    return SystemSpec(**plain(OmegaConf.to_container(load(settings).system)))


def test_replays_have_one_door() -> None:
    # the tests above replace it in each module
    assert fleets.replay is replay.replay
