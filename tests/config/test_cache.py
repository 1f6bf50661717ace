"""Settings kept in the user's cache: equal to composed ones, and never stale."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.config import Settings, build, cache, checked, composed, config_dir, load
from c2c.errors import SettingError

OVERRIDES = [
    "seed=3", "system=aegaeon", "system=moe_infinity", "catalog=dense6", "workload=azure_code",
    "workload.rate_rps=2", "slo.ttft_s=1.5", "failures.mtbf_hours=.inf", "mig=7x12gb", "mig=null",
    "fleet.parts=[{hardware: gh200}, {hardware: h200}]", "workload.columns={model: m}",
    "workload.assignment_map={1: llama-3-3b}", "seed=x", "nothing=1", "hardware=GH200",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2C_CACHE", str(tmp_path))
    return tmp_path / "settings"


def no_composition() -> object:
    return patch.object(cache, "_composed", side_effect=AssertionError("composed again"))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(overrides=st.lists(st.sampled_from(OVERRIDES), max_size=3, unique=True))
def test_settings_are_those_of_load(overrides: list[str]) -> None:
    def outcome(settings: Callable[[], Settings]) -> str:
        try:
            return repr(settings())
        except SettingError as error:
            return str(error)

    expected = outcome(lambda: checked(load(overrides)))
    for _ in range(2):
        assert outcome(lambda: composed(overrides, "code")) == expected


def test_settings_are_composed_once(folder: Path) -> None:
    first = composed(["seed=3"], "code")
    with no_composition():  # type: ignore[attr-defined]
        assert composed(["seed=3"], "code") == first
        with pytest.raises(AssertionError, match="composed again"):
            composed(["seed=3"], "other code")
        with pytest.raises(AssertionError, match="composed again"):
            composed(["seed=4"], "code")
        with pytest.raises(AssertionError, match="composed again"):
            composed(["seed=3", "out=${oc.env:HOME}"], "code")
    assert build(first).seed == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"key": 1}', "\ud800"])
def test_a_damaged_file_is_composed_anew(folder: Path, text: str) -> None:
    first = composed(["seed=3"], "code")
    (file,) = folder.iterdir()
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert composed(["seed=3"], "code") == first
    with no_composition():  # type: ignore[attr-defined]
        assert composed(["seed=3"], "code") == first


def test_changed_files_of_settings_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "conf"
    shutil.copytree(config_dir(), own)
    monkeypatch.setenv("C2C_CONF", str(own))
    assert composed(["system=aegaeon"], "code")["superchips"] == 1
    text = (own / "config.yaml").read_text("utf-8")
    (own / "config.yaml").write_text(text.replace("superchips: 1", "superchips: 2"), "utf-8")
    assert composed(["system=aegaeon"], "code")["superchips"] == 2


def test_a_cache_that_cannot_be_written_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("C2C_CACHE", str(tmp_path / "file"))
    assert composed(["seed=3"], "code")["seed"] == 3


def test_a_known_command_line_imports_no_hydra() -> None:
    program = (
        "import sys; from c2c.config import build, composed;"
        "build(composed(['workload.requests=5'], 'code'));"
        "print({'hydra', 'omegaconf', 'hydra_zen'} & {*sys.modules})"
    )
    first, again = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert "hydra" in first.stdout
    assert again.stdout == "set()\n"
