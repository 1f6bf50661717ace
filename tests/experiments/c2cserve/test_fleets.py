"""Comparisons of systems at a tiny scale: interpreted runs, so that nothing is compiled here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from omegaconf import OmegaConf

from c2c.config import SimulationResult, build, load, simulate
from c2c.serving import SystemSpec
from experiments.figure import Context, figures
from experiments.papers.c2cserve import fleets, replay
from experiments.papers.c2cserve.measures import MEASURES, measures
from experiments.papers.c2cserve.settings import catalog

QUICK = Context(profile="quick", link_variant="measured", seeds=(0, 1))
FIGURES = figures()
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
    got = interpreted(*catalog(3), "system=c2cserve", "mig=7x12gb")
    found = measures(got)
    assert set(found) == set(MEASURES)
    assert found["ttft_p95_s"] == got.summary["ttft_s"]["p95"]
    assert found["both_percent"] == 100 * got.summary["attainment"]["both"]
    assert found["worst_percent"] <= found["both_percent"]
    assert found["requests"] == 8


def test_a_catalog_is_half_and_half() -> None:
    deployments = build(load([*catalog(7), "workload=deterministic"])).serving.deployments
    assert [d.spec.name for d in deployments].count("llama-3-3b") == 4
    assert len(deployments) == 7
    assert {d.tpot_slo_s for d in deployments} == {0.15, 0.3}


def test_fleets_quick(tiny: Any) -> None:
    calls = tiny(fleets)
    few = replace(QUICK, overrides=("experiment.models=[3]",))
    found = fleets.compute(few)
    rows = found.tables["systems"].to_pylist()
    shown = FIGURES["fleets"].settings(few).shown
    assert [r["system"] for r in rows] == list(shown)
    assert {c[2] for c in calls} == {0}
    for name in shown:
        missed = next(100 - r["both_percent"] for r in rows if r["system"] == name)
        assert f"{missed:.2g}% with {name}" in found.finding
    assert len(found.caption.split()) <= 50
    assert len(found.report) == 1 + len(shown)
    assert {len(row) for row in found.report} == {len(found.report[0])}


def test_the_full_grid_has_every_size_and_the_large_fleet() -> None:
    full = FIGURES["fleets"].settings(FULL)
    points = full.points()
    assert [models for models, _ in points] == [*full.models, 89]
    assert points[-1][1] == ("catalog=fleet89",)


def system_of(*settings: str) -> SystemSpec:
    def plain(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        return {k: plain(v) for k, v in node.items() if v is not None and k != "_target_"}

    return SystemSpec(**plain(OmegaConf.to_container(load(settings).system)))


def test_replays_have_one_door() -> None:
    # the tests above replace it in each module
    assert fleets.replay is replay.replay
