"""Kernels over narrow weights: files, and steps of models that have such weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from c2c.cost import KERNELS, StepTable, calibration_for, kernels, load_constants, step_table
from c2c.errors import DataError, SettingError
from c2c.hardware import conf_dir, conf_names, load_platform, slices
from c2c.models import ModelSpec, at_precision, load_spec

LLAMA = load_spec("llama-3-8b")


def table(spec: ModelSpec, chip: str) -> StepTable:
    platform = load_platform(chip)
    slice_ = slices(platform, platform.mig[0])[0]
    constants = load_constants(calibration_for(chip))
    return step_table(
        spec, slice_, constants, 100.0, max_tokens=4096, max_rows=64, alphas=[1.0], weights="hbm"
    )


@pytest.mark.parametrize("chip", conf_names("kernels"))
def test_files_are_of_calibrated_chips_and_known_precisions(chip: str) -> None:
    assert calibration_for(chip) == chip
    found = kernels(chip)
    assert set(found) <= set(KERNELS)
    assert "fp8" in found
    for kernel in found.values():
        assert "held" in kernel.source or "%" in kernel.source
        load_constants(chip).having(kernel.constants)  # which checks each range


@pytest.mark.parametrize("chip", ["h100_sxm", "b200", "l40s", "rtx_pro_6000"])
def test_fp8_computes_prompts_faster_where_the_chip_does_and_not_where_weights_are_widened(
    chip: str,
) -> None:
    wide, narrow, widened = (
        table(spec, chip).body_s[-1, 0]
        for spec in (
            LLAMA, at_precision(LLAMA, "fp8"),
            at_precision(LLAMA, {"weights": "fp8", "compute": "bf16"}),
        )
    )  # fmt: skip
    assert narrow < 0.95 * wide
    assert widened == pytest.approx(wide, rel=0.05)


@pytest.mark.parametrize("precision", ["fp8", "nvfp4", "int4"])
def test_a_token_is_faster_with_fewer_bytes_on_any_chip(precision: str) -> None:
    for chip in ("a100_80", "h100_sxm", "b200", "rtx_pro_6000", "rubin"):
        narrow = table(at_precision(LLAMA, precision), chip)
        wide = table(LLAMA, chip)
        assert narrow.body_s[1, 0] < wide.body_s[1, 0]
        assert narrow.body_hbm_bytes[1, 0] < wide.body_hbm_bytes[1, 0]


def test_compute_that_is_demanded_of_a_chip_without_it_is_refused() -> None:
    spec = at_precision(LLAMA, {"weights": "fp8", "compute": "fp8"})
    assert np.isfinite(table(spec, "h100_sxm").body_s).all()
    with pytest.raises(SettingError, match=r"compute='fp8': expected one of bf16 on a100"):
        table(spec, "a100_80")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fp9: {operand_bytes: 1, source: x, constants: {}}", "fp9: expected one of fp8"),
        ("fp8: {operand_bytes: 3, source: x, constants: {}}", "expected 0.5, 1 or 2, found 3"),
        ("fp8: {operand_bytes: 1, constants: {}}", "expected constants, operand_bytes, source"),
        ("fp8: {operand_bytes: 1, source: x, constants: {launch_s: 1.0}}", "names gemm_"),
    ],
)
def test_wrong_files_are_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(conf_dir(), conf)
    (conf / "kernels" / "h100_sxm.yaml").write_text(text)
    monkeypatch.setenv("C2C_CONF", str(conf))
    with pytest.raises(DataError, match=said):
        kernels("h100_sxm")
