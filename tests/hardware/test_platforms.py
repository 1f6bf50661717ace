"""The values of `conf/hardware` against the papers, and the errors of its loader."""

import copy
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from c2c.errors import DataError, SettingError
from c2c.hardware import (
    Node,
    Platform,
    conf_dir,
    cpu_platform,
    link_gbps,
    load_platform,
    platform_from_mapping,
    platforms,
    scaled,
    slices,
)

WANTED = {
    "gh200", "gb200", "rubin", "h200_pcie5", "h100_sxm", "a100_40", "a100_80", "a100_sxm",
    "l40s", "rtx_a5000", "rtx_pro_6000", "b200", "cpu", "gh200_144", "h100_nvl", "b300", "gb300",
    "h20", "h100_pcie", "l4", "a10g", "rtx_4090", "rtx_5090", "rtx_a6000", "mi300x", "mi355x",
    "tpu_v5e", "tpu_v6e",
}  # fmt: skip


def raw(name: str) -> dict[str, Any]:
    return yaml.safe_load((conf_dir() / "hardware" / f"{name}.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def claims(shared: Path) -> dict[str, Any]:
    rows = yaml.safe_load((shared / "papers" / "claims.yaml").read_text("utf-8"))
    return {row["id"]: row["value"] for row in rows}


def test_every_platform_loads_under_its_own_name() -> None:
    assert set(platforms()) == WANTED
    assert {load_platform(name).name for name in platforms()} == WANTED


@pytest.mark.parametrize("name", ["gh200", "gb200", "rubin"])
def test_superchips_are_those_of_table_2(name: str, claims: dict[str, Any]) -> None:
    platform, row = load_platform(name), claims[f"c2cserve.table2.{name}"]
    assert platform.host.memory_bytes == row["cpu_mem_gb"] * 10**9
    assert platform.gpu.hbm_bytes == row["hbm_gb"] * 10**9
    assert platform.gpu.hbm_gbps == row["hbm_tb_per_s"] * 1000
    assert platform.link.both_directions_gbps == row["c2c_gb_per_s"]
    assert platform.link.datasheet_gbps == row["c2c_gb_per_s"] / 2  # reads use one direction


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("a100_80", "a100"),
        ("h100_sxm", "h100"),
        ("b200", "b200"),
        ("l40s", "l40s"),
        ("rtx_pro_6000", "rtxpro6000"),
    ],
)
def test_gpus_are_those_of_tesseras_table(name: str, row: str, claims: dict[str, Any]) -> None:
    gpu, printed = load_platform(name).gpu, claims[f"tessera.table1.{row}"]
    assert gpu.bf16_tflops == printed["tensor_bf16_tflops"]
    assert gpu.hbm_gbps == printed["bw_gb_per_s"]
    assert gpu.hbm_bytes == printed["memory_gb"] * 10**9
    assert gpu.l2_bytes == printed["l2_mb"] * 2**20


# nvbandwidth with all GPUs of a GB300 reading: NVIDIA/Megatron-LM issue 6491.
@pytest.mark.parametrize(
    ("name", "least", "most"), [("gh200", 342, 421), ("gb300", 168.60, 175.41)]
)
def test_the_measured_link_lies_in_the_public_range(name: str, least: float, most: float) -> None:
    link = load_platform(name).link
    assert least <= link_gbps(link, "measured") <= most
    assert not link.measured_is_derived
    assert name != "gh200" or link_gbps(link, "datasheet") == 450


@pytest.mark.parametrize(("name", "of"), [("gb200", "gb300"), ("rubin", "gh200")])
def test_an_unmeasured_link_takes_anothers_efficiency_and_says_so(name: str, of: str) -> None:
    link, model = load_platform(name).link, load_platform(of).link
    assert link.measured_gbps is None
    assert link.measured_is_derived
    efficiency = link_gbps(model, "measured") / link_gbps(model, "datasheet")
    assert link_gbps(link, "measured") == pytest.approx(link.datasheet_gbps * efficiency)
    assert link.source["derived_efficiency"].startswith("derived:")


