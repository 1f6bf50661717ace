"""The figure of the prefix cache, at a tiny scale: interpreted runs, nothing is compiled."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from c2c.config import build, load, simulate
from experiments.figure import Context, choose
from experiments.figures.style import look
from experiments.papers.composed import prefix
from experiments.papers.composed.prefix_drawing import draw_prefix

QUICK = Context(profile="quick", link_variant="measured", seeds=(0, 1))
TINY = (
    "experiment.conversations.text_tokens=600",
    "experiment.conversations.answer_tokens=3",
    "experiment.conversations.requests=6",
    "experiment.host_gb=[0,400]",
)


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "simulate", lambda setup: simulate(setup, compiled=False))


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_more_is_found_with_host_memory_and_drawn(tmp_path: Path) -> None:
    found = prefix.compute(replace(QUICK, traces=tmp_path, overrides=TINY))
    rows = found.tables["runs"].to_pylist()
    assert len(rows) == len(found.report) - 1 == 14
    for row in rows:
        share = row["found_hbm_percent"] + row["found_host_percent"]
        assert row["requests"] == 6
        assert (share > 0) == (row["host_gb"] > 0) == (row["blocks_tb"] > 0)
        assert row["blocks_tb"] <= row["link_tb"]
    pcie = [r for r in rows if r["chip"] == "H100, PCIe"]
    fast = [r for r in rows if r["chip"] == "H100, GH200's link"]
    assert {r["link_gbps"] for r in pcie} == {55.0}
    assert {r["link_gbps"] for r in fast} == {375.0}
    said = " ".join(found.assumptions)
    assert "not at hand" in said
    assert said.count("PCIe does not bind") == 2
    assert len(found.caption.split()) <= 50
    held = io.BytesIO()
    with look():
        draw_prefix(found.tables, found.caption).savefig(held, format="png")
    assert held.getvalue()


def test_busy_links_bind_with_what_they_carry() -> None:
    row = {"link_percent": 69.0, "link_tb": 97.0, "blocks_tb": 1.7}
    assert "PCIe binds" in prefix._binds(row)
    assert "weights that gave way" in prefix._binds(row)
    assert "weights" not in prefix._binds(row | {"blocks_tb": 90.0})


def test_the_public_trace_is_read_where_it_is(shared: Path) -> None:
    context = replace(QUICK, traces=shared / "traces")
    experiment = choose("prefix")[0].settings(context)
    setup = build(load([*experiment.model, *prefix._source(context, experiment, 0.6)]))
    assert setup.workload.description["requests"] > 3900
    assert "Mooncake's public trace" in prefix._setup(context, experiment)[0]


def test_it_is_a_figure() -> None:
    assert [spec.name for spec in choose("prefix")] == ["prefix"]
