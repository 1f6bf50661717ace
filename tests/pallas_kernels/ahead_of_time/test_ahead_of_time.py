"""The real kernels, compiled for GPUs that are not here: resources, instructions, no copy of W.

Whole where an op has changed since `python -m pallas_kernels check --record`; of the others every
eighth program for one target, another eighth each day and the other target each week of eight days.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from pallas_kernels.ahead_of_time import TARGETS
from pallas_kernels.ahead_of_time.record import TARGETS as RECORDED
from pallas_kernels.ahead_of_time.record import unchecked
from pallas_kernels.ops import OPS, programs
from tests.compiling import needs_compiler, run

pytestmark = [pytest.mark.slow, needs_compiler]

CHANGED = unchecked()
EIGHT_DAYS, TODAY = divmod(dt.datetime.now(dt.UTC).toordinal(), 8)


def compiled(ops: tuple[str, ...], targets: tuple[str, ...], part: str) -> list[Any]:
    """Compile programs, of which none may have a problem."""
    named = [word for op in ops for word in ("--op", op)]
    named += [word for target in targets for word in ("--target", target)]
    command = ("pallas_kernels.ahead_of_time", "--json", "--part", part, *named)
    lines = run(*command, limit_s=1500.0)
    assert {line["name"]: line["problems"] for line in lines if line["problems"]} == {}
    return lines


def check(
    ops: tuple[str, ...], targets: tuple[str, ...] = RECORDED, index: int = 0, of: int = 1
) -> None:
    """Compile every `of`-th program of some ops and compare with what there is.

    An H100 and an H200 both have 132 SMs and one architecture, so a few programs stand for the
    others: those of today's sixteenth must have the code that the H200 has.
    """
    lines = compiled(ops, targets, f"{index}/{of}")
    for target in targets:
        for op in ops:
            mine = [line for line in lines if (line["target"], line["op"]) == (target, op)]
            wanted = programs(op, TARGETS[target].sm_count)[index::of]
            assert [line["name"] for line in mine] == [program.name for program in wanted]
            for line, program in zip(mine, wanted, strict=True):
                counted, multiplies = line["report"]["opcodes"], "HGMMA" in program.opcodes
                assert multiplies == (op != "gather_rows")
                assert (counted.get("HGMMA", 0) > 0) == multiplies, line["name"]
                assert (line["report"]["registers_wanted"] > 0) == multiplies, line["name"]
    if "h200" not in targets:
        return
    code = {
        (line["op"], line["name"]): line["report"]["code_hash"]
        for line in lines
        if line["target"] == "h200"
    }
    assert TARGETS["h100"].sm_count == TARGETS["h200"].sm_count
    others = compiled(ops, ("h100",), f"{TODAY}/16")
    assert {line["op"] for line in others} == set(ops)
    for line in others:
        assert line["report"]["code_hash"] == code[line["op"], line["name"]], line["name"]
    assert len(set(code.values())) > 1  # the hash tells code apart


@pytest.mark.parametrize("op", CHANGED)
def test_every_configuration_of_a_changed_op_compiles_as_it_should(op: str) -> None:
    check((op,))


def test_an_eighth_of_all_others_compiles_as_it_should() -> None:
    others = tuple(op for op in OPS if op not in CHANGED)
    if not others:
        pytest.skip("every op has changed: all are compiled whole")
    check(others, (RECORDED[EIGHT_DAYS % 2],), TODAY, 8)


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
