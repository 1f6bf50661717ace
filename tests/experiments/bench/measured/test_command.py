"""`c2c bench measured`: other folders, unknown chips, files that cannot be."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from c2c.cost import load_constants
from c2c.errors import SettingError
from c2c.hardware import conf_dir
from experiments.measured.chips import whole
from experiments.measured.command import main
from experiments.measured.engines import engine_of, runs_of
from experiments.measured.errors import error_of
from experiments.measured.fit import GROUPS, fit_chip, fit_group, from_others, store_fits
from experiments.measured.ops import OPS, is_held_out
from experiments.measured.predict import gemm_us
from experiments.measured.rows import OWN, Rows, read_folder

HEAD = "# Where it is from\nsystem,m,n,k,us\n"


def folder(tmp_path: Path, text: str, name: str = "gemm_bf16.csv") -> Path:
    place = tmp_path / "data"
    place.mkdir(exist_ok=True)
    (place / name).write_text(text, encoding="utf-8")
    return place


def run(data: Path, out: Path) -> int:
    return main([f"data={data}", f"out={out}", "engines=false"])


def test_other_rows_of_known_chips_are_held_out_and_unknown_chips_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = read_folder(OWN)["gemm_bf16"]
    ours = own.take((own["system"] == "h100_sxm") & (own["m"] == 96))
    same = [f"h100_sxm,96,{n:g},{k:g},{us:g}\n"
            for n, k, us in zip(ours["n"], ours["k"], ours["us"], strict=True)]  # fmt: skip
    other = "h100_sxm,100,4096,4096,20\nh200_sxm,16,8192,8192,40\n"
    unknown = "tpu_v9,1,1024,1024,3\ntpu_v9,2,1024,1024,3\n"
    data = folder(tmp_path, HEAD + "".join(same) + other + unknown)
    assert run(data, tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "chip unknown: tpu_v9 (2 rows)" in said
    assert "h200_pcie5" in said
    found = json.loads((tmp_path / "out" / "measured.json").read_text())
    assert found["skipped"]["chips"] == {"tpu_v9": 2}
    (h100,) = [r for r in found["bound_by_chip_op"] if r["chip"] == "h100_sxm"]
    seen = sum(2 * n * k >= 16e6 and not is_held_out(f"{n:g},{k:g}")
               for n, k in zip(ours["n"], ours["k"], strict=True))  # fmt: skip
    assert h100["in_sample"]["count"] == seen > 0
    assert h100["held_out"]["count"] == len(ours) + 1 - seen - sum(
        2 * n * k < 16e6 for n, k in zip(ours["n"], ours["k"], strict=True)
    )
    assert (tmp_path / "out" / "measured.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "l40s,1,1024,1024,3\nl40s,1,zero,1024,3\n", "row 4, n: expected a whole number"),
        (HEAD + "l40s,1,1024,1024,-3\n", "row 3, us: expected a number above 0, found '-3'"),
        (HEAD + "l40s,1,1024,1024\n", "row 3: 4 cells; the header has 5"),
        (HEAD + "l40s,1.5,1024,1024,3\n", "row 3, m: expected a whole number above 0"),
        (HEAD + "l40s,1,1024,1024,nan\n", "row 3, us: expected a number above 0"),
        ("system,m,n,us\nl40s,1,1024,3\n", "row 1: no column k"),
        ("# only a comment\n", "no header"),
    ],
)
def test_bad_files_are_one_line_with_row_and_column(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder(tmp_path, text), tmp_path / "out") == 2
    error = capsys.readouterr().err.strip()
    assert "gemm_bf16.csv" in error
    assert said in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()


def test_bad_kinds_and_folders_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "system,kind,batch,tokens,heads,kv_heads,us\nl40s,prefill,1,1,8,8,3\n"
    data = folder(tmp_path, text, "attention_bf16.csv")
    assert run(data, tmp_path / "out") == 2
    assert "row 2, kind: expected context or generation" in capsys.readouterr().err
    assert run(tmp_path / "nowhere", tmp_path / "out") == 2
    assert "expected a folder" in capsys.readouterr().err


def test_a_run_has_the_weights_of_its_precision_and_the_nearest_engine(tmp_path: Path) -> None:
    text = (
        "model,system,backend,version,gemm,isl,osl,concurrency,tp,ep,ttft_ms,tpot_ms\n"
        "Qwen/Qwen3-32B,h100_sxm,vllm,0.11.2,fp8,128,16,2,2,1,60,25\n"
        "Qwen/Qwen3-32B,h100_sxm,sglang,9.9,int3,128,16,2,1,1,60,25\n"
        "openai/gpt-9,h100_sxm,sglang,9.9,bf16,128,16,2,1,1,60,25\n"
    )
    rows = read_folder(folder(tmp_path, text, "engine_runs.csv"))["engine_runs"]
    (run, _), *others = runs_of(rows)
    assert run is not None
    assert run.spec.weights is not None
    assert (run.spec.weights.bits, run.spec.kv_dtype_bytes, run.tp) == (8, 1, 2)
    assert engine_of(run).label == "vLLM 0.11.0"
    assert others == [(None, "int3"), (None, "openai/gpt-9")]


def test_a_fit_finds_the_constants_that_made_the_rows() -> None:
    op, group = next(o for o in OPS if o.name == "gemm"), GROUPS[0]
    chip = whole("h100_sxm")
    own = read_folder(OWN)["gemm_bf16"]
    shapes = own.take(own["system"] == "h100_sxm")
    shapes = shapes.take(np.arange(len(shapes)) % 4 == 0)
    made = Rows(name=own.name, columns={**shapes.columns, "us": gemm_us(shapes, chip)})
    start = replace(chip, constants=load_constants("l40s"))
    found = fit_group(group, op, [(made, start)])
    for name in ("gemm_mma_efficiency", "gemm_hbm_efficiency", "gemm_launch_s"):
        assert found[name] == pytest.approx(getattr(chip.constants, name), rel=0.03), name
    again = replace(chip, constants=start.constants.having(found))
    error = error_of(gemm_us(shapes, again), made["us"])
    assert error is not None
    assert error.median < 0.01


def test_what_is_stored_is_what_the_fit_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(conf_dir(), tmp_path / "conf")
    stored = {name: load_constants(name) for name in ("h100_sxm", "l40s", "a100_80", "datasheet")}
    monkeypatch.setenv("C2C_CONF", str(tmp_path / "conf"))
    store_fits({"vidur_layer_us": read_folder(OWN)["vidur_layer_us"]})
    for name, before in stored.items():
        after = load_constants(name)
        for constant, source in before.sources.items():
            now, then = getattr(after, constant), getattr(before, constant)
            assert now == pytest.approx(then, rel=2e-3), (name, constant)
            assert after.sources[constant].kind == source.kind


def test_the_rule_for_unknown_chips_is_the_middle_of_the_measured_ones() -> None:
    generic = load_constants("datasheet")
    assert from_others(None, generic) == generic
    without = from_others("gb200", generic)
    assert without.gemm_throttle < generic.gemm_throttle
    for name in ("gemm_mma_efficiency", "decode_hbm_efficiency"):
        own = [getattr(load_constants(c), name) for c in ("a100_sxm", "h100_sxm", "l40s")]
        assert getattr(without, name) == pytest.approx(float(np.median(own)))


def test_the_engine_runs_are_of_known_chips_and_models_and_half_of_them_held_out() -> None:
    found = list(runs_of(read_folder(OWN)["engine_runs"]))
    assert not {unknown for _, unknown in found if unknown}
    runs = [run for run, _ in found if run is not None]
    assert len(runs) == len(found) > 1600
    assert 0.4 < sum(run.held_out for run in runs) / len(runs) < 0.6
    sides: dict[tuple[object, ...], set[bool]] = {}
    for run in runs:
        assert run.spec.max_position >= run.isl + run.osl
        setting = (
            run.platform, run.backend, run.model, run.precision, run.isl, run.osl, run.tp, run.ep
        )  # fmt: skip
        sides.setdefault(setting, set()).add(run.held_out)
    assert all(len(side) == 1 for side in sides.values())  # all loads of a setting


def test_groups_without_a_wanted_constant_are_not_fitted() -> None:
    tables = {"gemm_bf16": read_folder(OWN)["gemm_bf16"]}
    assert fit_chip("b200", tables, names=()) == {}  # all of its rows are held out
    with pytest.raises(SettingError, match=r"gemm_bf16\.csv: rows of b200=0: expected at least"):
        fit_chip("b200", tables)
