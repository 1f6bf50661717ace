"""Keyword arguments of fleets, workloads and runs: the settings and errors of the command line."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from c2c import Fleet, SettingError, Workload, simulate
from c2c.config import build, load, overrides_of, quoted
from c2c.config import simulate as simulate_setup
from c2c.config.schema import RunConf
from c2c.workloads import WorkloadConfig

FEW = Workload("poisson", requests=12, rate_rps=4)
words = st.text(st.characters(codec="utf-8", exclude_characters="$", exclude_categories=["Cc"]))
numbers = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()
keys = st.text("ab1_-/.:=, ()[]{}\\").map("k{}k".format)
values = st.recursive(
    numbers | words,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(keys, some, max_size=3),
    max_leaves=6,
)


def named(kind: type) -> set[str]:
    parameters = inspect.signature(kind).parameters
    return {name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}


def test_named_parameters_are_settings() -> None:
    settings = {f.name for f in fields(RunConf)}
    assert named(Fleet) < settings
    assert named(Workload) < {f.name for f in fields(WorkloadConfig)}
    # the others are of the run, not of its fleet
    assert settings - named(Fleet) == {
        "workload", "code", "conf", "failures", "shards", "routing", "router", "slo", "scale",
        "seed", "timeline", "figures", "resume", "overwrite", "objective", "out", "folder",
    }  # fmt: skip


@given(values)
def test_a_value_comes_back_from_its_override(value: Any) -> None:
    (override,) = OverridesParser.create().parse_overrides(overrides_of({"seed": value}))
    assert override.value() == value or str(override.value()) == str(value)
    assert not override.is_sweep_override()


@pytest.mark.parametrize("text", ["a b", "it's", "${x}", r"back\slash", "c,d=e", "1e5", "null"])
def test_quoted_comes_back(text: str) -> None:
    assert load([f"out={quoted(text)}"]).out == text
    assert load(overrides_of({"out": Path(text)})).out == text


@pytest.mark.parametrize(
    ("settings", "overrides"),
    [
        ({"systm": "x"}, ["systm=x"]),
        ({"system": "x"}, ["system=x"]),
        ({"system__max_btch": 3}, ["system.max_btch=3"]),
        ({"system__scale": "x"}, ["system/scale=x"]),
        ({"superchips": 0}, ["superchips=0"]),
        ({"superchips": "two"}, ["superchips=two"]),
        ({"slo__ttft_s": -1}, ["slo.ttft_s=-1"]),
        ({"mig": ["7x12gb", "4x24gb"]}, ["mig=[7x12gb,4x24gb]"]),
        ({"catalog__models": [{"spec": "x"}]}, ["catalog.models=[{spec:x}]"]),
    ],
)
def test_errors_are_those_of_the_command_line(
    settings: dict[str, Any], overrides: list[str]
) -> None:
    with pytest.raises(SettingError) as by_words:
        build(load([*overrides, *FEW.overrides]))
    with pytest.raises(SettingError) as by_keywords:
        simulate(Fleet(**settings), FEW)
    assert str(by_keywords.value) == str(by_words.value)


def test_a_run_is_that_of_the_command_line() -> None:
    fleet = Fleet(
        system="c2cserve", mig="4x24gb", catalog="dense6", system__scale="one_instance",
        system__max_batch=4,
    )  # fmt: skip
    result = simulate(fleet, FEW, seed=3, slo__ttft_s=0.5, compiled=False)
    setup = build(load([
        "system=c2cserve", "mig=4x24gb", "catalog=dense6", "system/scale=one_instance",
        "system.max_batch=4", "workload=poisson", "workload.requests=12", "workload.rate_rps=4",
        "seed=3", "slo.ttft_s=0.5",
    ]))  # fmt: skip
    assert result.setup.settings == setup.settings
    assert result.requests == simulate_setup(setup, compiled=False).requests
    assert result.ttft.p99 == result.summary["ttft_s"]["p99"]
    assert (result.tpot.mean, result.attainment.both) == (
        result.summary["tpot_s"]["mean"], result.summary["attainment"]["both"],
    )  # fmt: skip
    again = simulate(result.setup, seed=4, compiled=False)
    assert again.requests == simulate(fleet, FEW, seed=4, slo__ttft_s=0.5, compiled=False).requests
    with pytest.raises(SettingError, match=r"workload=.*none with a setup"):
        simulate(result.setup, FEW)
    with pytest.raises(SettingError, match=r"workload='poisson': expected a Workload"):
        simulate(fleet, "poisson")  # type: ignore[arg-type]


def test_sets_and_overlays_of_settings() -> None:
    assert overrides_of({"experiment": "c2cserve/quick"}) == ["+experiment=c2cserve/quick"]
    assert overrides_of({"system__mechanism": ()}) == ["system/mechanism=[]"]
    result = simulate(Fleet(experiment="c2cserve/quick"), FEW, compiled=False)
    assert result.setup.settings["workload"]["max_requests"] == 3000


def test_a_result_shows_itself(tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    rows = (f"{at},<b>mine</b>,{2**14 if at == 1 else 9},5" for at in range(3))
    trace.write_text("\n".join(["arrival_s,model,prompt_tokens,output_tokens", *rows]))
    result = simulate(Fleet(), Workload("file", path=trace), compiled=False)
    assert result.summary["failed"] == 1  # longer than its model's context
    page = ET.fromstring(f"<div>{result._repr_html_()}</div>")
    cells = [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]
    assert [row[:3] for row in cells[1:]] == [["all", "3", "1"], ["<b>mine</b>", "3", "1"]]
    assert cells[1][3] == f"{result.ttft.p50:.3g}"
    assert len(list(page.iter("{http://www.w3.org/2000/svg}svg"))) == 2