def test_a_link_without_measurement_or_efficiency_offers_the_datasheet() -> None:
    link = replace(load_platform("gh200").link, measured_gbps=None)
    with pytest.raises(SettingError, match=r"link_variant='measured': expected datasheet"):
        link_gbps(link, "measured")
    with pytest.raises(SettingError, match="one of datasheet, measured"):
        link_gbps(link, "guessed")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(WANTED))
def test_every_number_says_where_it_is_from(name: str) -> None:
    platform = load_platform(name)
    for part in (platform.gpu, platform.host, platform.link):
        for field in fields(part):
            value = getattr(part, field.name)
            if isinstance(value, int | float) and value is not True:
                assert part.source[field.name], field.name


def test_the_cpu_platform_is_this_machine() -> None:
    platform = cpu_platform()
    assert platform == load_platform("cpu") == load_platform("cpu")
    assert platform.gpu.sm_count >= 1
    assert platform.gpu.hbm_bytes == platform.host.memory_bytes > 10**8
    one = slices(platform, "1xcpu")
    assert len(one) == 1
    assert one[0].sm_count == platform.gpu.sm_count


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("H100", "Did you mean h100_nvl or h100_pcie or h100_sxm?"),
        ("h100_pcie6", "Did you mean h100_nvl or h100_pcie or h100_sxm?"),
        ("NVIDIA H200", "Did you mean h200_pcie5?"),
        ("gh200-288", "Did you mean gh200 or gh200_144?"),
        *((name, "expected one of a100_40, ") for name in (
            "h2", "mi250", "l20", "t4", "rtx_3090", "tpu_v4", "gh20", "b20",
        )),
    ],
)  # fmt: skip
def test_similar_letters_mean_another_chip_so_only_its_own_code_is_suggested(
    name: str, said: str
) -> None:
    with pytest.raises(SettingError) as caught:
        load_platform(name)
    assert str(caught.value).startswith(f"hardware={name!r}: expected ")
    assert said in str(caught.value)
    assert "docs/recipes.md#a-chip" in str(caught.value)


def test_names_of_chips_are_found_case_aside() -> None:
    assert load_platform("L40S") == load_platform("l40s")
    assert Node(name="mine", gpus=("H100_SXM", "l40s")).gpus == ("h100_sxm", "l40s")
    with pytest.raises(SettingError, match=r"node\.mine\.gpus='h2': expected one of"):
        Node(name="mine", gpus=("h2", "l40s"))


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("gpu", "sm_count", 0),
        ("gpu", "sm_count", 1.5),
        ("gpu", "hbm_gbps", "fast"),
        ("gpu", "hbm_gbps", -1.0),
        ("gpu", "bf16_tflops", math.nan),
        ("gpu", "hbm_bytes", True),
        ("host", "disk_gbps", None),
        ("link", "datasheet_gbps", math.inf),
        ("link", "both_directions_gbps", 100.0),
        ("link", "measured_gbps", 500.0),
        ("link", "derived_efficiency", 1.5),
        ("link", "link_latency_s", 0),
        ("link", "no_such_field", 1),
    ],
)
def test_a_bad_value_names_file_and_field(section: str, field: str, value: object) -> None:
    data = raw("gh200")
    data[section][field] = value
    if field == "derived_efficiency":
        data[section]["source"][field] = "derived: for the test"
    with pytest.raises(SettingError) as err:
        platform_from_mapping(data, where="hardware.gh200")
    assert str(err.value).startswith(f"hardware.gh200.{section}.{field}=")


@pytest.mark.parametrize("section", ["gpu", "host", "link", "mig", "name"])
def test_a_missing_section_is_named(section: str) -> None:
    data = raw("gh200")
    del data[section]
    with pytest.raises(SettingError, match=f"^hardware.{section}"):
        platform_from_mapping(data)


@pytest.mark.parametrize("mig", ["7x12gb", 7, None, [7], {"7x12gb": 1, 3: 4}, []])
def test_layouts_are_a_list_of_names(mig: object) -> None:
    with pytest.raises(SettingError, match=r"^hardware\.(gh200\.)?mig="):
        platform_from_mapping(raw("gh200") | {"mig": mig})
    with pytest.raises(SettingError, match=r"^hardware=7: expected a mapping"):
        platform_from_mapping(7)  # type: ignore[arg-type]


