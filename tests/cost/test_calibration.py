"""Stored constants are what the fit gives, and every one of them has a source."""

import math
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from c2c.cost import Constants, in_sample_claims, load_constants
from c2c.cost.calibration import fit, fit_kernel, main, store
from c2c.cost.constants import calibration_inputs
from c2c.errors import DataError, SettingError
from c2c.hardware import Slice, conf_dir

M, N, K = 10240, 16384, 4096


def test_stored_constants_are_what_the_fit_gives(constants: Constants) -> None:
    for name, value in fit("gh200").items():
        assert getattr(constants, name) == pytest.approx(value, rel=1e-6), name
        assert constants.sources[name].kind == "fitted"


def test_every_fitted_constant_is_refitted(constants: Constants) -> None:
    marked = {n for n, s in constants.sources.items() if s.kind == "fitted"}
    assert marked == set(fit("gh200"))


@pytest.mark.parametrize("start_at", [(0.5, 3.0), (0.95, 50.0), (0.1, 0.5)])
def test_fit_converges_to_the_closed_form(
    constants: Constants, full_gpu: Slice, start_at: tuple[float, float]
) -> None:
    sym_s, asym_s = 16.4e-3, 4.0e-3
    start = replace(constants, link_efficiency=start_at[0], reduce_gbps_per_sm=start_at[1])
    ours = fit_kernel(start, full_gpu, 375.0, shape=(M, N, K), sym_s=sym_s, asym_s=asym_s)
    link_bytes = 40 * 2 * N * K
    link = link_bytes / (sym_s - constants.launch_s) / (full_gpu.link_cap_gbps * 1e9)
    math_s = 2 * M * N * K / (full_gpu.bf16_tflops * 1e12 * constants.mma_efficiency)
    issue_s = 40 * 128 * 8 * constants.asym_issue_s / full_gpu.sm_count
    push_s = asym_s - constants.launch_s - math_s - issue_s
    reduce_gbps = 2 * M * N * 8 / push_s / full_gpu.sm_count / 1e9
    assert ours.link_efficiency == pytest.approx(link, rel=1e-6)
    assert ours.reduce_gbps_per_sm == pytest.approx(reduce_gbps, rel=1e-6)


# 1 ms is below the tensor-core time of AsymGEMM: no reduction rate reaches it.
@pytest.mark.parametrize(("link_gbps", "asym_s"), [(375.0, 1.0e-3), (200.0, 4.0e-3)])
def test_fit_says_when_kernel_or_link_cannot_meet_its_targets(
    constants: Constants, full_gpu: Slice, link_gbps: float, asym_s: float
) -> None:
    targets = {"shape": (M, N, K), "sym_s": 16.4e-3, "asym_s": asym_s}
    assert fit_kernel(constants, full_gpu, link_gbps, **targets).loss > 0.1


def test_in_sample_claims_are_the_full_gpu_ones(constants: Constants) -> None:
    claims = in_sample_claims("gh200")
    assert claims == set(calibration_inputs("gh200").claims_s)
    fig4 = {c for c in claims if ".fig4" in c}
    assert fig4 == {
        "c2cserve.fig4a.full_gpu.sym_latency",
        "c2cserve.fig4a.full_gpu.asym_latency",
    }


def test_every_constant_has_a_value_and_a_reason(constants: Constants) -> None:
    names = {f.name for f in fields(Constants)} - {"name", "host", "sources"}
    assert names == set(constants.sources)
    assert all(math.isfinite(getattr(constants, n)) for n in names)
    assert all(s.why and (bool(s.claims) == (s.kind == "fitted")) for s in
               constants.sources.values())  # fmt: skip


@pytest.fixture
def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "conf"
    shutil.copytree(conf_dir(), folder)
    monkeypatch.setenv("C2C_CONF", str(folder))
    return folder / "calibration" / "gh200.yaml"


def test_write_stores_the_fit_and_keeps_the_comments(
    own_conf: Path, constants: Constants, capsys: pytest.CaptureFixture[str]
) -> None:
    original = own_conf.read_text()
    assert "value: 0.05\n" in original
    own_conf.write_text(original.replace("value: 0.05\n", "value: 0.07\n", 1))
    assert load_constants("gh200").switch_dense_s == 0.07  # edits are seen at once
    main(["gh200", "--write"])
    assert "switch_dense_s" in capsys.readouterr().out
    assert own_conf.read_text() == original


@pytest.mark.parametrize("value", [3e-06, 1e-12, 1e22, 0.25, 2.0, 123456789.0, 1.5e-07])
def test_what_is_stored_is_read_back_as_the_number_it_was(own_conf: Path, value: float) -> None:
    store("gh200", {"launch_s": value})
    read = yaml.safe_load(own_conf.read_text())["constants"]["launch_s"]["value"]
    assert isinstance(read, float)
    assert read == value


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d["constants"].pop("launch_s"), "launch_s"),
        (lambda d: d["constants"].update(extra={"value": 1}), "extra"),
        (lambda d: d["constants"]["launch_s"].update(value="fast"), "launch_s"),
        (lambda d: d["constants"]["launch_s"].pop("source"), "source"),
        (lambda d: d["constants"]["launch_s"]["source"].update(claims=["x"]), "claims"),
        (lambda d: d["constants"]["launch_s"]["source"].update(kind="guess"), "kind"),
        (lambda d: d.pop("constants"), "constants"),
    ],
)
def test_broken_files_say_what_is_wrong(
    own_conf: Path, edit: Callable[[dict[str, object]], object], message: str
) -> None:
    data = yaml.safe_load(own_conf.read_text())
    edit(data)
    own_conf.write_text(yaml.safe_dump(data))
    with pytest.raises(DataError, match=message):
        load_constants("gh200")


@pytest.mark.parametrize(
    ("field", "value"),
    [("mma_efficiency", 1.2), ("hbm_efficiency", 0.0), ("launch_s", -1.0),
     ("reduce_gbps_per_sm", 0.0), ("step_overhead_s", math.nan)],
)  # fmt: skip
def test_values_out_of_range_are_refused(constants: Constants, field: str, value: float) -> None:
    with pytest.raises(SettingError, match=field):
        replace(constants, **{field: value})


def test_unknown_names_list_what_exists() -> None:
    with pytest.raises(SettingError, match="gh200"):
        load_constants("nothing")
