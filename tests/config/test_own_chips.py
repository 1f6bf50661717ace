"""Chips, layouts, nodes and formats of the user's own: found wherever those of `conf/` are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from c2c.config import build, build_layout, load
from c2c.errors import DataError, SettingError
from c2c.hardware import (
    conf_folders,
    load_mig,
    load_node,
    load_platform,
    platforms,
    profiles,
    search_also,
    slices,
)
from c2c.workloads.formats import FORMATS, TraceFormat

SHORT = ("workload=poisson", "workload.requests=20", "timeline.rows=0")


@pytest.fixture(autouse=True)
def _own_names() -> Iterator[None]:
    yield
    search_also([])


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a folder with a chip that is cut by two layouts, and a node of two of them."""
    source = "assumption: a test"
    files = {
        "hardware/lab.yaml": {
            "defaults": ["gh200", "_self_"],
            "name": "lab",
            "gpu": {"name": "Lab", "hbm_gbps": 5000.0, "source": {"hbm_gbps": source}},
            "mig": ["whole_lab", "halves"],
            "mig_more": [],
            "mig_table": "lab_table",
        },
        "mig_table/lab_table.yaml": {
            "lab": {"3g.48gb": {"sm_count": 60, "hbm_bytes": 48 * 10**9, "source": source}}
        },
        "mig/whole_lab.yaml": {"name": "whole_lab"},
        "mig/halves.yaml": {"name": "halves", "parts": ["2x3g"]},
        "node/pair.yaml": {
            "name": "pair",
            "gpus": ["lab", "lab"],
            "links": {
                "wire": {
                    "kind": "nvlink", "gbps": 100.0, "latency_s": 1e-6,
                    "source": {"gbps": source, "latency_s": source},
                }
            },
        },
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(yaml.safe_dump(content, sort_keys=False))
    return tmp_path


@pytest.mark.parametrize(
    ("system", "layout"), [("c2cserve_plus", "halves"), ("serverlessllm", "whole_lab")]
)
def test_mig_auto_finds_own_layouts(own: Path, system: str, layout: str) -> None:
    cfg = load(["hardware=lab", "mig=auto", f"system={system}", *SHORT], folder=own)
    assert cfg.conf == [str(own)]
    assert build_layout(cfg).mig.name == layout
    setup = build(cfg)
    assert setup.serving.mig == load_mig(layout)
    assert {own / "mig", own / "mig_table"} <= set(setup.files)
    assert load_platform("lab").gpu.hbm_gbps == 5000.0  # over the values of gh200
    assert load_platform("lab").host == load_platform("gh200").host
    assert [p.name for p in profiles(setup.serving.platform)] == ["3g.48gb"]


def test_mig_planned_finds_own_layouts(own: Path) -> None:
    catalog = "catalog.models=[{spec: llama-3-3b}]"
    cfg = load(
        ["hardware=lab", "mig=planned", "mig.requests=5", "system=c2cserve_plus", catalog, *SHORT],
        folder=own,
    )
    plan = build(cfg).plan
    assert plan is not None
    assert {one.mig for one in plan.candidates} == {"whole_lab", "halves"}


def test_a_node_of_own_chips_serves(own: Path) -> None:
    told = ["system=cocoserve", "node=pair", "catalog.models=[{spec: llama-2-13b}]", *SHORT]
    setup = build(load(told, folder=own))
    assert setup.serving.platform == load_platform("lab")
    assert [p.gpu.name for p in load_node("pair").platforms] == ["Lab", "Lab"]


def test_a_chip_based_on_another_has_its_profiles(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    content = {"defaults": ["h100_sxm", "_self_"], "name": "half", "gpu": {
        "name": "Half", "sm_count": 66, "source": {"sm_count": "assumption: for the test"},
    }}  # fmt: skip
    (tmp_path / "hardware" / "half.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    models = "catalog.models=[{spec: llama-3-3b}]"
    setup = build(load(["hardware=half", "mig=3g_4x1g", models, *SHORT], folder=tmp_path))
    found = {(s.sm_count, s.hbm_bytes) for s in slices(setup.serving.platform, "3g_4x1g")}
    assert found == {(30, 42_412_802_048), (8, 10_468_982_784)}


def test_a_run_without_the_folder_does_not_find_it(own: Path) -> None:
    build_layout(load(["hardware=lab", "mig=auto", *SHORT], folder=own))
    assert "lab" in platforms()
    build_layout(load(["hardware=gh200", *SHORT]))
    assert len(conf_folders()) == 1
    assert "lab" not in platforms()
    with pytest.raises(SettingError, match=r"conf='/nowhere': expected a folder of settings"):
        build({**load(list(SHORT)), "conf": ["/nowhere"]})


def test_defaults_that_cannot_be_followed_are_refused(own: Path) -> None:
    search_also([own])
    file = own / "hardware" / "lab.yaml"
    for bases, why in (
        ("[/node/pair: x]", "expected a list of files of conf/hardware"),
        ("[lab]", "defaults include the file itself"),
    ):
        file.write_text(f"defaults: {bases}\nname: lab\n")
        with pytest.raises(DataError, match=why):
            load_platform("lab")
    for text, why in (
        ("defaults: [nothing]\nname: lab\n", "hardware='nothing'"),
        ("defaults: [l40s]\n", r"hardware\.lab\.name=None"),
        ("defaults: [l40s]\nname: lab\ngpu: {hbm_gbps: 9.0}\n", r"lab\.gpu\.source\.hbm_gbps=None"),
    ):
        file.write_text(text)
        for read in (load_platform, lambda name: build(load([f"hardware={name}"], folder=own))):
            with pytest.raises(SettingError, match=why):
                read("lab")


def test_a_format_of_ones_own_is_a_choice(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "own_lab_format.py").write_text(
        "from c2c.workloads.formats import FORMATS, TraceFormat\n"
        "FORMATS['lab'] = TraceFormat(name='lab', arrival_s='asked_at', unit='ms',\n"
        "    prompt_tokens='tokens_in', output_tokens='tokens_out')\n"
    )
    trace = tmp_path / "t.csv"
    trace.write_text("asked_at,tokens_in,tokens_out\n0,5,6\n500,7,8\n")
    told = ["workload=file", f"workload.path={trace}", "workload.format=lab", "timeline.rows=0"]
    with pytest.raises(SettingError, match=r"workload\.format='lab': expected one of auto, c2c"):
        build(load(told))
    try:
        workload = build(load(told, folder=tmp_path)).workload
        (block,) = workload.blocks()
        assert block.arrival_s.tolist() == [0.0, 0.5]
        assert isinstance(FORMATS["lab"], TraceFormat)
    finally:
        del FORMATS["lab"]
