"""Words on a prediction beside live runs, and live runs that are not run twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from experiments.lab.bench.live import Request
from experiments.lab.bench.prediction import live
from experiments.lab.bench.prediction.live import Host
from experiments.lab.bench.prediction.verdict import FLOORS, TARGETS, judge, verdict
from experiments.serving.live_run_simulation import Comparison
from experiments.serving.record import CATALOG

COMMAND = [sys.executable, "-m", "c2c", "bench", "prediction"]


def runs(errors: dict[tuple[str, int], float], spread: float = 0.0) -> list[list[Comparison]]:
    """Three live runs, `spread` apart, whose predictions are off by so much, else by nothing."""
    return [
        [
            Comparison(
                name=name, share=share, live_s=speed,
                simulated_s=1.0 + errors.get((name, share), 0.0),
            )
            for name, share in [*TARGETS, ("ttft_s", 99)]
        ]
        for speed in (1.0 - spread / 2, 1.0, 1.0 + spread / 2)
    ]  # fmt: skip


def test_medians_over_runs_are_judged_beside_their_spread() -> None:
    found = judge(0.5, runs({("tpot_s", 50): 0.01, ("ttft_s", 99): 0.7}, spread=0.3))
    tpot = next(one for one in found if (one.name, one.share) == ("tpot_s", 50))
    assert (tpot.live_s, tpot.simulated_s) == (1.0, 1.01)
    assert tpot.error == pytest.approx(0.01)
    assert tpot.floor == pytest.approx(1.15 / 0.85 - 1.0)
    assert tpot.is_met
    last = found[-1]
    assert last.target is None
    assert last.is_met  # it is told only


@pytest.mark.parametrize(("name", "share"), TARGETS)
def test_an_error_beyond_its_target_is_named_and_so_is_the_floor(name: str, share: int) -> None:
    target = TARGETS[name, share]
    just, beyond = {(name, share): 0.999 * target}, {(name, share): -1.2 * target}
    assert verdict(judge(0.8, runs(just))).startswith("HOLDS: all 6")
    said = verdict(judge(0.8, runs(beyond)))
    assert said.startswith("DOES NOT HOLD: 5 of 6")
    assert f"{name.removesuffix('_s')} p{share} at 80 % {-120 * target:.1f} %" in said
    noisy = judge(0.8, runs(beyond, spread=1.3 * target / FLOORS))
    assert verdict(noisy).startswith(f"HOLDS TO {FLOORS:g} x THE FLOOR ONLY: 5 of 6")
    assert f"p{share} at 80 %" in verdict(noisy)


def test_the_worst_are_named_and_the_others_counted() -> None:
    said = verdict(judge(1.0, runs(dict.fromkeys(TARGETS, 0.5))))
    assert "tpot p50" in said
    assert "e2e p50" in said
    assert said.endswith("and 3 more")


class Fake:
    """An engine that leaves a record of so many requests, or of none where it is stopped early."""

    started = 0

    def __init__(self, catalog: Path, log: Path, settings: Sequence[str]) -> None:
        assert catalog.name == "models"
        assert "workers=2" in settings
        assert log.parent.is_dir()
        self.out = Path(settings[-1].removeprefix("out="))

    def start(self) -> None:
        Fake.started += 1
        self.out.mkdir()

    def ask(self, _request: Any) -> None:
        raise AssertionError("`send` is replaced here")

    def stop(self) -> None:
        (self.out / CATALOG).write_text("{}")


def test_a_run_that_has_its_record_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(live, "Engine", Fake)
    monkeypatch.setattr(live, "send", lambda _, requests: sent.append(len(requests)))
    host = Host(catalog=tmp_path / "models", settings=("workers=2",), runs=tmp_path / "live")
    asked = [Request(at_s=0.0, model="m", ids=(3,), new=1)]
    folder = host.served("fit-0", asked)
    assert folder == host.served("fit-0", asked)
    assert (Fake.started, sent) == (1, [1])
    (folder / CATALOG).unlink()  # it was killed before it had written all
    (folder / "requests.parquet").write_text("half")
    host.served("fit-0", asked)
    assert (Fake.started, sent) == (2, [1, 1])
    assert not (folder / "requests.parquet").exists()


@pytest.mark.soak
def test_a_command_that_was_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "predicted"
    given = [
        *COMMAND, "models=2", "requests=40", "repeats=1", "loads=[0.5]", f"out={folder}",
    ]  # fmt: skip
    process = subprocess.Popen(given, stderr=subprocess.DEVNULL)
    while not list(folder.glob(f"live-*/*/{CATALOG}")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob(f"live-*/*/{CATALOG}")}
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())
    assert done.stdout.startswith(("HOLDS", "DOES NOT HOLD"))
    table = pq.read_table(folder / "prediction.parquet")
    assert len(table) == 9
    assert min(table["live_s"].to_pylist()) > 0.0
    assert (folder / "prediction.png").stat().st_size > 10_000
    again = subprocess.run(given, capture_output=True, text=True, check=True)
    assert "is complete" in again.stdout
