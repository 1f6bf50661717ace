"""The real kernels, compiled for GPUs that are not here: resources, instructions, no copy of W."""

from __future__ import annotations

import pytest

from pallas_kernels.ahead_of_time import TARGETS
from pallas_kernels.ops import OPS, programs
from tests.compiling import needs_compiler, run

pytestmark = [pytest.mark.slow, needs_compiler]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("target", ["h200", "h200_16sm"])
def test_every_configuration_compiles_as_it_should(target: str, op: str) -> None:
    lines = run("pallas_kernels.ahead_of_time", "--json", "--target", target, "--op", op)
    assert {line["name"]: line["problems"] for line in lines if line["problems"]} == {}
    found = {program.name: program for program in programs(op, TARGETS[target].sm_count)}
    assert found.keys() == {line["name"] for line in lines}
    for line in lines:
        counted, multiplies = line["report"]["opcodes"], "HGMMA" in found[line["name"]].opcodes
        assert multiplies == (op != "gather_rows")
        assert (counted.get("HGMMA", 0) > 0) == multiplies, line["name"]
        assert (line["report"]["registers_wanted"] > 0) == multiplies, line["name"]


@pytest.mark.parametrize("op", OPS)
def test_an_h100_runs_the_code_of_an_h200(op: str) -> None:
    # Both have 132 SMs and one architecture, so every eighth program stands for the others.
    assert TARGETS["h100"].sm_count == TARGETS["h200"].sm_count
    both = ("--target", "h200", "--target", "h100")
    lines = run("pallas_kernels.ahead_of_time", "--json", *both, "--op", op, "--part", "0/8")
    assert {line["name"]: line["problems"] for line in lines if line["problems"]} == {}
    code = {(line["target"], line["name"]): line["report"]["code_hash"] for line in lines}
    names = [program.name for program in programs(op, TARGETS["h100"].sm_count)[::8]]
    assert [code["h100", name] for name in names] == [code["h200", name] for name in names]
    assert len(set(code.values())) > 1  # the hash tells code apart


def test_faults_are_found() -> None:
    found = run("tests.pallas_kernels.ahead_of_time.controls", limit_s=300.0)
    wrong = {name: " ".join(problems) for name, problems in found}
    assert wrong.pop("good") == ""
    for name, expected in {
        "spills": "spills",
        "registers": "ask for 552 registers of 504",
        "multicast": "0 multicast loads, expected some",
        "opcodes": "has UTMAREDG",
        "shared": "bytes of shared memory",
        "sliced": "XLA touches a host argument",
        "scanned": "XLA touches a host argument",
    }.items():
        assert expected in wrong.pop(name), name
    assert not wrong
