"""Settings: what is composed, what is refused and how it is said."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from c2c.config import check_choices, choices, load, register, spelled
from c2c.errors import SettingError
from c2c.hardware import conf_dir
from c2c.policies import DECISIONS, Feedback
from c2c.serving import SystemSpec
from c2c.workloads import WorkloadConfig


def test_schema_has_every_field_of_the_dataclasses() -> None:
    cfg = load()
    for node, cls in ((cfg.system, SystemSpec), (cfg.workload, WorkloadConfig)):
        assert {f.name for f in fields(cls)} == {k for k in node if not k.startswith("_")}
    assert set(cfg.system.alpha) == {"policy", *Feedback._fields}


def test_overrides_reach_fields_the_yaml_does_not_name() -> None:
    cfg = load(["system.max_batch=7", "system.alpha.deadband=0.5", "workload.zipf_exponent=2"])
    assert (cfg.system.max_batch, cfg.system.alpha.deadband) == (7, 0.5)
    assert cfg.workload.zipf_exponent == 2.0


def test_policies_lie_over_the_system_and_can_be_combined() -> None:
    cfg = load(["system/alpha=static", "system.alpha.initial=0.5", "system/place=random_idle"])
    assert cfg.system.alpha == {"policy": "static", "initial": 0.5}  # nothing of feedback is left
    assert cfg.system.place.policy == "random_idle"
    assert cfg.system.name == "c2cserve"


def test_every_policy_is_a_choice_in_the_group_of_its_decision() -> None:
    names = {setting: list(point.policies) for setting, point in DECISIONS.items()}
    for at in range(max(map(len, names.values()))):  # one of each decision's at a time
        chosen = {setting: of[at % len(of)] for setting, of in names.items()}
        system = load([f"system/{setting}={name}" for setting, name in chosen.items()]).system
        assert {setting: system[setting].policy for setting in chosen} == chosen


def test_command_line_wins_over_an_experiment() -> None:
    cfg = load(["+experiment=c2cserve/main_job", "catalog=dense6", "workload.compression=5"])
    assert (cfg.catalog.name, cfg.workload.compression) == ("dense6", 5.0)
    assert cfg.figures


@pytest.mark.parametrize("name", ["full", "main_job"])
def test_every_experiment_composes_with_quick(name: str) -> None:
    cfg = load([f"+experiment=[c2cserve/{name},c2cserve/quick]"])
    assert (cfg.workload.max_requests, cfg.figures) == (3000, False)
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)


def test_loading_inside_hydra_leaves_its_state() -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from c2c.config import config_dir

    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        assert load(["seed=4"]).seed == 4
        assert GlobalHydra.instance().is_initialized()
    assert not GlobalHydra.instance().is_initialized()


register()
FOLDERS = (p.relative_to(conf_dir()).as_posix() for p in conf_dir().rglob("*") if p.is_dir())
GROUPS = sorted(name for name in FOLDERS if not name.startswith("experiment/"))


@pytest.mark.parametrize("group", [*GROUPS, *(f"system/{name}" for name in DECISIONS)])
def test_several_choices_of_a_group_are_refused(group: str) -> None:
    """Hydra takes the last of a list in silence; overlays alone may be several."""
    first, last = [*choices(group), "another"][:2]
    if group == "experiment" or group == "system/mechanism":  # of which any may be there
        check_choices([f"+{group}=[{first},{choices(group)[-1]}]"])
        return
    each = f"To run each of them: c2c simulate -m {group}={first},{last}."
    for form in ("{}=[{},{}]", "+{}=[{},{}]", "{}@here=[{},{}]", "{}={},{}"):
        given = form.format(group, first, last)
        for overrides in ([given], [f"{group}={first}", given]):
            with pytest.raises(SettingError, match=re.escape(each)) as refused:
                check_choices(overrides)
            assert (refused.value.field, refused.value.allowed) == (group, "one choice")
    check_choices([f"{group}={first}", f"{group}='{first},{last}'", f"{group}=[{first}]"])
    sweeps = [f"{group}={first},{last}"]
    check_choices(["-m", *sweeps])
    check_choices(sweeps, sweep="")


def test_lists_of_settings_that_are_no_groups_pass() -> None:
    given = [
        "objective=[a,b]", "code=[a.py,b.py]", "mig.parts=[3g,4x1g]", "mig={name: x, parts: []}",
    ]  # fmt: skip
    check_choices([*given, "no override", "--config-dir=a,b", "=[a,b]", "hardware=[gh200"])


def test_choices_are_found_case_aside(tmp_path: Path) -> None:
    assert load(["hardware=L40S", "mig=Auto"]).hardware.name == "l40s"
    assert load(["system=C2CServe", "system/alpha=Priced"]).system.alpha.policy == "priced"
    assert spelled(["hardware=L40S,GH200", "-m", "out=Runs"]) == [
        "hardware=l40s,gh200", "-m", "out=Runs",
    ]  # fmt: skip
    own = tmp_path / "hardware" / "L40S.yaml"
    own.parent.mkdir()
    own.write_text("name: L40S\n")
    assert spelled(["hardware=L40S"], tmp_path) == ["hardware=L40S"]
    words = [f"--config-dir={tmp_path}", "hardware=L40S"]
    assert spelled(words) == words
