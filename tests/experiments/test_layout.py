"""The commands that cut a GPU: the vendor's names, and places that do not overlap."""

from __future__ import annotations

import re

import pytest

from c2c.config import build_layout, load
from c2c.hardware import load_platform, placed, platforms, profiles
from experiments.layout import commands, main

LAYOUTS = [(p, m) for p in platforms() for m in load_platform(p).layouts]


def cut(*overrides: str) -> str:
    (line,) = [x for x in commands(build_layout(load(overrides))) if "-cgi" in x]
    found = re.fullmatch(r"sudo nvidia-smi mig -i 0 -cgi (\S+) -C", line)
    assert found
    return found[1]


def test_unlike_slices_have_places_and_equal_ones_have_none() -> None:
    # At 0 the large slice would leave room for three small ones only.
    assert cut("mig=3g_4x1g") == "3g.48gb:4,1g.12gb:0,1g.12gb:1,1g.12gb:2,1g.12gb:3"
    assert cut("mig=7x12gb") == ",".join(["1g.12gb"] * 7)
    assert cut("hardware=h100_sxm", "mig=custom", "mig.parts=[2x2g.20gb,3g]") == (
        "2g.20gb:0,2g.20gb:2,3g.40gb:4"
    )
    assert cut("system=c2cserve") == cut("mig=7x12gb")  # auto


@pytest.mark.parametrize(("name", "mig"), LAYOUTS)
def test_every_layout_has_the_vendors_names_and_no_overlap(name: str, mig: str) -> None:
    platform = load_platform(name)
    instances = placed(platform, mig)
    known = {p.name for p in profiles(platform)}
    taken: list[int] = []
    for one in instances:
        assert one.profile.name in known
        assert platform.partition is not None
        share = one.profile.hbm_bytes / one.profile.chip.hbm_bytes
        width = max(1, round(share * platform.partition.memory_slices))
        taken += range(one.start, one.start + width)
    assert len(taken) == len(set(taken))
    assert (not instances) == mig.endswith(platform.mig[0])


def test_the_whole_gpu_needs_no_mig(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mig=1x96gb", "gpu=2"]) == 0
    assert "sudo nvidia-smi -i 2 -mig 0\n" in capsys.readouterr().out


def test_a_change_keeps_what_stays_at_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mig=3g_4x1g", "before=7x12gb", "gpu=1"]) == 0
    out = capsys.readouterr().out
    assert "# stay in service: 4x1g.12gb\n" in out
    assert [line.split("# ")[1] for line in out.splitlines() if "-dgi" in line] == [
        f"1g.12gb at {start}" for start in (4, 5, 6)
    ]
    assert "sudo nvidia-smi mig -i 1 -cgi 3g.48gb:4 -C\n" in out


def test_a_change_from_or_to_the_whole_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mig=7x12gb"]) == 0
    cut_anew = capsys.readouterr().out
    assert main(["mig=7x12gb", "before=1x96gb"]) == 0
    assert capsys.readouterr().out == cut_anew
    assert main(["mig=1x96gb", "before=7x12gb"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("sudo nvidia-smi -i 0 -mig 0")
    assert main(["mig=7x12gb", "before=7x12gb"]) == 0
    assert "takes about 0.0 s" in capsys.readouterr().out
