"""Many models on few GPUs: rates for placements, systems that do not fit, winners, lines."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from c2c.config import build, load, simulate
from c2c.errors import SettingError
from experiments.figure import Context, figures
from experiments.figures.style import look
from experiments.papers.composed import sharing
from experiments.papers.composed.sharing import compute
from experiments.papers.composed.sharing_drawing import draw_sharing

SETTINGS = ("experiment.models=[2,4]", "experiment.compressions=[1.0,2.0]")
QUICK = Context(profile="quick", link_variant="measured", seeds=(0,), overrides=SETTINGS)


@functools.cache
def replayed(models: str, rate: float) -> Any:
    setup = build(load([
        "catalog=dense6", models, "system=dedicated", "superchips=4", "hardware=h100_sxm",
        "workload=deterministic", "workload.requests=8", f"workload.rate_rps={rate}",
        f"slo.ttft_s={1e-6 if rate > 8 else 1.0}", "system.check_slo=false",
    ]))  # fmt: skip
    names = tuple(d.name for d in setup.prepared.setup.deployments)
    return names, simulate(setup, compiled=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace replays by tiny ones; MuxServe has room for two models. Returns all settings."""
    calls: list[list[str]] = []

    def fake(context: Context, compression: float, settings: Any, seed: int, chip: str) -> Any:
        calls.append([*settings])
        models = next(s for s in settings if s.startswith("catalog.models="))
        if "system=muxserve" in settings and "copies:2" in models:
            return None
        rate = 1e3 if "system=aegaeon" in settings else 8
        return replayed(models, rate)

    monkeypatch.setattr(sharing, "_served", fake)
    return calls


def test_winners_and_systems_that_do_not_fit(asked: list[list[str]]) -> None:
    found = compute(QUICK)
    rows = found.tables["systems"].to_pylist()
    assert {r["models"] for r in rows if not r["fits"]} == {4}
    assert {r["system"] for r in rows if not r["fits"]} == {"MuxServe"}
    for best in found.tables["best"].to_pylist():
        here = [r for r in rows if all(r[c] == best[c] for c in ("chip", "models", "compression"))]
        most = max(r["both_percent"] for r in here if r["fits"])
        assert best["both_percent"] == most == 100.0
        assert "Aegaeon" not in best["systems"]
        assert ("MuxServe" in best["systems"]) == (best["models"] == 2)
    assert len(found.report) == 1 + len(rows)
    assert {len(row) for row in found.report} == {len(found.report[0])}
    assert "4 models on 2 GPUs" in found.finding
    with look():
        figure = draw_sharing(found.tables, "caption")
    assert [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes] == [
        "gh200", "h100_sxm",
    ]  # fmt: skip
    assert {t.get_text() for t in figure.axes[0].texts} >= {"MuxServe, to 2 models", "Prism"}


def test_a_placement_knows_the_rates_of_the_replay(asked: list[list[str]]) -> None:
    compute(replace(QUICK, overrides=(*SETTINGS, "experiment.chips=[gh200]")))
    given = [s for settings in asked if "system=muxserve" in settings for s in settings]
    rates = [s for s in given if s.startswith("system.layout.rates_rps=")]
    assert len(rates) == 4  # of two numbers of models under two loads
    for text in rates:
        values = [float(v) for v in text.partition("=")[2].strip("[]").split(",")]
        assert len(values) in (2, 4)
        assert min(values) > 0.0
        assert sum(values) == pytest.approx(8.0, rel=0.2)  # a second


def test_too_few_requests_are_refused() -> None:
    few = replace(QUICK, overrides=("experiment.max_requests=100",))
    with pytest.raises(SettingError, match=r"^experiment\.max_requests=100: expected at least"):
        figures()["sharing"].settings(few)
