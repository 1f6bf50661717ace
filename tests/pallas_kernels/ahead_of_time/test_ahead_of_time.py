"""The real kernels, compiled for GPUs that are not here: resources, instructions, no copy of W."""

from __future__ import annotations

import pytest

from pallas_kernels.ahead_of_time import TARGETS
from pallas_kernels.ops import OPS, programs
from tests.compiling import needs_compiler, run

pytestmark = [pytest.mark.slow, needs_compiler]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_configuration_compiles_as_it_should(target: str, op: str) -> None:
    lines = run("pallas_kernels.ahead_of_time", "--json", "--target", target, "--op", op)
    assert {line["name"]: line["problems"] for line in lines if line["problems"]} == {}
    names = {program.name for program in programs(op, TARGETS[target].sm_count)}
    assert names == {line["name"] for line in lines}
    for line in lines:
        assert line["report"]["opcodes"]["HGMMA"] > 0, line["name"]
        assert 0 < line["report"]["registers"] <= 255, line["name"]


def test_faults_are_found() -> None:
    found = run("tests.pallas_kernels.ahead_of_time.controls", limit_s=300.0)
    wrong = {name: " ".join(problems) for name, problems in found}
    assert wrong.pop("good") == ""
    for name, expected in {
        "spills": "spills",
        "multicast": "0 multicast loads, expected some",
        "opcodes": "has UTMAREDG",
        "shared": "bytes of shared memory",
        "sliced": "XLA touches a host argument",
        "scanned": "XLA touches a host argument",
    }.items():
        assert expected in wrong.pop(name), name
    assert not wrong
