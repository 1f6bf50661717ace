"""Costs of a change of a MIG layout."""

from dataclasses import replace

import pytest

from c2c.errors import SettingError
from c2c.hardware import load_platform, reconfiguration

GH200 = load_platform("gh200")


def test_creating_all_slices_takes_the_measured_times() -> None:
    change = reconfiguration(GH200, "1x96gb", "7x12gb")
    assert len(change.created) == 7
    assert not change.destroyed
    assert not change.kept
    assert change.seconds == pytest.approx(1.185 + 6 * 0.28)
    assert change.carried_from == ""
    back = reconfiguration(GH200, "7x12gb", "1x96gb")
    assert back.destroyed == change.created
    assert back.seconds == pytest.approx(7 * 0.615)


def test_instances_in_both_layouts_stay() -> None:
    same = reconfiguration(GH200, "7x12gb", "7x12gb")
    assert len(same.kept) == 7
    assert same.seconds == 0
    change = reconfiguration(GH200, "7x12gb", "3g_4x1g")
    assert [one.profile.name for one in change.kept] == ["1g.12gb"] * 4
    assert len(change.destroyed) == 3
    assert [one.profile.name for one in change.created] == ["3g.48gb"]
    assert change.seconds == pytest.approx(3 * 0.615 + 1.28)


def test_a_chip_nobody_timed_takes_anothers_times_and_says_so() -> None:
    h100 = load_platform("h100_sxm")
    change = reconfiguration(h100, "1x80gb", "7x10gb")
    assert change.carried_from == "gh200"
    assert change.seconds == pytest.approx(1.185 + 6 * 0.28)
    assert GH200.partition is not None
    timed = replace(h100, partition=GH200.partition)
    assert reconfiguration(timed, "1x80gb", "7x10gb").carried_from == ""


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(SettingError, match="hardware"):
        reconfiguration(load_platform("l40s"), "1x48gb", "1x48gb")
    with pytest.raises(SettingError, match="mig"):
        reconfiguration(GH200, "1x96gb", "7x5gb")
