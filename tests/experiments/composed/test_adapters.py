"""Fine-tunes on one GH200: numbers of models in the catalogs, and the title's number."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from c2c.config import simulate
from c2c.models import load_catalog
from experiments.experiment import read_experiment
from experiments.figure import Context
from experiments.papers.composed import adapters
from experiments.papers.composed.adapters import FineTunes, compute

SMALL = (
    "experiment.fine_tunes=[24]", "experiment.models=[24]", "experiment.bases=[2]",
    "experiment.seconds=60", "experiment.least_requests=60",
)  # fmt: skip


@given(bases=st.integers(1, 12), more=st.integers(0, 40))
def test_a_catalog_has_as_many_fine_tunes_as_wanted(bases: int, more: int) -> None:
    experiment = read_experiment(FineTunes, "c2cserve/adapters")
    for is_whole in (False, True):
        setting = experiment.catalog(bases, bases + more, is_whole=is_whole)
        entries = yaml.safe_load(setting.removeprefix("catalog.models="))
        found = load_catalog({"models": entries})
        assert len(found) == bases + more
        assert len({d.base or d.name for d in found}) == (bases + more if is_whole else bases)


@pytest.mark.slow
def test_adapters_serve_more_than_whole_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "simulate", lambda setup: simulate(setup, compiled=False))
    context = Context(profile="quick", link_variant="measured", seeds=(0,), overrides=SMALL)
    made = compute(context)
    rows = made.tables["runs"].to_pylist()
    share = {r["system"]: r["both_percent"] for r in rows}
    streamed = share["streamed bases"], share["whole models, streamed (C2CServe)"]
    assert streamed[0] > streamed[1] + 20.0
    assert made.finding.startswith(
        "Fine-tunes of one GH200 with 90 % within targets: as adapters 24"
    )
    assert all(0.0 <= r["both_percent"] <= 100.0 for r in rows)
