"""Instances that fit together: the rule against the driver's list, and layouts of parts."""

from collections import Counter
from itertools import combinations_with_replacement, product

import pytest

from c2c.errors import SettingError
from c2c.hardware import (
    load_mig,
    load_platform,
    mig_from_mapping,
    placed,
    platforms,
    profiles,
    slices,
)
from c2c.hardware.placement import Extent, Partition, free_for, starts, where_they_go
from tests.tiers import tiered

H100 = Partition(compute_slices=7, memory_slices=8)
A30 = Partition(compute_slices=4, memory_slices=4)
# `nvidia-smi mig -lgipp` of an H100 ({starts}:size), and of an A30 in NVIDIA's guide.
PLACEMENTS = [
    (H100, Extent(1, 1), (0, 1, 2, 3, 4, 5, 6)),
    (H100, Extent(1, 2), (0, 2, 4, 6)),
    (H100, Extent(2, 2), (0, 2, 4)),
    (H100, Extent(3, 4), (0, 4)),
    (H100, Extent(4, 4), (0,)),
    (H100, Extent(7, 8), (0,)),
    (A30, Extent(1, 1), (0, 1, 2, 3)),
    (A30, Extent(2, 2), (0, 2)),
    (A30, Extent(4, 4), (0,)),
]
CHIPS = [p for p in platforms() if load_platform(p).partition is not None]


@pytest.mark.parametrize(("chip", "one", "listed"), PLACEMENTS)
def test_an_instance_starts_where_the_driver_says(
    chip: Partition, one: Extent, listed: tuple[int, ...]
) -> None:
    assert starts(one, chip) == listed


@pytest.mark.parametrize(
    ("one", "most"), [((1, 1), 7), ((1, 2), 4), ((2, 2), 3), ((3, 4), 2), ((4, 4), 1), ((7, 8), 1)]
)
def test_as_many_of_a_kind_fit_as_the_guide_says(one: tuple[int, int], most: int) -> None:
    assert free_for([], Extent(*one), H100) == most


def test_every_choice_that_exists_is_found_and_none_other() -> None:
    kinds = [one for chip, one, _ in PLACEMENTS if chip is H100]
    for n in (2, 3):
        for several in combinations_with_replacement(kinds, n):
            spans = [
                [set(range(at, at + one.memory)) for at in starts(one, H100)] for one in several
            ]
            exists = any(sum(map(len, c)) == len(set().union(*c)) for c in product(*spans))
            found = where_they_go(several, H100)
            assert (found is not None) == exists, several
            if found is not None:
                covered = [set(range(a, a + o.memory)) for a, o in zip(found, several, strict=True)]
                assert sum(map(len, covered)) == len(set().union(*covered))
                assert sum(one.compute for one in several) <= H100.compute_slices


@pytest.mark.parametrize("name", tiered(CHIPS, *list(CHIPS)[::4]))
def test_equal_layouts_are_as_many_as_fit(name: str) -> None:
    platform = load_platform(name)
    for mig in platform.mig[1:]:
        layout = load_mig(mig)
        profile = placed(platform, layout)[0].profile.name
        fitting = mig_from_mapping({"name": "custom", "parts": [profile] * layout.instances})
        assert len(slices(platform, fitting)) == layout.instances
        more = mig_from_mapping({"name": "custom", "parts": [profile] * (layout.instances + 1)})
        with pytest.raises(SettingError, match=f"Beside {fitting.instances}x{profile} there is"):
            slices(platform, more)


@pytest.mark.parametrize(
    "parts",
    [
        ["3g.48gb", "4x1g.12gb"],
        ["4g", "3g"],
        ["3g", "2x2g"],
        ["1g", "2g", "1g", "3g"],
        ["2x2g", "3x1g"],
        ["2x1g.24gb", "3g.48gb"],
    ],
)
def test_unlike_slices_have_each_their_profile(parts: list[str]) -> None:
    gh200 = load_platform("gh200")
    cut = slices(gh200, mig_from_mapping({"name": "custom", "parts": parts}))
    by_name = {p.name: p for p in profiles(gh200)}
    for one in cut:
        profile = by_name[one.name.removeprefix("gh200/")]
        assert (one.sm_count, one.hbm_bytes, one.hbm_gbps) == (
            profile.sm_count, profile.hbm_bytes, profile.hbm_gbps,
        )  # fmt: skip
    assert len(set(cut)) == len({one.name for one in cut})


def test_a_named_layout_is_its_parts_in_order() -> None:
    cut = slices(load_platform("gh200"), "3g_4x1g")
    assert [s.sm_count for s in cut] == [60, 16, 16, 16, 16]
    assert Counter(s.name for s in cut) == {"gh200/3g.48gb": 1, "gh200/1g.12gb": 4}


def test_a_combination_that_does_not_exist_names_what_fits() -> None:
    gh200 = load_platform("gh200")
    with pytest.raises(SettingError) as refused:
        slices(gh200, mig_from_mapping({"name": "custom", "parts": ["3g.48gb", "5x1g.12gb"]}))
    text = str(refused.value)
    assert "3g.48gb + 5x1g.12gb" in text
    assert "3g.48gb (4, from 0 4)" in text
    assert "Beside 3g.48gb + 4x1g.12gb there is room for nothing." in text
    with pytest.raises(SettingError, match=r"Beside 4g.48gb there is room for 3x1g.12gb or 2x1g"):
        slices(gh200, mig_from_mapping({"name": "custom", "parts": ["2x4g"]}))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["9g"], r"mig.parts='9g': expected a profile of gh200: 1g.12gb, 1g.24gb, 2g.24gb, 3g"),
        (["3g.40gb"], r"mig.parts='3g.40gb': expected a profile of gh200"),
        ([], r"mig.parts=\[\]: expected a list of profiles"),
        ("3g", r"mig.parts='3g': expected a list of profiles"),
        (["large"], r"mig.parts=\['large'\]: expected a list of profiles"),
        (["0x1g"], r"mig.parts=\['0x1g'\]: expected a list of profiles"),
    ],
)
def test_parts_that_cannot_be_read_are_named(parts: object, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        slices(load_platform("gh200"), mig_from_mapping({"name": "custom", "parts": parts}))


def test_a_chip_that_cannot_be_split_has_no_parts() -> None:
    with pytest.raises(SettingError, match=r"mig='custom': expected a layout of l40s: 1x48gb"):
        slices(load_platform("l40s"), mig_from_mapping({"name": "custom", "parts": ["1g"]}))
