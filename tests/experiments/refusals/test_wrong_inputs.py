"""Wrong inputs by the hundred: one line with field, value and what is allowed, and nothing left."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra._internal.hydra import Hydra

from c2c.config import register
from experiments import simulate

TABLE: Mapping[str, list[tuple[str, str]]] = yaml.safe_load(
    (Path(__file__).parent / "wrong_inputs.yaml").read_text("utf-8")
)
BASE = ["workload=poisson", "workload.requests=50", "figures=false"]
BASES: Mapping[str, list[str]] = {
    "advise": ["workload=poisson", "workload.requests=60"],
    "serve": ["simulated=true", "port=0"],
    "capacity": [
        "workload=poisson", "workload.requests=60", "workload.rate_rps=2", "catalog=dense6",
    ],
}  # fmt: skip
MODULES: Mapping[str, str] = {
    "reproduce": "experiments.reproduce.command", "bench": "experiments.lab.bench.simulator",
    "plan": "experiments.papers.cocoserve.plan", "weave": "experiments.papers.weaver.plan",
    "vopr": "tests.vopr.__main__", "advise": "experiments.advise",
    "capacity": "experiments.capacity", "llama_cpp": "experiments.lab.bench.llama_cpp",
    "prediction": "experiments.lab.bench.prediction.command",
    "planner": "experiments.papers.tessera.planner", "ways": "experiments.papers.tessera.ways",
    "placed_step": "experiments.papers.tessera.placed_step",
    "systems": "experiments.lab.bench.systems", "estimate": "experiments.estimate",
    "referee": "experiments.lab.referee.command", "layout": "experiments.layout",
    "explore": "experiments.explore.command", "restore": "experiments.papers.medusa.restore",
    "gpu": "experiments.lab.gpu.command", "serve": "experiments.serve",
}  # fmt: skip
COLUMNS = "arrival_s,model,prompt_tokens,output_tokens\n"
FILES: Mapping[str, bytes] = {
    "mine/thesis.tex": b"years of work\n",
    "broken/system/mine.yaml": b"name: mine\n  place: [\n",
    "broken/system/bad.yaml": b"name: \xff\xfe\n",
    "plans/13b.json": b'{"model": "llama-2-13b", "layers": 40}',
    "plans/39.json": b'{"model": "llama-2-13b", "layers": 39}',
    "traces/empty.csv": b"",
    "traces/no_rows.csv": COLUMNS.encode(),
    "traces/corrupt.parquet": b"PAR1 and then nothing of the kind",
    "traces/not.parquet": b"hello",
    "traces/negative.csv": f"{COLUMNS}0,a,5,-5\n".encode(),
    "traces/unclear.csv": b"time,input_tokens,prompt_token_count,output_tokens\n0,5,5,5\n",
    "traces/arrivals.csv": b"time,size\n0,5\n1,5\n",
    "traces/sparse.csv": b"when,in,out\n0,5,5\n1000000,5,5\n",
    "traces/utf16.csv": COLUMNS.encode("utf-16"),
    "traces/columns.csv": b"when,what\n1,2\n",
    "traces/hub.csv": f"{COLUMNS}0,Qwen/Qwen3-32B,5,5\n".encode(),
    "traces/escape.csv": f"{COLUMNS}0,\x1b[31mred,5,5\n".encode(),
    "quantised/config.json": b"{}",
    "quantised/quant_strategy.json": b"{}",
    "traces/good.csv": f"{COLUMNS}0,svc-0,5,5\n1,svc-1,6,6\n".encode(),
}
PER_TEST = 20  # cases: shared between test processes, with little said where all is well
EVERY = 8  # line is in the first tier; the others are slow
MOST_BYTES = 1_000_000_000
# What must hold from a shell, too: one of each kind of error. The first are those of Hydra's
# own main, of a sweep, of a setting and of a file.
FROM_A_SHELL = (
    "--config-dir=broken system=mine", "-m seed=0,1 folder=one", "mig=9x9gb",
    "workload=file workload.path=traces/corrupt.parquet",
    "out=/dev/null", "folder=/proc/x", "folder=mine", "--foo", "--config-dir=broken system=bad",
    "a b", "=3", "seed=0,1", "+sead=5", "workload=null", "seed=9223372036854775808",
    "timeline.rows=99999999999999", "system.max_batch=100000000", "superchips=100000000",
    "workload.requests=99999999999999", "hydra.verbose=7",
)  # fmt: skip


def batches() -> list[Any]:
    """Return each command's lines, some at a time, first those of the first tier."""
    result = []
    for command, rows in TABLE.items():
        quick, rest = rows[::EVERY], [row for k, row in enumerate(rows) if k % EVERY]
        for name, part, marks in (("some", quick, []), ("others", rest, pytest.mark.slow)):
            for k in range(0, len(part), PER_TEST):
                lines, title = part[k : k + PER_TEST], f"{command}-{name}-{k}"
                result.append(pytest.param(command, lines, marks=marks, id=title))
    return result


