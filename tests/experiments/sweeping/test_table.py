"""The table of a sweep: equal seeds, short names of settings, chosen layouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from c2c.config import build, load
from experiments.simulation import execute
from experiments.simulation.runs_table import print_sweep
from experiments.sweeping import PointRecord


def swept(workload: list[str], out: Path) -> list[PointRecord]:
    """Run two systems with two seeds each."""
    words = [("system=dedicated", "seed=0"), ("system=dedicated", "seed=1"),
             ("system=aegaeon", "seed=0"), ("system=aegaeon", "seed=1")]  # fmt: skip
    common = ["catalog.models=[{spec: llama-3-8b}]", "mig=1x96gb", "figures=false", f"out={out}"]
    return [
        PointRecord(
            number=k, overrides=one, at=out, state="made",
            folder=execute(build(load([*workload, *common, *one]))).folder,
        )
        for k, one in enumerate(words)
    ]  # fmt: skip


def test_equal_runs_of_seeds_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my.csv"
    rows = [f"{0.5 * k},m,100,20" for k in range(30)]
    file.write_text("\n".join(["arrival_s,model,prompt_tokens,output_tokens", *rows]))
    own = swept(["workload=file", f"workload.path={file}"], tmp_path / "own")
    print_sweep(Console(width=120), own)
    assert (
        "equal runs for all seeds: 2 of 2 settings, as nothing is drawn" in capsys.readouterr().out
    )
    print_sweep(Console(width=120), swept(["workload=poisson", "workload.requests=30"], tmp_path))
    assert "equal runs" not in capsys.readouterr().out
    print_sweep(Console(width=120), own[::2])  # one seed each
    assert "equal runs" not in capsys.readouterr().out


def test_a_sweep_has_a_column_a_setting_and_the_layout_that_was_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["workload=poisson", "workload.requests=30", "catalog=dense6", f"out={tmp_path}"]
    common += ["figures=false"]
    words = [
        (f"system={system}", f"workload.rate_rps={rate}", "slo.ttft_s=2.0")
        for system in ("serverlessllm", "c2cserve_plus")
        for rate in (1, 2)
    ]
    points = [
        PointRecord(
            number=k, overrides=(*common, *one), at=tmp_path, state="made",
            folder=execute(build(load([*common, *one]))).folder,
        )
        for k, one in enumerate(words)
    ]  # fmt: skip
    for columns in (80, 120):
        print_sweep(Console(width=columns), points)
        said = capsys.readouterr().out
        lines = said.splitlines()
        (head,) = (line for line in lines if "rate_rps" in line)
        assert head.split()[:3] == ["system", "rate_rps", "mig"]
        rows = [line.split()[:3] for line in lines if "served" in line or "missed" in line]
        assert rows == [
            ["serverlessllm", "1", "1x96gb"], ["serverlessllm", "2", "1x96gb"],
            ["c2cserve_plus", "1", "7x12gb"], ["c2cserve_plus", "2", "7x12gb"],
        ]  # fmt: skip
        assert max(map(len, lines)) <= columns
        assert "mig=planned gives each its best" in " ".join(said.split())
    print_sweep(Console(width=120), points[:2])
    assert "1x96gb" not in capsys.readouterr().out
