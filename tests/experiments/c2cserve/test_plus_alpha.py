"""Rules by prediction against hindsight, and settings that are composed once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from c2c.config import build, load, simulate
from c2c.cost import load_constants
from experiments.c2cserve import plus_alpha, settings
from experiments.c2cserve.measures import MEASURES
from experiments.figure import Context
from experiments.sensitivity import changed, chip_knobs, constant_knobs

BASE = ("hardware=gh200", "mig=7x12gb", "catalog=dense6", "workload=poisson")


def test_hindsight_finds_the_best_part_by_part() -> None:
    worth = {
        "system/alpha=static": 3.0,
        "system/chunk=profiled": 2.0,
        "system/place=first_idle": 1.0,
    }
    asked: list[tuple[str, ...]] = []

    def run(chosen: Sequence[str]) -> dict[str, Any]:
        asked.append(tuple(chosen))
        late = sum(float(s.split("=")[1]) for s in chosen if s.startswith("system.alpha.initial"))
        return {"both_percent": sum(worth.get(s, 0.0) for s in chosen), "ttft_p99_s": late}

    said, best = plus_alpha.hindsight(run)
    # of three static alphas that meet as many targets the one with the least p99
    assert said == "alpha static 0, chunk profiled, place first_idle"
    assert best == {"both_percent": 6.0, "ttft_p99_s": 0.0}
    assert len(set(asked)) == len(asked)  # nothing is served twice


def test_rules_are_compared_seed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(context: Context, compression: float, overrides: Sequence[str], seed: int) -> Any:
        return seed + (90.0 if "system=c2cserve_joint" in overrides else 80.0)

    monkeypatch.setattr(plus_alpha, "replay", fake)
    monkeypatch.setattr(plus_alpha, "measures", lambda got: dict.fromkeys(MEASURES, got))
    found = plus_alpha.compute(Context(profile="quick", link_variant="measured", seeds=(0, 1, 2)))
    rows = found.tables["rules"].to_pylist()
    assert [r["rule"] for r in rows[: len(rows) // 2]] == [*plus_alpha.RULES, plus_alpha.HINDSIGHT]
    assert {r["seed"] for r in rows} == {0, 1}
    best = [r["both_percent"] for r in rows if r["rule"] == plus_alpha.HINDSIGHT]
    assert best == [90.0, 91.0]  # what a rule reaches could have been chosen, too
    verdicts = {(i.what.split(",")[0], i.ours, i.base): i.verdict for i in found.improvements}
    assert verdicts["both targets met", "joint", plus_alpha.PAPER] == "better"
    assert verdicts["both targets met", "predictive", plus_alpha.PAPER] == "no difference"
    assert verdicts["both targets met", "joint", plus_alpha.HINDSIGHT] == "no difference"


@pytest.mark.slow
def test_every_choice_of_hindsight_can_be_built() -> None:
    for options in plus_alpha.PARTS.values():
        for chosen in options.values():
            build(settings.composed(["system=c2cserve", *BASE, *chosen]))


@pytest.mark.slow
def test_predicting_serves_every_request_and_counts_what_others_lose() -> None:
    def served(*more: str) -> Any:
        requests = ("workload.requests=40", "workload.rate_rps=6", "workload.lengths=fixed",
                    "workload.prompt_tokens=900", "workload.output_tokens=12")  # fmt: skip
        got = simulate(build(load([*BASE, *requests, *more])), compiled=False)
        assert got.summary["finished"] == 40
        return got.requests

    own, all_ = (
        served("system=c2cserve", "system/alpha=predictive", f"system.alpha.others={weight}")
        for weight in (0.0, 30.0)
    )
    assert own["alpha_mean"] != all_["alpha_mean"]
    # the joint one puts more tokens into a step
    joint = served("system=c2cserve_joint")
    assert sum(joint["link_bytes"].to_pylist()) < sum(own["link_bytes"].to_pylist())


def test_settings_are_composed_as_ever() -> None:
    found = settings.composed([*BASE, "link=measured"], {"seed": 4, "workload.rate_rps": 2.5})
    assert found == load([*BASE, "link=measured", "seed=4", "workload.rate_rps=2.5"])
    found.seed = 9
    assert settings.composed([*BASE, "link=measured"], {"workload.rate_rps": 2.5}).seed == 0


def test_settings_are_composed_anew_where_files_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[Path] = []

    def counting(overrides: Sequence[str]) -> Any:
        composed.append(settings.conf_dir())
        return load(overrides)

    monkeypatch.setattr(settings, "load", counting)
    settings._composed.cache_clear()
    disk = next(k for k in chip_knobs() if k.name == "disk rate")
    launch = next(k for k in constant_knobs() if k.name == "launch_s")
    before = settings.composed(BASE).hardware.host.disk_gbps
    with changed(launch, 2.0):  # no part of a run's configuration
        assert load_constants().launch_s == 2.0 * launch.value
        settings.composed(BASE)
    assert len(composed) == 1
    with changed(disk, 2.0):
        assert settings.composed(BASE).hardware.host.disk_gbps == 2.0 * before
    assert settings.composed(BASE).hardware.host.disk_gbps == before
    assert len(composed) == 2
    settings._composed.cache_clear()
