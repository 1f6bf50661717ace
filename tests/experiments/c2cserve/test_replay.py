"""The simulated figures at a small scale: interpreted runs, so that nothing is compiled here."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.claims import claim, compare
from experiments.figure import Context
from experiments.papers.c2cserve import replay, starts
from tests.experiments.duties import QUICK


@pytest.mark.slow
def test_cold_start_costs_more_than_a_switch() -> None:
    cold = starts.compute_cold(QUICK).tables["cold"].to_pylist()
    switch = starts.compute_switch(QUICK).tables["switch"].to_pylist()
    for row in switch:
        (same,) = [c for c in cold if (c["model"], c["system"]) == (row["model"], row["system"])]
        assert same["start_s"] < same["ttft_s"]
        # A system that starts again from disk at each switch takes as long for both.
        assert row["switch_ms"] <= 1e3 * same["start_s"] * (1 + 1e-9)
        if row["system"] == "C2CServe":
            assert row["switch_ms"] < 1e2 * same["start_s"]


def test_switch_times_are_the_printed_ones() -> None:
    fitted = [r for r in starts.compute_switch(QUICK).results if r.sample == "in-sample"]
    assert len(fitted) >= 4
    for r in fitted:
        if r.claim_id == "c2cserve.fig11.orders":  # a band: ours lies inside, and is narrower
            low, high = r.ours
            assert 1 <= low <= high <= 3
        else:
            assert compare(claim(r.claim_id), r).agrees


def test_replay_without_traces_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(replay, "SYNTHETIC_REQUESTS", 60)
    system = ["catalog=dense6", "system=c2cserve_letter", "mig=7x12gb"]
    context = replace(QUICK, traces=tmp_path)
    got = replay.replay(context, 100.0, system, seed=1)
    assert got.summary["requests"] == got.summary["finished"] == 60
    assert "not at hand" in replay.describe(context, 100.0)
    again = replay.replay(context, 100.0, system, seed=1)
    assert got.requests.equals(again.requests)
    assert not got.requests.equals(replay.replay(context, 100.0, system, seed=2).requests)


def test_the_load_is_the_one_closest_to_the_printed_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def fake(context: Context, compression: float, overrides: list[str], seed: int) -> float:
        seen.append((compression, tuple(overrides), seed))
        return compression

    monkeypatch.setattr(replay, "replay", fake)
    found = replay.fit_load(
        QUICK,
        (1.0, 2.0, 4.0, 8.0),
        ["system=x"],
        [1.0, 9.0],
        lambda got: [got / 4, got * 3],  # type: ignore[operator, list-item]
    )
    assert found == 4.0  # 1.0 and 12.0: at most a third off; at 2.0 one is half of its target
    assert seen == [(c, ("system=x",), 0) for c in (1.0, 2.0, 4.0, 8.0)]
