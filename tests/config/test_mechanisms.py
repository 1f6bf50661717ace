"""The door of systems: layouts of several models and variants from a file, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from c2c.config import RunSetup, build, load
from c2c.config import simulate as simulated
from c2c.errors import DataError, SettingError
from c2c.policies import ByWait
from tests.simulator.worlds import requests, simulate

# Layouts of tests/simulator/lanes.py by the door: a step woven with another model's over two
# devices, and steps of two variants on two devices, with a policy that chooses.
DOOR = """\
from dataclasses import dataclass, replace
from c2c.policies import ByWait
from c2c.systems.mechanism import Mechanism
from tests.simulator.lanes import layout, on, woven

@dataclass(frozen=True)
class Settings:
    way: str
    seconds: float = 0.25

def prepare(context):
    seconds, system = context.settings.seconds, context.system
    if context.settings.way == "woven":
        assert len(context.deployments) == 2
        return replace(system, layout=woven(seconds, 0.0, 0.0, 1.0))
    step = [on(0, 0.125)]
    made = layout([step, [on(0, seconds)], step, [on(1, seconds)]], resources=2)
    return replace(system, layout=made, vary=ByWait(window_s=2.0))

SYSTEM = Mechanism(part="layout", settings=Settings, prepare=prepare, ways=("woven", "copies"))
"""
MODELS = ("llama-3-3b", "llama-3-8b")


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "mine_doors.py"
    sys.modules.pop("mine_doors", None)


def made(file: Path, *overrides: str, door: str = DOOR, models: int = 1) -> RunSetup:
    file.write_text(door)
    settings = load(
        ["system=replicas", "node=a100_l40s", "workload=poisson", f"code=[{file}]",
         "workload.requests=20", *overrides]
    )  # fmt: skip
    specs = [{"spec": m, "ttft_slo_s": 9.0, "tpot_slo_s": 9.0} for m in MODELS[:models]]
    OmegaConf.update(settings, "catalog", {"models": specs}, merge=False)
    return build(settings)


def test_a_layout_of_two_models_enters_by_the_door(doors: Path) -> None:
    setup = made(doors, "system.layout=mine_doors/woven", models=2)
    assert [k.name for k in setup.prepared.slice_kinds] == ["hot", "cold"]
    records, _, _ = simulate(setup.prepared, requests([0.0], output=11))
    assert records.finished_s[0] - records.first_token_s[0] == pytest.approx(10 * 0.25)


def test_a_layout_of_two_variants_brings_the_policy_that_chooses(doors: Path) -> None:
    system = made(doors, "system.layout=mine_doors/copies").serving.system
    assert system.layout is not None
    assert system.layout.variants == 2
    assert system.vary == ByWait(window_s=2.0)


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("layout=made, ", "", DataError, "mechanism of system.layout: it returned no SystemSpec"),
        ("return replace(s", "replace(s", DataError, "system.layout: it returned no SystemSpec"),
        ("0.125", "1 / 0", DataError, "mine_doors.py, line 16: ZeroDivisionError: division"),
        ("SYSTEM =", "OTHER =", DataError, "mine_doors: its module has no SYSTEM"),
        ('part="layout"', 'part="place"', DataError, "mechanism.part='place': expected start or"),
        ('part="layout"', 'part="start"', SettingError, "system.layout='mine_doors/copies': exp"),
        ("window_s=2.0", "window_s=-2.0", SettingError, r"system.vary.window_s=-2.0"),
    ],
)
def test_a_door_that_cannot_be_used_is_one_line(
    doors: Path, old: str, new: str, error: type[Exception], said: str
) -> None:
    assert old in DOOR
    with pytest.raises(error, match=said) as caught:
        made(doors, "system.layout=mine_doors/copies", door=DOOR.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("system", "mechanism", "setting"),
    [
        ("cocoserve", "copies", "system.layout.replicated=20"),
        ("tessera", "kernels", "system.layout.expert_bytes=0.5"),
        ("weaver", "woven", "system.layout.ratio=0.3"),
    ],
)
def test_a_mechanism_alone_is_its_system(system: str, mechanism: str, setting: str) -> None:
    """Equal records to the byte, with a setting that needs no `+`."""
    alone = ["system=composed", f"system/mechanism=[{mechanism}]"]
    found = []
    for words in ([f"system={system}"], alone):
        words += [setting, "workload=poisson", "workload.rate_rps=8", "workload.requests=20"]
        found.append(simulated(build(load(words)), compiled=False).requests)
    assert found[0].equals(found[1])


def test_changes_of_variants_are_counted_by_the_loop_not_by_a_policy() -> None:
    words = ["system=cocoserve", "workload=poisson", "workload.rate_rps=8", "workload.requests=40"]
    setup = build(load([*words, "system/vary=by_waiting", "system.vary.prompts=1"]))
    run = simulated(setup, compiled=False).summary["run"]
    assert 0 < run["variant_changes"] <= run["relayouts"]


def test_two_mechanisms_of_one_name_are_refused(tmp_path: Path) -> None:
    try:
        with pytest.raises(DataError, match=r"mechanism tessera: both c2c\.systems\.tessera and"):
            made(tmp_path / "tessera.py", "system.layout=tessera/replicas")
    finally:
        sys.modules.pop("tessera", None)