def base_of(words: list[str]) -> list[str]:
    """Return what precedes a line; a trace reads no `workload.requests`."""
    is_trace = not {"workload=file", "workload=gentd26"}.isdisjoint(words)
    return [word for word in BASE if not (is_trace and word.startswith("workload.requests"))]


def run(command: str, words: list[str]) -> int:
    if command == "simulate":
        return simulate.main([*base_of(words), *words])
    main: Callable[[list[str]], int] = importlib.import_module(MODULES[command]).main
    return main([*BASES.get(command, ()), *words])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["command"])
    monkeypatch.setenv("C2C_WORD", "word")
    monkeypatch.setenv("C2C_SHARED", str(tmp_path / "nothing shared"))
    yield tmp_path
    register(())  # without a line's --config-dir


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def fault(status: int, out: str, err: str, said: str) -> str:
    """Return what is wrong with an answer; empty if nothing is."""
    if status != 2:
        return f"status {status}: {err}"
    if out:
        return f"printed {out!r}"
    if err.count("\n") != 1 or not err.startswith("error: "):
        return f"not one line: {err!r}"
    # A full path may precede the name of a file; how many names there are changes with each.
    return "" if said in re.sub(r"\(of \d+\)", "(of n)", err) else f"says {err!r}, not {said!r}"


def peak_bytes() -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_table_is_large_and_the_shell_has_twenty_of_it() -> None:
    assert sum(map(len, TABLE.values())) >= 200
    assert len(set(FROM_A_SHELL)) == 20
    assert set(FROM_A_SHELL) <= {line for line, _ in TABLE["simulate"]}


@pytest.mark.parametrize(("command", "lines"), batches())
def test_wrong_input_is_one_line(
    command: str, lines: list[tuple[str, str]], here: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Hydra composes all settings once more beforehand, to learn a mode that none of these sets. It
    # does so still from a shell, below.
    assert not any("hydra.mode" in line for line, _ in lines)
    monkeypatch.setattr(Hydra, "get_mode", lambda *_, **__: None)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = resident_bytes()
    faults = {}
    for line, said in lines:
        capsys.readouterr()
        status = run(command, shlex.split(line))
        if found := fault(status, *capsys.readouterr(), said):
            faults[line] = found
    assert not faults
    assert contents(here) == FILES
    assert peak_bytes() - before < MOST_BYTES


@pytest.mark.parametrize(
    "line",
    [*FROM_A_SHELL[:4], *(pytest.param(line, marks=pytest.mark.slow) for line in FROM_A_SHELL[4:])],
)
def test_wrong_input_is_one_line_from_a_shell(line: str, here: Path) -> None:
    words = shlex.split(line)
    done = subprocess.run(
        [sys.executable, "-m", "c2c", "simulate", *base_of(words), *words],
        cwd=here, capture_output=True, text=True,
    )  # fmt: skip
    said = dict(TABLE["simulate"])[line]
    assert not fault(done.returncode, done.stdout, done.stderr, said)
    assert contents(here) == FILES
