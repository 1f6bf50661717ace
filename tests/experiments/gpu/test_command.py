"""The command line of make gpu without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.lab.gpu import command, link
from experiments.lab.gpu.calibrate import main as calibrate
from experiments.lab.gpu.cases import plan
from experiments.lab.gpu.rows import Rows
from pallas_kernels.gemm import Gemm, check_fits, choose, machine_for, plan_launch
from tests.experiments.gpu import made_up


def write(path: Path, device: str = "NVIDIA H200") -> Path:
    rows = Rows(path)
    rows.add_run({"device": device, "date": "2026-11-29"})
    rows.add(made_up.rows(sm_gbps=41.0))
    return path


def test_the_plan_fits_a_call_and_names_each_case_once() -> None:
    keys = [case.key for case in plan()]
    assert len(keys) == len(set(keys)) < 80
    tiny = [case.key for case in plan(tiny=True)]
    assert len(tiny) == len(set(tiny))


def test_every_kernel_of_the_plan_can_be_launched() -> None:
    for case in plan():
        spec = case.spec
        if spec.get("what") != "kernel":
            continue
        gemm = Gemm(m=-(-spec["m"] // 8) * 8, k=spec["k"], n=spec["n"], w_layout=spec["layout"])
        config = choose(gemm, machine_for(), cluster=spec.get("cluster", 1))
        check_fits(config, gemm)
        made = plan_launch(gemm, config, alpha=spec["alpha"], sm_limit=spec.get("sms"))
        assert made.active_clusters * config.cluster <= spec.get("sms", 132)


def test_without_a_gpu_it_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "look", lambda *_: "no answer within 60 s")
    assert command.main([]) == 2
    assert "No GPU: jax says: no answer within 60 s" in capsys.readouterr().err


def test_rows_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--judge", str(write(tmp_path / "rows.jsonl"))]) == 0
    assert "decode: kernel pass, copy engine 0.74" in capsys.readouterr().out


def test_a_dry_run_leaves_rows_and_a_page(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    given = ["--dry-run", "--stages", "probe,attention", "--rows", str(path)]
    assert command.main(given) == 0
    assert [row["status"] for row in Rows(path).all] == ["skipped", "ok", "ok", "ok"]
    assert "| attention | 3 | 0 |" in path.with_suffix(".md").read_text()
    assert all(row["dry_run"] for row in Rows(path).all)
    assert command.main(given) == 0
    assert len(Rows(path).runs) == 2


@pytest.mark.slow
def test_a_whole_dry_run(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert command.main(["--dry-run", "--minutes", "30", "--rows", str(path)]) == 0
    rows = Rows(path).all
    assert {row["case"] for row in rows} == {case.key for case in plan(tiny=True)}
    assert [row for row in rows if row["status"] not in ("ok", "skipped")] == []


def test_measured_rates_reach_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PALLAS_KERNELS_TUNED", str(tmp_path / "tuned"))
    rows = write(tmp_path / "rows.jsonl", device="NVIDIA H100 80GB HBM3")
    assert calibrate([str(rows)]) == 0
    assert machine_for("NVIDIA H100 80GB HBM3").link_gbps == 38.0
    assert calibrate([str(rows), "--write"]) == 0
    machine = machine_for("NVIDIA H100 80GB HBM3")
    assert (machine.link_gbps, machine.copy_gbps) == (41.0, 55.04)
    assert "make gpu, 2026-11-29" in machine.source
    assert "copy_gbps" in capsys.readouterr().out


def test_constants_of_an_h200(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate([str(write(tmp_path / "rows.jsonl"))]) == 0
    assert "55.0 GB/s of W by the faster reader" in capsys.readouterr().out
    empty = tmp_path / "empty.jsonl"
    Rows(empty).add_run({"device": "NVIDIA H200"})
    assert calibrate([str(empty)]) == 1


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc in PATH")
def test_the_probe_builds(tmp_path: Path) -> None:
    probe = link.build("probe", tmp_path)
    assert link.build("probe", tmp_path) == probe
    assert link.build("promote.so", tmp_path).stat().st_size > 0
