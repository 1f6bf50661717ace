"""A user's own measurements, from their files to the answers that use them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from c2c.config import build, load, register
from c2c.cost import load_constants
from c2c.cost.kernel_graph import Batch, step_kernels, step_s, timed_gpu
from c2c.errors import DataError
from c2c.hardware import search_also
from c2c.models import load_spec
from experiments.estimate import main as estimate
from experiments.kernel_times import main as kernel_times
from experiments.measured.command import main as bench_measured
from experiments.measured.rows import OWN

LAYER = ("norm1,qkv,rope_q+rope_k+kv_write,attention,merge,o,-,add1+norm2,gate_up,activate,down,"
         "add2")  # fmt: skip
US = (6, 70, 9, 300, 8, 45, 5, 7, 230, 14, 120, 5)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in {
        "hardware/lab.yaml": "defaults: [a100_80, _self_]\nname: lab\n",
        "collectives/lab.yaml": "2: {latency_s: 9.0e-06, share: 0.6, source: ours}\n",
        "operations/lab.yaml": "constants:\n" + "".join(
            f"  {n}: {{value: {v}, source: {{kind: measured, why: ours}}}}\n"
            for n, v in (("process_bytes", "4.0e8"), ("operation_s", 1.5), ("coordination_s", 0.02))
        ),
        "node/two.yaml": (
            "name: two\ngpus: [lab, lab]\nlinks:\n  slot:\n    kind: pcie\n    gbps: 25.0\n"
            "    latency_s: 4.0e-6\n    source: {gbps: 'measured: x', latency_s: 'measured: x'}\n"
        ),
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    register((), None)
    search_also(())


def trace(path: Path, skipped: str = "[CUDA memcpy Host-to-Device]") -> None:
    draw = random.Random(5)
    lines = ["NOTICE: a line of nsys", "Start (ns),Duration (ns),CorrId,Name"]
    for _ in range(2):
        names = [(skipped, 2.0), ("embed", 4.0)]
        names += [(f"kernel<{k % 3}, 128>", us) for _ in range(32) for k, us in enumerate(US)]
        for name, us in [*names, ("norm", 6.0), ("gemm", 400.0), ("argmax", 9.0)]:
            lines.append(f'0,{int(1000 * us * draw.uniform(0.98, 1.02))},1,"{name}"')
    path.write_text("\n".join(lines) + "\n")


def profile(*more: str) -> int:
    return kernel_times([
        "trace=decode.csv", "chip=lab", "rows=64", "context=1000", "before=[embed]",
        "after=[norm_end,head,argmax]", f"layer=[{LAYER}]", *more,
    ])  # fmt: skip


def test_a_profile_gives_the_times_of_its_step(mine: Path) -> None:
    trace(mine / "decode.csv")
    spec = load_spec("llama-3-8b")
    assert profile() == 0
    search_also([mine])
    on = timed_gpu("lab")
    kernels = step_kernels(spec, Batch(rows=64, chunk=1, context=1000))
    of = dict(zip([k.kind for k in kernels], 1e6 * step_s(kernels, on), strict=True))
    for kernel, us in {"qkv": 70, "attention": 300, "o": 50, "head": 400}.items():
        assert of[kernel] == pytest.approx(us, rel=0.02), kernel
    assert of["rope_q"] + of["rope_k"] + of["kv_write"] == pytest.approx(9, rel=0.02)
    for batch in (Batch(rows=1, chunk=64, context=64), Batch(rows=8, chunk=1, context=500)):
        others = step_kernels(spec, batch)
        ratio = step_s(others, on) / step_s(others, replace(on, times=()))
        is_prompt = batch.chunk > 1
        assert np.allclose(ratio, 1.0) == is_prompt  # of decodes only, at any number of rows


def test_a_wrong_profile_is_refused(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace(mine / "decode.csv", skipped="a kernel of the sampler")
    assert profile() == 2
    assert "divides the trace's 778; 1 + 32 x 12 + 3 = 388" in capsys.readouterr().err
    assert profile("skip=sampler") == 0
    assert profile("layer=[norm9]") == 2
    assert "layer='norm9': expected one of embed, norm1" in capsys.readouterr().err
    file = mine / "kernel_times" / "lab.csv"
    file.write_text(file.read_text().replace("qkv,", "qkv,-"))
    with pytest.raises(DataError, match=r"lab.csv, row 4, us: expected a number above 0"):
        build(load(["system=weaver", "node=two", "workload=poisson"], folder=mine))


def test_own_rows_make_own_constants(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (OWN / "gemm_bf16.csv").read_text().splitlines()
    rows = [line.replace("a100_sxm,", "lab,") for line in lines if line.startswith("a100_sxm,")]
    head = next(line for line in lines if line.startswith("system,"))
    (mine / "gemm_bf16.csv").write_text("\n".join([head, *rows]))
    assert bench_measured(["data=.", "fit=true", "engines=false", "out=bench"]) == 0
    own, theirs, base = (load_constants(n) for n in ("lab", "a100_sxm", "a100_80"))
    assert own.gemm_mma_efficiency == pytest.approx(theirs.gemm_mma_efficiency, rel=0.02)
    assert own.decode_floor_s == base.decode_floor_s
    assert estimate(["--config-dir", ".", "chip=lab", "tp=2", "model=llama-3-8b"]) == 0
    said = capsys.readouterr().out
    assert "GEMMs" not in said.partition("constants for lab from other chips")[2]
    assert "all-reduces for lab from another chip" not in said
    (mine / "gemm_bf16.csv").write_text("\n".join([head, *rows[:3]]))
    assert bench_measured(["data=.", "fit=true", "engines=false", "out=few"]) == 2
    assert "rows of lab=" in capsys.readouterr().err
    (mine / "gemm_bf16.csv").write_text("\n".join([head, rows[0].replace("lab", "l40s")]))
    assert bench_measured(["data=.", "fit=true", "engines=false", "out=other"]) == 2
    assert "system='l40s': expected a chip of ./hardware (lab)" in capsys.readouterr().err


def test_own_operations_replace_the_papers(mine: Path) -> None:
    run = ["system=cocoserve", "node=two", "workload=poisson", "workload.requests=3"]
    setup = build(load(run, folder=mine))
    assert not any(line.startswith("operations:") for line in setup.notes)
    (mine / "operations" / "lab.yaml").unlink()
    setup = build(load(run, folder=mine))
    line = (
        "operations: seconds and bytes of a100_40 stand for those of lab (no file in operations/)"
    )
    assert line in setup.notes
