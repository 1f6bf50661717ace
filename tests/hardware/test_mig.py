"""Layouts by name, and tables of profiles, against Table 1 and the chips, and their errors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from c2c.config import build_layout, load
from c2c.errors import SettingError
from c2c.hardware import (
    conf_dir,
    load_mig,
    load_platform,
    mig_from_mapping,
    placed,
    platforms,
    profiles,
    search_also,
    slices,
)

LAYOUTS = [(p, m) for p in platforms() for m in load_platform(p).mig]
PAPER = replace(load_platform("gh200"), mig_table="paper")
ALL_LAYOUTS = [(p, m) for p in platforms() for m in load_platform(p).layouts]


@pytest.mark.parametrize("name", ["1x96gb", "2x48gb", "3x24gb", "4x24gb", "7x12gb"])
def test_gh200_layouts_are_those_of_table_1(name: str, shared: Path) -> None:
    rows = yaml.safe_load((shared / "papers" / "claims.yaml").read_text("utf-8"))
    (row,) = [r["value"] for r in rows if r["id"] == f"c2cserve.table1.{name}"]
    cut = slices(PAPER, name)
    assert len(cut) == row["instances"]
    for one in cut:
        assert one.sm_count == row["sms_per_instance"]
        assert one.hbm_bytes == row["hbm_gb_per_instance"] * 10**9
        assert one.hbm_gbps == row["hbm_tb_per_s_per_instance"] * 1000


# What `nvidia-smi mig -lgip` lists of each chip: SMs, and GiB free (None: no listing is at hand).
DRIVER: dict[str, dict[str, tuple[int, float | None]]] = {
    "a100_40": {"1g.5gb": (14, 4.75), "1g.10gb": (14, 9.75), "2g.10gb": (28, 9.75),
                "3g.20gb": (42, 19.62), "4g.20gb": (56, 19.62)},
    "a100_80": {"1g.10gb": (14, 9.5), "1g.20gb": (14, 19.5), "2g.20gb": (28, 19.5),
                "3g.40gb": (42, 39.25), "4g.40gb": (56, 39.25)},
    "a100_sxm": {"1g.10gb": (14, 9.5), "1g.20gb": (14, 19.5), "2g.20gb": (28, 19.5),
                 "3g.40gb": (42, 39.25), "4g.40gb": (56, 39.25)},
    "h100_sxm": {"1g.10gb": (16, 9.75), "1g.20gb": (26, 19.62), "2g.20gb": (32, 19.62),
                 "3g.40gb": (60, 39.5), "4g.40gb": (64, 39.5)},
    "h200_pcie5": {"1g.18gb": (16, 16.0), "1g.35gb": (26, 32.25), "2g.35gb": (32, 32.25),
                   "3g.71gb": (60, 69.5), "4g.71gb": (64, 69.5)},
    "gh200": {"1g.12gb": (16, 11.0), "1g.24gb": (26, 23.0), "2g.24gb": (32, 23.0),
              "3g.48gb": (60, 46.5), "4g.48gb": (64, 46.5)},
    "b200": {"1g.23gb": (18, 20.5), "1g.45gb": (30, 44.25), "2g.45gb": (36, 44.25),
             "3g.90gb": (70, None), "4g.90gb": (72, None)},
    "gb200": {"1g.23gb": (18, 22.0), "1g.47gb": (32, 45.5), "2g.47gb": (38, 45.5),
              "3g.95gb": (70, None), "4g.95gb": (72, None)},
    "rtx_pro_6000": {"1g.24gb": (46, 23.12), "2g.48gb": (94, 46.5)},
    "gh200_144": {"1g.18gb": (16, 17.5), "1g.36gb": (26, 35.25), "2g.36gb": (32, 35.25),
                  "3g.72gb": (60, None), "4g.72gb": (64, None)},
    "h100_nvl": {"1g.12gb": (16, 10.75), "1g.24gb": (26, 21.62), "2g.24gb": (32, 21.62),
                 "3g.47gb": (60, 46.38), "4g.47gb": (64, None)},
    "b300": {"1g.34gb": (18, None), "1g.67gb": (30, None), "2g.67gb": (36, None),
             "3g.135gb": (70, None), "4g.135gb": (72, None)},
    "gb300": {"1g.35gb": (18, None), "1g.70gb": (32, None), "2g.70gb": (38, None),
              "3g.139gb": (70, None), "4g.139gb": (72, None)},
}  # fmt: skip


@pytest.mark.parametrize("name", DRIVER)
def test_profiles_are_what_the_driver_lists(name: str) -> None:
    found = {p.name: p for p in profiles(load_platform(name))}
    assert set(found) == set(DRIVER[name])
    for profile, (sms, gib) in DRIVER[name].items():
        one = found[profile]
        assert one.sm_count == sms
        if gib is None:
            assert one.source["hbm_bytes"].startswith("derived:")
        else:
            assert one.hbm_bytes == int(gib * 2**30)


def test_the_tables_of_driver_and_paper_are_chosen_by_name() -> None:
    driver = build_layout(load(["mig=4x24gb"])).platform
    paper = build_layout(load(["mig=4x24gb", "hardware.mig_table=paper"])).platform
    assert (slices(driver, "4x24gb")[0].sm_count, slices(paper, "4x24gb")[0].sm_count) == (26, 16)
    assert paper == PAPER
    assert slices(paper, "1x96gb") == slices(driver, "1x96gb")
    parts = mig_from_mapping({"name": "custom", "parts": ["3g", "2x2g"]})
    assert [s.sm_count for s in slices(paper, parts)] == [56, 28, 28]
    assert [s.sm_count for s in slices(driver, parts)] == [60, 32, 32]
    with pytest.raises(SettingError, match=r"hardware\.mig_table='mine': .* driver, paper"):
        build_layout(load(["hardware.mig_table=mine"]))
    with pytest.raises(SettingError, match=r"hardware\.mig_table='paper'"):
        load(["hardware=h100_sxm", "hardware.mig_table=paper"])


def test_tables_have_the_chips_that_can_be_cut() -> None:
    cut = {name for name in platforms() if load_platform(name).partition}
    assert set(yaml.safe_load((conf_dir() / "mig_table" / "driver.yaml").read_text("utf-8"))) == cut


# Profiles of named layouts where the name leaves a choice, and starts on the chip.
READ = {
    ("gh200", "2x48gb"): ["3g.48gb:0", "3g.48gb:4"],  # 4g.48gb fits once
    ("gh200", "3x24gb"): ["2g.24gb:0", "2g.24gb:2", "2g.24gb:4"],
    ("gh200", "4x24gb"): ["1g.24gb:0", "1g.24gb:2", "1g.24gb:4", "1g.24gb:6"],  # three of 2g
    ("gh200", "1x4g"): ["4g.48gb:0"],
    ("gh200", "4g_3g"): ["4g.48gb:0", "3g.48gb:4"],
    ("gh200", "3g_2x2g"): ["3g.48gb:4", "2g.24gb:0", "2g.24gb:2"],
    ("gh200", "2g_2x1g.24gb"): ["2g.24gb:0", "1g.24gb:2", "1g.24gb:4"],
    ("h100_nvl", "2x47gb"): ["3g.47gb:0", "3g.47gb:4"],
    ("a100_40", "4x10gb"): ["1g.10gb:0", "1g.10gb:2", "1g.10gb:4", "1g.10gb:6"],
    ("b200", "2g_5x1g"): ["2g.45gb:0", *(f"1g.23gb:{at}" for at in range(2, 7))],
    ("rtx_pro_6000", "2x48gb"): ["2g.48gb:0", "2g.48gb:2"],
    ("rtx_pro_6000", "2g_2x1g"): ["2g.48gb:0", "1g.24gb:2", "1g.24gb:3"],
}


@pytest.mark.parametrize(("chip", "name"), READ)
def test_a_name_says_the_profiles_of_the_slices(chip: str, name: str) -> None:
    platform = load_platform(chip)
    assert [f"{p.profile.name}:{p.start}" for p in placed(platform, name)] == READ[chip, name]
    assert len(slices(platform, name)) == load_mig(name).instances == len(READ[chip, name])
    settings = dict(load([f"hardware={chip}", f"mig={name}"]).mig)
    assert settings == {"name": name}
    assert mig_from_mapping(settings) == load_mig(name)


@pytest.mark.parametrize(("name", "mig"), LAYOUTS)
def test_layouts_in_mig_are_of_equal_slices(name: str, mig: str) -> None:
    assert len(set(slices(load_platform(name), mig))) == 1


@pytest.mark.parametrize(("name", "mig"), ALL_LAYOUTS)
def test_slices_fit_the_chip(name: str, mig: str) -> None:
    platform = load_platform(name)
    cut = slices(platform, mig)
    for field in ("sm_count", "hbm_bytes", "hbm_gbps", "bf16_tflops", "l2_bytes"):
        total, limit = sum(getattr(s, field) for s in cut), getattr(platform.gpu, field)
        # A vendor's GB of HBM are GiB.
        assert total <= limit * (1.0738 if field == "hbm_bytes" else 1 + 1e-9), field
        assert cut[0].sm_count >= 1
    assert 0 < cut[0].link_cap_gbps <= platform.link.datasheet_gbps
    assert slices(platform, load_mig(mig)) == cut


@pytest.mark.parametrize("name", platforms())
def test_the_first_layout_is_the_whole_gpu(name: str) -> None:
    platform = load_platform(name)
    (one,) = slices(platform, platform.mig[0])
    gpu = platform.gpu
    assert (one.sm_count, one.hbm_bytes, one.hbm_gbps, one.bf16_tflops, one.l2_bytes) == (
        gpu.sm_count, gpu.hbm_bytes, gpu.hbm_gbps, gpu.bf16_tflops, gpu.l2_bytes,
    )  # fmt: skip
    assert (one.is_cut, placed(platform, platform.mig[0])) == (False, ())


def test_projected_layouts_follow_the_papers_gh200_in_proportion_and_say_derived() -> None:
    name = "rubin"
    gh200, platform = PAPER, load_platform(name)
    assert len(platform.mig) == len(gh200.mig)
    for ours, theirs in zip(platform.mig[1:], gh200.mig[1:], strict=True):
        (profile,) = {one.profile for one in placed(platform, ours)}
        (model,) = {one.profile for one in placed(gh200, theirs)}
        assert load_mig(ours).instances == load_mig(theirs).instances
        exact = model.sm_count * platform.gpu.sm_count / gh200.gpu.sm_count
        assert exact - 2 < profile.sm_count <= exact
        assert profile.sm_count % 2 == 0  # SMs come in pairs
        assert profile.hbm_bytes / platform.gpu.hbm_bytes == model.hbm_bytes / gh200.gpu.hbm_bytes
        assert profile.hbm_gbps / platform.gpu.hbm_gbps == model.hbm_gbps / gh200.gpu.hbm_gbps
        assert all(text.startswith("derived:") for text in profile.source.values())


def test_one_name_may_mean_different_slices_on_different_chips() -> None:
    h100 = slices(load_platform("h100_sxm"), "7x10gb")[0]
    a100 = slices(load_platform("a100_80"), "7x10gb")[0]
    assert (h100.sm_count, a100.sm_count) == (16, 14)


@pytest.mark.parametrize(
    ("chip", "change", "mig", "said"),
    [
        ("gh200", {}, "7x5gb", "expected a layout of gh200: 1x96gb, 2x"),
        ("gh200", {}, "9x9gb", "expected a layout of gh200: 1x96gb, 2x"),
        ("gh200", {}, "", "expected a layout of gh200: 1x96gb, 2x"),
        ("gh200", {"mig": ("1x96gb", "7x5gb")}, "7x5gb", r".*profiles .* of 1g\.12gb, 1g\.24gb"),
        ("l40s", {}, "2x24gb", r"expected a layout of l40s: 1x48gb\."),
    ],
)
def test_a_layout_the_chip_lacks_lists_those_it_has(
    chip: str, change: dict[str, Any], mig: str, said: str
) -> None:
    with pytest.raises(SettingError, match=f"^mig='{mig}': {said}"):
        slices(replace(load_platform(chip), **change), mig)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sm_count", 0),
        ("sm_count", 133),
        ("sm_count", "16"),
        ("hbm_bytes", 104 * 10**9),
        ("hbm_bytes", -1),
        ("source", "somebody told me"),
        ("colour", 1),
    ],
)
def test_a_bad_value_of_a_table_is_named(tmp_path: Path, field: str, value: object) -> None:
    row = {"sm_count": 16, "hbm_bytes": 11 * 10**9, "source": "assumption: a test"}
    table = {"gh200": {"1g.12gb": row | {field: value}}}
    (tmp_path / "mig_table").mkdir()
    (tmp_path / "mig_table" / "own.yaml").write_text(yaml.safe_dump(table), encoding="utf-8")
    search_also([tmp_path])
    try:
        with pytest.raises(SettingError) as err:
            slices(replace(load_platform("gh200"), mig_table="own"), "7x12gb")
    finally:
        search_also([])
    assert err.value.field.startswith("mig")
    assert field in err.value.field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "mig.name"),
        ({"parts": []}, "mig.parts"),
        ({"parts": "3g"}, "mig.parts"),
        ({"instances": 2}, "mig.instances"),
        ({"whole_gpu": ["gh200"]}, "mig.whole_gpu"),
    ],
)
def test_a_malformed_layout_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError) as err:
        mig_from_mapping({"name": "7x12gb"} | change)
    assert err.value.field == field


def test_few_requests_in_flight_cap_a_small_slice() -> None:
    gh200 = load_platform("gh200")
    slow = replace(gh200, link=replace(gh200.link, inflight_bytes_per_sm=8192.0))
    assert slices(slow, "7x12gb")[0].link_cap_gbps == pytest.approx(16 * 8192 / 1e-6 / 1e9)
    assert slices(slow, "1x96gb")[0].link_cap_gbps == 450


def test_a_slice_keeps_its_share_of_an_edited_chip() -> None:
    gh200 = load_platform("gh200")
    bigger = replace(gh200, gpu=replace(gh200.gpu, hbm_bytes=2 * gh200.gpu.hbm_bytes))
    old, new = slices(gh200, "3x24gb")[0], slices(bigger, "3x24gb")[0]
    assert new.hbm_bytes == 2 * old.hbm_bytes
    assert (new.sm_count, new.hbm_gbps, new.l2_bytes) == (old.sm_count, old.hbm_gbps, old.l2_bytes)