def test_hydras_view_of_a_platform_gives_the_same() -> None:
    for name in platforms():
        composed = OmegaConf.load(conf_dir() / "hardware" / f"{name}.yaml")
        assert platform_from_mapping(composed) == load_platform(name)  # type: ignore[arg-type]


def test_a_missing_field_and_a_missing_source_are_named() -> None:
    data = raw("gh200")
    del data["gpu"]["l2_bytes"]
    with pytest.raises(SettingError, match=r"hardware.gpu.l2_bytes=None.*missing"):
        platform_from_mapping(data)
    data = raw("gh200")
    data["gpu"]["source"]["l2_bytes"] = "somebody told me"
    with pytest.raises(SettingError, match=r"hardware.gpu.source.l2_bytes='somebody told me'"):
        platform_from_mapping(data)


def test_conf_is_read_from_where_c2c_conf_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("hardware", "mig_table"):
        (tmp_path / group).mkdir()
    (tmp_path / "mig_table" / "driver.yaml").touch()
    data = copy.deepcopy(raw("gh200"))
    data["name"], data["gpu"]["sm_count"] = "mine", 7
    (tmp_path / "hardware" / "mine.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    (tmp_path / "hardware" / "broken.yaml").write_text("a: [", encoding="utf-8")
    (tmp_path / "hardware" / "list.yaml").write_text("- 1", encoding="utf-8")
    monkeypatch.setenv("C2C_CONF", str(tmp_path))
    assert platforms() == ("broken", "list", "mine")
    assert load_platform("mine").gpu.sm_count == 7
    data["gpu"]["sm_count"] = 8  # an edited file is never answered from an old reading
    (tmp_path / "hardware" / "mine.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    assert load_platform("mine").gpu.sm_count == 8
    with pytest.raises(DataError, match="not YAML"):
        load_platform("broken")
    with pytest.raises(DataError, match="expected a mapping"):
        load_platform("list")
    monkeypatch.setenv("C2C_CONF", str(tmp_path / "hardware"))
    with pytest.raises(SettingError, match="C2C_CONF"):
        conf_dir()


@given(
    st.sampled_from(sorted(WANTED)),
    st.floats(0.25, 4.0),
    st.floats(0.25, 4.0),
    st.floats(0.25, 4.0),
)
def test_scaling_reaches_every_slice(name: str, link: float, hbm: float, sms: float) -> None:
    before = load_platform(name)
    after = scaled(before, link=link, hbm=hbm, sms=sms)
    for variant in ("datasheet", "measured"):
        assert link_gbps(after.link, variant) == pytest.approx(
            link * link_gbps(before.link, variant)
        )
    for mig in before.mig:
        old, new = slices(before, mig)[0], slices(after, mig)[0]
        assert new.hbm_gbps == pytest.approx(hbm * old.hbm_gbps)
        assert abs(new.sm_count - sms * old.sm_count) <= 1.5
        assert new.bf16_tflops / new.sm_count == pytest.approx(old.bf16_tflops / old.sm_count)
        assert new.hbm_bytes == old.hbm_bytes
        if sms >= 1:
            assert new.sm_count >= old.sm_count
            assert new.link_cap_gbps >= old.link_cap_gbps * min(1.0, link) * (1 - 1e-12)


def test_scaling_by_one_changes_nothing_and_by_nothing_is_refused() -> None:
    platform = load_platform("gh200")
    assert scaled(platform) == platform
    doubled = scaled(platform, link=2, hbm=2, sms=2)
    assert slices(doubled, "7x12gb")[0].sm_count == 32
    assert slices(doubled, "7x12gb")[0].hbm_gbps == 1000
    assert slices(doubled, "7x12gb")[0].link_cap_gbps == 900
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(SettingError, match=r"scale.link"):
            scaled(platform, link=bad)


def test_platforms_are_values() -> None:
    assert hash(load_platform("gh200")) == hash(load_platform("gh200"))
    assert isinstance(load_platform("gh200"), Platform)
    with pytest.raises(SettingError, match=r"hardware.gh200.mig"):
        replace(load_platform("gh200"), mig=())
