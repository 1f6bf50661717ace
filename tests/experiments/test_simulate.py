"""`c2c simulate` from outside: run folders, resume, errors, kills, sweeps."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from c2c.config import build, load
from c2c.errors import SettingError
from c2c.metrics import RECORD_SCHEMA
from experiments.simulation import execute, folder_of, single_run
from experiments.simulation.report import console, print_outcome, print_setup

COMMAND = [sys.executable, "-m", "c2c", "simulate"]
SMALL = ["workload=poisson", "workload.requests=60", "workload.rate_rps=2", "figures=false"]
RESULTS = ("requests.parquet", "summary.json", "timeline.json.gz")


def run(folder: Path, *overrides: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *overrides], cwd=folder, capture_output=True, text=True, env=os.environ | env
    )


def only_folder(where: Path) -> Path:
    (result,) = [p for p in (where / "runs" / "simulate").iterdir() if p.is_dir()]
    return result


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_trace(path: Path, requests: int = 50, gap_s: float = 0.5) -> Path:
    rows = [f"{gap_s * i},svc-{i % 3},{20 + i},{5 + i % 7}" for i in range(requests)]
    path.write_text("\n".join(["arrival_s,model,prompt_tokens,output_tokens", *rows]) + "\n")
    return path


def executed(tmp_path: Path, *overrides: str) -> Any:
    return execute(build(load([*SMALL, f"out={tmp_path}", *overrides])))


def test_a_trace_nobody_prepared_becomes_a_run_folder(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.csv")
    done = run(tmp_path, "workload=file", "workload.path=trace.csv", "system=c2cserve_letter",
               "hardware=gh200", "mig=7x12gb", "figures=true")  # fmt: skip
    assert done.returncode == 0, done.stderr
    for said in ("variant measured, 375 GB/s", "svc-0", "models: each id has a deployment",
                 "profile table", "TTFT", "requests by start"):  # fmt: skip
        assert said in done.stdout
    folder = only_folder(tmp_path)
    assert {p.name for p in folder.iterdir()} >= {
        *RESULTS, "config.yaml", "provenance.json", "DONE",
        *(f"{name}.{kind}" for name in ("ttft_over_time", "latency_cdf")
          for kind in ("png", "svg", "pdf")),
    }  # fmt: skip
    requests = pq.read_table(folder / "requests.parquet")
    assert requests.schema.equals(RECORD_SCHEMA)
    assert sorted(requests.column("id").to_pylist()) == list(range(50))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["system"]["name"], config["link"]) == ("c2cserve_letter", "measured")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["run"]["workload"]["assignment"]["made_of"]["svc-0"] == "llama-3-8b"
    events = json.loads(gzip.decompress((folder / "timeline.json.gz").read_bytes()))["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "C"}

    again = run(tmp_path, "workload=file", "workload.path=trace.csv", "system=c2cserve_letter",
                "mig=7x12gb", "figures=true")  # fmt: skip
    assert "complete already, skipped" in again.stdout


def test_ids_that_share_models_are_named_in_bold(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv")
    told = ["workload=file", f"workload.path={trace}", "catalog.models=[{spec: llama-3-3b}]"]
    printed = []
    for rule in ("auto", "popularity_rank"):
        out = Console(force_terminal=True, highlight=False, width=200, file=StringIO())
        print_setup(out, build(load([*told, f"workload.assignment={rule}"])))
        printed.append(out.file.getvalue())  # type: ignore[attr-defined]
    assert "are served by" not in printed[0]
    assert "\x1b[1m3 ids of the trace are served by 1 model" in printed[1]


def test_ids_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("[/x]", "lab/m:free:", "hosted_vllm/" + 60 * "long")
    rows = [f"{k},{name},20,5" for k, name in enumerate(names)]
    trace = tmp_path / "t.csv"
    trace.write_text("\n".join(["arrival_s,model,prompt_tokens,output_tokens", *rows[:2]]))
    told = ["workload=file", f"workload.path={trace}", "figures=false", f"out={tmp_path}"]
    setup = build(load(told))
    print_setup(console(), setup)
    print_outcome(console(), setup, execute(setup))
    said = capsys.readouterr().out
    assert all(said.count(name) >= 2 for name in names[:2])
    trace.write_text("\n".join(["arrival_s,model,prompt_tokens,output_tokens", *rows]))
    with pytest.raises(SettingError, match=r"1 to 200 printable characters\. 3 models: each id of"):
        build(load(told))


def test_measured_latencies_of_a_benchmark_stand_beside_simulated_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 40
    result: dict[str, Any] = {
        "input_lens": [100 + k for k in range(count)],
        "output_lens": [1 + k % 5 for k in range(count)],
        "start_times": [1_716_000_000_000 + 250 * k for k in range(count)],
        "ttfts": [0.1 + k / 100 for k in range(count)],
        "itls": [[0.01 * (1 + k)] * (k % 5) for k in range(count)],
    }  # fmt: skip
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    told = ("workload=file", f"workload.path={path}", "system=c2cserve_plus", "mig=7x12gb",
            "workload.replicas=2", "workload.compression=2")  # fmt: skip
    setup = build(load([*told, "figures=false", f"out={tmp_path}"]))
    done = execute(setup)
    table = pq.read_table(done.folder / "requests.parquet")
    assert table.schema.names == [*RECORD_SCHEMA.names, "measured_ttft_s", "measured_tpot_s"]
    rows = table.to_pylist()
    assert len(rows) == 2 * count
    for row in rows:  # each with what the request of its prompt brought
        k = row["prompt_tokens"] - 100
        assert row["measured_ttft_s"] == result["ttfts"][k]
        gaps = result["itls"][k]
        assert row["measured_tpot_s"] == (pytest.approx(gaps[0]) if gaps else None)
    beside = done.summary["measured"]
    assert beside["ttft_s"]["requests"] == 2 * count
    assert beside["ttft_s"]["measured"]["p50"] == pytest.approx(np.median(result["ttfts"]))
    assert beside["ttft_s"]["simulated"] == done.summary["ttft_s"]
    assert beside["tpot_s"]["requests"] == 2 * sum(1 for gaps in result["itls"] if gaps)
    assert beside["tpot_s"]["simulated"]["p50"] == done.summary["tpot_s"]["p50"]
    print_setup(console(), setup)
    print_outcome(console(), setup, done)
    said = capsys.readouterr().out
    assert "times: milliseconds since 1970; 0 is the first request" in said
    assert "TTFT p50 of 80 requests with a measured one: measured 0.295 s, simulated" in said
    assert "TPOT p50 of 64 requests with a measured one: measured" in said


@pytest.mark.slow
def test_a_sweep_resumes_and_survives_a_bad_point(tmp_path: Path) -> None:
    points = ["-m", *SMALL, "seed=0,-1,1"]
    first = run(tmp_path, *points)
    assert first.returncode == 1
    assert "error: seed=-1" in first.stderr
    assert first.stdout.count("run folder (written)") == 2
    assert "seed=-1: seed=-1: expected" in first.stdout  # below the table
    again = run(tmp_path, *points)
    assert again.stdout.count("complete already, skipped") == 2
    assert "written" not in again.stdout


def test_a_run_told_to_stop_says_so_and_heals(tmp_path: Path) -> None:
    # Seconds of work, were it not stopped.
    stuck = [*SMALL, "workload.requests=3000000", "workload.rate_rps=4", "folder=here"]
    process = subprocess.Popen([*COMMAND, *stuck], cwd=tmp_path, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    folder = tmp_path / "here"
    for _ in range(600):
        if any(folder.glob(".requests.parquet.*")):
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 130
    crash = json.loads((folder / "crash.json").read_text())
    assert crash["exception"] == "KeyboardInterrupt"
    assert not (folder / "DONE").exists()
    assert not list(folder.glob("*.parquet")) + list(folder.glob(".*.partial"))

    healed = executed(tmp_path, f"folder={folder}")
    assert not healed.skipped
    assert (folder / "DONE").exists()
    assert not (folder / "crash.json").exists()


def test_a_killed_run_is_made_again_not_trusted(tmp_path: Path) -> None:
    first = executed(tmp_path)
    results = {name: digest(first.folder / name) for name in RESULTS}
    (first.folder / "DONE").unlink()
    (first.folder / "requests.parquet").write_bytes(b"PAR1 half of it")
    (first.folder / ".requests.parquet.x.partial").write_bytes(b"half of it")
    again = executed(tmp_path)
    assert not again.skipped
    assert {name: digest(first.folder / name) for name in RESULTS} == results
    assert not list(first.folder.glob(".*.partial"))


def test_equal_settings_give_equal_bytes_anywhere(tmp_path: Path) -> None:
    one, two = executed(tmp_path / "a"), executed(tmp_path / "b")
    assert one.folder.name == two.folder.name
    for name in RESULTS:
        assert digest(one.folder / name) == digest(two.folder / name)
    other = executed(tmp_path / "a", "seed=1")
    assert digest(other.folder / RESULTS[0]) != digest(one.folder / RESULTS[0])


@pytest.mark.parametrize("override", ["system.max_batch=8", "seed=2", "link=datasheet"])
def test_a_changed_setting_is_another_run(tmp_path: Path, override: str) -> None:
    first = executed(tmp_path)
    changed = executed(tmp_path, override)
    assert changed.folder != first.folder
    assert executed(tmp_path).skipped


def test_in_a_given_folder_another_run_is_replaced_only_if_told_so(tmp_path: Path) -> None:
    here = f"folder={tmp_path / 'here'}"
    first = executed(tmp_path, here)
    before = digest(first.folder / RESULTS[0])
    with pytest.raises(SettingError, match=r"folder='.*results of another run \(seed=0\)"):
        executed(tmp_path, here, "seed=2")
    assert executed(tmp_path, here).skipped
    assert not executed(tmp_path, here, "seed=2", "overwrite=true").skipped
    assert digest(first.folder / RESULTS[0]) != before


def test_it_says_written_when_all_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(
        single_run,
        "print_folder",
        lambda _, outcome: seen.append((outcome.folder / "DONE").exists()),
    )
    setup = build(load([*SMALL, f"out={tmp_path}"]))
    single_run.show(setup, single_run.console(), "none")
    assert seen == [True]


def test_a_changed_trace_of_the_same_name_runs_again(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.csv")
    chosen = ["workload=file", f"workload.path={trace}", "figures=false", f"out={tmp_path}"]
    first = execute(build(load(chosen)))
    assert execute(build(load(chosen))).skipped
    write_trace(trace, requests=51)
    again = execute(build(load(chosen)))
    assert not again.skipped
    assert again.folder == first.folder
    assert again.summary["requests"] == 51


def test_resume_false_runs_again(tmp_path: Path) -> None:
    first = executed(tmp_path)
    assert not executed(tmp_path, "resume=false").skipped
    assert first.folder == folder_of(build(load([*SMALL, f"out={tmp_path}", "resume=false"])))


def test_serverlessllm_runs_on_the_whole_gpu(tmp_path: Path) -> None:
    outcome = executed(tmp_path, "system=serverlessllm")
    assert outcome.summary["run"]["instances"] == 1
    assert outcome.summary["starts"]["switch"] > 0
    phases = json.loads(gzip.decompress((outcome.folder / "timeline.json.gz").read_bytes()))
    assert "load" in {e.get("cat") for e in phases["traceEvents"]}


def test_a_tiny_run_does_not_wait_for_the_compiler(tmp_path: Path) -> None:
    cold = run(tmp_path, *SMALL, "folder=cold", C2C_CACHE=str(tmp_path / "no machine code"))
    assert "interpreted)" in cold.stdout
    assert "compiling" not in cold.stdout
    warm = executed(tmp_path, f"folder={tmp_path / 'warm'}", "resume=false")
    assert digest(tmp_path / "cold" / RESULTS[0]) == digest(warm.folder / RESULTS[0])


def test_first_result_is_small(tmp_path: Path) -> None:
    from experiments.lab.bench.simulator import measure_start

    found = measure_start([*SMALL, "workload.requests=20", f"out={tmp_path}"])
    assert found["peak_mb"] < 500


def test_figures_of_a_run_without_a_finished_request_can_be_drawn(tmp_path: Path) -> None:
    lost = ("workload.lengths=fixed", "workload.prompt_tokens=200000", "figures=true")
    outcome = executed(tmp_path, *lost)
    assert outcome.summary["finished"] == 0
    assert (outcome.folder / "latency_cdf.svg").stat().st_size > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["workload=poisson", "system.prefix_cache.hbm=true"], "no request has hashes of blocks"),
        (["workload=conversations"], "off, every prompt is computed in full"),
        (["workload=conversations", "system.prefix_cache.host_bytes=10e9"], "found "),
    ],
)
def test_the_console_says_what_a_prefix_cache_has_to_find(
    settings: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["catalog=dense6", "system=c2cserve_plus", *SMALL, *settings, f"out={tmp_path}"]
    setup = build(load(given))
    print_setup(console(), setup)
    print_outcome(console(), setup, execute(setup))
    told = [line for line in capsys.readouterr().out.splitlines() if "prefix cache" in line]
    assert len(told) == 1
    assert said in told[0]


def test_an_experiment_that_sweeps_is_refused_beside_others(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    swept = 'hydra: {sweeper: {params: {seed: "0,1"}}}'
    for name, text in {"mine": "seed: 3", "swept": swept}.items():
        file = tmp_path / "experiment" / f"{name}.yaml"
        file.write_text(f"# @package _global_\n{text}\n", encoding="utf-8")
    done = run(tmp_path, "-m", f"--config-dir={tmp_path}", "+experiment=mine,swept")
    assert done.returncode == 2
    assert "hydra.sweeper.params={'seed': '0,1'}: expected no sweep of its own" in done.stderr
    assert "+experiment=swept" in done.stderr


@pytest.mark.slow
def test_a_pattern_sweeps_the_choices_that_it_matches(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", *SMALL, "system=glob([c2cserve_l*,c2cserve_r*])")
    assert done.returncode == 0, done.stderr
    names = {f.parent.name.partition("_gh200")[0] for f in tmp_path.rglob("summary.json")}
    assert names == {"c2cserve_letter", "c2cserve_roofline"}


def test_a_command_starts_above_a_checkout_named_c2c(tmp_path: Path) -> None:
    for name in ("runs", "models", "config"):
        (tmp_path / "c2c" / name).mkdir(parents=True)
    (tmp_path / "experiments").mkdir()
    done = run(tmp_path, "--cfg", "job")
    assert done.returncode == 0, done.stderr
